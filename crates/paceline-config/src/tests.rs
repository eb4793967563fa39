//! The rules of the whole: who wins, what is refused and how it is said, and that the documentation tells the truth.

use std::time::Duration;

use paceline_core::{
    Class, Concurrency, Cost, Dimension, Growth, Jitter, Outcome, Pace, Quota, QuotaShape, Request, ResponsiveConfig,
};
use proptest::{prop_assert, proptest};

use paceline_core::{Admit, Event, Instant, Pacer, PacerConfig};

use super::*;

const DOCUMENT: &str = include_str!("../../../docs/configuration.md");
const SCHEMA: &str = include_str!("../../../docs/paceline.schema.json");

/// An upstream from the three layers; `flags` is filled in by the test.
fn upstream(file: &str, variables: &[(&str, &str)], flags: Overrides) -> Result<Upstream, SettingError> {
    Config::parse("paceline.toml".as_ref(), file, variables.iter().copied().collect(), flags)?.upstream()
}

fn openai() -> Overrides {
    Overrides { upstream: Some("openai".to_owned()), ..Overrides::default() }
}

fn refused(file: &str, variables: &[(&str, &str)], flags: Overrides) -> String {
    upstream(file, variables, flags).expect_err("a mistake").to_string()
}

fn source<'a>(upstream: &'a Upstream, key: &str) -> &'a Source {
    &upstream.effective.iter().find(|row| row.key == key).expect("a row for every knob").source
}

fn minutes(limit: u64) -> Quota {
    Quota::requests_per_minute(limit)
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn flag_over_environment_over_file_over_preset_over_default() {
    let file = "[upstream.openai]\nrpm = 400\n";
    let preset = ("OPENAI_BURST_LIMIT", "3");
    let variable = ("PACELINE_UPSTREAM__OPENAI__RPM", "300");
    let flag = Overrides { limits: vec!["200rpm".to_owned()], ..openai() };
    let at = Source::File { path: "paceline.toml".into(), line: Some(2) };
    for (file, variables, flags, limit, origin) in [
        ("", &[preset][..], openai(), 50, Source::Preset("openai-app")),
        (file, &[preset][..], openai(), 400, at),
        (file, &[preset, variable][..], openai(), 300, Source::Environment(variable.0.to_owned())),
        (file, &[preset, variable][..], flag, 200, Source::Flag("--limit")),
    ] {
        let upstream = upstream(file, variables, flags).expect("all well");
        assert_eq!(upstream.pacer.limits.quotas[0], minutes(limit));
        assert_eq!(*source(&upstream, "rpm"), origin);
    }
    let plain = upstream("", &[], openai()).expect("all well");
    assert!(plain.pacer.limits.quotas.is_empty());
    assert_eq!(*source(&plain, "limits"), Source::Default);
    assert_eq!(plain.pacer, PacerConfig::default());
}

#[test]
fn different_limits_add_up_and_the_same_one_twice_is_a_mistake() {
    let file = "[upstream.openai]\nrpm = 500\nlimits = ['90 per 10s', '1M tokens per 1h']";
    let flags = Overrides { limits: vec!["80/10s".to_owned(), "7 concurrent".to_owned()], ..openai() };
    let both = upstream(file, &[], flags).expect("all well");
    let expected = [
        minutes(500),
        Quota::sliding(Dimension::Requests, 80, seconds(10)),
        Quota::sliding(Dimension::Tokens, 1_000_000, seconds(3_600)),
    ];
    assert_eq!(both.pacer.limits.quotas, expected);
    assert!(both.pacer.limits.quotas.iter().all(|quota| quota.shape == QuotaShape::Sliding));
    assert_eq!(both.pacer.concurrency, Concurrency::Fixed { max: 7 });
    assert_eq!(
        refused("[upstream.openai]\nrpm = 500\nlimits = ['400rpm']", &[], openai()),
        "upstream.openai.limits = \"400rpm\" (from paceline.toml, line 3): \
         expected one value for this limit, which paceline.toml, line 2 gives as \"500\""
    );
}

#[test]
fn the_six_variables_act_together_or_not_at_all() {
    let one = upstream("", &[("OPENAI_REQUESTS_PER_HOUR", "5")], openai()).expect("all well");
    assert_eq!(one.pacer.pace, Pace::Fixed);
    assert_eq!(one.pacer.concurrency, Concurrency::Fixed { max: 50 });
    assert_eq!(one.pacer.limits.quotas, [minutes(50), Quota::sliding(Dimension::Requests, 5, seconds(3_600))]);
    assert_eq!(one.pacer.limits.burst, Some(10));
    let growth = Growth::Exponential { base: seconds(1), multiplier: 2.0, cap: seconds(60) };
    assert_eq!((one.pacer.retry.backoff.growth, one.pacer.retry.backoff.jitter), (growth, Jitter::Between(0.1, 1.0)));

    let all = [
        ("OPENAI_REQUESTS_PER_MINUTE", "600"),
        ("OPENAI_REQUESTS_PER_HOUR", "9000"),
        ("OPENAI_BURST_LIMIT", "4"),
        ("OPENAI_BACKOFF_MIN", "0.5"),
        ("OPENAI_BACKOFF_MAX", "2.0"),
        ("OPENAI_BACKOFF_MULTIPLIER", "1.1"),
    ];
    let all = upstream("", &all, openai()).expect("all well");
    assert_eq!(all.pacer.limits.quotas, [minutes(600), Quota::sliding(Dimension::Requests, 9_000, seconds(3_600))]);
    assert_eq!(all.pacer.limits.burst, Some(4));
    let growth = Growth::Exponential { base: seconds(1) / 2, multiplier: 1.1, cap: seconds(2) };
    assert_eq!(all.pacer.retry.backoff.growth, growth);

    let slip = refused("", &[("OPENAI_BACKOFF_CAP", "5")], openai());
    assert!(slip.contains("OPENAI_BACKOFF_CAP") && slip.contains("OPENAI_BACKOFF_MAX"), "{slip}");
    upstream("", &[("OPENAI_BASE_URL", "http://a"), ("OPENAI_LOG", "debug")], openai()).expect("not ours");

    let other = Overrides { upstream: Some("anthropic".to_owned()), ..Overrides::default() };
    let other = upstream("", &[("OPENAI_BURST_LIMIT", "0")], other).expect("not its variables");
    assert!(other.pacer.limits.quotas.is_empty());
    let asked = "[upstream.mine]\nbase_url = 'http://a'\npace = 'openai-app'";
    let asked = upstream(asked, &[("OPENAI_BURST_LIMIT", "2")], Overrides::default()).expect("all well");
    assert_eq!((asked.pacer.limits.quotas[0].clone(), asked.pacer.limits.burst), (minutes(50), Some(2)));
}

#[test]
fn a_bad_variable_is_named_with_its_value_and_what_was_expected() {
    for (variable, value, expected) in [
        ("OPENAI_REQUESTS_PER_MINUTE", "-5", "a number above 0"),
        ("OPENAI_REQUESTS_PER_MINUTE", "ten", "a number above 0"),
        ("OPENAI_REQUESTS_PER_HOUR", "0", "a number above 0"),
        ("OPENAI_REQUESTS_PER_HOUR", "NaN", "a number above 0"),
        ("OPENAI_REQUESTS_PER_HOUR", "inf", "a number above 0"),
        ("OPENAI_BURST_LIMIT", "0", "a whole number of at least 1"),
        ("OPENAI_BURST_LIMIT", "1.5", "a whole number of at least 1"),
        ("OPENAI_BURST_LIMIT", "", "a whole number of at least 1"),
        ("OPENAI_BACKOFF_MIN", "0", "a number of seconds above 0 and at most 300"),
        ("OPENAI_BACKOFF_MAX", "301", "a number of seconds above 0 and at most 300"),
        ("OPENAI_BACKOFF_MAX", "0.5", "at least the base, 1s"),
        ("OPENAI_BACKOFF_MIN", "90", "at most the cap, 60s"),
        ("OPENAI_BACKOFF_MULTIPLIER", "0.9", "a number from 1 to 1000"),
        ("PACELINE_UPSTREAM__OPENAI__RPM", "nan", "a number above 0"),
        ("PACELINE_UPSTREAM__OPENAI__RETRY__MAX_RETRIES", "-1", "a whole number from 0 to 1000000"),
    ] {
        let message = refused("", &[(variable, value)], openai());
        assert_eq!(message, format!("{variable} = {value:?} (from the environment): expected {expected}"));
    }
}

#[test]
fn a_burst_above_its_limit_acts_or_is_refused() {
    let file = "[upstream.openai]\nrps = 50\nburst = 100";
    let why = "expected at most 50, the requests per 1s that it refines, or shape = \"bucket\"";
    assert_eq!(
        refused(file, &[], openai()),
        format!("upstream.openai.burst = \"100\" (from paceline.toml, line 3): {why}")
    );
    let flags = Overrides { limits: vec!["50 rps".to_owned()], burst: Some("100".to_owned()), ..openai() };
    assert_eq!(refused("", &[], flags), format!("--burst \"100\" (from the command line): {why}"));
    let bucket = upstream(&format!("{file}\nshape = 'bucket'"), &[], openai()).expect("a bucket stores 100");
    assert_eq!(bucket.pacer.limits.quotas[0].shape, QuotaShape::Bucket { burst: 100 });
    let lowered = Overrides { limits: vec!["5 rps".to_owned()], ..openai() };
    let lowered = upstream("[upstream.openai]\nrps = 50\nburst = 10", &[], lowered).expect("the flag wins");
    assert_eq!(lowered.pacer.limits.burst, Some(5));
    assert!(lowered.effective.iter().any(|row| row.key == "burst" && row.value == "10 (kept as 5)"));
    let few = upstream("", &[("OPENAI_REQUESTS_PER_MINUTE", "5")], openai()).expect("the preset's burst gives way");
    assert_eq!(few.pacer.limits.burst, Some(5));
    let variables = [("OPENAI_REQUESTS_PER_MINUTE", "5"), ("OPENAI_BURST_LIMIT", "6")];
    assert!(
        refused("", &variables, openai()).starts_with("OPENAI_BURST_LIMIT = \"6\" (from the environment): expected")
    );
}

/// Lines of a file that cannot be, each with the key that is named.
const BAD_VALUES: &[(&str, &str)] = &[
    ("rpm = 0", "rpm"),
    ("rpm = nan", "rpm"),
    ("rpm = inf", "rpm"),
    ("rpm = true", "rpm"),
    ("rpm = 'ten'", "rpm"),
    ("limits = ['5 per week']", "limits"),
    ("burst = 5", "burst"),
    ("tpm = 5\nburst = 5", "burst"),
    ("rpm = 5\nburst = 0", "burst"),
    ("rpd = 5\nburst = 1", "burst"),
    ("rps = 50\nburst = 100", "burst"),
    ("rpm = 5\nburst = 6", "burst"),
    ("pace = 'reponsive'", "pace"),
    ("pace = 'linear'\nconcurrency = { kind = 'aimd' }", "concurrency.kind"),
    ("concurrency = { kind = 'classic' }", "concurrency.kind"),
    ("shape = 'bucket'", "shape"),
    ("rps = 5\nshape = 'round'", "shape"),
    ("responsive = { initial = '1s' }", "responsive.initial"),
    ("pace = 'fixed'\nresponsive = { up = 2 }", "responsive.up"),
    ("pace = 'responsive'\nresponsive = { initial = '16m' }", "responsive.initial"),
    ("pace = 'responsive'\nresponsive = { max = '400ms' }", "responsive.max"),
    ("pace = 'responsive'\nresponsive = { up = 1 }", "responsive.up"),
    ("pace = 'responsive'\nresponsive = { down = 1 }", "responsive.down"),
    ("pace = 'responsive'\nresponsive = { randomization = 1 }", "responsive.randomization"),
    ("pace = 'responsive'\nresponsive = { threshold = 0 }", "responsive.threshold"),
    ("pace = 'responsive'\nresponsive = { compat = 1 }", "responsive.compat"),
    ("pace = 'responsive-classic'\nresponsive = { idle_half_life = '1m' }", "responsive.idle_half_life"),
    ("provider = 'nobody'", "provider"),
    ("base_url = 'ftp://a'", "base_url"),
    ("base_url = 'a.example.com'", "base_url"),
    ("base_url = 'http://a?x=1'", "base_url"),
    ("base_url = 'http://a:99999'", "base_url"),
    ("base_url = 'http://:80'", "base_url"),
    ("concurrency = 0", "concurrency.max"),
    ("concurrency = 2.5", "concurrency.max"),
    ("concurrency = { floor = 20, max = 10 }", "concurrency.floor"),
    ("concurrency = { start = 513 }", "concurrency.start"),
    ("pace = 'aimd'\nconcurrency = { start = 60 }", "concurrency.start"),
    ("start = 0", "start"),
    ("start = 'fast'", "start"),
    ("start = 1_000_001", "start"),
    ("pace = 'aimd'\nstart = 1", "start"),
    ("concurrency = { floor = 9, start = 8 }", "concurrency.start"),
    ("concurrency = { kind = 'fixed', floor = 5 }", "concurrency.floor"),
    ("concurrency = { kind = 'slow' }", "concurrency.kind"),
    ("concurrency = 5\nlimits = ['6 concurrent']", "concurrency.max"),
    ("retry = { base = '2m' }", "retry.base"),
    ("retry = { cap = '100ms' }", "retry.cap"),
    ("retry = { kind = 'linear', multiplier = 3 }", "retry.multiplier"),
    ("retry = { kind = 'constant', cap = '5s' }", "retry.cap"),
    ("retry = { jitter = [0.5, 0.4] }", "retry.jitter"),
    ("retry = { jitter = [0.5, 1.1] }", "retry.jitter"),
    ("retry = { jitter = [0.5] }", "retry.jitter"),
    ("retry = { multiplier = inf }", "retry.multiplier"),
    ("max_deferrals = -1", "max_deferrals"),
    ("deadline = 0", "deadline"),
    ("breaker = { share = 0 }", "breaker.share"),
    ("breaker = { least = 51 }", "breaker.least"),
    ("breaker = { open = '5s', open_max = '4s' }", "breaker.open_max"),
    ("api_key_env = 'a'\napi_key_file = 'b'", "api_key_env"),
];

#[test]
fn a_bad_value_of_a_file_is_named_with_its_line() {
    for (line, key) in BAD_VALUES {
        match upstream(&format!("[upstream.openai]\n{line}\n"), &[], openai()) {
            Err(SettingError::Value { key: named, origin: Source::File { line: Some(at), .. }, .. }) => {
                assert_eq!(named, format!("upstream.openai.{key}"), "{line}");
                assert!((2..=3).contains(&at), "{line} is not on line {at}");
            }
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn secrets_in_the_wrong_place_are_not_repeated() {
    for line in [
        "base_url = 'https://me:sk-secret@a.example.com'",
        "base_url = 'https://a.example.com/v1?key=secret'",
        "base_url = 'a.example.com?k=secret'",
        "api_key = \"secret\"",
        "api_key = 'of-two secret words'",
        "apikey = secret",
        "token = { value = 'sk-secret' }",
        "retry = 'sk-secret'",
    ] {
        let message = refused(&format!("[upstream.openai]\n{line}"), &[], openai());
        assert!(!message.contains("secret"), "{line}: {message}");
        assert!(message.contains("api_key_file, --api-key-file"), "{line}: {message}");
    }
    for line in [
        "api_key_env = 'sk-secret'",
        "api_key_env = 'secret0123456789abcdefghi'",
        "rpm = 'sk-secret'",
        "password = \"\"\"\nmore secret\"\"\"",
    ] {
        let message = refused(&format!("[upstream.openai]\n{line}"), &[], openai());
        assert!(!message.contains("secret"), "{line}: {message}");
    }
    let message = refused("", &[("PACELINE_UPSTREAM__OPENAI__API_KEY", "sk-secret")], openai());
    assert!(!message.contains("secret") && message.contains("--api-key-file"), "{message}");
}

#[test]
fn names_that_do_not_exist_are_errors_with_their_line() {
    for file in
        ["[upstream.openai]\nrmp = 5", "[upstrem.openai]", "[upstream.openai.retry]\nbse = 5", "[upstream.'a b']"]
    {
        let message = refused(file, &[], openai());
        assert!(message.starts_with("paceline.toml: "), "{message}");
    }
    assert!(refused("[upstream.openai]\nrmp = 5", &[], openai()).contains("line 2"));
}

#[test]
fn a_higher_maximum_lowers_the_floor_below_it() {
    let file = "[upstream.openai]\npace = 'aimd'\nconcurrency = { floor = 20, start = 30, max = 40 }";
    let limited = |n: &str| Overrides { concurrency: Some(n.to_owned()), ..openai() };
    for (flags, floor, start, max) in
        [(openai(), 20, 30, 40), (limited("25"), 20, 25, 25), (limited("3"), 3, 3, 3), (limited("64"), 20, 30, 64)]
    {
        let found = upstream(file, &[], flags).expect("all well");
        assert_eq!(found.pacer.concurrency, Concurrency::Aimd { floor, start, max });
    }
    let small = upstream("[upstream.openai]\npace = 'aimd'\nconcurrency = 2", &[], openai()).expect("all well");
    assert_eq!(small.pacer.concurrency, Concurrency::Aimd { floor: 2, start: 2, max: 2 });
}

#[test]
fn under_auto_only_the_maximum_acts_and_the_rest_is_told_apart() {
    let file = "[upstream.openai]\nconcurrency = { kind = 'aimd', floor = 5, start = 10, max = 50 }";
    let found = upstream(file, &[], openai()).expect("all well");
    assert_eq!((found.pacer.pace, found.pacer.concurrency), (Pace::Auto, Concurrency::Fixed { max: 50 }));
    let idle: Vec<_> = found.idle.iter().map(|row| (row.key.as_str(), row.value.as_str())).collect();
    assert_eq!(idle, [("concurrency.kind", "aimd"), ("concurrency.floor", "5"), ("concurrency.start", "10")]);
    let in_force: Vec<_> = found.effective.iter().filter(|row| row.key.starts_with("concurrency")).collect();
    assert!(matches!(&in_force[..], [max] if max.key == "concurrency.max" && max.value == "50"), "{in_force:?}");
    let aimd = Overrides { pace: Some("aimd".to_owned()), ..openai() };
    let found = upstream(file, &[], aimd).expect("the same file under another pace");
    assert_eq!((found.pacer.concurrency, found.idle), (Concurrency::AIMD, vec![]));
    let plain = upstream("", &[], openai()).expect("all well");
    assert_eq!((plain.pacer.concurrency, plain.idle), (Concurrency::Fixed { max: 512 }, vec![]));
}

#[test]
fn the_first_learnt_rate_can_be_told() {
    let flag = |pace: &str| Overrides { pace: Some(pace.to_owned()), ..openai() };
    let told = "[upstream.openai]\nstart = 0.5";
    for (file, flags, start) in [
        ("", openai(), None),
        (told, openai(), Some(0.5)),
        (told, flag("adaptive"), Some(0.5)),
        ("", flag("adaptive"), Some(1.0)),
        (told, flag("fixed"), None),
    ] {
        assert_eq!(upstream(file, &[], flags).expect("all well").pacer.start, start, "{file}");
    }
    let row =
        |file| upstream(file, &[], openai()).expect("all well").effective.into_iter().find(|row| row.key == "start");
    assert_eq!(row("[upstream.openai]\nrpm = 60").expect("in force").value, "twice the limit");
    assert_eq!(row("[upstream.openai]\ntpm = 60").expect("in force").value, "2");
}

#[test]
fn paces_decide_who_adapts() {
    for (lines, pace, adapts) in [
        ("", Pace::Auto, false),
        ("pace = 'aimd'", Pace::Aimd, true),
        ("pace = 'fixed'", Pace::Fixed, false),
        ("pace = 'fixed'\nconcurrency = { kind = 'aimd' }", Pace::Aimd, true),
        ("pace = 'fixed'\nconcurrency = { floor = 2 }", Pace::Aimd, true),
        ("pace = 'auto'\nconcurrency = { kind = 'fixed', max = 9 }", Pace::Auto, false),
        ("pace = 'auto'\nconcurrency = { kind = 'aimd', max = 9 }", Pace::Auto, false),
        ("pace = 'linear'", Pace::Linear, false),
        ("pace = 'exponential'", Pace::Exponential, false),
        ("pace = 'responsive'", Pace::Responsive, false),
        ("pace = 'responsive'\nconcurrency = 3", Pace::Responsive, false),
        ("pace = 'none'", Pace::None, false),
    ] {
        let found = upstream(&format!("[upstream.openai]\n{lines}"), &[], openai()).expect(lines).pacer;
        assert_eq!(found.pace, pace, "{lines}");
        assert_eq!(matches!(found.concurrency, Concurrency::Aimd { .. }), adapts, "{lines}");
    }
    let linear = upstream("[upstream.openai]\npace = 'linear'\nretry = { base = 1, cap = 4 }", &[], openai());
    let growth = linear.expect("all well").pacer.retry.backoff.growth;
    assert_eq!(growth, Growth::Linear { step: seconds(1), cap: seconds(4) });
}

#[test]
fn the_responsive_delay_has_a_table_of_its_own() {
    let lines = "[upstream.openai]\npace = 'responsive'\nresponsive = { initial = '1ms', down = 0.6, compat = true }";
    let found =
        upstream(lines, &[("PACELINE_UPSTREAM__OPENAI__RESPONSIVE__THRESHOLD", "5")], openai()).expect("all well");
    let expected = ResponsiveConfig {
        initial: seconds(1) / 1_000,
        down: 0.6,
        threshold: 5,
        compat: true,
        ..ResponsiveConfig::default()
    };
    assert_eq!((found.pacer.pace, found.pacer.responsive), (Pace::Responsive, expected));
    let other = Overrides { pace: Some("fixed".to_owned()), ..openai() };
    let found = upstream(lines, &[], other).expect("the flag wins");
    assert_eq!(found.pacer.responsive, ResponsiveConfig::default());
    let lower = "[upstream.openai]\nconcurrency = { kind = 'aimd', floor = 5, max = 9 }";
    for pace in ["responsive", "linear", "exponential", "none"] {
        let flag = Overrides { pace: Some(pace.to_owned()), ..openai() };
        let found = upstream(lower, &[], flag).expect("the pace passes the adaptation over");
        assert_eq!(found.pacer.concurrency, Concurrency::Fixed { max: 9 }, "{pace}");
    }
    let default = upstream("[upstream.openai]\npace = 'responsive'", &[], openai()).expect("all well");
    assert_eq!(default.pacer.responsive, ResponsiveConfig::default());
}

#[test]
fn what_acts_is_told_with_its_reason() {
    for (lines, acting) in [
        ("", "auto: learns the limit, below what is configured and announced, at most 512 calls in flight (default)"),
        ("pace = 'fixed'", "fixed: the configured limits and at most 50 calls in flight (paceline.toml, line 2)"),
        (
            "pace = 'fixed'\nconcurrency = { floor = 2, max = 9 }",
            "aimd: the configured limits and 2 to 9 calls in flight, 9 at first (paceline.toml, line 2; \
             concurrency.kind is aimd)",
        ),
        (
            "pace = 'adaptive'",
            "auto: learns the limit from 1/s on, below what is configured and announced, at most 512 calls in flight \
             (preset adaptive, named in paceline.toml, line 2)",
        ),
        (
            "pace = 'responsive'",
            "responsive: one delay between calls, 500ms after the first refusal, at most 15m (paceline.toml, line 2)",
        ),
        (
            "pace = 'responsive-classic'",
            "responsive: one delay between calls by the classic rule, 500ms after the first refusal, at most 15m \
             (preset responsive-classic, named in paceline.toml, line 2)",
        ),
        (
            "pace = 'linear'",
            "linear: one delay between calls, 500ms more with each refusal, at most 60s (paceline.toml, line 2)",
        ),
        ("pace = 'none'", "none: every call leaves at once (paceline.toml, line 2)"),
    ] {
        let found = upstream(&format!("[upstream.openai]\n{lines}"), &[], openai()).expect(lines);
        assert_eq!(found.acting, acting, "{lines}");
    }
}

#[test]
fn presets_are_layers_below_the_file() {
    let bucket = |limit, window, burst| Quota {
        shape: QuotaShape::Bucket { burst },
        ..Quota::sliding(Dimension::Requests, limit, window)
    };
    let fixed = |max| Concurrency::Fixed { max };
    for (name, quotas, concurrency, pace) in [
        ("conservative", vec![bucket(1, seconds(2), 1)], fixed(1), Pace::Fixed),
        ("moderate", vec![bucket(2, seconds(1), 4)], fixed(4), Pace::Fixed),
        ("aggressive", vec![bucket(10, seconds(1), 20)], fixed(16), Pace::Fixed),
        ("adaptive", vec![bucket(20, seconds(1), 20)], fixed(512), Pace::Auto),
        ("none", vec![], fixed(50), Pace::None),
        ("aimd-classic", vec![], Concurrency::Aimd { floor: 5, start: 50, max: 50 }, Pace::Aimd),
        ("responsive-classic", vec![], fixed(50), Pace::Responsive),
    ] {
        let flags = Overrides { pace: Some(name.to_owned()), ..openai() };
        let pacer = upstream("", &[], flags).expect(name).pacer;
        assert_eq!((&pacer.limits.quotas, pacer.concurrency, pacer.pace), (&quotas, concurrency, pace), "{name}");
        assert_eq!((pacer.limits.burst, pacer.responsive.compat), (None, name == "responsive-classic"), "{name}");
        assert_eq!(Preset::from_name(name).expect(name).pacer_config(), pacer);
    }
    let file = "[upstream.openai]\npace = 'moderate'\nconcurrency = 2\nrpm = 30";
    let found = upstream(file, &[], openai()).expect("all well");
    assert_eq!(found.pacer.concurrency, fixed(2));
    assert_eq!(found.pacer.limits.quotas, [bucket(2, seconds(1), 4), minutes(30)], "both hold");
    assert_eq!(*source(&found, "rps"), Source::Preset("moderate"));
    for preset in Preset::ALL {
        Pacer::new(preset.pacer_config(), 1, Instant::ZERO).expect("a preset is no mistake");
        assert!(preset.settings().iter().any(|row| row.key == "pace"), "{preset:?}");
    }
}

#[test]
fn a_crawl_delay_holds_under_every_preset() {
    for preset in Preset::ALL {
        let config = preset.pacer_config().with_crawl_delay(seconds(5));
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("all well");
        let request = Request::new(pacer.scope("host"), Cost::request());
        let first = pacer.enqueue(Instant::ZERO, request.clone()).expect("not too large");
        assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: first, probe: false }));
        pacer.complete(Instant::ZERO, first, Outcome::new(Class::Success));
        match pacer.admit(Instant::ZERO, &request) {
            Admit::At { at, .. } => assert!(at - Instant::ZERO > seconds(4), "{preset:?}: {at}"),
            other => panic!("{preset:?}: {other:?}"),
        }
        assert_eq!(preset.pacer_config().with_crawl_delay(seconds(0)), preset.pacer_config());
    }
}

#[test]
fn the_pace_none_switches_lower_limits_off_and_contradicts_those_beside_it() {
    let file = "[upstream.openai]\nrpm = 500\nburst = 3\n[[upstream.openai.tier]]\nmatch = '/a'\nrpm = 5";
    let none = Overrides { pace: Some("none".to_owned()), ..openai() };
    let off = upstream(file, &[], none.clone()).expect("the flag wins");
    assert!(off.pacer.limits.quotas.is_empty() && off.pacer.tiers[0].1.quotas.is_empty());
    assert_eq!(*source(&off, "limits"), Source::Flag("--pace"));
    let both = Overrides { limits: vec!["5rpm".to_owned()], ..none };
    assert!(refused("", &[], both).starts_with("--limit \"5rpm\" (from the command line): expected no limit"));
    assert!(refused("[upstream.openai]\npace = 'none'\nrpm = 5", &[], openai()).contains("line 3"));
}

#[test]
fn which_upstream_is_meant() {
    let named = |name: &str| Overrides { upstream: Some(name.to_owned()), ..Overrides::default() };
    let addressed = |url: &str| Overrides { base_url: Some(url.to_owned()), ..Overrides::default() };
    let one = "[upstream.mine]\nbase_url = 'http://a/'";
    let two = "[upstream.mine]\nbase_url = 'http://a'\n[upstream.other]\nbase_url = 'http://b'";
    let key = [("OPENAI_API_KEY", "k")];
    for (file, variables, flags, name, url) in [
        (one, &key[..], Overrides::default(), "mine", Some("http://a")),
        (two, &key[..], Overrides::default(), "openai", Some("https://api.openai.com/v1")),
        ("", &key[..], Overrides::default(), "openai", Some("https://api.openai.com/v1")),
        (
            "",
            &[("PACELINE_UPSTREAM__ANTHROPIC__RPM", "5")][..],
            Overrides::default(),
            "anthropic",
            Some("https://api.anthropic.com"),
        ),
        (one, &key[..], addressed("http://c/v1/"), "generic", Some("http://c/v1")),
        (two, &[], named("other"), "other", Some("http://b")),
        ("", &[], named("mock"), "mock", None),
        (one, &[], Overrides { base_url: Some("http://c".to_owned()), ..named("mine") }, "mine", Some("http://c")),
    ] {
        let found = upstream(file, variables, flags).expect(name);
        assert_eq!((found.name.as_str(), found.base_url.as_deref()), (name, url));
    }
    let nothing = refused("", &[("OPENAI_API_KEY", "")], Overrides::default());
    assert!(nothing.contains("--upstream mock") && nothing.contains("anthropic"), "{nothing}");
    assert!(refused(two, &[], Overrides::default()).contains("mine, other"));
    assert!(refused(one, &[], named("nobody")).contains("mine, openai"));
    assert!(refused("", &[], named("azure")).contains("--base-url"));
}

#[test]
fn where_the_key_is() {
    let variable = |name: &str, required| KeySource::Variable { name: name.to_owned(), required };
    for (lines, key) in [
        ("", variable("OPENAI_API_KEY", true)),
        ("base_url = 'http://127.0.0.1:9000/v1'", variable("OPENAI_API_KEY", false)),
        ("base_url = 'http://localhost:9000/v1'", variable("OPENAI_API_KEY", false)),
        ("base_url = 'http://[::1]:9000/v1'", variable("OPENAI_API_KEY", false)),
        ("base_url = 'http://localhost.example.com'", variable("OPENAI_API_KEY", true)),
        ("base_url = 'http://127.0.0.1:9000/v1'\napi_key_env = 'MINE'", variable("MINE", true)),
        ("api_key_file = 'a/key'", KeySource::File("a/key".into())),
        ("provider = 'generic'\nbase_url = 'http://a'", KeySource::None),
    ] {
        let found = upstream(&format!("[upstream.openai]\n{lines}"), &[], openai()).expect(lines);
        assert_eq!(found.key, key, "{lines}");
    }
    let flag = Overrides { api_key_env: Some("FLAG".to_owned()), ..openai() };
    let found = upstream("[upstream.openai]\napi_key_file = 'key'", &[], flag).expect("the flag wins");
    assert_eq!(found.key, variable("FLAG", true));
}

#[test]
fn the_first_tier_that_matches_is_taken() {
    let file = "[upstream.openai]\nrpm = 500\n\
        [[upstream.openai.tier]]\nmatch = '/v1/embeddings'\nrpm = 3000\nburst = 7\n\
        [[upstream.openai.tier]]\nmodel = 'gpt-4o'\ntpm = '30k'\n\
        [[upstream.openai.tier]]\nlabel = 'nightly'\nlimits = ['10 per 1m']";
    let found = upstream(file, &[], openai()).expect("all well");
    for (path, model, label, scope) in [
        ("/v1/embeddings", Some("gpt-4o"), None, "tier /v1/embeddings"),
        ("/v1/chat/completions", Some("gpt-4o"), Some("nightly"), "tier model=gpt-4o"),
        ("/v1/chat/completions", Some("gpt-4o-mini"), Some("nightly"), "tier label=nightly"),
        ("/v1/chat/completions", Some("gpt-4o-mini"), None, "/v1/chat/completions gpt-4o-mini"),
    ] {
        assert_eq!(found.scope_name(&CallNames { path, model, label, ..CallNames::default() }), scope);
    }
    let (scope, limits) = &found.pacer.tiers[0];
    assert_eq!((&**scope, &limits.quotas[..], limits.burst), ("tier /v1/embeddings", &[minutes(3_000)][..], Some(7)));
    for tier in [
        "rpm = 5",
        "match = '/a'",
        "match = 'a'\nrpm = 5",
        "match = '/a'\nmodel = 'b'\nrpm = 5",
        "match = '/a'\nlimits = ['5 concurrent']",
        "match = '/a'\nrpm = 5\n[[upstream.openai.tier]]\nmatch = '/a'\nrpm = 6",
    ] {
        let message = refused(&format!("[upstream.openai]\n[[upstream.openai.tier]]\n{tier}"), &[], openai());
        assert!(message.contains("upstream.openai.tier."), "{message}");
    }
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
        "match = { status = 400 }\nclass = 'abandoned'",
        "match = { status = 400 }\nclass = 'transient'\nscope = 'host'",
    ] {
        let message = refused(&format!("[upstream.openai]\n[[upstream.openai.rule]]\n{rule}"), &[], openai());
        assert!(message.contains("upstream.openai.rule.0."), "{message}");
    }
}

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

proptest! {
    #[test]
    fn what_is_accepted_is_sound_whatever_is_given(key in 0usize..12, value in "[0-9kM.,\\[\\]a-z -]{0,8}") {
        let keys = ["RPM", "BURST", "CONCURRENCY", "CONCURRENCY__FLOOR", "RETRY__BASE", "RETRY__CAP", "RETRY__JITTER",
            "RETRY__MULTIPLIER", "BREAKER__LEAST", "BREAKER__OPEN", "LIMITS", "DEADLINE"];
        let variable = format!("PACELINE_UPSTREAM__OPENAI__{}", keys[key]);
        if let Ok(found) = upstream("", &[(&variable, &value)], openai()) {
            prop_assert!(found.pacer.retry.backoff.check().is_ok());
            prop_assert!(found.pacer.limits.quotas.iter().all(|quota| quota.limit > 0 && !quota.window.is_zero()));
            if let Concurrency::Aimd { floor, start, max } = found.pacer.concurrency {
                prop_assert!(1 <= floor && floor <= start && start <= max);
            }
            prop_assert!(found.pacer.breaker.min_samples <= found.pacer.breaker.window_size && !found.deadline.is_zero());
        }
    }

    #[test]
    fn any_file_is_read_or_refused(text in ".{0,60}") {
        let _ = upstream(&text, &[], openai());
        let _ = upstream(&format!("[upstream.openai]\n{text}"), &[], openai());
    }
}
