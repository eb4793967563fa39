use super::*;
use paceline_gateway::{ClientConfig, KeyHash};
use paceline_store::CustomId;

fn at_h() -> Addresses {
    Addresses { base: "http://h".to_owned(), api: None, hosts: false }
}

fn batch(provider: Provider) -> Format {
    Format::of(FormatFlag::Batch, None, b"", provider, &at_h()).expect("needs nothing")
}

fn read(provider: Provider, line: &str) -> Result<Line<'_>, LineError> {
    batch(provider).read(line.as_bytes(), 7)
}

fn error(provider: Provider, line: &str) -> String {
    read(provider, line).map(|_| ()).expect_err(line).to_string()
}

#[test]
fn a_list_of_web_addresses_is_told_the_flag_that_reads_it() {
    let told = "line 7: invalid_json_line: a web address, where a JSON object was expected: add --format text";
    assert_eq!(error(Provider::Generic, "https://one.example/page"), told);
}

#[test]
fn fields_are_checked_before_anything_is_sent() {
    for (line, expected) in [
        (
            "{",
            "invalid_json_line: the line ends inside an object; each object stands on one line, which jq -c . FILE makes of one that does not",
        ),
        ("[]", "invalid_json_line: an array: expected one request object a line (jq -c '.[]' makes them of an array)"),
        (
            "7",
            "invalid_json_line: not a request object: expected one JSON object a line, \
             {\"custom_id\":\"1\",\"url\":\"/v1/chat/completions\",\"body\":{...}}, {\"custom_id\":\"1\",\"params\":{...}} or a body \
             alone, {\"model\":\"m\",...}; for a table use --format csv; for a list of web addresses --format text, of prompts \
             --format text with --model; jq -c . FILE puts each object on one line, jq -Rc \
             '{model:\"m\",messages:[{role:\"user\",content:.}]}' FILE makes a body of each line",
        ),
        (r#"{"custom_id":"a","url":"/x","body":{},"url":"/y"}"#, "invalid_json_line: duplicate key `url`"),
        (
            r#"{"custom_id":"a","url":"/x","body":{"model":"m","model":"n"}}"#,
            "invalid_json_line: body: duplicate key `model`",
        ),
        (
            r#"{"custom_id":true,"url":"/x","body":{}}"#,
            "invalid_custom_id: custom_id: expected a string or an integer of at most 64 bits",
        ),
        (
            r#"{"custom_id":99999999999999999999,"url":"/x","body":{}}"#,
            "invalid_custom_id: custom_id: expected a string or an integer of at most 64 bits",
        ),
        (
            r#"{"url":"/x","body":{}}"#,
            "missing_custom_id: custom_id: missing or empty: every line needs its own custom_id",
        ),
        (
            r#"{"custom_id":"","url":"/x","body":{}}"#,
            "missing_custom_id: custom_id: missing or empty: every line needs its own custom_id",
        ),
        (
            r#"{"custom_id":"a","body":{}}"#,
            "invalid_url: url: missing: expected a path such as /v1/chat/completions, or --endpoint PATH for lines that \
             are bodies",
        ),
        (r#"{"custom_id":"a","url":7,"body":{}}"#, "invalid_url: url: expected a string"),
        (
            r#"{"custom_id":"a","url":"/x"}"#,
            "invalid_body: body: missing: a POST request needs JSON, or null for none; for a GET set method to GET",
        ),
        (
            r#"{"custom_id":"a","method":"GET","url":"/x","body":{}}"#,
            "invalid_body: body: a GET request has no body: put its parameters into url",
        ),
        (
            r#"{"custom_id":"a","method":"gett","url":"/x"}"#,
            "invalid_method: method: \"gett\": expected GET, HEAD, POST, PUT, PATCH or DELETE",
        ),
        (
            r#"{"custom_id":"a","url":"/x","body":{},"headers":{"host":"y"}}"#,
            "invalid_headers: headers: `host` cannot be set: the connection sets it",
        ),
        (
            r#"{"custom_id":"a","url":"/x","body":[],"headers":{"content-type":"text/plain"}}"#,
            "invalid_body: body: expected a string, because its content-type is not JSON",
        ),
    ] {
        assert_eq!(error(Provider::Generic, line), format!("line 7: {expected}"));
    }
    let error = batch(Provider::Generic).read(b"{\"a\":\"\xff\"}", 7).expect_err("no text");
    let told = "line 7: invalid_json_line: not UTF-8 at column 7; save the file as UTF-8 (iconv -f latin1 -t utf-8)";
    assert_eq!(error.to_string(), told);
}

#[test]
fn a_language_model_takes_objects_and_other_apis_any_json() {
    for (body, sent) in [("[1, 2]", "[1, 2]"), ("\"x\"", "\"x\""), ("null", ""), ("0", "0"), ("{ }", "{ }")] {
        let line = format!(r#"{{"custom_id":"a","url":"/x","body":{body}}}"#);
        assert_eq!(read(Provider::Generic, &line).expect("any JSON").body, sent);
        assert_eq!(read(Provider::OpenAi, &line).is_ok(), body.starts_with('{'), "{body}");
    }
    let form =
        r#"{"custom_id":1,"url":"/x","body":"a=\u00e4&b","headers":{"content-type":"text/plain; charset=utf-8"}}"#;
    assert_eq!(read(Provider::Generic, form).expect("plain text").body, "a=ä&b");
}

#[test]
fn methods_without_a_body_are_known_by_their_line() {
    for method in ["GET", "HEAD", "DELETE"] {
        let text = format!(r#"{{"custom_id":3,"method":"{method}","url":"/x?y=1"}}"#);
        let line = read(Provider::OpenAi, &text).expect("a good line");
        assert_eq!((line.method.as_str(), &*line.body, line.hashed), (method, "", text.as_bytes()));
    }
}

#[test]
fn the_body_keeps_its_bytes_and_the_line_its_metadata() {
    let text =
        r#"{"custom_id":-3,"url":"/x","body":{ "model" : "m", "x":1e400 },"metadata":{"label":"slow", "n":[1.0]}}"#;
    let line = read(Provider::OpenAi, text).expect("a good line");
    assert_eq!(line.body, r#"{ "model" : "m", "x":1e400 }"#);
    assert_eq!(line.hashed, line.body.as_bytes());
    assert_eq!((line.model.as_deref(), line.label.as_deref()), (Some("m"), Some("slow")));
    assert_eq!(line.metadata.map(|it| it.get()), Some(r#"{"label":"slow", "n":[1.0]}"#));
    assert_eq!(line.custom_id, CustomId::Number((-3).into()));
}

#[test]
fn an_id_is_found_in_whatever_can_be_read() {
    for (line, expected) in
        [(r#"{"custom_id":"a","url":7}"#, "a"), (r#"{"custom_id":7}"#, "7"), ("{}", "line-5"), ("\u{1}", "line-5")]
    {
        assert_eq!(line::custom_id(line.as_bytes(), 5).to_string(), expected);
    }
}

/// A key for OpenAI in the environment chooses its address for all lines.
#[test]
fn lines_of_anthropics_batches_do_not_go_to_openai() {
    let at_openai = Addresses { base: Provider::OpenAi.base_url().expect("known").to_owned(), ..at_h() };
    let line = br#"{"custom_id":"a","params":{}}"#;
    let of = |provider, addresses: &Addresses| Format::of(FormatFlag::Auto, None, line, provider, addresses);
    let refused = of(Provider::OpenAi, &at_openai).expect_err("refused");
    assert!(refused.contains("https://api.openai.com/v1") && refused.contains("--upstream anthropic"), "{refused}");
    assert!(of(Provider::OpenAi, &at_h()).is_ok(), "a proxy may take them");
    assert!(of(Provider::Anthropic, &at_openai).is_ok());
}

#[test]
fn the_first_line_decides_the_form_unless_the_user_says_it() {
    let chosen = |flag, endpoint, first: &str, provider| {
        let format = Format::of(flag, endpoint, first.as_bytes(), provider, &at_h())?;
        Ok::<_, String>(format!("{} {}", format.name(), format.endpoint()).trim_end().to_owned())
    };
    use FormatFlag::{Anthropic, Auto, Bare, Batch};
    use Provider::{Anthropic as Claude, Generic, OpenAi};
    for (flag, endpoint, first, provider, expected) in [
        (Auto, None, r#"{"custom_id":"a","url":"/x","body":{"model":"m"}}"#, OpenAi, "batch"),
        (Auto, None, r#"{"model":"m","messages":[]}"#, OpenAi, "bare /v1/chat/completions"),
        (Auto, None, r#"{"custom_id":"a","messages":[]}"#, Claude, "bare /v1/messages"),
        (Auto, None, r#"{"custom_id":"a","params":{}}"#, Claude, "anthropic /v1/messages"),
        (Auto, None, r#"{"custom_id":"a","params":{}}"#, Generic, "anthropic /v1/messages"),
        (Auto, None, r#"{"custom_id":"a","url":"/x","params":{}}"#, Claude, "batch"),
        (Auto, None, "{}", OpenAi, "batch"),
        (Auto, None, "no json", OpenAi, "batch"),
        (Auto, Some("/v1/embeddings"), r#"{"model":"m","input":"x"}"#, OpenAi, "bare /v1/embeddings"),
        (Auto, Some("http://h/crawl"), r#"{"url":"https://example.com"}"#, Generic, "bare /crawl"),
        (
            Auto,
            Some("/anthropic/messages"),
            r#"{"custom_id":"a","params":{}}"#,
            Claude,
            "anthropic /anthropic/messages",
        ),
        (Batch, None, r#"{"model":"m"}"#, OpenAi, "batch"),
        (Bare, Some("/x"), r#"{"url":"/x","body":{}}"#, Generic, "bare /x"),
        (Anthropic, None, "", Generic, "anthropic /v1/messages"),
    ] {
        assert_eq!(chosen(flag, endpoint, first, provider).as_deref(), Ok(expected), "{first}");
    }
    for (flag, endpoint, first, expected) in [
        (Auto, None, r#"{"model":"m"}"#, "because its first line has `model`, and a generic API"),
        (Bare, None, "", "by --format"),
        (Batch, Some("/x"), "", "each batch line has its own url"),
        (Auto, Some("/x"), r#"{"custom_id":1,"url":"/x","body":{}}"#, "leave out --endpoint"),
        (Bare, Some("https://evil/x"), "", "--endpoint `https://evil/x` is not below"),
        (Bare, Some(""), "", "--endpoint missing"),
    ] {
        let error = chosen(flag, endpoint, first, Generic).expect_err(first);
        assert!(error.contains(expected), "{expected} in {error}");
    }
}

#[test]
fn a_line_of_another_form_is_refused_with_the_reason_for_this_one() {
    let (batch, bare) = (r#"{"custom_id":"a","url":"/x","body":{}}"#, r#"{"model":"m","messages":[]}"#);
    let anthropic = r#"{"custom_id":"a","params":{"model":"m"}}"#;
    let read = |flag, first: &str, line: &str| {
        let format = Format::of(flag, None, first.as_bytes(), Provider::OpenAi, &at_h()).expect("all have an endpoint");
        format.read(line.as_bytes(), 2).map(|_| ()).map_err(|error| (error.code, error.message))
    };
    for (first, other) in
        [(batch, bare), (batch, anthropic), (bare, batch), (bare, anthropic), (anthropic, batch), (anthropic, bare)]
    {
        let (code, message) = read(FormatFlag::Auto, first, other).expect_err(other);
        assert_eq!(code, "format_mismatch");
        assert!(message.contains("because its first line has `"), "{message}");
        assert_eq!(read(FormatFlag::Auto, first, first), Ok(()));
    }
    assert_eq!(read(FormatFlag::Bare, batch, batch), Ok(()), "a body may have any keys, if the user says so");
    assert_eq!(read(FormatFlag::Auto, bare, r#"{"model":"m","url":"https://x"}"#), Ok(()));
    assert_eq!(read(FormatFlag::Auto, batch, r#"{"custom_id":"a"}"#).expect_err("no url").0, "invalid_url");
}

#[test]
fn bare_bodies_leave_without_what_is_ours() {
    let format = Format::of(FormatFlag::Bare, Some("/x"), b"", Provider::Generic, &at_h()).expect("an endpoint");
    for (text, id, sent) in [
        (r#"{ "model" : "m", "n":1.0 }"#, "line-5", r#"{ "model" : "m", "n":1.0 }"#),
        (r#"{"custom_id":"a","model":"m"}"#, "a", r#"{"model":"m"}"#),
        (
            r#"{"a\"b": [1.0, 2] ,"metadata":{"label":"l"},"model":"m","custom_id":7}"#,
            "7",
            r#"{"a\"b":[1.0, 2],"model":"m"}"#,
        ),
        (r#"{"metadata":null,"custom_id":"","model":"m"}"#, "line-5", r#"{"model":"m"}"#),
    ] {
        let line = format.read(text.as_bytes(), 5).expect(text);
        assert_eq!((line.custom_id.to_string().as_str(), &*line.body), (id, sent));
        assert_eq!((line.model.as_deref(), line.hashed), (Some("m"), text.as_bytes()));
        assert_eq!(line.metadata.is_some(), line.label.is_some());
    }
}

#[test]
fn params_are_the_body() {
    let format = Format::of(FormatFlag::Anthropic, None, b"", Provider::Anthropic, &at_h()).expect("an endpoint");
    let line =
        format.read(br#"{"custom_id":"a","params":{"model": "m", "metadata":{"user_id":"u"}}}"#, 1).expect("good");
    assert_eq!((&*line.url, &*line.body), ("/v1/messages", r#"{"model": "m", "metadata":{"user_id":"u"}}"#));
    assert_eq!((line.model.as_deref(), line.metadata.is_none()), (Some("m"), true));
    for (line, code) in [
        (r#"{"custom_id":"a"}"#, "invalid_params"),
        (r#"{"custom_id":"a","params":[]}"#, "invalid_params"),
        (r#"{"params":{}}"#, "missing_custom_id"),
        (r#"{"custom_id":"a","params":{"x":1,"x":2}}"#, "invalid_json_line"),
    ] {
        assert_eq!(format.read(line.as_bytes(), 1).map(|_| ()).expect_err(line).code, code);
    }
}

#[test]
fn no_line_of_a_batch_names_a_model_by_the_key_of_a_client() {
    let key = format!("pl_{}", "ab".repeat(KeyHash::RANDOM));
    let client = ClientConfig {
        name: "ci".to_owned(),
        key: KeyHash::of(&key),
        limits: None,
        models: Vec::new(),
        paths: Vec::new(),
        is_batch: false,
        former: None,
    };
    let clients = Clients::with_keys(vec![client], &Clients::OfThisMachine).expect("no limits");
    let format =
        Format::of_hosted_batch("/v1/chat/completions", Provider::OpenAi, &at_h(), Arc::new(clients)).expect("a path");
    for (id, body, is_right) in [
        ("a", r#"{"model":"m","messages":["KEY"]}"#, true),
        ("a", r#"{"model":"KEY"}"#, false),
        ("KEY", r#"{"model":"m"}"#, false),
        ("a", r#"{"model":"m","Model":"KEY"}"#, false),
        ("a", r#"{"model":"m","extra_body":{"fallbacks":["KEY"]}}"#, false),
    ] {
        let line = format!(r#"{{"custom_id":"{id}","method":"POST","url":"/v1/chat/completions","body":{body}}}"#);
        let read = format.read(line.replace("KEY", &key).as_bytes(), 7).map(|_| ()).map_err(|error| error.to_string());
        assert!(
            read.as_ref().map_or_else(|error| !is_right && error.contains(SHOWS_A_KEY), |()| is_right),
            "{line}: {read:?}"
        );
    }
}
