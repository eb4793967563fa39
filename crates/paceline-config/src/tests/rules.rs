//! Rules about answers.

use http::HeaderMap;
use paceline_core::{Class, Timestamp};
use paceline_providers::Answer;

use super::*;

#[test]
fn a_rule_by_text_is_named_by_its_place() {
    let file = "[upstream.x]\nbase_url = 'http://a'\n[[upstream.x.rule]]\nmatch = { status = 200, contains = 'Please log in' }\nclass = 'account'\nscope = 'host'";
    let x = Overrides { upstream: Some("x".to_owned()), ..Overrides::default() };
    let found = upstream(file, &[], x).expect("all well");
    let row = found.effective.iter().find(|row| row.key == "rule 1").expect("it is shown");
    assert_eq!(row.value, "status 200, contains Please log in -> account");
    let read = |body: &[u8]| {
        let answer = Answer { status: 200, headers: &HeaderMap::new(), body, path: "/" };
        found.dialect.read(&answer, Timestamp::from_millis(0))
    };
    let reading = read(b"<h1>Please log in</h1>");
    assert_eq!((reading.class, reading.is_by_user()), (Class::Account, true));
    assert!(reading.rule().starts_with("rule 1 (") && reading.rule().ends_with(", line 5)"), "{}", reading.rule());
    assert_eq!(read(b"<h1>Welcome</h1>").class, Class::Success);
}

#[test]
fn rules_that_say_too_little_are_refused() {
    for rule in [
        "class = 'transient'",
        "match = { status = 400 }",
        "match = { equals = 'x' }\nclass = 'transient'",
        "match = { status = 400, equals = 'x' }\nclass = 'transient'",
        "match = { status = '599-500' }\nclass = 'transient'",
        "match = { status = 99 }\nclass = 'transient'",
        "match = { pointer = 'a' }\nclass = 'transient'",
        "match = { pointer = '/a', header = 'b' }\nclass = 'transient'",
        "match = { code = 'a', pointer = '/b' }\nclass = 'transient'",
        "match = { code = 'a', equals = 'b' }\nclass = 'transient'",
        "match = { header = 'a b' }\nclass = 'transient'",
        "match = { body = 'html' }\nclass = 'transient'",
        "match = { body = 'not_json', code = 'a' }\nclass = 'transient'",
        "match = { body = 'not_json', equals = 'a' }\nclass = 'transient'",
        "match = { contains = 'a', body = 'not_json' }\nclass = 'transient'",
        "match = { contains = 'a', header = 'b' }\nclass = 'transient'",
        "match = { contains = 'a', equals = 'b' }\nclass = 'transient'",
        "match = { contains = ' ' }\nclass = 'transient'",
        "match = { status = 400 }\nclass = 'abandoned'",
        "match = { status = 400 }\nclass = 'transient'\nscope = 'planet'",
    ] {
        let message = refused(&format!("[upstream.openai]\n[[upstream.openai.rule]]\n{rule}"), &[], openai());
        assert!(message.contains("upstream.openai.rule 1."), "{message}");
    }
}
