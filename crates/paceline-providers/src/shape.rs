//! Times as servers write them. The shape of a value decides what it means, never the name of its sender.
//!
//! Everything here is exact integer arithmetic that rounds up: a wait never comes out shorter than it was written.

use std::time::Duration;

use paceline_core::{LONGEST_DURATION, Timestamp};

use super::decimal::Decimal;

/// The longest wait. Longer ones are mistakes of the sender, such as a date of the year 9999, an epoch in the wrong unit or an
/// overflow.
pub(super) const LONGEST: Duration = LONGEST_DURATION;
/// A number from here on counts seconds since 1970, not from now.
const EPOCH_SECONDS: u64 = 1_000_000_000;
/// A number from here on counts milliseconds since 1970.
const EPOCH_MILLIS: u64 = 1_000_000_000_000;

/// A wait, and whether it was written in milliseconds or finer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) duration: Duration,
    pub(super) exact: bool,
}

/// `Retry-After`: seconds, with decimals as some send them, one of the three HTTP dates, RFC 3339, or an epoch sent by
/// mistake. Everything else is no value, more than 366 days neither; there is no guessing.
pub(super) fn retry_after(text: &str, now: Timestamp) -> Option<Wait> {
    let text = text.trim();
    let wait = match Decimal::parse(text) {
        Some(number) if number.whole >= EPOCH_SECONDS => until(number, now).filter(|wait| !wait.duration.is_zero())?,
        Some(number) => from_now(number)?,
        None => Wait { duration: date(text)?.saturating_since(now), exact: false },
    };
    plausible(wait)
}

/// A reset: epoch seconds or milliseconds, seconds from now, a Go duration, RFC 3339 or an HTTP date. Past times are 0.
pub(super) fn reset(text: &str, now: Timestamp) -> Option<Wait> {
    let text = text.trim();
    let wait = match (Decimal::parse(text), go_duration(text)) {
        (Some(number), _) if number.whole >= EPOCH_SECONDS => until(number, now)?,
        (Some(number), _) => from_now(number)?,
        (None, Some((wait, ""))) => wait,
        (None, _) => Wait { duration: date(text)?.saturating_since(now), exact: false },
    };
    plausible(wait)
}

/// Whole seconds from now, as far as they are no mistake.
pub(super) fn seconds(number: u64) -> Option<Duration> {
    Some(Duration::from_secs(number)).filter(|wait| *wait <= LONGEST)
}

/// Decimal milliseconds, more than zero.
pub(super) fn millis(text: &str) -> Option<Wait> {
    let number = Decimal::parse(text.trim())?;
    let duration = number.times(1_000_000)?;
    plausible(Wait { duration, exact: true }).filter(|wait| !wait.duration.is_zero())
}

/// The wait in an error message: `try again in 1.386s`, `retry in 26.2s`, `retry after 26 seconds`, `retry after
/// 2026-11-20 12:00:00 UTC`, in any case.
pub(super) fn in_message(message: &str, now: Timestamp) -> Option<Wait> {
    let message = message.to_ascii_lowercase();
    ["try again in ", "retry in ", "retry after "].into_iter().find_map(|phrase| {
        message.match_indices(phrase).find_map(|(at, _)| spoken(&message[at + phrase.len()..], now)).and_then(plausible)
    })
}

/// The wall time that an HTTP date or RFC 3339 names.
pub(super) fn date(text: &str) -> Option<Timestamp> {
    if let Ok(time) = httpdate::parse_http_date(text) {
        let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
        return Some(Timestamp::from_millis(i64::try_from(since.as_millis()).ok()?));
    }
    let looks_right = text.as_bytes().get(4) == Some(&b'-') && text.as_bytes().get(10)?.eq_ignore_ascii_case(&b'T');
    let parsed: jiff::Timestamp = text.parse().ok().filter(|_| looks_right)?;
    Some(Timestamp::from_millis(parsed.as_millisecond()))
}

/// Whether a text is written as a time, however far away that may be.
pub(super) fn is_a_time(text: &str) -> bool {
    let text = text.trim();
    date(text).is_some() || (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
}

/// What follows one of the phrases: a Go duration, `N seconds`, or a UTC date.
fn spoken(text: &str, now: Timestamp) -> Option<Wait> {
    if let (Some(day), Some(time), Some(" utc")) = (text.get(..10), text.get(11..19), text.get(19..23))
        && let Some(at) = date(&format!("{day}T{time}Z"))
    {
        return Some(Wait { duration: at.saturating_since(now), exact: false });
    }
    if let Some((wait, rest)) = go_duration(text) {
        return (!rest.starts_with(char::is_alphanumeric)).then_some(wait);
    }
    let (number, rest) = Decimal::take(text)?;
    rest.trim_start().starts_with("second").then(|| from_now(number)).flatten()
}

fn plausible(wait: Wait) -> Option<Wait> {
    (wait.duration <= LONGEST).then_some(wait)
}

/// Go's units, and days; a longer name stands before the shorter one that it begins with.
const UNITS: [(&str, u64); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// The longest Go duration at the start of `text`, and the rest: `6m0s`, `7.66s`, `20ms`.
fn go_duration(text: &str) -> Option<(Wait, &str)> {
    let mut rest = text;
    let mut total: Option<Wait> = None;
    while let Some((number, tail)) = Decimal::take(rest) {
        let Some((unit, nanos)) = UNITS.iter().find(|(unit, _)| tail.starts_with(unit)) else { break };
        let part = number.times(*nanos)?;
        let so_far = total.unwrap_or(Wait { duration: Duration::ZERO, exact: false });
        let exact = so_far.exact || number.nanos > 0 || *nanos < 1_000_000_000;
        total = Some(Wait { duration: so_far.duration.checked_add(part)?, exact });
        rest = &tail[unit.len()..];
    }
    total.map(|wait| (wait, rest))
}

/// A number of seconds from now.
fn from_now(number: Decimal) -> Option<Wait> {
    Some(Wait { duration: number.times(1_000_000_000)?, exact: number.nanos > 0 })
}

/// The time until an epoch in seconds or milliseconds.
fn until(epoch: Decimal, now: Timestamp) -> Option<Wait> {
    let unit = if epoch.whole >= EPOCH_MILLIS { 1_000_000 } else { 1_000_000_000 };
    let at = i64::try_from(epoch.times(unit)?.as_nanos().div_ceil(1_000_000)).ok()?;
    let exact = unit == 1_000_000 || epoch.nanos > 0;
    Some(Wait { duration: Timestamp::from_millis(at).saturating_since(now), exact })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, proptest};

    /// Fri, 20 Nov 2026 12:00:00 GMT.
    const NOW: Timestamp = Timestamp::from_millis(1_795_176_000_000);

    fn duration(wait: Option<Wait>) -> Option<Duration> {
        wait.map(|wait| wait.duration)
    }

    fn some(seconds: f64) -> Option<Duration> {
        Some(Duration::from_secs_f64(seconds))
    }

    #[test]
    fn retry_after_values() {
        for (text, expected) in [
            ("120", 120.0),
            ("0", 0.0),
            ("2.0", 2.0),
            ("0.5", 0.5),
            (" 30 ", 30.0),
            ("Fri, 20 Nov 2026 12:02:00 GMT", 120.0),
            ("Friday, 20-Nov-26 12:02:00 GMT", 120.0),
            ("Fri Nov 20 12:02:00 2026", 120.0),
            ("Fri, 20 Nov 2026 11:59:00 GMT", 0.0),
            ("1795176120", 120.0),
            ("2026-11-20T12:02:00Z", 120.0),
            ("31622400", 31_622_400.0),
            ("Sun, 21 Nov 2027 12:00:00 GMT", 31_622_400.0),
        ] {
            assert_eq!(duration(retry_after(text, NOW)), some(expected), "{text:?}");
        }
    }

    #[test]
    fn rubbish_in_retry_after_is_ignored() {
        let long = format!("1{}", "0".repeat(400));
        for text in [
            "-5",
            "+5",
            "1e3",
            "0x10",
            "NaN",
            "inf",
            "1,000",
            "120s",
            "6m0s",
            "5, 10",
            "",
            " ",
            "٣٠",
            "1234567890123456",
            "31622401",
            "40000000",
            "Sun, 21 Nov 2027 12:00:01 GMT",
            "Fri, 31 Dec 9999 23:59:59 GMT",
            "2099-11-20T12:00:00Z",
            "9999999999",
            "4102444800000",
            "1795175999",
            "1.",
            ".5",
            "1.5.5",
            &long,
        ] {
            assert_eq!(retry_after(text, NOW), None, "{text:?}");
        }
    }

    #[test]
    fn millisecond_values() {
        assert_eq!(duration(millis("1386")), some(1.386));
        assert_eq!(duration(millis("0.5")), some(0.000_5));
        for text in ["0", "-5", "NaN", "abc", "1e3", ""] {
            assert_eq!(millis(text), None, "{text:?}");
        }
    }

    #[test]
    fn resets_by_shape() {
        for (text, expected) in [
            ("1795219200000", 43_200.0),
            ("1795176064.570", 64.57),
            ("37", 37.0),
            ("7.66", 7.66),
            ("12ms", 0.012),
            ("1s", 1.0),
            ("6m0s", 360.0),
            ("7.66s", 7.66),
            ("2m59.56s", 179.56),
            ("10h17m5.72s", 37_025.72),
            ("1h0m0s", 3_600.0),
            ("1d", 86_400.0),
            ("250us", 0.000_25),
            ("250µs", 0.000_25),
            ("2026-11-20T12:00:41Z", 41.0),
            ("2026-11-20T12:00:41.25Z", 41.25),
            ("2026-11-20T14:00:41+02:00", 41.0),
            ("2026-11-20T11:59:59Z", 0.0),
            ("Fri, 20 Nov 2026 12:00:41 GMT", 41.0),
            ("1795175000", 0.0),
        ] {
            assert_eq!(duration(reset(text, NOW)), some(expected), "{text:?}");
        }
        for text in ["-1", "soon", "abc", "", "5x", "1s2", "s", "999999999999h", "NaN"] {
            assert_eq!(reset(text, NOW), None, "{text:?}");
        }
    }

    #[test]
    fn waits_in_messages() {
        for (text, expected) in [
            ("Please try again in 634ms. Visit", 0.634),
            ("Please try again in 7m43.968s.", 463.968),
            ("Please retry in 26.204519s.", 26.204_519),
            ("Please retry after 26 seconds.", 26.0),
            ("TRY AGAIN IN 1 SECOND", 1.0),
            ("retry after 2026-11-20 12:00:10 UTC: see", 10.0),
            ("try again in a while; try again in 2s", 2.0),
        ] {
            assert_eq!(duration(in_message(text, NOW)), some(expected), "{text:?}");
        }
        for text in [
            "Please wait a few minutes",
            "try again in 5 minutes",
            "try again in 5 ms.",
            "try again in 20minutes",
            "retry after 30",
            "try again in ",
            "retry after 2026-13-40 12:00:10 UTC",
            "try again in é",
        ] {
            assert_eq!(in_message(text, NOW), None, "{text:?}");
        }
    }

    #[test]
    fn only_fine_units_are_exact() {
        assert!(reset("20ms", NOW).is_some_and(|wait| wait.exact));
        assert!(reset("1.5s", NOW).is_some_and(|wait| wait.exact));
        assert!(reset("6m0s", NOW).is_some_and(|wait| !wait.exact));
        assert!(retry_after("2", NOW).is_some_and(|wait| !wait.exact));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_no_wait_exceeds_a_year(text in ".{0,40}", now: i64) {
            let now = Timestamp::from_millis(now);
            for wait in [retry_after(&text, now), reset(&text, now), millis(&text), in_message(&text, now),
                in_message(&format!("retry in {text}"), now), in_message(&format!("retry after {text}"), now)] {
                prop_assert!(wait.is_none_or(|wait| wait.duration <= LONGEST));
            }
        }

        #[test]
        fn digits_keep_their_value(whole in 0u64..1_000_000, fraction in 0u32..1_000_000_000) {
            let wait = retry_after(&format!("{whole}.{fraction:09}"), NOW).map(|wait| wait.duration);
            prop_assert!(wait == Some(Duration::new(whole, fraction)));
        }
    }
}
