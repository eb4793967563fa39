//! The only place that reads a clock.
//!
//! Decisions are made on [`Clock`]: monotonic, and it goes on counting while the machine sleeps, so that a laptop closed
//! over night finds its waits over in the morning. Dates that servers send are compared with [`wall`], which may jump
//! and therefore decides nothing by itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use paceline_core::{Instant, Timestamp};

/// What the clock shows when it is made: more than a year, so that calls of an earlier process have an instant too.
const ORIGIN: Instant = Instant::from_nanos(400 * 86_400 * 1_000_000_000);

/// The counter of the processor is believed for so long, then it is set by Tokio's clock again: it may be wrong by some
/// millionths.
const BELIEVED: u64 = 100_000_000;

/// Two readings of clocks that are apart by less, in nanoseconds, are of one time.
const AT_ONCE: u64 = 10_000;

/// How often both clocks are read for that.
const TRIES: u32 = 8;

/// For so long after it asked, in nanoseconds, the clock takes the machine not to have slept: callers ask several times a call.
const AWAKE: u64 = 1_000_000;

/// A monotonic clock that counts suspended time.
///
/// It is Tokio's clock, so that a deadline and the timer that waits for it agree, plus the time that the machine was suspended.
/// On Linux Tokio's clock leaves that out; [`Clock::notice_suspension`] adds it. Elsewhere nothing is added: a wait that a
/// suspension interrupts ends late there, never early.
///
/// Between two readings of Tokio's clock, at most 100 ms apart, the counter of the processor goes on with it: it is read in
/// half the time. Where a test has paused Tokio's clock, that alone is read; a pause that begins after the clock was made is
/// known by the next wait or [`Clock::notice_suspension`].
#[derive(Debug)]
pub struct Clock {
    origin: tokio::time::Instant,
    suspended_before: Duration,
    /// Nanoseconds suspended since the origin, as far as noticed. Alone in its own atomic: nothing else is published
    /// with it, so relaxed accesses suffice.
    suspended: AtomicU64,
    counter: quanta::Clock,
    /// The counter when the clock was made. All of the following are nanoseconds since then.
    begun: u64,
    /// What the counter showed when Tokio's clock was read last.
    set_at: AtomicU64,
    /// What the clock showed then, less that. Published by `set_at`.
    ahead: AtomicU64,
    /// The latest that the clock can have shown before it was set. A counter that was fast is set back by that: until the time
    /// has come again, the clock stands still.
    shown: AtomicU64,
    /// A thread sets the clock: another one goes on with what it has read.
    is_being_set: AtomicBool,
    /// What the counter showed when the clock asked last whether the machine had slept; long ago where Tokio's clock is paused.
    asked_at: AtomicU64,
}

/// Both clocks at one time.
struct Readings {
    /// What the counter had shown when the clock was set before that.
    set_at: u64,
    /// How long it was since the origin, by Tokio's clock.
    awake: Duration,
    counted: u64,
}

impl Clock {
    /// A clock that starts now. The first one of a process takes about a millisecond, to compare the counter with the system's
    /// clock.
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let clock = Self {
            origin: tokio_now(),
            suspended_before: suspended_since_boot(),
            suspended: AtomicU64::new(0),
            begun: counter.raw(),
            counter,
            set_at: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            is_being_set: AtomicBool::new(false),
            asked_at: AtomicU64::new(u64::MAX - AWAKE),
        };
        clock.set();
        clock
    }

    /// The time on this clock: it began more than a year before the clock was made.
    #[inline]
    pub fn now(&self) -> Instant {
        self.shown(self.counted())
    }

    /// The same with all that the machine has slept, where that was not noticed less than a millisecond ago. The counter is read
    /// once for both.
    #[inline]
    pub(crate) fn now_awake(&self) -> Instant {
        let counted = self.counted();
        if counted.wrapping_sub(self.asked_at.load(Ordering::Relaxed)) >= AWAKE {
            self.notice_suspension();
            return self.now();
        }
        self.shown(counted)
    }

    #[inline]
    fn shown(&self, counted: u64) -> Instant {
        // Less than what it was set at is a counter that began anew when the machine woke up.
        if counted.wrapping_sub(self.set_at.load(Ordering::Acquire)) < BELIEVED {
            let now = counted.wrapping_add(self.ahead.load(Ordering::Relaxed));
            return Instant::from_nanos(now.max(self.shown.load(Ordering::Relaxed)));
        }
        self.set().0
    }

    fn counted(&self) -> u64 {
        self.counter.delta_as_nanos(self.begun, self.counter.raw())
    }

    /// Reads Tokio's clock and the counter. Where the thread was interrupted between the two, both are read again, and at
    /// last the counter is the later one: the clock may be late, and never early.
    fn read_both(&self) -> Readings {
        // Before the counter: other threads set the clock at any time, and a counter that is less than this began anew.
        let set_at = self.set_at.load(Ordering::Acquire);
        let mut tries = 1;
        loop {
            let before = self.counted();
            let awake = tokio_now().saturating_duration_since(self.origin);
            let counted = self.counted();
            if counted.wrapping_sub(before) < AT_ONCE || tries == TRIES {
                return Readings { set_at, awake, counted };
            }
            tries += 1;
        }
    }

    /// Sets the counter by Tokio's clock, where that is the real time. Returns the time, and whether it is.
    #[cold]
    fn set(&self) -> (Instant, bool) {
        self.set_by(self.read_both())
    }

    fn set_by(&self, Readings { set_at, awake, counted }: Readings) -> (Instant, bool) {
        let now = ORIGIN + awake + Duration::from_nanos(self.suspended.load(Ordering::Relaxed));
        let latest = set_at.wrapping_add(BELIEVED);
        // The counters of two processors may differ a little.
        let began_anew = set_at.saturating_sub(counted) >= AT_ONCE;
        let believed = if began_anew { latest } else { counted.max(set_at).min(latest) };
        let shown = believed.wrapping_add(self.ahead.load(Ordering::Relaxed));
        let shown = shown.max(self.shown.fetch_max(shown, Ordering::Relaxed));
        let is_real = Self::is_real();
        if !self.is_being_set.swap(true, Ordering::Acquire) {
            // Where another thread has set it since, these readings are older.
            if self.set_at.load(Ordering::Relaxed) == set_at {
                self.ahead.store(now.as_nanos().wrapping_sub(counted), Ordering::Relaxed);
                let believed = if is_real { counted } else { counted.wrapping_sub(BELIEVED) };
                self.set_at.store(believed, Ordering::Release);
            }
            self.is_being_set.store(false, Ordering::Release);
        }
        (now.max(Instant::from_nanos(shown)), is_real)
    }

    fn is_real() -> bool {
        #[cfg(test)]
        if crate::sync::model::now().is_some() {
            return false;
        }
        !is_virtual()
    }

    /// Adds what the machine slept since the last call, unless that was less than a millisecond ago. It reads more clocks, so it
    /// is made at each tick of a timer and where a caller asks when or sets a deadline, not at each reading. The clock never goes
    /// backwards by it.
    pub fn notice_suspension(&self) {
        let counted = self.counted();
        if counted.wrapping_sub(self.asked_at.load(Ordering::Relaxed)) < AWAKE {
            return;
        }
        let suspended = suspended_since_boot().saturating_sub(self.suspended_before);
        self.suspended.fetch_max(u64::try_from(suspended.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let (_, is_real) = self.set();
        self.asked_at.store(if is_real { counted } else { counted.wrapping_sub(AWAKE) }, Ordering::Relaxed);
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether a test has paused or moved Tokio's clock in this thread's runtime. Then only Tokio's timers agree with it.
/// Exact: the clock stands still or is elsewhere if it does not show what the system's shows meanwhile.
#[expect(clippy::disallowed_methods, reason = "compares the one reading of the monotonic clock with the system's")]
pub(crate) fn is_virtual() -> bool {
    #[cfg(test)]
    if crate::sync::model::now().is_some() {
        return false;
    }
    let before = std::time::Instant::now();
    let shown = tokio_now().into_std();
    shown < before || shown > std::time::Instant::now()
}

/// The wall clock's time, to the millisecond.
#[expect(clippy::disallowed_methods, reason = "the one reading of the wall clock")]
pub fn wall() -> Timestamp {
    let millis = match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |millis| -millis),
    };
    Timestamp::from_millis(millis)
}

#[expect(clippy::disallowed_methods, reason = "the one reading of the monotonic clock")]
fn tokio_now() -> tokio::time::Instant {
    #[cfg(test)]
    if let Some(now) = crate::sync::model::now() {
        return now;
    }
    tokio::time::Instant::now()
}

/// The boot-time clock counts suspension, the monotonic one does not; their difference is the time suspended. The boot
/// time is read first, so that the time between the readings can only shorten the difference; what remains of that noise
/// is cut off with the parts of a millisecond.
#[cfg(target_os = "linux")]
fn suspended_since_boot() -> Duration {
    #[cfg(test)]
    if let Some(suspended) = crate::sync::model::suspended() {
        return suspended;
    }
    use rustix::time::{ClockId, clock_gettime};
    let since_boot = duration(clock_gettime(ClockId::Boottime));
    let awake = duration(clock_gettime(ClockId::Monotonic));
    let suspended = since_boot.saturating_sub(awake);
    Duration::from_millis(u64::try_from(suspended.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(target_os = "linux")]
fn duration(time: rustix::time::Timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(target_os = "linux"))]
fn suspended_since_boot() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_interrupted_while_it_sets_the_clock_does_not_set_it_forward() {
        let clock = Clock::new();
        let interrupted = clock.read_both();
        clock.set();
        clock.set_by(interrupted);
        let shown = clock.shown.load(Ordering::Relaxed);
        let latest = ORIGIN + tokio_now().saturating_duration_since(clock.origin);
        assert!(shown <= latest.as_nanos() + AT_ONCE, "{} ns ahead", shown - latest.as_nanos());
    }

    #[test]
    fn of_two_threads_that_set_the_clock_at_once_the_older_reading_changes_nothing() {
        let clock = Clock::new();
        let late = clock.read_both();
        // Interrupted between its two readings, as late as the clock may be.
        let late = Readings { awake: late.awake.saturating_sub(Duration::from_millis(5)), ..late };
        clock.set();
        let set = |clock: &Clock| [&clock.ahead, &clock.set_at].map(|atomic| atomic.load(Ordering::Relaxed));
        let before = set(&clock);
        clock.set_by(late);
        assert_eq!(set(&clock), before);
        // Nor does one that comes while another thread is at it.
        clock.is_being_set.store(true, Ordering::Relaxed);
        clock.set();
        assert_eq!(set(&clock), before);
    }

    #[tokio::test(start_paused = true)]
    async fn follows_the_paused_clock_of_a_test() {
        let clock = Clock::new();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!(clock.now() - start, Duration::from_secs(3_600));
    }

    #[tokio::test(start_paused = true)]
    async fn suspended_time_counts_and_is_never_taken_back() {
        let clock = Clock::new();
        let start = clock.now();
        clock.suspended.store(28_800_000_000_000, Ordering::Relaxed);
        clock.notice_suspension();
        assert_eq!(clock.now() - start, Duration::from_secs(28_800));
    }

    #[tokio::test]
    async fn a_pause_that_begins_later_is_known_once_it_is_asked_for() {
        let clock = Clock::new();
        let start = clock.now();
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        clock.notice_suspension();
        let paused = clock.now();
        assert!(paused - start >= Duration::from_secs(3_600));
        assert_eq!(clock.now(), paused, "it stands still from now on");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.now() - paused, Duration::from_secs(1));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "compares the clock with the system's")]
    fn it_shows_what_the_clock_of_the_system_shows() {
        let (clock, system) = (Clock::new(), std::time::Instant::now());
        let (earliest, start, latest) = (system.elapsed(), clock.now(), system.elapsed());
        // The counter is set twice meanwhile, and may be wrong by a thousandth in between.
        let wrong = Duration::from_nanos(BELIEVED / 1_000);
        while system.elapsed() < Duration::from_millis(250) {
            let (before, now, after) = (system.elapsed(), clock.now(), system.elapsed());
            assert!(now - start + wrong >= before.saturating_sub(latest), "{:?} after {before:?}", now - start);
            assert!(now - start <= after - earliest + wrong, "{:?} after {after:?}", now - start);
        }
    }

    #[test]
    fn a_counter_that_begins_anew_is_set_by_the_clock_of_the_system() {
        let mut clock = Clock::new();
        let start = clock.now();
        // As if the machine had slept, and its counter had begun with it.
        clock.begun = u64::MAX;
        clock.set_at.store(5_000_000_000, Ordering::Release);
        let now = clock.now();
        assert!(now >= start && now - start < Duration::from_secs(60), "{start} and then {now}");
    }

    #[test]
    fn a_counter_that_was_fast_makes_the_clock_stand_still_and_never_go_back() {
        let clock = Clock::new();
        clock.ahead.fetch_add(50_000_000, Ordering::Relaxed);
        let ahead = clock.now();
        clock.notice_suspension();
        assert!(clock.now() >= ahead, "{} after {ahead}", clock.now());
        assert!(clock.now() - ahead < Duration::from_millis(50), "it waits for the system's clock");
    }

    #[test]
    fn the_wall_clock_is_past_the_year_2024() {
        assert!(wall() > Timestamp::from_millis(1_704_067_200_000));
    }
}
