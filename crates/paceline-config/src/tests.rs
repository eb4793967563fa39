//! The rules of the whole: which layer wins, and what is refused with which message.

mod debug_forms;
mod documents;
mod paces;
mod rules;

use std::time::Duration;

use paceline_core::{
    Class, Concurrency, Cost, Dimension, Growth, Jitter, Outcome, Pace, Quota, QuotaShape, Request, ResponsiveConfig,
};
use proptest::{prop_assert, proptest};

use paceline_core::{Admit, Event, Instant, Pacer, PacerConfig};

use super::*;

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
    Quota::per_minute(limit)
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
fn who_names_no_upstream_is_told_what_to_do_and_a_key_in_its_place_is_hidden() {
    let told = refused("", &[], Overrides::default());
    assert!(
        told.starts_with(
            "no upstream chosen: the file paceline.toml configures none; pass --upstream with one of openai, "
        ) && told.contains("--base-url URL"),
        "{told}"
    );
    let told = refused("", &[], Overrides { scope: Some("host".to_owned()), ..Overrides::default() });
    assert!(told.contains("configures none; pass --base-url URL with one of the hosts"), "{told}");
    let key = "sk-proj-abcdefghijklmnop1234567890ABCDEF";
    let told = refused("", &[], Overrides { upstream: Some(key.to_owned()), ..Overrides::default() });
    assert!(told.starts_with("unknown upstream \"[key]\": expected one of "), "{told}");
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
         expected this limit to be set once, and it is \"500\" already (from paceline.toml, line 2)"
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
        ("PACELINE_UPSTREAM__OPENAI__RPM", "nan", "a number above 0 and at most 1_000_000G, without a unit"),
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
    let message = refused("[upstream.openai]\nretry = 5", &[], openai());
    assert!(message.contains("line 2") && message.contains("expected a table of settings"), "{message}");
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
    let slow = "\n[[upstream.openai.tier]]\nhost = 'slow.example'\nlimits = ['1 per 10s']";
    let file = file.replace("rpm = 500", "scope = 'host'") + slow;
    let by_host = upstream(&file, &[], openai()).expect("all well");
    for (path, scope) in [
        ("/v1/embeddings", "tier /v1/embeddings at api.openai.com"),
        ("http://a.example:81/v1/embeddings?n=1", "tier /v1/embeddings at a.example:81"),
        ("http://a.example:81/", "a.example:81"),
        ("https://user@Slow.Example/a/v1/embeddings", "tier host=slow.example"),
        ("http://slow.example:81?n=1", "tier host=slow.example at slow.example:81"),
        ("http://slow.example.:81?n=1", "tier host=slow.example at slow.example:81"),
        ("http://slow.example./a", "tier host=slow.example"),
        ("http://a.example.:81/", "a.example:81"),
        ("http://slow.example.org/slow.example/", "http://slow.example.org"),
    ] {
        assert_eq!(by_host.scope_name(&CallNames { path, ..CallNames::default() }), scope);
    }
    let (scope, limits) = &found.pacer.tiers[0];
    assert_eq!((&**scope, &limits.quotas[..], limits.burst), ("tier /v1/embeddings", &[minutes(3_000)][..], Some(7)));
    for tier in [
        "rpm = 5",
        "match = '/a'",
        "match = 'a'\nrpm = 5",
        "host = 'http://a'\nrpm = 5",
        "host = 'a'\nlabel = 'a'\nrpm = 5",
        "match = '/a'\nmodel = 'b'\nrpm = 5",
        "match = '/a'\nlimits = ['0 concurrent']",
        "match = '/a'\nlimits = ['5 concurrent', '6 concurrent']",
        "match = '/a'\nrpm = 5\n[[upstream.openai.tier]]\nmatch = '/a'\nrpm = 6",
    ] {
        let message = refused(&format!("[upstream.openai]\n[[upstream.openai.tier]]\n{tier}"), &[], openai());
        assert!(message.contains("upstream.openai.tier."), "{message}");
    }
}

#[test]
fn each_part_of_a_tier_has_its_own_calls_in_flight() {
    let tier = "[upstream.x]\nbase_url = 'http://a'\nscope = 'host'\nlimits = ['50 concurrent']\n[[upstream.x.tier]]\nmatch = '/'\n";
    let x = || Overrides { upstream: Some("x".to_owned()), ..Overrides::default() };
    let found = upstream(&format!("{tier}limits = ['2 concurrent']"), &[], x()).expect("no rate is needed");
    assert_eq!((&found.pacer.tier_places[..], found.pacer.concurrency.max()), (&[("tier /".into(), 2)][..], 50));
    let both = upstream(&format!("{tier}limits = ['2 rps', '3 concurrent']"), &[], x()).expect("both");
    assert_eq!((both.pacer.tiers[0].1.quotas.len(), both.pacer.tier_places[0].1), (1, 3));
    let row = both.effective.iter().find(|row| row.key == "tier /: concurrency.max").expect("it is shown");
    assert_eq!(row.value, "3");
}

#[test]
fn the_steps_of_a_fallback_are_read_in_order_and_refused_with_words() {
    let file = |steps: &str| format!("[upstream.openai]\nfallback_to = {steps}");
    let steps = "['openrouter', 'openai:gpt-4o-mini', 'x:a/b:free', 'static:503:down.json']";
    let found = upstream(&file(steps), &[], openai()).expect("all well").fallback_to;
    let to = |name: &str, model: Option<&str>| FallbackStep::Upstream {
        name: name.to_owned(),
        model: model.map(ToOwned::to_owned),
    };
    let down = FallbackStep::Static { status: http::StatusCode::SERVICE_UNAVAILABLE, file: "down.json".into() };
    let expected = [to("openrouter", None), to("openai", Some("gpt-4o-mini")), to("x", Some("a/b:free")), down];
    assert_eq!(found, expected);
    let variables = [("PACELINE_UPSTREAM__OPENAI__FALLBACK_TO", "b, static:ok.json")];
    let found = upstream(&file("['c']"), &variables, openai()).expect("all well");
    let ok = FallbackStep::Static { status: http::StatusCode::OK, file: "ok.json".into() };
    assert_eq!(found.fallback_to, [to("b", None), ok], "a higher layer's steps take the place of a lower one's");
    for (steps, expected) in [
        ("['openai']", "expected another upstream, or this one with another model (NAME:MODEL)"),
        ("['b:']", "expected an upstream (NAME)"),
        ("[':m']", "expected an upstream (NAME)"),
        ("['static:99:a']", "with a status from 200 to 599"),
        ("['static:']", "expected an upstream (NAME)"),
        ("['b', 'b']", "expected each step once"),
        ("['static:a', 'b']", "expected no step behind a file"),
    ] {
        let error = refused(&file(steps), &[], openai());
        assert!(error.starts_with("upstream.openai.fallback_to = ") && error.contains(expected), "{steps}: {error}");
    }
    let error = refused(
        "[upstream.gemini]\nfallback_to = ['b:m']",
        &[],
        Overrides { upstream: Some("gemini".into()), ..openai() },
    );
    assert!(error.contains("the path names the model"), "{error}");
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

#[test]
fn the_variables_of_a_providers_own_libraries_name_its_address_the_first_of_them_first() {
    let address = |name: &str, variables: &[(&str, &str)]| {
        let overrides = Overrides { upstream: Some(name.to_owned()), ..Overrides::default() };
        upstream("", variables, overrides).expect("an address").base_url
    };
    assert_eq!(address("openai", &[("OPENAI_BASE_URL", "http://a/v1")]).as_deref(), Some("http://a/v1"));
    for (name, own) in [("bedrock", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"), ("dynamodb", "AWS_ENDPOINT_URL_DYNAMODB")] {
        let all = ("AWS_ENDPOINT_URL", "http://localhost:4566");
        assert_eq!(address(name, &[all]).as_deref(), Some("http://localhost:4566"), "{name}");
        assert_eq!(address(name, &[all, (own, "http://localhost:8000")]).as_deref(), Some("http://localhost:8000"));
    }
}
