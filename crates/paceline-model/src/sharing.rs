//! A service that shares its capacity among the calls in it.

use std::time::Duration;

use paceline_core::Instant;

/// A service whose calls slow each other down when there are too many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overload {
    /// Calls that are served at full speed, at least 1.
    pub capacity: u32,
    /// A call that would make more than `capacity x queue` in service is refused as overloaded. At least 1.
    pub queue: f64,
    /// The share of the throughput that each further `capacity` of calls costs; a fifth of it always remains.
    pub degrade: f64,
}

impl Overload {
    /// The usual model: refuses beyond twice the capacity, and loses 15 % of its throughput on the way there.
    pub const fn of(capacity: u32) -> Self {
        Self { capacity, queue: 2.0, degrade: 0.15 }
    }

    pub(crate) fn most(&self) -> u32 {
        (f64::from(self.capacity) * self.queue) as u32
    }

    /// How fast each of so many calls gets on; 1 is full speed.
    fn speed(&self, calls: u32) -> f64 {
        if calls <= self.capacity {
            return 1.0;
        }
        let capacity = f64::from(self.capacity);
        let excess = (f64::from(calls) - capacity) / capacity;
        (1.0 - self.degrade * excess).max(0.2) / (1.0 + excess)
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.capacity > 0 && self.queue >= 1.0 && self.degrade >= 0.0
    }
}

/// An admitted call in service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Service {
    /// How long it takes at full speed, until the answer or the fault.
    pub work: Duration,
    /// It ends in a server error.
    pub fault: bool,
    begun: Instant,
    /// What [`Sharing::done`] was then.
    mark: f64,
}

/// The calls in service, and how far they got.
#[derive(Clone, Debug)]
pub(crate) struct Sharing {
    overload: Option<Overload>,
    calls: u32,
    now: Instant,
    /// Nanoseconds of work that a call would have got done that has been in service since the origin.
    done: f64,
}

impl Sharing {
    pub(crate) const fn new(overload: Option<Overload>) -> Self {
        Self { overload, calls: 0, now: Instant::ZERO, done: 0.0 }
    }

    pub(crate) const fn calls(&self) -> u32 {
        self.calls
    }

    /// Calls that get on at full speed.
    pub(crate) fn capacity(&self) -> u32 {
        self.overload.map_or(u32::MAX, |overload| overload.capacity)
    }

    pub(crate) const fn is_shared(&self) -> bool {
        self.overload.is_some()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.overload.is_some_and(|overload| self.calls >= overload.most())
    }

    pub(crate) fn advance(&mut self, now: Instant) {
        self.done += (now - self.now).as_nanos() as f64 * self.speed();
        self.now = now;
    }

    pub(crate) fn begin(&mut self, work: Duration, fault: bool) -> Service {
        self.calls += 1;
        Service { work, fault, begun: self.now, mark: self.done }
    }

    pub(crate) fn finish(&mut self) {
        debug_assert!(self.calls > 0, "finish without an admitted call");
        self.calls = self.calls.saturating_sub(1);
    }

    /// When that share of the work is done if no call comes or goes; exact where calls do not slow each other down.
    pub(crate) fn due(&self, service: &Service, share: f64) -> Instant {
        let work = if share == 1.0 { service.work } else { service.work.mul_f64(share) };
        if self.overload.is_none() {
            return service.begun + work;
        }
        let left = (service.mark + work.as_nanos() as f64 - self.done).max(0.0);
        // What is less than a nanosecond of work is done: otherwise the rounding could ask for another look for ever.
        if left < 1.0 { self.now } else { self.now + Duration::from_nanos((left / self.speed()) as u64 + 1) }
    }

    fn speed(&self) -> f64 {
        self.overload.map_or(1.0, |overload| overload.speed(self.calls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Instant {
        Instant::ZERO + MS * ms
    }

    #[test]
    fn calls_slow_each_other_down_while_they_are_together() {
        let mut sharing = Sharing::new(Some(Overload { capacity: 1, queue: 2.0, degrade: 0.0 }));
        let first = sharing.begin(100 * MS, false);
        assert_eq!(sharing.due(&first, 1.0).as_nanos() / 1_000_000, 100);
        sharing.advance(at(50));
        let second = sharing.begin(100 * MS, false);
        assert!(sharing.is_full());
        // Half of the first is left, at half the speed.
        assert_eq!(sharing.due(&first, 1.0).as_nanos() / 1_000_000, 150);
        sharing.advance(at(150));
        assert_eq!(sharing.due(&first, 1.0), at(150));
        sharing.finish();
        assert_eq!(sharing.due(&second, 1.0).as_nanos() / 1_000_000, 200);
        assert_eq!(sharing.due(&second, 0.5), at(150), "half of it was done meanwhile");
    }

    #[test]
    fn the_throughput_shrinks_to_a_fifth_at_worst() {
        let overload = Overload { capacity: 10, queue: 100.0, degrade: 0.15 };
        let throughput = |calls| overload.speed(calls) * f64::from(calls) / 10.0;
        assert_eq!(throughput(10), 1.0);
        assert!((throughput(20) - 0.85).abs() < 1e-9);
        assert!((throughput(500) - 0.2).abs() < 1e-9);
    }
}
