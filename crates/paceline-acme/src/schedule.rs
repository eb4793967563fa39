//! When the next run begins.

use std::time::Duration;

use jiff::civil::Time;
use jiff::{SignedDuration, Span, Zoned};

/// When runs begin: at a time of day, and so often from then on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// The distance between two runs.
    pub(crate) every: Duration,
    /// The time of day of the first; none for at once.
    pub(crate) at: Option<Time>,
    /// Each begins up to so much later.
    pub(crate) spread: Duration,
}

impl Schedule {
    /// When the first run begins. `share` is drawn by chance, from 0 to 1.
    pub(crate) fn first(&self, now: &Zoned, share: f64) -> Result<Zoned, jiff::Error> {
        let Some(at) = self.at else { return Ok(now.clone()) };
        let today = now.date().to_datetime(at).to_zoned(now.time_zone().clone())?;
        let begins = if today >= *now { today } else { self.day_after(&today, 1)? };
        begins.checked_add(self.late(share))
    }

    /// When the run after one of that time begins: never in the past, however long that one took. Whole days keep the time
    /// of day when the clocks change.
    pub(crate) fn next(&self, now: &Zoned, last: &Zoned, share: f64) -> Result<Zoned, jiff::Error> {
        let mut begins = match self.at {
            Some(at) => last.date().to_datetime(at).to_zoned(now.time_zone().clone())?,
            None => last.clone(),
        };
        let day = Duration::from_secs(86_400);
        let days = self.every.as_secs() / day.as_secs();
        while begins <= *last || begins < *now {
            begins = match self.every == day * days as u32 {
                true => self.day_after(&begins, i64::try_from(days).unwrap_or(i64::MAX))?,
                false => begins.checked_add(SignedDuration::try_from(self.every)?)?,
            };
        }
        begins.checked_add(self.late(share))
    }

    fn day_after(&self, day: &Zoned, days: i64) -> Result<Zoned, jiff::Error> {
        day.checked_add(Span::new().try_days(days)?)
    }

    fn late(&self, share: f64) -> SignedDuration {
        SignedDuration::from_secs_f64(self.spread.as_secs_f64() * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zoned(text: &str) -> Zoned {
        text.parse().unwrap()
    }

    fn schedule(every_h: u64, at: Option<i8>, spread_m: u64) -> Schedule {
        let at = at.map(|hour| Time::constant(hour, 0, 0, 0));
        Schedule { every: Duration::from_secs(every_h * 3_600), at, spread: Duration::from_secs(spread_m * 60) }
    }

    #[test]
    fn the_first_run_begins_at_the_next_time_of_that_name() {
        let now = zoned("2026-11-22T02:10[Europe/Berlin]");
        let first = |schedule: Schedule, share| schedule.first(&now, share).unwrap();
        assert_eq!(first(schedule(24, None, 30), 0.9), now);
        assert_eq!(first(schedule(24, Some(3), 0), 0.0), zoned("2026-11-22T03:00[Europe/Berlin]"));
        assert_eq!(first(schedule(24, Some(2), 30), 0.5), zoned("2026-11-23T02:15[Europe/Berlin]"));
    }

    #[test]
    fn whole_days_keep_the_time_of_day_and_other_distances_the_distance() {
        for (schedule, last, now, expected) in [
            (schedule(24, Some(3), 0), "2026-11-22T03:00", "2026-11-22T03:20", "2026-11-23T03:00"),
            // Late by the spread, over the change to summer time, and after a run that took three days.
            (schedule(24, Some(4), 60), "2027-03-27T04:50", "2027-03-27T05:00", "2027-03-28T04:00"),
            (schedule(48, Some(3), 0), "2026-11-22T03:00", "2026-11-25T04:00", "2026-11-26T03:00"),
            (schedule(6, Some(3), 0), "2026-11-22T03:00", "2026-11-22T03:05", "2026-11-22T09:00"),
            (schedule(1, None, 0), "2026-11-22T03:10", "2026-11-22T03:15", "2026-11-22T04:10"),
        ] {
            let zone = "[Europe/Berlin]";
            let [last, now, expected] = [last, now, expected].map(|text| zoned(&format!("{text}{zone}")));
            assert_eq!(schedule.next(&now, &last, 0.0).unwrap(), expected, "{schedule:?} after {last}");
        }
    }
}
