//! Which pace acts, with which knobs, and what is told about it.

use super::*;

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
