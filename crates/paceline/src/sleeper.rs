//! The responsive delay for programs that only want to sleep.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_core::{ConfigError, Instant, Responsive, ResponsiveConfig, ResponsiveCounters, Rng};
use tokio::sync::Notify;

use crate::clock::Clock;

/// Sleeps after each call: longer after failures, shorter after successes. Clones share one delay, so that what one worker
/// learns slows all of them.
///
/// Report a failure only when the server refused because of haste or load. Each sleep has an async and a blocking form,
/// which mix freely, and returns whether it was slept to the end: [`interrupt`](Self::interrupt) ends those under way, and
/// dropping the future of an async one ends that. A sleep counts when it begins, whatever ends it.
///
/// A [`Limiter`](crate::Limiter) under [`Pace::Responsive`](paceline_core::Pace::Responsive) does the same and more; this is
/// for a loop that is there already.
///
/// ```no_run
/// # async fn send() -> std::io::Result<()> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), paceline::ConfigError> {
/// use paceline::{ResponsiveConfig, ResponsiveSleeper};
///
/// let sleeper = ResponsiveSleeper::new(ResponsiveConfig::default())?;
/// for _ in 0..1_000 {
///     match send().await {
///         Ok(()) => sleeper.sleep_on_success().await,
///         Err(_) => sleeper.sleep_on_failure().await,
///     };
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ResponsiveSleeper {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    clock: Clock,
    /// Wakes the blocking and the async sleepers.
    blocking: Condvar,
    waiting: Notify,
}

struct State {
    delay: Responsive,
    rng: Rng,
    /// When the last sleep ends; what passes after that is idle time.
    until: Instant,
    interruptions: u64,
}

/// The result of a call.
#[derive(Clone, Copy)]
enum Call {
    Succeeded,
    Failed { hint: Option<Duration> },
}

impl ResponsiveSleeper {
    /// A sleeper whose randomness differs from process to process, as it should among clients that fail together.
    ///
    /// # Errors
    /// Names the knob that cannot be, its value, and what was expected.
    pub fn new(config: ResponsiveConfig) -> Result<Self, ConfigError> {
        Self::with_seed(config, RandomState::new().hash_one(0))
    }

    /// A sleeper whose randomness repeats: the same seed and calls give the same sleeps.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_seed(config: ResponsiveConfig, seed: u64) -> Result<Self, ConfigError> {
        let clock = Clock::new();
        let (delay, rng) = (Responsive::new(config)?, Rng::new(seed));
        let state = Mutex::new(State { delay, rng, until: clock.now(), interruptions: 0 });
        Ok(Self { shared: Arc::new(Shared { state, clock, blocking: Condvar::new(), waiting: Notify::new() }) })
    }

    /// A call failed: sleeps longer than before. Says whether it slept to the end.
    ///
    /// # Panics
    /// Outside a Tokio runtime with time enabled, when there is something to sleep.
    pub async fn sleep_on_failure(&self) -> bool {
        self.sleep(Call::Failed { hint: None }).await
    }

    /// The same, no shorter than `hint`, the wait that the server asked for.
    ///
    /// # Panics
    /// As [`sleep_on_failure`](Self::sleep_on_failure).
    pub async fn sleep_on_failure_at_least(&self, hint: Duration) -> bool {
        self.sleep(Call::Failed { hint: Some(hint) }).await
    }

    /// A call succeeded: sleeps as long as before, or shorter. Says whether it slept to the end.
    ///
    /// # Panics
    /// As [`sleep_on_failure`](Self::sleep_on_failure).
    pub async fn sleep_on_success(&self) -> bool {
        self.sleep(Call::Succeeded).await
    }

    /// [`sleep_on_failure`](Self::sleep_on_failure), blocking the thread. Not for async code.
    pub fn blocking_sleep_on_failure(&self) -> bool {
        self.block(Call::Failed { hint: None })
    }

    /// [`sleep_on_failure_at_least`](Self::sleep_on_failure_at_least), blocking the thread. Not for async code.
    pub fn blocking_sleep_on_failure_at_least(&self, hint: Duration) -> bool {
        self.block(Call::Failed { hint: Some(hint) })
    }

    /// [`sleep_on_success`](Self::sleep_on_success), blocking the thread. Not for async code.
    pub fn blocking_sleep_on_success(&self) -> bool {
        self.block(Call::Succeeded)
    }

    /// Ends every sleep under way. Later ones are not touched.
    pub fn interrupt(&self) {
        self.shared.lock().interruptions += 1;
        self.shared.blocking.notify_all();
        self.shared.waiting.notify_waiters();
    }

    /// What the delay has done so far, sleeps under way included.
    pub fn counters(&self) -> ResponsiveCounters {
        self.shared.lock().delay.counters()
    }

    async fn sleep(&self, call: Call) -> bool {
        // Made before the sleep is counted, so that no interruption falls between.
        let interrupted = self.shared.waiting.notified();
        let wait = self.shared.lock().report(call, self.shared.clock.now());
        wait.is_zero() || tokio::time::timeout(wait, interrupted).await.is_err()
    }

    fn block(&self, call: Call) -> bool {
        let mut state = self.shared.lock();
        let wait = state.report(call, self.shared.clock.now());
        if wait.is_zero() {
            return true;
        }
        let before = state.interruptions;
        let undisturbed = |state: &mut State| state.interruptions == before;
        let (_state, ended) =
            self.shared.blocking.wait_timeout_while(state, wait, undisturbed).unwrap_or_else(PoisonError::into_inner);
        ended.timed_out()
    }
}

impl Shared {
    /// Nothing under the lock leaves the state half changed, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn report(&mut self, call: Call, now: Instant) -> Duration {
        self.delay.idle(now - self.until);
        let wait = match call {
            Call::Succeeded => self.delay.on_success(&mut self.rng),
            Call::Failed { hint } => self.delay.on_failure(hint, &mut self.rng),
        };
        self.until = self.until.max(now + wait);
        wait
    }
}

impl fmt::Debug for ResponsiveSleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponsiveSleeper").field("counters", &self.counters()).finish_non_exhaustive()
    }
}
