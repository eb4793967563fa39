//! A 429 of Google's, by its details.

use std::time::Duration;

use jiff::ToSpan as _;
use paceline_core::{Class, Timestamp};

use super::case::{Case, Classification, Hint};
use super::google_details::{delay, details, is_daily, is_zero};
use super::refusal::{paused, waiting};
use super::table::{COMMON, Provider, contains_any};
use super::wait;

/// A 429 with details, or any of Google's own.
pub(super) fn exhausted(case: &Case<'_>) -> Option<Classification> {
    let google = case.provider == Provider::Gemini || details(case.body).next().is_some();
    if case.status != 429 || !google {
        return None;
    }
    let message = case.body.message().to_ascii_lowercase();
    if is_zero(case.body, &message) {
        return Some(Classification::new(Class::QuotaExhausted, "a quota of 0: no access, whatever the wait says"));
    }
    if case.body.has_code(&COMMON.capacity) {
        return Some(waiting(case, Class::Overloaded, "429 about capacity"));
    }
    let hint = longer(delay(case), wait::in_message(case));
    let hint = wait::in_headers(case).or(hint);
    let daily = is_daily(case.body) || contains_any(&message, &COMMON.long_periods);
    Some(match hint {
        hint @ Some(_) => paused(case, hint, "429 with a wait in its details"),
        None if daily => {
            let hint = to_midnight(case.now);
            Classification {
                hint,
                ..Classification::new(Class::QuotaExhausted, "429 of a daily quota: opens at midnight, Pacific")
            }
        }
        None if case.body.codes().any(|code| code == "QUOTA_EXHAUSTED") => {
            Classification::new(Class::QuotaExhausted, "429 of a quota that is used up")
        }
        None => return None,
    })
}

fn longer(one: Option<Hint>, other: Option<Hint>) -> Option<Hint> {
    one.into_iter().chain(other).max_by_key(|hint| hint.wait)
}

/// The time to midnight in Los Angeles, where Google's days begin.
fn to_midnight(now: Timestamp) -> Option<Hint> {
    let pacific = jiff::tz::TimeZone::posix("PST8PDT,M3.2.0,M11.1.0").ok()?;
    let now = jiff::Timestamp::from_millisecond(now.as_millis()).ok()?;
    let midnight = now.to_zoned(pacific).start_of_day().ok()?.checked_add(1.day()).ok()?;
    let wait = Duration::try_from(now.duration_until(midnight.timestamp())).ok()?;
    Some(Hint { wait, exact: false, from: "midnight, Pacific" })
}

#[cfg(test)]
mod tests {
    use super::super::body::Body;
    use super::super::shape;
    use super::*;

    #[test]
    fn days_begin_at_midnight_in_los_angeles_summer_and_winter() {
        for (now, hours) in [
            ("2026-07-15T20:00:00Z", 11.0),
            ("2026-11-20T12:00:00Z", 20.0),
            ("2026-01-05T07:59:59Z", 1.0 / 3_600.0),
            // The night in which summer ends has 25 hours.
            ("2026-11-01T07:00:00Z", 25.0),
        ] {
            let wait = to_midnight(shape::date(now).expect("a date")).expect("a midnight").wait;
            assert_eq!(wait, Duration::from_secs_f64(hours * 3_600.0), "{now}");
        }
        assert_eq!(to_midnight(Timestamp::from_millis(i64::MAX)).map(|hint| hint.wait), None);
    }

    #[test]
    fn only_a_limit_of_nothing_is_zero() {
        for (message, expected) in [
            ("limit: 0\nPlease retry in 51.8s.", true),
            ("limit: 0", true),
            ("limit: 0, model: m", true),
            ("limit: 05", false),
            ("limit: 0.5", false),
            ("limit: 10", false),
        ] {
            assert_eq!(is_zero(&Body::of_refusal(b"{}", ""), message), expected, "{message}");
        }
    }
}
