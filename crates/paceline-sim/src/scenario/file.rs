//! The TOML form of a scenario. All times are seconds.

use super::*;

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
    tenants: Option<TenantsTable>,
    duty: Option<DutyTable>,
    schedule: Option<ScheduleTable>,
    net: Option<f64>,
    refuse: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "service is \"llm\", \"fast\" or { p50 = 0.8, p99 = 8, cap = 60 }, in seconds")]
enum Service {
    Named(Named),
    Told(Quantiles),
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
    p50: f64,
    p99: f64,
    cap: f64,
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
    per: f64,
    burst: Option<u64>,
    phase: Option<f64>,
    #[serde(default)]
    counts_refused: bool,
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
struct TenantsTable {
    base: f64,
    burst: f64,
    on: f64,
    period: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DutyTable {
    on: f64,
    off: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleTable {
    #[serde(default)]
    steps: Vec<StepTable>,
    #[serde(default)]
    brownout: bool,
    sine: Option<SineTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    at: f64,
    factor: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SineTable {
    amplitude: f64,
    period: f64,
}

/// A scenario's file.
pub(super) fn read(text: &str) -> Result<Scenario, ScenarioError> {
    let file: File = toml::from_str(text).map_err(|error| ScenarioError::Form(error.to_string()))?;
    if file.items == 0 {
        return Err(wrong("items", 0, "at least 1"));
    }
    if let Some(cost) = file.cost {
        check_cost(cost)?;
    }
    let duty = file.duty.map(duty).transpose()?;
    let latency = latency(file.service)?;
    // Who answers within 50 ms is near, and refuses as fast.
    let (net, refuse) = if latency.median() < Duration::from_millis(50) { (0.001, 0.001) } else { (0.05, 0.04) };
    let provider = ProviderConfig {
        limits: file.limit.iter().enumerate().map(|(index, table)| limit(index, table)).collect::<Result<_, _>>()?,
        concurrency: file.concurrency,
        overload: file.overload.map(|OverloadTable { capacity, queue, degrade }| Overload { capacity, queue, degrade }),
        latency,
        fault: file.fault,
        schedule: file.schedule.map_or(Ok(Schedule::Constant), schedule)?,
        tenants: file.tenants.map(tenants).transpose()?,
    };
    provider.check()?;
    Ok(Scenario {
        name: file.name,
        about: file.about,
        items: file.items,
        provider,
        cost: file.cost,
        duty,
        net: seconds("net", file.net.unwrap_or(net))?,
        refuse: seconds("refuse", file.refuse.unwrap_or(refuse))?,
    })
}

fn latency(service: Service) -> Result<Latency, ScenarioError> {
    let Quantiles { p50, p99, cap } = match service {
        Service::Named(Named::Llm) => Quantiles { p50: 0.8, p99: 8.0, cap: 60.0 },
        Service::Named(Named::Fast) => Quantiles { p50: 0.005, p99: 0.025, cap: 1.0 },
        Service::Told(quantiles) => quantiles,
    };
    Ok(Latency::Lognormal {
        p50: seconds("service.p50", p50)?,
        p99: seconds("service.p99", p99)?,
        cap: seconds("service.cap", cap)?,
    })
}

fn limit(index: usize, table: &LimitTable) -> Result<Limit, ScenarioError> {
    let key = |name: &str| format!("limit[{index}].{name}");
    let shape = match (&table.shape, table.burst) {
        (ShapeName::Bucket, burst) => Shape::Bucket { burst: burst.unwrap_or(table.limit) },
        (_, Some(burst)) => return Err(wrong(&key("burst"), burst, "none: only a bucket has a burst")),
        (ShapeName::Fixed, None) => Shape::Fixed,
        (ShapeName::Sliding, None) => Shape::Sliding,
    };
    let dimension = match table.counts.as_deref() {
        None | Some("requests") => Dimension::Requests,
        Some("tokens") => Dimension::Tokens,
        Some(other) => return Err(wrong(&key("counts"), other, "\"requests\" or \"tokens\"")),
    };
    let quota = Quota { dimension, limit: table.limit, window: seconds(&key("per"), table.per)?, shape };
    let phase = table.phase.map(|phase| seconds(&key("phase"), phase)).transpose()?;
    Ok(Limit { quota, phase, counts_refused: table.counts_refused })
}

fn tenants(table: TenantsTable) -> Result<Tenants, ScenarioError> {
    let TenantsTable { base, burst, on, period } = table;
    Ok(Tenants { base, burst, on: seconds("tenants.on", on)?, period: seconds("tenants.period", period)? })
}

fn duty(table: DutyTable) -> Result<Duty, ScenarioError> {
    let duty = Duty { on: seconds("duty.on", table.on)?, off: seconds("duty.off", table.off)? };
    if duty.on.is_zero() { Err(wrong("duty.on", 0, "more than 0 seconds")) } else { Ok(duty) }
}

fn schedule(table: ScheduleTable) -> Result<Schedule, ScenarioError> {
    if let Some(SineTable { amplitude, period }) = table.sine {
        if !table.steps.is_empty() {
            return Err(wrong("schedule", "steps and a sine", "one of them"));
        }
        return Ok(Schedule::Sine { amplitude, period: seconds("schedule.sine.period", period)? });
    }
    let step = |StepTable { at, factor }| Ok(Step { at: seconds("schedule.steps.at", at)?, factor });
    let steps = table.steps.into_iter().map(step).collect::<Result<_, ScenarioError>>()?;
    Ok(Schedule::Steps { steps, brownout: table.brownout })
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

fn seconds(key: &str, seconds: f64) -> Result<Duration, ScenarioError> {
    let told = Duration::try_from_secs_f64(seconds);
    told.map_err(|_| wrong(key, seconds, "seconds, at least 0"))
}

fn wrong(key: &str, value: impl ToString, expected: &'static str) -> ScenarioError {
    ScenarioError::Value { key: key.to_owned(), value: value.to_string(), expected }
}
