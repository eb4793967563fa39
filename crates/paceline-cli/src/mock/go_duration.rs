//! Durations as Go prints them, the way OpenAI's headers and messages give them.

use std::time::Duration;

/// `17ms`, `8.64s`, `6m0s`, `1h0m0.5s`; rounded up to the microsecond, so that a caller who waits so long is not early.
pub(crate) fn go_duration(duration: Duration) -> String {
    let micros = duration.as_nanos().div_ceil(1_000);
    let (minutes, rest) = (micros / 60_000_000, micros % 60_000_000);
    match (minutes / 60, minutes % 60) {
        (0, 0) if micros == 0 => "0s".to_owned(),
        (0, 0) if micros < 1_000_000 => format!("{}ms", decimal(micros, 1_000)),
        (0, 0) => format!("{}s", decimal(rest, 1_000_000)),
        (0, minutes) => format!("{minutes}m{}s", decimal(rest, 1_000_000)),
        (hours, minutes) => format!("{hours}h{minutes}m{}s", decimal(rest, 1_000_000)),
    }
}

/// `1.386` for 1,386 of 1,000; no point without digits behind it. Also the form of `retry-after-ms`.
pub(crate) fn decimal(number: u128, unit: u128) -> String {
    let digits = unit.ilog10() as usize;
    let text = format!("{}.{:0digits$}", number / unit, number % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_go_prints_them() {
        for (micros, text) in [
            (0, "0s"),
            (500, "0.5ms"),
            (17_000, "17ms"),
            (431_250, "431.25ms"),
            (1_000_000, "1s"),
            (8_640_000, "8.64s"),
            (360_000_000, "6m0s"),
            (179_560_000, "2m59.56s"),
            (3_600_500_000, "1h0m0.5s"),
        ] {
            assert_eq!(go_duration(Duration::from_micros(micros)), text);
        }
        assert_eq!(go_duration(Duration::from_nanos(17_000_001)), "17.001ms");
    }
}
