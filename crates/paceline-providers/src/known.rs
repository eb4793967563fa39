//! The answers that the tables know, built in each provider's shape, must be read as the tables say.

use http::{HeaderMap, HeaderValue};
use paceline_core::{Class, Timestamp};

use super::table::{ErrorFields, KnownAnswer};
use super::{Answer, Provider, Reading, read};

/// Noon of Fri, 20 Nov 2026.
const NOW: Timestamp = Timestamp::from_millis(1_795_176_000_000);

fn read_known(provider: Provider, known: &KnownAnswer) -> Reading {
    let shape = &provider.table().errors;
    let mut headers = HeaderMap::from_iter(shape.headers.iter().cloned());
    if let (Some(name), Some(code)) = (&shape.code_header, &known.code) {
        headers.insert(name, code.parse().expect("printable"));
    }
    let content_type = shape.content_type.as_deref().unwrap_or("application/json");
    headers.insert("content-type", HeaderValue::from_str(content_type).expect("printable"));
    let body = shape.render(&ErrorFields {
        status: known.status,
        code: known.code.as_deref(),
        error_type: known.error_type.as_deref(),
        message: known.message.as_deref(),
        wait: None,
    });
    read(provider, &Answer { status: known.status, headers: &headers, body: body.as_bytes(), path: "" }, NOW)
}

#[test]
fn every_known_answer_means_what_its_table_says() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for provider in Provider::ALL {
        for known in &provider.table().answers {
            count += 1;
            let reading = read_known(provider, known);
            let wait_ok = known.wait.is_none_or(|wait| reading.wait == Some(wait));
            if reading.class != known.class || !wait_ok {
                wrong.push(format!("{provider}: {known:?}\n{reading:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 200, "only {count} answers");
}

#[test]
fn every_class_of_a_table_can_be_answered() {
    for provider in Provider::ALL {
        let table = provider.table();
        assert!(!table.about.is_empty() && !table.limits_belong_to.is_empty(), "{provider}");
        assert!(table.answers.iter().any(|known| known.class == Class::Throttled), "{provider}");
    }
}
