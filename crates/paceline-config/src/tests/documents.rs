//! The documentation and the JSON Schema tell the truth.

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/configuration.md");
const SCHEMA: &str = include_str!("../../../../docs/paceline.schema.json");

#[test]
fn the_schema_is_the_committed_one() {
    assert_eq!(json_schema(), SCHEMA, "run: cargo run -p paceline --example schema > docs/paceline.schema.json");
}

/// The code blocks of the documentation that open with this line.
fn samples(opening: &str) -> Vec<&'static str> {
    DOCUMENT.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix(opening)).collect()
}

#[test]
fn the_documentations_samples_are_right_or_wrong_as_it_says() {
    let (right, wrong) = (samples("toml\n"), samples("toml wrong\n"));
    assert!(right.len() >= 3 && wrong.len() >= 5);
    for sample in right {
        let config =
            Config::parse("sample".as_ref(), sample, Environment::default(), Overrides::default()).expect(sample);
        for name in config.names() {
            let flags = Overrides { upstream: Some(name.to_owned()), ..Overrides::default() };
            upstream(sample, &[], flags).expect(sample);
        }
    }
    for sample in wrong {
        assert!(upstream(sample, &[], openai()).is_err(), "{sample}");
    }
}

#[test]
fn the_documentations_messages_are_the_real_ones() {
    let messages = samples("text\n");
    let said: Vec<&str> = messages[0].lines().collect();
    let flags = Overrides { limits: vec!["ten rpm".to_owned()], ..openai() };
    assert_eq!(
        said,
        [
            refused("", &[("OPENAI_BURST_LIMIT", "0")], openai()),
            refused("[upstream.openai]\nrpm = 5\nburst = 1\nretry = { base = '90s' }", &[], openai()),
            refused("", &[], flags),
        ]
    );
}

/// The cells of the table rows whose first cell is `key`.
fn documented(key: &str) -> Option<Vec<&'static str>> {
    let cells = |line: &'static str| line.split('|').map(str::trim).skip(1).collect::<Vec<_>>();
    let named =
        |cells: &Vec<&str>| cells.first().is_some_and(|first| first.split(", ").any(|name| name == format!("`{key}`")));
    DOCUMENT.lines().filter(|line| line.starts_with("| `")).map(cells).find(named)
}

/// The defaults of the pace `auto`, and of the knobs that only other paces have.
fn defaults() -> Vec<EffectiveValue> {
    let of = |pace: &str, keys: &[&str]| {
        let found = upstream(&format!("[upstream.openai]\npace = '{pace}'"), &[], openai()).expect("all well");
        let mut rows = found.effective;
        rows.retain(|row| keys.iter().any(|key| row.key.starts_with(key)));
        rows
    };
    let mut rows = upstream("", &[], openai()).expect("all well").effective;
    rows.extend(of("responsive", &["responsive."]));
    rows.extend(of("aimd", &["concurrency.kind", "concurrency.floor", "concurrency.start"]));
    rows.retain(|row| row.source == Source::Default && row.key != "provider");
    rows
}

#[test]
fn every_default_is_documented_as_it_is() {
    for row in defaults() {
        let cells = documented(&row.key).unwrap_or_else(|| panic!("{} is not documented", row.key));
        assert_eq!(cells[2], format!("`{}`", row.value), "{}", row.key);
    }
    for (variable, default) in preset::VARIABLES {
        assert_eq!(documented(variable).expect(variable)[2], format!("`{default}`"));
    }
}

#[test]
fn the_schema_tells_the_real_defaults() {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
    for row in defaults().into_iter().filter(|row| row.value != "none") {
        let (section, key) = match row.key.split_once('.') {
            Some(("concurrency", key)) => ("ConcurrencySection", key),
            Some(("retry", key)) => ("RetrySection", key),
            Some(("responsive", key)) => ("ResponsiveSection", key),
            Some((_, key)) => ("BreakerSection", key),
            None => ("UpstreamSection", row.key.as_str()),
        };
        let description = schema["$defs"][section]["properties"][key]["description"].as_str().expect(key);
        let plain = description.replace('`', "");
        let (_, default) = plain.split_once("Default: ").expect(key);
        assert!(default.starts_with(&row.value), "{}: {default:?} is not {}", row.key, row.value);
    }
}

#[test]
fn every_key_of_the_schema_is_documented() {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
    let keys = |section: &str| {
        let properties = schema["$defs"][section]["properties"].as_object().expect(section);
        properties.keys().cloned().collect::<Vec<_>>()
    };
    for (section, prefix) in [
        ("UpstreamSection", ""),
        ("ConcurrencySection", "concurrency."),
        ("RetrySection", "retry."),
        ("ResponsiveSection", "responsive."),
        ("BreakerSection", "breaker."),
        ("ChargeSection", "charge."),
        ("HeaderSection", ""),
    ] {
        let tables = ["retry", "responsive", "breaker", "tier", "rule", "header", "charge"];
        for key in keys(section).into_iter().filter(|key| !tables.contains(&key.as_str())) {
            assert!(documented(&format!("{prefix}{key}")).is_some(), "{prefix}{key} is not documented");
        }
    }
}
