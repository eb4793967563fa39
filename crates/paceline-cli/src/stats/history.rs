//! `paceline stats --history`: what happened in each minute.

use std::io::{self, Write};
use std::time::Duration;

use paceline_core::Timestamp;
use paceline_store::Minute;
use serde_json::{Value, json};

const COLUMNS: &str = "minute,sends,successes,throttled,resends,retry_success_rate,delay_mean_ms,delay_max_ms,\
                       tokens_in,tokens_out,limit,limit_of,over";

/// The same minutes; while a run works on the job also that of `now`, though nothing has ended in it yet.
pub(super) fn with_present(mut minutes: Vec<Minute>, now: Timestamp, running: bool) -> Vec<Minute> {
    let present = Minute::of(now);
    if running && minutes.last().is_none_or(|last| last.number < present.number) {
        minutes.push(present);
    }
    minutes
}

/// One line a minute, under the names of the columns. What was not there is empty.
pub(super) fn csv(minutes: &[Minute], now: Timestamp, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{COLUMNS}")?;
    for minute in minutes {
        let (limit, limit_of) =
            minute.limit.as_ref().map_or((None, ""), |(limit, limit_of)| (Some(*limit), limit_of.as_str()));
        writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{limit_of},{}",
            start(minute),
            minute.sends,
            minute.successes,
            minute.throttled,
            minute.resends,
            or_empty(retry_success_rate(minute)),
            or_empty(mean_delay(minute)),
            or_empty(max_delay(minute)),
            minute.tokens_in,
            minute.tokens_out,
            or_empty(limit),
            is_over(minute, now),
        )?;
    }
    Ok(())
}

/// The same as an array of objects; what was not there is null.
pub(crate) fn json(minutes: &[Minute], now: Timestamp) -> Value {
    let object = |minute: &Minute| {
        json!({
            "minute": start(minute),
            "sends": minute.sends,
            "successes": minute.successes,
            "throttled": minute.throttled,
            "resends": minute.resends,
            "retry_success_rate": retry_success_rate(minute),
            "delay_mean_ms": mean_delay(minute),
            "delay_max_ms": max_delay(minute),
            "tokens_in": minute.tokens_in,
            "tokens_out": minute.tokens_out,
            "limit": minute.limit.as_ref().map(|(limit, _)| limit),
            "limit_of": minute.limit.as_ref().map(|(_, limit_of)| limit_of),
            "over": is_over(minute, now),
        })
    };
    minutes.iter().map(object).collect()
}

fn start(minute: &Minute) -> String {
    minute.start().to_string()
}

/// Whether nothing more can happen in the minute.
fn is_over(minute: &Minute, now: Timestamp) -> bool {
    now >= minute.start() + Duration::from_secs(60)
}

/// Which share of the calls after an item's first had a usable answer, to three places.
fn retry_success_rate(minute: &Minute) -> Option<f64> {
    let share = minute.resends_succeeded as f64 / minute.resends as f64;
    (minute.resends > 0).then(|| (share * 1_000.0).round() / 1_000.0)
}

fn mean_delay(minute: &Minute) -> Option<u64> {
    minute.delay_sum_ms.checked_div(minute.delays)
}

fn max_delay(minute: &Minute) -> Option<u64> {
    (minute.delays > 0).then_some(minute.delay_max_ms)
}

fn or_empty(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_there_is_empty_or_null() {
        let quiet = Minute { number: 29_919_600, sends: 2, successes: 2, ..Minute::default() };
        let busy = Minute {
            number: 29_919_601,
            sends: 4,
            resends: 3,
            resends_succeeded: 2,
            delays: 2,
            delay_sum_ms: 301,
            delay_max_ms: 300,
            limit: Some((40, "calls in flight".into())),
            ..Minute::default()
        };
        let now = busy.start() + Duration::from_secs(59);
        let minutes = [quiet, busy];
        let mut text = Vec::new();
        csv(&minutes, now, &mut text).expect("memory");
        let text = String::from_utf8(text).expect("text");
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            [
                "2026-11-20T12:00:00.000Z,2,2,0,0,,,,0,0,,,true",
                "2026-11-20T12:01:00.000Z,4,0,0,3,0.667,150,300,0,0,40,calls in flight,false"
            ]
        );
        let json = json(&minutes, now);
        assert_eq!((&json[0]["retry_success_rate"], &json[1]["limit"]), (&Value::Null, &Value::from(40)));
        let columns: Vec<&str> = COLUMNS.split(',').collect();
        assert!(columns.iter().all(|column| json[0].get(column).is_some()), "the same names in both forms");
        let later = now + Duration::from_secs(1);
        let present = with_present(minutes.to_vec(), later, true);
        assert_eq!((present.len(), &present[2]), (3, &Minute::of(later)));
        assert_eq!(
            [(later, false), (now, true)].map(|(now, running)| with_present(minutes.to_vec(), now, running).len()),
            [2, 2]
        );
    }
}
