//! The last quarter of an hour of a scope, as rows of bars.

use serde::Deserialize;

use crate::text;

/// What the gateway keeps of a scope, step by step, the oldest first; a step of which nothing is known is none.
#[derive(Debug, Deserialize)]
pub(super) struct History {
    step_s: u64,
    succeeded: Vec<Option<f64>>,
    throttled: Vec<Option<f64>>,
    overloaded: Vec<Option<f64>>,
    failed: Vec<Option<f64>>,
    in_flight: Vec<Option<f64>>,
    waiting: Vec<Option<f64>>,
    rate: Vec<Option<f64>>,
    p95_ms: Vec<Option<f64>>,
}

/// The columns of a name, and those of the figures behind the bars.
const NAME: usize = 13;
const FIGURES: usize = 26;

/// From nothing to the most.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

impl History {
    /// Rows of bars, and of each row the last value and the most; only those in which something happened.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let minute = |values: &[Option<f64>]| -> Vec<Option<f64>> {
            values.iter().map(|value| value.map(|value| value * 60.0 / self.step_s.max(1) as f64)).collect()
        };
        let rate: Vec<_> = self.rate.iter().map(|rate| rate.map(|rate| rate * 60.0)).collect();
        let rows = [
            ("succeeded/min", minute(&self.succeeded), ""),
            ("learnt/min", rate, ""),
            ("429/min", minute(&self.throttled), ""),
            ("503/min", minute(&self.overloaded), ""),
            ("failed/min", minute(&self.failed), ""),
            ("p95", self.p95_ms.clone(), "ms"),
            ("in flight", self.in_flight.clone(), ""),
            ("waiting", self.waiting.clone(), ""),
        ];
        let happened = |values: &[Option<f64>]| values.iter().flatten().any(|value| *value > 0.0);
        let rows = rows.iter().filter(|(_, values, _)| happened(values));
        let lines: Vec<_> = rows.filter_map(|(name, values, unit)| row(name, values, unit, width)).collect();
        let minutes = self.succeeded.len() as u64 * self.step_s / 60;
        let title = format!("last {}, the newest on the right", text::counted(minutes, "minute"));
        if lines.is_empty() { Vec::new() } else { [title].into_iter().chain(lines).collect() }
    }
}

/// None where it has no room.
fn row(name: &str, values: &[Option<f64>], unit: &str, width: usize) -> Option<String> {
    let room = width.checked_sub(NAME + 1 + FIGURES).filter(|room| *room > 0)?;
    let most = values.iter().flatten().fold(0.0_f64, |most, value| most.max(*value));
    let bars: String = in_columns(values, room).into_iter().map(|value| bar(value, most)).collect();
    let figure = |value: f64| format!("{}{unit}", text::count(value.round() as u64));
    let last = values.iter().rev().find_map(|value| *value).map_or_else(|| "none".to_owned(), figure);
    Some(format!("{} {bars} now {last}, most {}", text::padded(name, NAME), figure(most)))
}

/// As many columns as have room, each the most of its steps.
fn in_columns(values: &[Option<f64>], room: usize) -> Vec<Option<f64>> {
    let steps = values.len().div_ceil(room).max(1);
    let most = |part: &[Option<f64>]| part.iter().flatten().copied().reduce(f64::max);
    values.rchunks(steps).rev().map(most).collect()
}

fn bar(value: Option<f64>, most: f64) -> char {
    let Some(value) = value else { return ' ' };
    let above = BARS.len() - 1;
    let height = if most > 0.0 { (value / most * above as f64).ceil() as usize } else { 0 };
    BARS[height.min(above)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_has_the_most_of_several_steps_and_the_newest_on_the_right() {
        let values = [None, Some(0.0), Some(1.0), Some(0.0), Some(7.0), Some(3.5)];
        assert_eq!(in_columns(&values, 3), [Some(0.0), Some(1.0), Some(7.0)]);
        assert_eq!(in_columns(&values, 4), [Some(0.0), Some(1.0), Some(7.0)], "of two steps each");
        let row = row("succeeded", &values, "", NAME + 1 + FIGURES + 6).expect("it has room");
        assert_eq!(row, "succeeded      ▁▂▁█▅ now 4, most 7");
        assert!(super::row("succeeded", &values, "", NAME).is_none());
    }
}
