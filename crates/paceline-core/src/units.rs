//! Durations as people write them.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

/// The longest duration that is taken, from people and from servers: 366 days. What is longer is a mistake, such as an overflow
/// or a number in another unit, or belongs to a stop that a person ends.
pub const LONGEST_DURATION: Duration = Duration::from_secs(366 * 86_400);

/// The units, from the longest to the shortest.
const UNITS: [(&str, Duration); 5] = [
    ("d", Duration::from_secs(86_400)),
    ("h", Duration::from_secs(3_600)),
    ("m", Duration::from_secs(60)),
    ("s", Duration::from_secs(1)),
    ("ms", Duration::from_millis(1)),
];

/// Reads a duration as every flag and file takes it: `200ms`, `5s`, `15m`, `1h`, `7d`, and several units from the longest to
/// the shortest, as in `1h30m` and `1h 30m`; a bare number is seconds. None for anything else, and for more than 366 days.
///
/// ```
/// use core::time::Duration;
/// use paceline_core::parse_duration;
///
/// assert_eq!(parse_duration("1.5 s"), Some(Duration::from_millis(1_500)));
/// assert_eq!(parse_duration("1m 05s"), Some(Duration::from_secs(65)));
/// assert_eq!(parse_duration("1e3"), None);
/// ```
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let nanos = match leading_number(text)? {
        (seconds, "") => seconds * 1e9,
        _ => sum_of_units(text)?,
    };
    // Counted in whole nanoseconds, so that 0.1 s is not 100.000000000000006 ms.
    (nanos <= LONGEST_DURATION.as_nanos() as f64).then(|| Duration::from_nanos((nanos + 0.5) as u64))
}

/// The nanoseconds of numbers with units, each unit shorter than the one before.
fn sum_of_units(mut text: &str) -> Option<f64> {
    let (mut nanos, mut shorter) = (0.0, UNITS.as_slice());
    loop {
        let (value, rest) = leading_number(text)?;
        let rest = rest.trim_start();
        let (name, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(rest.len()));
        let place = shorter.iter().position(|(unit, _)| *unit == name)?;
        nanos += value * shorter[place].1.as_nanos() as f64;
        (text, shorter) = (after.trim_start(), &shorter[place + 1..]);
        if text.is_empty() {
            return Some(nanos);
        }
    }
}

/// Formats a duration in its two largest units, from an hour on rounded to the nearest: `250ms`, `1.2s`, `3m 05s`, `1h 02m`, `2d
/// 3h`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => {
            let tenths = duration.as_millis() / 100;
            if tenths.is_multiple_of(10) {
                format!("{}s", tenths / 10)
            } else {
                format!("{}.{}s", tenths / 10, tenths % 10)
            }
        }
        60..3_600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3_600..86_370 => {
            let minutes = (seconds + 30) / 60;
            format!("{}h {:02}m", minutes / 60, minutes % 60)
        }
        _ => {
            let hours = seconds.saturating_add(1_800) / 3_600;
            format!("{}d {}h", hours / 24, hours % 24)
        }
    }
}

/// Formats the window of a limit, or another duration that a person has set, as people write it: in the largest unit that keeps
/// it whole. A minute is `60s` and a day `24h`.
///
/// ```
/// use core::time::Duration;
/// use paceline_core::format_window;
///
/// let texts = [60, 3_600, 5_400, 86_400, 604_800].map(|seconds| format_window(Duration::from_secs(seconds)));
/// assert_eq!(texts, ["60s", "1h", "90m", "24h", "7d"]);
/// ```
pub fn format_window(window: Duration) -> String {
    let nanos = window.as_nanos();
    for ((name, unit), least) in UNITS[..4].iter().zip([2, 1, 2, 0]) {
        let (count, rest) = (nanos / unit.as_nanos(), nanos % unit.as_nanos());
        if rest == 0 && count >= least {
            return format!("{count}{name}");
        }
    }
    match nanos % 1_000_000 {
        0 => format!("{}ms", window.as_millis()),
        _ => format!("{}s", window.as_secs_f64()),
    }
}

/// How many digits a sum of money has behind the point for people: two, four below 1, six below 0.0001.
pub const fn money_digits(amount: f64) -> u32 {
    match amount {
        ..=0.0 | 1.0.. => 2,
        ..0.000_1 => 6,
        _ => 4,
    }
}

/// Formats a sum of money as people write it, without its currency: `5.00`, `0.0375`, `0.000012`.
pub fn format_money(amount: f64) -> String {
    format!("{amount:.*}", money_digits(amount) as usize)
}

/// The number at the start and what follows it: digits with at most one point and with `_` between them, as in `1_000.5rpm`.
/// None without one.
pub fn leading_number(text: &str) -> Option<(f64, &str)> {
    let (number, rest) = text.split_at(text.find(|c: char| !is_numeric(c)).unwrap_or(text.len()));
    Some((digits(number)?, rest))
}

fn is_numeric(c: char) -> bool {
    c.is_ascii_digit() || c == '.' || c == '_'
}

/// Digits with at most one point: no sign, no exponent, no `inf`, no `NaN`.
fn digits(text: &str) -> Option<f64> {
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    let shaped = text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with(|c: char| c.is_ascii_digit());
    shaped.then(|| plain.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        let texts = [0, 250, 1_000, 1_249, 59_900, 185_000, 3_720_000, 183_600_000]
            .map(|millis| format_duration(Duration::from_millis(millis)));
        assert_eq!(texts, ["0ms", "250ms", "1s", "1.2s", "59.9s", "3m 05s", "1h 02m", "2d 3h"]);
        let nearest =
            [5_370, 7_199, 86_369, 86_370, 97_199, 99_000].map(|seconds| format_duration(Duration::from_secs(seconds)));
        assert_eq!(nearest, ["1h 30m", "2h 00m", "23h 59m", "1d 0h", "1d 3h", "1d 4h"]);
    }

    #[test]
    fn durations_are_numbers_with_units_from_the_longest_to_the_shortest() {
        for (text, millis) in [
            ("250ms", 250),
            (" 5 s ", 5_000),
            ("90", 90_000),
            ("0.1s", 100),
            ("15m", 900_000),
            ("1h30m", 5_400_000),
            ("1d 2h 3m 4s 5ms", 93_784_005),
            ("366d", 366 * 86_400_000),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "5 parsecs", "1m1h", "1s1s", "1h-5m", "-1s", "366d1ms", "1h 30"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
