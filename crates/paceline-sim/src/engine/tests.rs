use super::*;
use crate::policy;
use crate::trace::Span;
use paceline_core::{Dimension, Limits, Pace, PacerConfig, Quota, QuotaShape, Retry};
use paceline_model::{Hints, ModelLimit, ProviderConfig};

fn run(name: &str, items: u32, setup: &Setup) -> Measures {
    let scenario = Scenario::named(name).expect("built in").with_at_most(items);
    simulate(&scenario, setup).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_scenario_ends_well_under_a_patient_policy_and_under_our_own() {
    for name in Scenario::development().chain(Scenario::short_jobs()) {
        for policy in ["tenacity", "auto"] {
            let run = run(name, 800, &Setup::new(policy));
            assert_eq!((run.lost, run.undone), (0.0, 0.0), "{name} {policy}: {run:?}");
            assert!(run.goodput > 0.0 && run.goodput < 1.6 && run.p99_s > 0.0, "{name} {policy}: {run:?}");
        }
    }
}

#[test]
fn every_policy_and_every_hint_can_be_run_with_many_clients() {
    for policy in policy::OURS.iter().chain(&policy::PEERS) {
        let run = run("b10-20", 200, &Setup { clients: 4, ..Setup::new(policy) });
        assert!((0.0..=1.0).contains(&(run.lost + run.undone)) && run.jain <= 1.0 + 1e-9, "{run:?}");
    }
    for (hints, _) in Hints::NAMED {
        let setup = Setup { hints: hints.to_owned(), clients: 3, share: true, ..Setup::new("auto") };
        let run = run("f30-33", 300, &setup);
        assert_eq!((run.lost, run.undone), (0.0, 0.0), "{run:?}");
    }
}

/// The bytes are the same on every run, in debug and in release: a change of them is a change of every figure.
#[test]
fn the_same_seed_gives_the_same_bytes() {
    let json = |setup: &Setup| serde_json::to_string(&run("tenants", 500, setup)).expect("numbers and texts");
    let setup = Setup { clients: 3, seed: 7, ..Setup::new("C") };
    assert_eq!(json(&setup), json(&setup));
    assert_ne!(json(&setup), json(&Setup { seed: 8, ..setup.clone() }));
    assert_eq!(json(&setup), SEVEN);
}

const SEVEN: &str = r#"{"scenario":"tenants","policy":"C","clients":3,"hints":"none","seed":7,"goodput":1.1389521640091116,"waste":0.34,"lost":0.0,"undone":0.0,"makespan":0.8944549426369264,"p99_s":7.53048446,"jain":0.9995687957377117,"up_s":null,"down_s":null,"too_good":null}"#;

/// The makespan is measured against the oracle, which knows nothing of policies and of their randomness.
#[test]
fn who_knows_the_limit_is_as_fast_as_the_oracle() {
    for policy in ["known", "fixed"] {
        let run = run("b10-20", 200, &Setup::new(policy));
        assert!((run.makespan - 1.0).abs() < 0.1 && run.waste < 0.1, "{run:?}");
    }
}

/// Sixty a minute, one at a time, and a job of 300.
fn sixty_per_minute() -> Scenario {
    let quota = Quota { shape: QuotaShape::Bucket { burst: 1 }, ..Quota::per_minute(60) };
    let provider = ProviderConfig { limits: vec![ModelLimit::from(quota)], ..ProviderConfig::default() };
    let net = Duration::from_millis(50);
    Scenario {
        name: "sixty".to_owned(),
        about: String::new(),
        items: 300,
        provider,
        cost: None,
        duty: None,
        workers: Vec::new(),
        until: None,
        net,
        refuse: net,
    }
}

#[test]
fn the_first_limiter_stops_after_ten_calls() {
    let run = simulate(&sixty_per_minute(), &Setup::new("A-raising")).expect("it runs");
    assert_eq!((run.undone * 300.0).round(), 290.0, "{run:?}");
}

#[test]
fn the_classic_aimd_loses_four_fifths_of_a_job_on_a_small_limit() {
    let run = simulate(&sixty_per_minute(), &Setup::new("C")).expect("it runs");
    assert!((0.75..0.85).contains(&run.lost), "{run:?}");
}

#[test]
fn waits_that_are_told_spare_the_obedient_client_its_losses() {
    let with = |hints: &str| run("f30-33", 990, &Setup { hints: hints.to_owned(), ..Setup::new("openai") });
    let (silent, announced) = (with("none"), with("ra"));
    assert!(announced.lost < silent.lost / 2.0, "{} and {} lost", announced.lost, silent.lost);
}

#[test]
fn one_shared_policy_treats_clients_alike() {
    let run = run("tb-1s", 2_000, &Setup { clients: 16, share: true, ..Setup::new("auto") });
    assert!(run.jain > 0.99, "{run:?}");
}

#[test]
fn capacity_that_changes_is_followed_within_seconds_by_who_never_waits_long() {
    let run = run("ddb-steps", 30_000, &Setup::new("tenacity"));
    assert!(run.up_s.is_some() || run.down_s.is_some(), "{run:?}");
}

/// The knobs act as they would in a real run: its own limits hold, its retries end, and what never fits is given up.
#[test]
fn a_pacer_may_be_told_what_the_user_configured() {
    let limits = |quota| Limits { quotas: vec![quota], burst: None };
    let run = |scenario: &str, config| {
        let setup = Setup { pacer: Some(config), ..Setup::new("mine") };
        run(scenario, 40, &setup)
    };
    let slow = PacerConfig { limits: limits(Quota::per_minute(60)), ..PacerConfig::default() };
    let paced = run("b2-20", slow);
    assert_eq!((paced.policy.as_str(), paced.waste, paced.lost), ("mine", 0.0, 0.0));
    assert!((1.9..2.2).contains(&paced.makespan), "half of the rate that there is: {paced:?}");

    let impatient = Retry { max_deferrals: Some(0), ..Retry::default() };
    let lost = run("b2-20", PacerConfig { retry: impatient, pace: Pace::None, ..PacerConfig::default() });
    assert!(lost.lost > 0.1, "a refusal ends an item: {lost:?}");

    let tokens = Quota::sliding(Dimension::Tokens, 1_000, Duration::from_secs(1));
    let large = run("rpm+tpm", PacerConfig { limits: limits(tokens), ..PacerConfig::default() });
    assert!((0.2..0.6).contains(&large.lost), "many items alone exceed the limit: {large:?}");
}

#[test]
fn what_cannot_be_simulated_is_told() {
    let scenario = Scenario::named("b2-20").expect("built in");
    let error = |setup: Setup| simulate(&scenario, &setup).expect_err("it cannot run").to_string();
    assert!(error(Setup::new("fast")).starts_with("there is no policy named \"fast\", expected one of auto, "));
    let hints = Setup { hints: "loud".to_owned(), ..Setup::new("auto") };
    assert!(error(hints).starts_with("there are no hints named \"loud\", expected one of none, ra, "));
    let limits = Limits { quotas: vec![Quota::per_minute(0)], burst: None };
    let config = PacerConfig { limits, ..PacerConfig::default() };
    assert!(error(Setup { pacer: Some(config), ..Setup::new("mine") }).contains("expected"));
    let none = Setup { clients: 0, ..Setup::new("auto") };
    assert_eq!(error(none), "0 clients for 40 items, expected 1 to as many as there are items");
}

#[test]
fn a_trace_counts_what_the_figures_count_and_changes_none_of_them() {
    let scenario = Scenario::named("ddb-steps").expect("built in").with_at_most(20_000);
    for policy in ["tenacity", "aws-inf", "aimd"] {
        let setup = Setup { clients: 2, ..Setup::new(policy) };
        let measures = simulate(&scenario, &setup).expect("it runs");
        let (traced, trace) = simulate_traced(&scenario, &setup).expect("it runs");
        assert_eq!(measures, traced);
        let sum = |of: fn(&Span) -> u32| trace.spans.iter().map(of).sum::<u32>();
        let (sent, admitted, refused) = (sum(|span| span.sent), sum(|span| span.admitted), sum(|span| span.refused));
        assert_eq!((sent, sum(|span| span.succeeded)), (admitted + refused, 20_000), "{policy}");
        assert_eq!(f64::from(refused) / 20_000.0, measures.waste, "{policy}");
        assert!(
            trace.spans.iter().enumerate().all(|(index, span)| span.start == Instant::ZERO + trace.step * index as u32)
        );
        let capacity = |second: u64| {
            let within = |span: &&Span| span.start >= Instant::ZERO + Duration::from_secs(second);
            trace.spans.iter().find(within).map(|span| span.capacity.round())
        };
        let nominal = scenario.nominal_rate();
        assert_eq!((capacity(10), capacity(35)), (Some(nominal.round()), Some((nominal / 2.0).round())), "{policy}");
        let announced = &trace.spans[trace.spans.len() / 2].pace;
        assert_eq!((announced.rate.is_some(), announced.limit.is_some()), (policy == "aws-inf", policy == "aimd"));
        let most = trace.spans.iter().map(|span| span.in_flight).max().unwrap_or_default();
        // Two crews of 50 workers; the other decides for itself.
        assert!(most > 1 && (policy == "aimd" || most <= 100), "{policy}: {most}");
    }
}

#[test]
fn a_trace_says_what_our_own_pace_believes() {
    let scenario = Scenario::named("n10-30").expect("built in");
    let (_, trace) = simulate_traced(&scenario, &Setup::new("auto")).expect("it runs");
    let late = &trace.spans[trace.spans.len() * 3 / 4].pace;
    assert!(late.rate.is_some_and(|rate| (5.0..15.0).contains(&rate)), "{late:?}");
    assert!(
        late.description.as_ref().is_some_and(|description| description.starts_with("estimated limit about ")),
        "{late:?}"
    );
    let (_, trace) = simulate_traced(&scenario, &Setup::new("responsive")).expect("it runs");
    assert!(trace.spans.iter().any(|span| span.pace.delay.is_some() && span.pace.description.is_none()));
}

/// The provider says neither which of the two it is nor how much there is.
#[test]
fn our_own_pace_finds_out_whether_calls_or_tokens_count() {
    for (name, in_tokens) in [("tpm-wide", true), ("tpm-thrice", true), ("tpm-shift", true), ("rpm-wide", false)] {
        let scenario = Scenario::named(name).expect("built in");
        let (_, trace) = simulate_traced(&scenario, &Setup::new("auto")).expect("it runs");
        let late = trace.spans[trace.spans.len() * 3 / 4].pace.description.clone().unwrap_or_default();
        assert_eq!(late.contains("tokens/s"), in_tokens, "{name}: {late}");
    }
}

#[test]
fn the_trace_of_a_job_that_stalls_goes_on_to_the_cut_off() {
    let (run, trace) = simulate_traced(&sixty_per_minute(), &Setup::new("A-raising")).expect("it runs");
    let stalled = trace.spans.iter().rev().take_while(|span| span.sent == 0).count();
    assert!(run.undone > 0.9 && stalled > trace.spans.len() / 2, "{stalled} of {}", trace.spans.len());
}
