//! Axes: which values stand where, and which of them are named.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// One direction of a panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    pub(crate) label: String,
    scale: Scale,
    low: f64,
    high: f64,
    /// The least step between named values of a linear axis.
    least_step: f64,
    /// Steps between named values of a linear axis, at most.
    pub(crate) most_steps: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Linear,
    /// Decades; zero and all that is below `low` stand in a place of their own before them.
    LogWithZero,
}

/// The part of a logarithmic axis that is kept for zero, in decades.
const ZERO: f64 = 0.6;

/// Steps of a linear axis whose length is not known beforehand.
const MOST_STEPS: u32 = 6;

impl Axis {
    /// Equal steps from `low` to `high`; values outside are drawn at the edge.
    pub fn linear(label: &str, low: f64, high: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { label: label.to_owned(), scale: Scale::Linear, low, high, least_step: 0.0, most_steps: MOST_STEPS }
    }

    /// Equal factors, from the power of ten below `low` to the one above `high`, with a place for zero before them.
    /// `low` is more than 0.
    pub fn log_with_zero(label: &str, low: f64, high: f64) -> Self {
        let low = 10f64.powf(low.log10().floor());
        let high = 10f64.powf(high.max(10.0 * low).log10().ceil());
        Self { label: label.to_owned(), scale: Scale::LogWithZero, low, high, least_step: 0.0, most_steps: MOST_STEPS }
    }

    /// Names whole numbers only, where it is linear.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { least_step: 1.0, ..self }
    }

    /// The same axis under another name.
    #[must_use]
    pub fn labelled(self, label: &str) -> Self {
        Self { label: label.to_owned(), ..self }
    }

    /// Where a value stands: 0 is the lower end of the axis, 1 the upper.
    fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::LogWithZero if value < self.low => 0.0,
            Scale::LogWithZero => (ZERO + (value / self.low).log10()) / (ZERO + (self.high / self.low).log10()),
        };
        place.clamp(0.0, 1.0)
    }

    /// The values that are named.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = self.step();
                let first = (self.low / step - 1e-9).ceil() as i64;
                let last = (self.high / step + 1e-9).floor() as i64;
                (first..=last).map(|index| index as f64 * step).collect()
            }
            Scale::LogWithZero => {
                let (low, high) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
                std::iter::once(0.0).chain((low..=high).map(|power| 10f64.powi(power))).collect()
            }
        }
    }

    /// 1, 2 or 5 times a power of ten, so that few steps fill a linear axis.
    fn step(&self) -> f64 {
        let least = ((self.high - self.low) / f64::from(self.most_steps)).max(self.least_step);
        let power = 10f64.powf(least.log10().floor());
        let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
        factor.unwrap_or(10.0) * power
    }

    pub(crate) fn text(&self, value: f64) -> String {
        let decimals = match self.scale {
            Scale::Linear => decimals(self.step()),
            Scale::LogWithZero if value == 0.0 => 0,
            Scale::LogWithZero => decimals(value),
        };
        thousands(&format!("{value:.decimals$}"))
    }
}

/// Digits behind the point that a multiple of this needs.
fn decimals(step: f64) -> usize {
    (-step.log10() - 1e-9).ceil().max(0.0) as usize
}

/// Commas between the thousands of a number without an exponent.
fn thousands(number: &str) -> String {
    let whole = number.find('.').unwrap_or(number.len());
    let digits = number[..whole].trim_start_matches('-').len();
    let mut text = String::with_capacity(number.len() + digits / 3);
    for (index, char) in number.char_indices() {
        let left = whole.saturating_sub(index);
        if index > whole - digits && index < whole && left % 3 == 0 {
            text.push(',');
        }
        text.push(char);
    }
    text
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (self.place(*value) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.text(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|tick| axis.text(tick)).collect()
    }

    #[test]
    fn ticks_are_round_numbers_with_as_many_digits_as_they_need() {
        for (low, high, expected) in [
            (0.0, 1.0, vec!["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (0.0, 300.0, vec!["0", "50", "100", "150", "200", "250", "300"]),
            (-1.0, 1.0, vec!["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
            (0.0, 4_200.0, vec!["0", "1,000", "2,000", "3,000", "4,000"]),
            (0.0, 0.0025, vec!["0.0000", "0.0005", "0.0010", "0.0015", "0.0020", "0.0025"]),
        ] {
            assert_eq!(texts(&Axis::linear("", low, high)), expected, "{low} to {high}");
        }
        assert_eq!(
            texts(&Axis::log_with_zero("", 0.004, 3_000.0)),
            ["0", "0.001", "0.01", "0.1", "1", "10", "100", "1,000", "10,000"]
        );
    }

    #[test]
    fn zero_has_a_place_on_a_logarithmic_axis() {
        let axis = Axis::log_with_zero("", 0.01, 100.0);
        let at = |value: f64| axis.map(&value, (0, 4_600));
        assert_eq!([0.0, 0.005, 0.01, 0.1, 100.0, 1e9].map(at), [0, 0, 600, 1_600, 4_600, 4_600]);
    }
}
