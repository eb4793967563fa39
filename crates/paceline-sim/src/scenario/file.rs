//! The TOML form of a scenario.

use super::*;
use paceline_model::{Chance, Scaling};

/// What stands in a scenario's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    about: String,
    items: u32,
    service: Service,
    #[serde(default)]
    limit: Vec<LimitTable>,
    concurrency: Option<u32>,
    overload: Option<OverloadTable>,
    cost: Option<CostOf>,
    #[serde(default)]
    fault: f64,
    #[serde(default)]
    chance: Vec<ChanceTable>,
    tenants: Option<TenantsTable>,
    duty: Option<DutyTable>,
    #[serde(default)]
    workers: Vec<WorkersTable>,
    until: Option<Time>,
    schedule: Option<ScheduleTable>,
    net: Option<Time>,
    refuse: Option<Time>,
}

/// A duration as it stands in a file: a text with a unit, or seconds.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a duration such as \"200ms\", \"5s\" or \"15m\"; a bare number is seconds")]
enum Time {
    Seconds(f64),
    Given(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "service is \"llm\", \"fast\" or { p50 = \"800ms\", p99 = \"8s\", cap = \"1m\" }")]
enum Service {
    Named(Named),
    Given(Quantiles),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Named {
    Llm,
    Fast,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quantiles {
    p50: Time,
    p99: Time,
    cap: Time,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ShapeName {
    Bucket,
    Fixed,
    Sliding,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitTable {
    shape: ShapeName,
    counts: Option<String>,
    limit: u64,
    per: Time,
    burst: Option<u64>,
    phase: Option<Time>,
    #[serde(default)]
    counts_refused: bool,
    #[serde(default)]
    weighs: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverloadTable {
    capacity: u32,
    queue: f64,
    degrade: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChanceTable {
    status: u16,
    #[serde(default)]
    share: f64,
    #[serde(default)]
    first: u64,
    wait: Option<Time>,
    from: Option<Time>,
    until: Option<Time>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantsTable {
    base: f64,
    burst: f64,
    on: Time,
    period: Time,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DutyTable {
    on: Time,
    off: Time,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkersTable {
    at: Time,
    count: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleTable {
    #[serde(default)]
    steps: Vec<StepTable>,
    #[serde(default)]
    brownout: bool,
    sine: Option<SineTable>,
    scales: Option<ScalesTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    at: Time,
    factor: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SineTable {
    amplitude: f64,
    period: Time,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScalesTable {
    factor: f64,
    after: Time,
    below: f64,
    back: Time,
}

/// More calls than this are no scenario but a job.
const MOST_ITEMS: u32 = 10_000_000;

/// A run is recorded second by second, so it must end.
const LONGEST: Duration = Duration::from_hours(24 * 30);

/// Strangers that call more often than this, per second, are a mistake.
const MOST_STRANGERS: f64 = 1e6;

/// A scenario's file.
pub(super) fn read(text: &str) -> Result<Scenario, ScenarioError> {
    let file: File = toml::from_str(text).map_err(|error| ScenarioError::Form(error.to_string()))?;
    if !(1..=MOST_ITEMS).contains(&file.items) {
        return Err(wrong("items", file.items, "1 to 10,000,000"));
    }
    let tokens = |table: &LimitTable| table.counts.as_deref() == Some("tokens");
    if let Some(index) = file.limit.iter().position(tokens).filter(|_| file.cost.is_none()) {
        return Err(wrong(
            &format!("limit[{index}].counts"),
            "tokens",
            "a `cost` too: calls cost no tokens without one",
        ));
    }
    if let Some(cost) = file.cost {
        check_cost(cost)?;
    }
    let duty = file.duty.map(duty).transpose()?;
    let latency = latency(file.service)?;
    // Who answers within 50 ms is near, and refuses as fast.
    let near = latency.median() < Duration::from_millis(50);
    let (net, refuse) = if near { (MILLISECOND, MILLISECOND) } else { (50 * MILLISECOND, 40 * MILLISECOND) };
    let provider = ProviderConfig {
        limits: file.limit.into_iter().enumerate().map(|(at, table)| limit(at, table)).collect::<Result<_, _>>()?,
        concurrency: file.concurrency,
        overload: file.overload.map(|OverloadTable { capacity, queue, degrade }| Overload { capacity, queue, degrade }),
        latency,
        fault: file.fault,
        chances: file.chance.into_iter().enumerate().map(|(at, table)| chance(at, table)).collect::<Result<_, _>>()?,
        schedule: file.schedule.map_or(Ok(Schedule::Constant), schedule)?,
        tenants: file.tenants.map(tenants).transpose()?,
    };
    provider.check()?;
    let until = file.until.map(|until| time("until", &until)).transpose()?;
    if let Some(until) = until.filter(|until| *until > LONGEST) {
        return Err(wrong("until", format_args!("{} s", until.as_secs()), "at most 30 days"));
    }
    let or = |key: &str, given: Option<Time>, usual| given.map_or(Ok(usual), |given| time(key, &given));
    Ok(Scenario {
        name: file.name,
        about: file.about,
        items: file.items,
        provider,
        cost: file.cost,
        duty,
        workers: workers(file.workers, until)?,
        until,
        net: or("net", file.net, net)?,
        refuse: or("refuse", file.refuse, refuse)?,
    })
}

fn latency(service: Service) -> Result<Latency, ScenarioError> {
    let [p50, p99, cap] = match service {
        Service::Named(Named::Llm) => [800, 8_000, 60_000].map(|millis| millis * MILLISECOND),
        Service::Named(Named::Fast) => [5, 25, 1_000].map(|millis| millis * MILLISECOND),
        Service::Given(Quantiles { p50, p99, cap }) => {
            [time("service.p50", &p50)?, time("service.p99", &p99)?, time("service.cap", &cap)?]
        }
    };
    Ok(Latency::Lognormal { p50, p99, cap })
}

fn limit(index: usize, table: LimitTable) -> Result<ModelLimit, ScenarioError> {
    let key = |name: &str| format!("limit[{index}].{name}");
    let shape = match (&table.shape, table.burst) {
        (ShapeName::Bucket, burst) => QuotaShape::Bucket { burst: burst.unwrap_or(table.limit) },
        (_, Some(burst)) => return Err(wrong(&key("burst"), burst, "none: only a bucket has a burst")),
        (ShapeName::Fixed, None) => QuotaShape::Fixed,
        (ShapeName::Sliding, None) => QuotaShape::Sliding,
    };
    if table.phase.is_some() && shape != QuotaShape::Fixed {
        return Err(wrong(&key("phase"), "set", "none: only a fixed window has a phase"));
    }
    if table.counts_refused && shape != QuotaShape::Sliding {
        return Err(wrong(&key("counts_refused"), true, "none: only a sliding window counts refused calls"));
    }
    if table.weighs && (shape != QuotaShape::Fixed || table.phase.is_some()) {
        return Err(wrong(&key("weighs"), true, "none: only a fixed window without a phase weighs the one before"));
    }
    let dimension = match table.counts.as_deref() {
        None | Some("requests") => Dimension::Requests,
        Some("tokens") => Dimension::Tokens,
        Some(other) => return Err(wrong(&key("counts"), other, "\"requests\" or \"tokens\"")),
    };
    let quota = Quota { dimension, limit: table.limit, window: time(&key("per"), &table.per)?, shape };
    let phase = table.phase.map(|phase| time(&key("phase"), &phase)).transpose()?;
    Ok(ModelLimit { quota, phase, counts_refused: table.counts_refused, weighs: table.weighs })
}

fn chance(index: usize, table: ChanceTable) -> Result<Chance, ScenarioError> {
    let ChanceTable { status, share, first, wait, from, until } = table;
    let read = |name: &str, given: Option<Time>| {
        given.map(|given| time(&format!("chance[{index}].{name}"), &given)).transpose()
    };
    let (wait, from, until) = (read("wait", wait)?, read("from", from)?.unwrap_or_default(), read("until", until)?);
    Ok(Chance { status, share, first, wait, from, until })
}

fn tenants(table: TenantsTable) -> Result<Tenants, ScenarioError> {
    let TenantsTable { base, burst, on, period } = table;
    if let Some(rate) = [base, burst].into_iter().find(|rate| *rate > MOST_STRANGERS) {
        return Err(wrong("tenants", rate, "at most 1,000,000 calls a second"));
    }
    Ok(Tenants { base, burst, on: time("tenants.on", &on)?, period: time("tenants.period", &period)? })
}

fn duty(table: DutyTable) -> Result<Duty, ScenarioError> {
    let duty = Duty { on: time("duty.on", &table.on)?, off: time("duty.off", &table.off)? };
    if duty.on.is_zero() { Err(wrong("duty.on", 0, "more than 0 seconds")) } else { Ok(duty) }
}

fn workers(tables: Vec<WorkersTable>, until: Option<Duration>) -> Result<Vec<Workers>, ScenarioError> {
    let key = |index: usize, name: &str| format!("workers[{index}].{name}");
    let mut workers: Vec<Workers> = Vec::with_capacity(tables.len());
    for (index, WorkersTable { at, count }) in tables.into_iter().enumerate() {
        let at = time(&key(index, "at"), &at)?;
        match workers.last() {
            None if !at.is_zero() => return Err(wrong(&key(index, "at"), show(at), "0: who works from the start on")),
            Some(before) if at <= before.at => return Err(wrong(&key(index, "at"), show(at), "times that ascend")),
            _ => workers.push(Workers { at, count }),
        }
    }
    match workers.last() {
        Some(Workers { count: 0, .. }) if until.is_none() => {
            Err(wrong(&key(workers.len() - 1, "count"), 0, "workers who end the work, or an `until`"))
        }
        _ if !workers.is_empty() && workers.iter().all(|step| step.count == 0) => {
            Err(wrong(&key(0, "count"), 0, "at least one worker at some time"))
        }
        _ => Ok(workers),
    }
}

fn schedule(table: ScheduleTable) -> Result<Schedule, ScenarioError> {
    let step =
        |(index, StepTable { at, factor })| Ok(Step { at: time(&format!("schedule.steps[{index}].at"), &at)?, factor });
    match table {
        ScheduleTable { sine: None, scales: None, steps, brownout } => {
            let steps = steps.into_iter().enumerate().map(step).collect::<Result<_, ScenarioError>>()?;
            Ok(Schedule::Steps { steps, brownout })
        }
        ScheduleTable { sine: Some(sine), scales: None, steps, .. } if steps.is_empty() => {
            let SineTable { amplitude, period } = sine;
            Ok(Schedule::Sine { amplitude, period: time("schedule.sine.period", &period)? })
        }
        ScheduleTable { sine: None, scales: Some(scales), steps, .. } if steps.is_empty() => {
            let ScalesTable { factor, after, below, back } = scales;
            let (after, back) = (time("schedule.scales.after", &after)?, time("schedule.scales.back", &back)?);
            Ok(Schedule::Scales(Scaling { factor, after, below, back }))
        }
        _ => Err(wrong("schedule", "more than one kind", "one of steps, sine and scales")),
    }
}

fn check_cost(cost: CostOf) -> Result<(), ScenarioError> {
    if !(cost.p50 > 0.0 && cost.p99 >= cost.p50 && cost.p99.is_finite()) {
        return Err(wrong("cost", format!("p50 {} and p99 {}", cost.p50, cost.p99), "0 < p50 <= p99"));
    }
    if !(cost.second_half > 0.0 && cost.second_half.is_finite()) {
        return Err(wrong("cost.second_half", cost.second_half, "more than 0"));
    }
    Ok(())
}

/// One of a scenario's times, by the parser that reads the durations of the configuration.
fn time(key: &str, time: &Time) -> Result<Duration, ScenarioError> {
    const EXPECTED: &str = "a duration such as 200ms, 5s or 15m; a bare number is seconds";
    match time {
        Time::Seconds(seconds) => Duration::try_from_secs_f64(*seconds).map_err(|_| wrong(key, seconds, EXPECTED)),
        Time::Given(text) => parse_duration(text).ok_or_else(|| wrong(key, format!("{text:?}"), EXPECTED)),
    }
}

fn show(time: Duration) -> String {
    format!("{time:?}")
}

const MILLISECOND: Duration = Duration::from_millis(1);

fn wrong(key: &str, value: impl ToString, expected: &'static str) -> ScenarioError {
    ScenarioError::Value { key: key.to_owned(), value: value.to_string(), expected }
}
