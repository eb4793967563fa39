//! One limit for each of many keys.
//!
//! A key that neither waits nor learns is its counts and nothing else ([`keys`]). When it has to wait, or is to learn from
//! answers, it becomes a scope of a limiter, which goes on with its counts; later it is counts again.

mod keys;
#[cfg(test)]
mod proof;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use paceline_core::{
    Admit, BucketRule, ConfigError, Level, Limits, Pace, PacerConfig, ScopeId, WaitReason, format_duration,
};

use self::keys::{Counted, Keys, ShortBucket, Windows};
use crate::error::{Error, NotNow};
use crate::limiter::Limiter;
use crate::run::Run;

/// One limit for each tenant, host or API key: each key is an account of its own.
///
/// ```
/// use paceline::{KeyedLimiter, Quota};
///
/// let limiter: KeyedLimiter<String> = KeyedLimiter::new(Quota::per_second(5).burst(10))?;
/// if limiter.try_acquire("tenant 7").is_ok() {
///     println!("served");
/// }
/// # Ok::<(), paceline::ConfigError>(())
/// ```
///
/// A key is given as a map takes it: a `String` by a `&str`. Clones are cheap and share everything. Keys need no registration,
/// and what is kept of them is bounded: a key whose limits are unused is forgotten when there are twice as many keys as were in
/// use at the last such check. A key with one token bucket
/// ([`Quota::burst`](crate::Quota::burst)) takes 8 bytes beside the key itself where its calls are a whole number of
/// nanoseconds apart, as those of 10 a second, and else 16 at most; one with exact windows some 700, and 8 for each of the
/// 60,000 parts of the window in which it called. While a key waits, and after its answers were read ([`run`](Self::run))
/// until it is idle and has learnt nothing, it takes some 6 KB.
///
/// The configuration is that of a [`Limiter`], for each key by itself: limits, calls in flight, pace, breaker. Calls in flight
/// are those of [`run`](Self::run). What an answer says about the account reaches its key alone.
pub struct KeyedLimiter<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    limiter: Limiter,
    keys: Store<K>,
}

/// The limits decide what the counts of a key are.
enum Store<K> {
    ShortBuckets(Keys<K, ShortBucket>),
    Buckets(Keys<K, BucketRule>),
    Windows(Keys<K, Windows>),
}

impl<K: Hash + Eq + Clone> KeyedLimiter<K> {
    /// A limiter without any key. The limits of the configuration are those of each key.
    ///
    /// A call of a key costs one request, and nothing else: a limit on another dimension ([`Quota::of`](crate::Quota::of)), such
    /// as tokens, holds back only calls of [`run`](Self::run) that name their [`cost`](Run::cost).
    ///
    /// # Errors
    /// The invalid setting, its value, and what was expected.
    pub fn new(config: impl Into<PacerConfig>) -> Result<Self, ConfigError> {
        let config = config.into();
        let limits = if config.pace == Pace::None { Limits::default() } else { config.limits.clone() };
        let rule = BucketRule::of(&limits);
        let per_scope = Some(config.limits);
        let limiter = Limiter::new(PacerConfig { limits: Limits::default(), per_scope, ..config })?;
        let keys = match rule {
            Some(rule) if rule.has_short_levels(limiter.now()) => {
                Store::ShortBuckets(Keys::new(ShortBucket(rule), &limits)?)
            }
            Some(rule) => Store::Buckets(Keys::new(rule, &limits)?),
            None => Store::Windows(Keys::new(Windows, &limits)?),
        };
        Ok(Self { shared: Arc::new(Shared { limiter, keys }) })
    }

    /// The same limiter, which calls a key so in errors and in log lines: `example.org (no. 3) is stopped: ...`. The first names
    /// of all clones stay. By default a key is `unnamed key no. 3`: the third key whose calls had to wait, or taught the
    /// limiter something. A key may be a secret, and a name is logged.
    ///
    /// ```
    /// use paceline::{KeyedLimiter, Quota};
    ///
    /// let hosts = KeyedLimiter::new(Quota::per_second(1))?.with_names(String::clone);
    /// assert!(hosts.try_acquire("example.org").is_ok());
    /// assert!(hosts.explain("example.org").ends_with("for the limit of 1 request per 1s"));
    /// # Ok::<(), paceline::ConfigError>(())
    /// ```
    #[must_use]
    pub fn with_names(self, names: impl Fn(&K) -> String + Send + Sync + 'static) -> Self {
        match &self.shared.keys {
            Store::ShortBuckets(keys) => keys.set_names(Box::new(names)),
            Store::Buckets(keys) => keys.set_names(Box::new(names)),
            Store::Windows(keys) => keys.set_names(Box::new(names)),
        }
        self
    }

    /// One line for people: why the next call of that key does not leave at once, and for how long, by the rule that
    /// [`try_acquire`](Self::try_acquire) answers with; empty where it does. Changes nothing.
    pub fn explain<Q>(&self, key: &Q) -> String
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let driver = self.shared.limiter.driver();
        let counted = match &self.shared.keys {
            Store::ShortBuckets(keys) => keys.peek(driver, key),
            Store::Buckets(keys) => keys.peek(driver, key),
            Store::Windows(keys) => keys.peek(driver, key),
        };
        match counted {
            Counted::Taken | Counted::Full { admit: Admit::Now, .. } => String::new(),
            Counted::Full { now, admit: Admit::At { at, cause } } => {
                format!("the next call waits {} for {cause}", format_duration(at - now))
            }
            Counted::Full { admit: Admit::OnRelease { cause }, .. } => format!("the next call waits for {cause}"),
            Counted::Scope(scope) => driver.look(|state, now| {
                let snapshot = state.pacer.scope_snapshot(now, &scope);
                snapshot.map(|snapshot| snapshot.explain(now)).unwrap_or_default()
            }),
        }
    }

    /// Takes a permit for one call of that key if it may be made at once; else changes nothing. Nothing has to be reported.
    ///
    /// # Errors
    /// [`NotNow::Wait`] with the reason of the wait and, if known, its length; [`NotNow::Never`] with [`Error::Stopped`] where
    /// the answer to a [`run`](Self::run) stopped the key.
    pub fn try_acquire<Q>(&self, key: &Q) -> Result<(), NotNow>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        match self.count(key) {
            Counted::Taken => Ok(()),
            Counted::Full { now, admit } => Err(match admit {
                Admit::At { at, cause } => {
                    NotNow::Wait { after: Some(at - now), reason: WaitReason { level: Level::Tier, cause } }
                }
                Admit::OnRelease { cause } => {
                    NotNow::Wait { after: None, reason: WaitReason { level: Level::Tier, cause } }
                }
                Admit::Now => unreachable!("it was refused"),
            }),
            Counted::Scope(scope) => self.shared.limiter.try_acquire(scope).map(drop),
        }
    }

    /// Waits until a call of that key may be made, as long as it takes and in the order of arrival. Nothing has to be reported.
    ///
    /// Dropping the future at any point cancels the request, or returns its permit when it was granted meanwhile.
    ///
    /// # Errors
    /// [`Error::Stopped`] where the answer to a [`run`](Self::run) stopped the key, [`Error::NoTimer`] when it must wait and the
    /// system allows no more threads.
    pub async fn acquire<Q>(&self, key: &Q) -> Result<(), Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let scope = match self.count(key) {
            Counted::Taken => return Ok(()),
            Counted::Full { .. } => self.scope(key),
            Counted::Scope(scope) => scope,
        };
        self.shared.limiter.acquire(scope).await.map(drop)
    }

    /// Runs an operation for that key until it succeeds or no retry is left or useful, as [`Limiter::run`] does: each send
    /// takes a permit, and the key learns from the answers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn fetch(_: &str) -> std::io::Result<()> { Ok(()) }
    /// use paceline::{KeyedLimiter, Quota};
    ///
    /// let hosts = KeyedLimiter::new(Quota::per_minute(60))?;
    /// hosts.run(&"example.org", || fetch("https://example.org/")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::run`].
    pub fn run<Q, Op, Call>(&self, key: &Q, operation: Op) -> Run<'_, Op, Call>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        Op: FnMut() -> Call,
        Call: Future,
    {
        self.shared.limiter.run(operation).scope(self.scope(key))
    }

    /// Opens a key that the answer to a [`run`](Self::run) has stopped, or that waits for a pause.
    pub fn resume<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.shared.limiter.resume(Some(&self.scope(key)));
    }

    /// How many keys are kept: those in use, and some that will be forgotten. Linear in the number of processors.
    pub fn len(&self) -> usize {
        match &self.shared.keys {
            Store::ShortBuckets(keys) => keys.len(),
            Store::Buckets(keys) => keys.len(),
            Store::Windows(keys) => keys.len(),
        }
    }

    /// Whether no key is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn count<Q>(&self, key: &Q) -> Counted
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        match &self.shared.keys {
            Store::ShortBuckets(keys) => keys.count(self.shared.limiter.driver(), key),
            Store::Buckets(keys) => keys.count(self.shared.limiter.driver(), key),
            Store::Windows(keys) => keys.count(self.shared.limiter.driver(), key),
        }
    }

    /// The scope of a key that waits or learns.
    fn scope<Q>(&self, key: &Q) -> ScopeId
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        match &self.shared.keys {
            Store::ShortBuckets(keys) => keys.scope(self.shared.limiter.driver(), key),
            Store::Buckets(keys) => keys.scope(self.shared.limiter.driver(), key),
            Store::Windows(keys) => keys.scope(self.shared.limiter.driver(), key),
        }
    }
}

impl<K> Clone for KeyedLimiter<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K> fmt::Debug for KeyedLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimiter").finish_non_exhaustive()
    }
}
