//! Numbers, durations and limits as people write them.

use std::str::FromStr;
use std::time::Duration;

pub(crate) use paceline_core::format_window as show_duration;
use paceline_core::{Concurrency, Dimension, LONGEST_DURATION, Limits, Pace, PacerConfig, Quota};

/// Above this a count is a mistake, and arithmetic on it would lose whole numbers.
const MOST: f64 = 1e15;

/// The least and the most money that a limit may allow: no window counts more.
const LEAST_MONEY: f64 = 1e-6;
const MOST_MONEY: f64 = 250_000.0;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// The short names of rates. `i` and `o` before `tpm` are tokens in and out.
pub(crate) const RATES: [(&str, Dimension, Duration); 10] = [
    ("rps", Dimension::Requests, SECOND),
    ("rpm", Dimension::Requests, MINUTE),
    ("rph", Dimension::Requests, HOUR),
    ("rpd", Dimension::Requests, DAY),
    ("tps", Dimension::Tokens, SECOND),
    ("tpm", Dimension::Tokens, MINUTE),
    ("tph", Dimension::Tokens, HOUR),
    ("tpd", Dimension::Tokens, DAY),
    ("itpm", Dimension::InputTokens, MINUTE),
    ("otpm", Dimension::OutputTokens, MINUTE),
];

/// A limit as people write it: `500rpm`, `10 rps`, `200k tpm`, `90 per 10s`, `200/10s`, `1M tokens per 1h`,
/// `50 concurrent`. A dimension that is not built in is the user's own: `100 points per 1m`. One in money is
/// `5.00 money per 24h`, `$5 per 24h` or `5 usd per 24h`, in the currency of the prices, whichever that is.
///
/// ```
/// use paceline_config::Limit;
/// use std::time::Duration;
/// let limit: Limit = "90 per 10s".parse()?;
/// assert_eq!(limit, "90/10s".parse()?);
/// assert!(matches!(limit, Limit::Rate { units: 90.0, window, .. } if window == Duration::from_secs(10)));
/// # Ok::<(), paceline_config::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Limit {
    /// Never more than `units` of `dimension` in any `window`.
    Rate {
        /// What is counted.
        dimension: Dimension,
        /// How many of it, more than 0; of money in billionths of its currency.
        units: f64,
        /// The window, more than 0.
        window: Duration,
    },
    /// Never more calls in flight.
    Concurrent(u32),
}

/// A text that is no limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no limit: expected {EXPECTED_LIMIT}")]
pub struct LimitError(String);

/// The number of a key whose name has the unit, such as `rpm`.
pub(crate) const EXPECTED_RATE: &str = "a number above 0 and at most 1_000_000G, without a unit";

pub(crate) const EXPECTED_LIMIT: &str = "a number above 0 and its unit, such as 500rpm, 10 rps, 200k tpm, 90 per 10s, 1M tokens per 1h or 50 concurrent, over \
     at most 366 days";

impl LimitError {
    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        parse_limit(text).ok_or_else(|| LimitError::of(text))
    }
}

impl Limit {
    /// The limit that a key such as `rpm` or `tpd` gives.
    pub(crate) fn keyed(key: &str, units: f64) -> Option<Self> {
        let (_, dimension, window) = RATES.iter().find(|(word, ..)| word.eq_ignore_ascii_case(key))?;
        Some(Self::Rate { dimension: dimension.clone(), units, window: *window })
    }
}

/// Limits without an upstream, for one pacer that keeps to them and learns nothing: as many calls in flight as the smallest says.
///
/// # Errors
/// Less than one unit in 366 days.
pub fn pacer_of(limits: &[Limit]) -> Result<PacerConfig, LimitError> {
    let (mut quotas, mut places) = (Vec::new(), u32::MAX);
    for limit in limits {
        match limit {
            Limit::Rate { dimension, units, window } => {
                let none = || LimitError(format!("{units} {dimension} per {window:?}"));
                quotas.push(quota(dimension.clone(), *units, *window).ok_or_else(none)?);
            }
            Limit::Concurrent(most) => places = places.min(*most),
        }
    }
    let limits = Limits { quotas, burst: None };
    Ok(PacerConfig {
        limits,
        concurrency: Concurrency::Fixed { max: places },
        pace: Pace::Fixed,
        ..PacerConfig::default()
    })
}

/// The quota that keeps to `units` per `window`: parts of a unit are dropped, and less than one is one in a longer
/// window (0.5 per minute is one in two minutes), so that the configured rate is never exceeded.
pub(crate) fn quota(dimension: Dimension, units: f64, window: Duration) -> Option<Quota> {
    if units >= 1.0 {
        return Some(Quota::sliding(dimension, units.floor() as u64, window));
    }
    let longer = Duration::try_from_secs_f64(window.as_secs_f64() / units).ok()?;
    (longer <= LONGEST_DURATION).then(|| Quota::sliding(dimension, 1, longer))
}

/// A finite number of at least 0 with an optional `k`, `M` or `G`; `_` may separate digits.
pub(crate) fn number(text: &str) -> Option<f64> {
    let (number, rest) = leading_number(text.trim())?;
    rest.is_empty().then_some(number)
}

/// A text that is no whole number above 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no count: expected a whole number from 1 to 1_000_000G, such as 500, 1_000 or 800k")]
pub struct CountError(String);

/// Reads a count as every flag and file takes it: `500`, `1_000`, `800k`, `2M`; at least 1 and at most 10^15.
///
/// # Errors
/// Anything else.
pub fn parse_count(text: &str) -> Result<u64, CountError> {
    let whole = number(text).filter(|number| number.fract() == 0.0 && *number >= 1.0);
    whole.map(|number| number as u64).ok_or_else(|| CountError(text.to_owned()))
}

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration: expected {EXPECTED_DURATION}")]
pub struct DurationError(String);

pub(crate) const EXPECTED_DURATION: &str =
    "a duration of at most 366 days, such as 200ms, 5s, 15m, 1h30m or 7d; a bare number is seconds";

/// Reads a duration as every flag and file takes it: `200ms`, `5s`, `15m`, `1h30m`, `7d`; a bare number is seconds.
///
/// # Errors
/// Anything else, and more than 366 days.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    duration(text).ok_or_else(|| DurationError(text.to_owned()))
}

/// [`parse_duration`] without the sentence.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    paceline_core::parse_duration(text)
}

fn parse_limit(text: &str) -> Option<Limit> {
    let text = text.trim();
    let of_sign = text.strip_prefix('$');
    let (number, rest) = leading_number(of_sign.unwrap_or(text).trim_start())?;
    if let Some((what, window)) = over_window(rest)
        && is_money(of_sign.is_some(), what)
    {
        let is_sum = (LEAST_MONEY..=MOST_MONEY).contains(&number);
        let units = (number * 1e9).round();
        return is_sum.then_some(Limit::Rate { dimension: Dimension::Money, units, window: period(window)? });
    }
    if of_sign.is_some() || number <= 0.0 {
        return None;
    }
    if rest.eq_ignore_ascii_case("concurrent") {
        let whole = number.fract() == 0.0 && number <= f64::from(u32::MAX);
        return whole.then_some(Limit::Concurrent(number as u32));
    }
    if let Some(limit) = Limit::keyed(rest, number) {
        return Some(limit);
    }
    let (what, window) = over_window(rest)?;
    Some(Limit::Rate { dimension: dimension(what)?, units: number, window: period(window)? })
}

/// What is counted, and over which window.
fn over_window(rest: &str) -> Option<(&str, &str)> {
    let (what, window) = match rest.split_once('/') {
        Some(both) => both,
        None if rest.starts_with("per ") => ("", rest.strip_prefix("per ")?),
        None => rest.split_once(" per ")?,
    };
    Some((what.trim(), window.trim()))
}

/// Whether a limit is one in money, by its sign or by the word after its number.
fn is_money(has_sign: bool, what: &str) -> bool {
    let is_word = || ["money", "usd"].iter().any(|word| word.eq_ignore_ascii_case(what));
    if has_sign { what.is_empty() } else { is_word() }
}

/// The number at the start, with its `k`, `M` or `G`, and the trimmed rest. The letter belongs to the number when
/// nothing, a blank, a slash or a rate word follows it: `200ktpm` is 200,000 tokens, `5 m` is no number.
fn leading_number(text: &str) -> Option<(f64, &str)> {
    let (value, rest) = paceline_core::leading_number(text)?;
    let scaled = rest.chars().next().and_then(|letter| {
        let scale = match letter {
            'k' | 'K' => 1e3,
            'm' | 'M' => 1e6,
            'g' | 'G' => 1e9,
            _ => return None,
        };
        let after = &rest[1..];
        let ends = after.is_empty()
            || after.starts_with([' ', '/'])
            || RATES.iter().any(|(word, ..)| word.eq_ignore_ascii_case(after));
        ends.then_some((value * scale, after))
    });
    let (value, rest) = scaled.unwrap_or((value, rest));
    (value <= MOST).then_some((value, rest.trim_start()))
}

/// A window: a duration, or the word for one.
fn period(text: &str) -> Option<Duration> {
    match text {
        "s" | "sec" | "second" => Some(SECOND),
        "m" | "min" | "minute" => Some(MINUTE),
        "h" | "hour" => Some(HOUR),
        "d" | "day" => Some(DAY),
        _ => duration(text).filter(|window| !window.is_zero()),
    }
}

fn dimension(text: &str) -> Option<Dimension> {
    match text {
        "" | "request" | "requests" | "req" | "calls" => Some(Dimension::Requests),
        "token" | "tokens" => Some(Dimension::Tokens),
        "input tokens" => Some(Dimension::InputTokens),
        "output tokens" => Some(Dimension::OutputTokens),
        _ => {
            let named = text.starts_with(|c: char| c.is_ascii_lowercase())
                && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            named.then(|| Dimension::from_name(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    fn rate(dimension: Dimension, units: f64, window: Duration) -> Limit {
        Limit::Rate { dimension, units, window }
    }

    #[test]
    fn limits_as_people_write_them() {
        use Dimension::{InputTokens, OutputTokens, Requests, Tokens};
        for (text, limit) in [
            ("500rpm", rate(Requests, 500.0, MINUTE)),
            ("500 rpm", rate(Requests, 500.0, MINUTE)),
            ("10 rps", rate(Requests, 10.0, SECOND)),
            ("0.5rps", rate(Requests, 0.5, SECOND)),
            ("1000 rpd", rate(Requests, 1_000.0, DAY)),
            ("1_000rph", rate(Requests, 1_000.0, HOUR)),
            ("200k tpm", rate(Tokens, 200_000.0, MINUTE)),
            ("200ktpm", rate(Tokens, 200_000.0, MINUTE)),
            ("40k itpm", rate(InputTokens, 40_000.0, MINUTE)),
            ("8k otpm", rate(OutputTokens, 8_000.0, MINUTE)),
            ("90 per 10s", rate(Requests, 90.0, 10 * SECOND)),
            ("90/10s", rate(Requests, 90.0, 10 * SECOND)),
            ("90 / 10s", rate(Requests, 90.0, 10 * SECOND)),
            ("500/min", rate(Requests, 500.0, MINUTE)),
            ("5 requests per hour", rate(Requests, 5.0, HOUR)),
            ("1M tokens per 1h", rate(Tokens, 1e6, HOUR)),
            ("1.5M tokens/1h", rate(Tokens, 1.5e6, HOUR)),
            ("2G bytes per 1d", rate(Dimension::Bytes, 2e9, DAY)),
            ("100 points per 1m", rate(Dimension::Named("points".into()), 100.0, MINUTE)),
            ("5.00 money per 24h", rate(Dimension::Money, 5e9, DAY)),
            ("$5 per day", rate(Dimension::Money, 5e9, DAY)),
            ("$ 0.5/1h", rate(Dimension::Money, 5e8, HOUR)),
            ("$1k per 30d", rate(Dimension::Money, 1e12, 30 * DAY)),
            ("2.50 USD per 1h", rate(Dimension::Money, 2.5e9, HOUR)),
            (" 50 concurrent ", Limit::Concurrent(50)),
            ("500 RPM", rate(Requests, 500.0, MINUTE)),
            ("200KTPM", rate(Tokens, 200_000.0, MINUTE)),
            ("60 per 1m 30s", rate(Requests, 60.0, 90 * SECOND)),
        ] {
            assert_eq!(text.parse(), Ok(limit), "{text}");
        }
    }

    #[test]
    fn what_is_no_limit() {
        for text in [
            "",
            "500",
            "rpm",
            "-5rpm",
            "+5rpm",
            "ten rpm",
            "NaN rpm",
            "inf rpm",
            "1e3 rpm",
            "0rpm",
            "0 concurrent",
            "1.5 concurrent",
            "5 per",
            "5 per 0s",
            "5 per week",
            "5rpx",
            "5 Points per 1m",
            "5 5rpm",
            "5/",
            "5/10x",
            "9999999999999999999rpm",
            "1..5rpm",
            ".5rpm",
            "5. rpm",
            "5rpm rpm",
            "5 per -1s",
            "99999999999 concurrent",
            "$5",
            "$5rpm",
            "$5 concurrent",
            "$5 tokens per 1h",
            "$0 per 24h",
            "0.0000001 money per 24h",
            "250001 money per 24h",
        ] {
            assert!(text.parse::<Limit>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn durations() {
        let millis = Duration::from_millis;
        for (text, expected) in [
            ("200ms", Some(millis(200))),
            ("5s", Some(5 * SECOND)),
            ("15m", Some(15 * MINUTE)),
            ("1h", Some(HOUR)),
            ("7d", Some(7 * DAY)),
            ("2", Some(2 * SECOND)),
            ("0.1", Some(millis(100))),
            ("1.5 s", Some(millis(1_500))),
            ("1h30m", Some(90 * MINUTE)),
            ("1h 30m", Some(90 * MINUTE)),
            ("1m 05s", Some(65 * SECOND)),
            ("2d 3h", Some(51 * HOUR)),
            ("1s 500 ms", Some(millis(1_500))),
            ("30m 1h", None),
            ("1h 1h", None),
            ("1h 30", None),
            ("1h30m,", None),
            ("365d 25h", None),
            ("0", Some(Duration::ZERO)),
            ("366d", Some(LONGEST_DURATION)),
            ("367d", None),
            ("1e3", None),
            ("-1s", None),
            ("NaN", None),
            ("inf", None),
            ("5x", None),
            ("s", None),
            ("", None),
        ] {
            assert_eq!(duration(text), expected, "{text:?}");
        }
    }

    #[test]
    fn counts() {
        for (text, expected) in [("500", 500), ("800k", 800_000), ("1_000", 1_000), ("1.5M", 1_500_000), (" 2 ", 2)] {
            assert_eq!(parse_count(text), Ok(expected), "{text}");
        }
        for text in ["0", "-1", "1.5", "", "k", "10x", "1e3"] {
            assert!(parse_count(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn a_fraction_never_exceeds_the_configured_rate() {
        let window = |quota: Quota| (quota.limit, quota.window);
        assert_eq!(quota(Dimension::Requests, 99.9, MINUTE).map(window), Some((99, MINUTE)));
        assert_eq!(quota(Dimension::Requests, 0.5, MINUTE).map(window), Some((1, 2 * MINUTE)));
        assert_eq!(quota(Dimension::Requests, 1e-9, DAY), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,24}") {
            let _ = text.parse::<Limit>();
            let _ = duration(&text);
            let _ = number(&text);
        }

        #[test]
        fn a_shown_duration_reads_back(millis in 0u64..30_000_000_000) {
            let shown = Duration::from_millis(millis);
            prop_assert_eq!(duration(&show_duration(shown)), Some(shown));
        }

        #[test]
        fn every_positive_rate_word_is_understood(units in 1u32.., row in 0usize..RATES.len()) {
            let (word, dimension, window) = RATES[row].clone();
            let parsed: Limit = format!("{units} {word}").parse().expect("a limit");
            prop_assert!(parsed == rate(dimension, f64::from(units), window));
        }
    }
}
