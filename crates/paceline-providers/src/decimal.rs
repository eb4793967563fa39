//! Decimal numbers without floating point.

use std::time::Duration;

/// A non-negative decimal number without sign or exponent: the whole part of at most 15 digits, and billionths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decimal {
    pub(super) whole: u64,
    pub(super) nanos: u32,
}

impl Decimal {
    /// The number that the whole text is.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::take(text).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number)
    }

    /// The number at the start of `text`, and the rest. A point without digits after it is not part of the number.
    pub(super) fn take(text: &str) -> Option<(Self, &str)> {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = text.split_at(digits(text));
        if whole.len() > 15 {
            return None;
        }
        let whole = whole.parse().ok()?;
        let fraction = rest.strip_prefix('.').unwrap_or_default();
        let (fraction, tail) = fraction.split_at(digits(fraction));
        if fraction.is_empty() {
            return Some((Self { whole, nanos: 0 }, rest));
        }
        let nanos =
            fraction.bytes().chain(std::iter::repeat(b'0')).take(9).fold(0, |n, d| n * 10 + u32::from(d - b'0'));
        let nanos = nanos + u32::from(fraction.bytes().skip(9).any(|digit| digit != b'0'));
        let whole = whole + u64::from(nanos / 1_000_000_000);
        Some((Self { whole, nanos: nanos % 1_000_000_000 }, tail))
    }

    /// The number in units of `nanos` nanoseconds, rounded up.
    pub(super) fn times(self, nanos: u64) -> Option<Duration> {
        let billionths = u128::from(self.whole) * 1_000_000_000 + u128::from(self.nanos);
        let nanos = (billionths * u128::from(nanos)).div_ceil(1_000_000_000);
        Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_nanosecond_round_up() {
        for (text, nanos, expected) in [
            ("1.5", 1_000_000_000, 1_500_000_000),
            ("0.0000000001", 1_000_000_000, 1),
            ("0.9999999999", 1_000_000_000, 1_000_000_000),
            ("0.1", 1, 1),
            ("3", 60_000_000_000, 180_000_000_000),
        ] {
            let number = Decimal::parse(text).expect("a number");
            assert_eq!(number.times(nanos), Some(Duration::from_nanos(expected)), "{text}");
        }
        let largest = Decimal::parse("999999999999999").expect("15 digits");
        assert_eq!(largest.times(3_600_000_000_000), None);
    }

    #[test]
    fn a_point_needs_digits_on_both_sides() {
        for text in ["1.", ".5", "", ".", "1..5", "-1", "+1", "1e3", "1234567890123456"] {
            assert!(Decimal::parse(text).is_none(), "{text:?}");
        }
        let (number, rest) = Decimal::take("26.x").expect("a number");
        assert_eq!((number.whole, number.nanos, rest), (26, 0, ".x"));
    }
}
