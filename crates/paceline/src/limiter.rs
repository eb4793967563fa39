//! The limiter of one account, as programs use it.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use paceline_core::{
    Admit, ConfigError, FleetSnapshot, Instant, LimitReport, MaxWait, NewerState, Pacer, PacerConfig, PauseCause,
    Request, ScopeAnswers, ScopeId, ScopeSnapshot, ScopeState, Snapshot, Ticket,
};
#[cfg(feature = "http")]
use paceline_providers::{Dialect, Provider};

use crate::blocking::Blocking;
use crate::clock::{self, Clock};
use crate::driver::{Admission, Driver, Permit, Unreported, Within};
use crate::error::{Error, NotNow};
use crate::nested::Frame;
use crate::run::Run;
use crate::state::LimiterState;

/// Paces all calls to one account: one host and key.
///
/// Clones are cheap and share everything. All waiting callers share one queue, by priority, then arrival: tasks of one
/// Tokio runtime or of several, futures of any other executor, and blocked threads. None of them depends on another: a
/// thread of the limiter keeps the time while they wait, and ends a second after the last of them has gone. It is not
/// needed for calls that may leave at once, nor for those that wait only for others to end.
///
/// A limiter does not outlive a `fork`: that thread is the parent's alone, and a call that has to wait in the child may wait
/// for ever. Make a limiter in the child.
#[derive(Clone)]
pub struct Limiter {
    driver: Arc<Driver>,
    /// The scope of calls that name none.
    default_scope: ScopeId,
}

impl Limiter {
    /// A limiter whose jitter differs from process to process, as it should among clients that failed together.
    ///
    /// # Errors
    /// The invalid setting, its value, and what was expected.
    pub fn new(config: impl Into<PacerConfig>) -> Result<Self, ConfigError> {
        Self::with_seed(config, RandomState::new().hash_one(0))
    }

    /// A limiter whose jitter repeats: the same seed, calls and times give the same waits.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_seed(config: impl Into<PacerConfig>, seed: u64) -> Result<Self, ConfigError> {
        let config = config.into();
        let clock = Clock::new();
        let retry = config.retry.clone();
        let pacer = Pacer::new(config, seed, clock.now())?;
        Ok(Self { driver: Driver::new(pacer, retry, clock), default_scope: ScopeId::from("default") })
    }

    /// The same limiter, which reads answers in the provider's dialect. Default: generic HTTP.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn with_provider(self, provider: Provider) -> Self {
        self.with_dialect(provider.into())
    }

    /// The same limiter, which reads answers in that dialect: a provider's, with rules and header fields of your own. An account
    /// speaks one dialect, so it is that of all clones. Default: generic HTTP.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn with_dialect(self, dialect: Dialect) -> Self {
        self.driver.set_dialect(dialect);
        self
    }

    /// The same limiter under a name, which its log lines carry in the field `upstream`: for a program with several. The first
    /// name of all clones stays. Default: no name.
    #[must_use]
    pub fn with_name(self, name: impl Into<Arc<str>>) -> Self {
        self.driver.set_name(name.into());
        self
    }

    /// The dialect in which answers are read.
    #[cfg(feature = "http")]
    pub fn dialect(&self) -> Arc<Dialect> {
        self.driver.dialect()
    }

    /// What the head of an answer announces acts at once, while [`run`](Self::run) still reads the body of that answer: see
    /// [`Permit::observe`]. For the operation of a `run` of this limiter, in its task; elsewhere there is no such call, and
    /// nothing happens.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn begin() -> std::io::Result<http::Response<()>> { Ok(http::Response::new(())) }
    /// # async fn read_to_its_end(_: http::Response<()>) -> std::io::Result<http::Response<String>> { Ok(Default::default()) }
    /// use paceline::{Limiter, PacerConfig};
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// let stream = || async {
    ///     let response = begin().await?;
    ///     limiter.observe(response.headers());
    ///     read_to_its_end(response).await
    /// };
    /// limiter.run(stream).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "http")]
    pub fn observe(&self, headers: &http::HeaderMap) {
        self.observe_limits(&self.dialect().announced(headers, clock::wall()));
    }

    /// [`observe`](Self::observe) for limits that a program reads itself, see [`Permit::observe_limits`].
    pub fn observe_limits(&self, limits: &[LimitReport]) {
        if let Some(attempt) = Frame::current(&self.driver) {
            attempt.observe_limits(limits);
        }
    }

    /// Inside an operation of [`run`](Self::run): the retries that are left beside this call, for something that would retry as
    /// well, such as a gateway that reads `x-paceline-retries`. What it has retried is told in
    /// [`Outcome::retried`](crate::Outcome::retried). Elsewhere `None`.
    pub fn retries_left(&self) -> Option<u32> {
        Frame::current(&self.driver).map(|attempt| attempt.retries_left())
    }

    /// The scope of that name, made at its first use: a model, an endpoint family, a table. A scope has its own learnt
    /// limits, gate, breaker and queue below the account's limits. A handle of another limiter means this one's scope of the
    /// same name.
    pub fn scope(&self, name: &str) -> ScopeId {
        self.driver.act(|pacer, _| pacer.scope(name))
    }

    /// The same where names are not those of the program, such as models that clients name: where there are `most` scopes and
    /// none of that name, it is the one that all further names share. Scopes that are idle leave room for others after 10 to 15
    /// minutes, or after an hour once they were refused.
    ///
    /// ```
    /// use paceline::{Limiter, PacerConfig};
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// let names = ["a", "b", "c", "a"].map(|name| limiter.scope_within(name, 2, "other").name().to_string());
    /// assert_eq!(names, ["a", "b", "other", "a"]);
    /// # Ok::<(), paceline::ConfigError>(())
    /// ```
    pub fn scope_within(&self, name: &str, most: usize, shared: &str) -> ScopeId {
        self.driver.act(|pacer, _| pacer.scope_within(name, most, shared))
    }

    /// Waits until the call may be made, as long as it takes: the request's [`max_wait`](Request::max_wait) does not act here,
    /// nor in [`run`](Self::run) and [`try_acquire`](Self::try_acquire).
    ///
    /// Dropping the future at any point cancels the request, or returns its permit when it was granted meanwhile, as
    /// [`Permit::withdraw`] does.
    ///
    /// # Errors
    /// Never because of a wait, however long. [`Error::TooLarge`] at once for what could never start,
    /// [`Error::DeadlineExceeded`] when the request's deadline passes, at once where it certainly passes before the call may
    /// start, [`Error::Stopped`] when its scope is stopped or stops meanwhile, [`Error::Closed`] after
    /// [`close`](Self::close), [`Error::NoTimer`] when it must wait and the system allows no more threads,
    /// [`Error::OwnPlace`] where an operation of [`run`](Self::run) would wait for the place that it has itself.
    pub async fn acquire(&self, request: impl Into<Request>) -> Result<Permit, Error> {
        let mut request: Request = request.into();
        request.max_wait = None;
        let admission = match self.driver.enqueue(request)? {
            Admission::Granted(permit) => return Ok(permit),
            // Apart, so that the future has room for this alone.
            other => other,
        };
        admission.waiting().map_or(Ok(()), Frame::check_wait)?;
        match admission.decided().await? {
            Within::Granted(permit) => Ok(permit),
            Within::Deferred { .. } => unreachable!("it takes any wait"),
        }
    }

    /// Waits until the call may be made, unless its known wait exceeds `max_wait`, which replaces the request's own bound.
    ///
    /// A wait is known if no call, answer or cancellation can shorten it: a hold, a pause that the server asked for, the time
    /// until a failing server is tested next, or a limit that is used up ([`MaxWait::Known`], made from a `Duration`); or holds
    /// and pauses alone ([`MaxWait::Pause`]). It is counted from the moment when it is known, which may come while the caller
    /// waits. To wait behind others never counts; for a bound on that give the request a deadline, or drop the future.
    ///
    /// Dropping the future at any point cancels the request, or returns its permit when it was granted meanwhile, as
    /// [`Permit::withdraw`] does.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use paceline::{Class, Cost, Limiter, Outcome, PacerConfig, Request, Within};
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// let chat = limiter.scope("chat");
    /// limiter.hold(Some(&chat), limiter.now() + Duration::from_secs(3_600));
    /// match limiter.acquire_within(Request::new(chat, Cost::request()), Duration::from_secs(5)).await? {
    ///     Within::Granted(permit) => drop(permit.complete(Outcome::new(Class::Success))),
    ///     Within::Deferred { until, reason } => {
    ///         println!("come back in {:?}, after {reason}", until - limiter.now());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire): never because of a wait.
    pub async fn acquire_within(
        &self,
        request: impl Into<Request>,
        max_wait: impl Into<MaxWait>,
    ) -> Result<Within, Error> {
        let admission = self.driver.enqueue(Request { max_wait: Some(max_wait.into()), ..request.into() })?;
        admission.waiting().map_or(Ok(()), Frame::check_wait)?;
        admission.decided().await
    }

    /// Runs an operation, each send with a permit of its own, until it succeeds or no retry is left or useful.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn send(_: &str) -> std::io::Result<()> { Ok(()) }
    /// use paceline::{Cost, Limiter, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_minute(500))?;
    /// limiter.run(|| send("one")).await?;
    /// limiter.run(|| send("two")).scope("chat").notify(|retrying| println!("again in {:?}", retrying.delay)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The answer is read by [`Classify`](crate::Classify), or as [`when`](Run::when), [`hint`](Run::hint) and
    /// [`read`](Run::read) say. What may succeed later is retried when the pacer allows it, under the
    /// configured bounds; the waits happen in the queue, so they block no other caller. A panic or a dropped future returns the
    /// permit.
    ///
    /// A refusal that the operation returns as `Ok`, such as a response with the status 429, is retried as well; where no retry
    /// is left, it is returned as the operation made it.
    ///
    /// A `run` of the same limiter inside the operation, in the same task, makes one send and no re-sends: it uses the
    /// permit of the outer one if that is unused and of the same scope, reports its own answer, and the outer one decides
    /// about the next try of the whole. So nested layers share one budget instead of multiplying theirs. Inside the operation of
    /// a [`retry`](crate::retry()) it makes one send too.
    ///
    /// # Errors
    /// [`RunError::Operation`](crate::RunError::Operation) with the operation's last error, also when it is a deadline or a
    /// stopped scope that prevents the next try. [`RunError::Limiter`](crate::RunError::Limiter) when not even a first send was
    /// possible: the errors of [`acquire`](Self::acquire).
    pub fn run<Op, Call>(&self, operation: Op) -> Run<'_, Op, Call>
    where
        Op: FnMut() -> Call,
        Call: Future,
    {
        Run::new(self, operation)
    }

    /// The same limiter for a program, or a thread, without async.
    pub const fn blocking(&self) -> Blocking<'_> {
        Blocking::new(self)
    }

    pub(crate) fn default_scope(&self) -> ScopeId {
        self.default_scope.clone()
    }

    /// Takes a permit if the call may be made at once; else changes nothing.
    ///
    /// # Errors
    /// [`NotNow::Wait`] with the reason of the wait and, if known, its length; [`NotNow::Never`] as
    /// [`acquire`](Self::acquire).
    pub fn try_acquire(&self, request: impl Into<Request>) -> Result<Permit, NotNow> {
        self.driver.try_enqueue(Request { max_wait: None, ..request.into() })
    }

    /// Calls of one scope and cost whose outcomes are not reported: to be counted is all that they need. A permit for one costs
    /// about as much as reading the clock, where the pace does not follow from outcomes.
    pub fn unreported(&self, request: impl Into<Request>) -> Unreported {
        let Request { scope, cost, priority, .. } = request.into();
        let request = Request { priority, ..Request::new(self.scope(scope.name()), cost) };
        Unreported::new(Arc::clone(&self.driver), request)
    }

    /// When the call could be made, and what it would wait for; behind older requests an estimate. Changes nothing.
    pub fn admit(&self, request: &Request) -> Admit {
        self.driver.look(|state, now| state.pacer.admit(now, request))
    }

    /// The present on the limiter's clock, to which deadlines and due times of requests refer.
    pub fn now(&self) -> Instant {
        self.driver.now()
    }

    /// A snapshot of the account and every scope: limits, remaining units, waits and totals. The cost is linear in the number of
    /// scopes; that of [`changes`](Self::changes) in the number of changed ones.
    pub fn snapshot(&self) -> Snapshot {
        self.driver.look(|state, now| state.pacer.snapshot(now))
    }

    /// The state of the account, as a snapshot has it. The cost does not depend on the number of scopes.
    pub fn account_state(&self) -> ScopeState {
        self.driver.look(|state, now| state.pacer.account_state(now))
    }

    /// What this process has of the limits of its fleet; none where it is in no fleet. The cost does not depend on the number of
    /// scopes.
    pub fn fleet(&self) -> Option<FleetSnapshot> {
        self.driver.look(|state, now| state.pacer.fleet(now))
    }

    /// One line for people: how many calls are in flight and wait, what the next one waits for and how long, and what is known of
    /// the limit. `3 of 64 calls in flight, 12 waiting; the next call waits 1.2s for the limit of 50 requests per 60s`.
    pub fn explain(&self) -> String {
        self.driver.look(|state, now| state.pacer.snapshot(now).explain(now))
    }

    /// A snapshot of the account, and of those scopes that have changed since the last call or in which a request waits: see
    /// [`Pacer::changes`](paceline_core::Pacer::changes). For one reader among all clones, which keeps earlier snapshots.
    pub fn changes(&self) -> Snapshot {
        self.driver.act(|pacer, now| pacer.changes(now))
    }

    /// A snapshot of one scope; none if there is none of that name. The others cost nothing.
    pub fn scope_snapshot(&self, scope: &ScopeId) -> Option<ScopeSnapshot> {
        self.driver.look(|state, now| state.pacer.scope_snapshot(now, scope))
    }

    /// Exports the state, for a limiter of the same account after a restart. The cost is linear in the number of scopes. A
    /// program that may be killed stores it twice a second or so: calls since the last export are not counted by the next
    /// process.
    ///
    /// ```
    /// use paceline::{Class, Cost, Limiter, LimiterState, Limits, Outcome, PacerConfig, Quota, Request};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("limiter.json");
    /// let limits = Limits { quotas: vec![Quota::per_minute(2)], burst: None };
    /// let config = PacerConfig { limits, ..PacerConfig::default() };
    ///
    /// let limiter = Limiter::new(config.clone())?;
    /// limiter.try_acquire(Request::new(limiter.scope("chat"), Cost::request()))?.complete(Outcome::new(Class::Success));
    /// std::fs::write(&file, serde_json::to_string(&limiter.export())?)?;
    ///
    /// // The program ends and begins again.
    /// let limiter = Limiter::new(config)?;
    /// let state: LimiterState = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    /// limiter.restore(&state)?;
    /// assert_eq!(limiter.snapshot().account.quotas[0].remaining, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn export(&self) -> LimiterState {
        LimiterState::now(self.driver.look(|state, now| state.pacer.export(now)))
    }

    /// Exports the account and the scopes with those names alone, for a program that stores what has changed
    /// ([`changes`](Self::changes)). Such parts are restored one after the other.
    pub fn export_of<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> LimiterState {
        LimiterState::now(self.driver.look(|state, now| state.pacer.export_of(now, names)))
    }

    /// [`export`](Self::export) as if the permits of these [tickets](Permit::ticket), whose calls have not left yet, had been
    /// [withdrawn](Permit::withdraw): what counts if the program is killed now.
    ///
    /// ```
    /// use paceline::{Limiter, Limits, PacerConfig, Quota};
    ///
    /// let limits = Limits { quotas: vec![Quota::per_minute(2)], burst: None };
    /// let limiter = Limiter::new(PacerConfig { limits, ..PacerConfig::default() })?;
    /// let permit = limiter.try_acquire(limiter.scope("chat"))?;
    /// let counted = |state: paceline::LimiterState| {
    ///     let windows = state.pacer.account.windows.into_iter().flat_map(|window| window.taken);
    ///     windows.map(|taken| taken.units).sum::<u64>()
    /// };
    /// assert_eq!(counted(limiter.export()), 1);
    /// assert_eq!(counted(limiter.export_without([permit.ticket()])), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn export_without(&self, unsent: impl IntoIterator<Item = Ticket>) -> LimiterState {
        LimiterState::now(self.driver.look(|state, now| state.pacer.export_without(now, unsent)))
    }

    /// Restores the state that an earlier limiter of the same account exported; to be called before the first request.
    /// [`Pacer::restore`](paceline_core::Pacer::restore) describes each part, and what begins anew.
    ///
    /// How long ago that was is read from the wall clock. Where it was set back meanwhile, nothing has aged: no hold lasts longer
    /// than it had left at the export, and no window counts longer than it is. Where it was set forward, all is as much older.
    ///
    /// # Errors
    /// When the state is of a later version than this program knows; then nothing has changed.
    pub fn restore(&self, state: &LimiterState) -> Result<(), NewerState> {
        let since = clock::wall().saturating_since(state.at);
        self.driver.act(|pacer, now| pacer.restore(now, &state.pacer, since))
    }

    /// Grants nothing in the scope, or in the account for `None`, before `until`. Waiting callers go on waiting, with the
    /// cause [`PauseCause::Program`].
    pub fn hold(&self, scope: Option<&ScopeId>, until: Instant) {
        self.hold_for(scope, until, PauseCause::Program);
    }

    /// [`hold`](Self::hold) with that cause.
    pub fn hold_for(&self, scope: Option<&ScopeId>, until: Instant, cause: PauseCause) {
        self.driver.act(|pacer, now| pacer.hold_for(now, scope, until, cause));
    }

    /// Grants one call of the scope before others, or for `None` of each scope, until one has succeeded: what an earlier process
    /// [stopped](Self::stop) may not be mended.
    pub fn test_first(&self, scope: Option<&ScopeId>) {
        self.driver.act(|pacer, now| pacer.test_first(now, scope));
    }

    /// Has a failing server tested by the next call of the scope, though the pause of its breaker is not over: a person expects
    /// it to be back. It is one call, and where it fails the pause begins anew. `caller`: [whose](Request::caller) call it is.
    /// Returns whether there was such a pause.
    pub fn test_now(&self, scope: &ScopeId, caller: Option<u64>) -> bool {
        self.driver.act(|pacer, now| pacer.test_now(now, scope, caller))
    }

    /// Grants nothing in the scope, or in the account for `None`, until it is resumed. Waiting callers get
    /// [`Error::Stopped`]; calls in flight are not touched.
    pub fn stop(&self, scope: Option<&ScopeId>, reason: &str) {
        self.driver.act(|pacer, now| pacer.stop(now, scope, reason.into()));
    }

    /// For a caller that keeps its own queue, asks by [`try_acquire`](Self::try_acquire) and looks at a part of the queue at a
    /// time: other scopes than those asked for so far may wait there. In the first 2 s of calls from now, a scope whose calls are
    /// not answered leaves them places, also where no other is known yet. Half of the places are for scopes that have answered.
    pub fn expect_scopes(&self) {
        self.driver.act(|pacer, _| pacer.expect_scopes());
    }

    /// What an earlier process, or another one, knows of the answers of a scope: it counts where this one knows nothing yet.
    pub fn recall_answers(&self, scope: &ScopeId, known: ScopeAnswers) {
        self.driver.act(|pacer, now| pacer.recall_answers(now, scope, known));
    }

    /// Opens a held or stopped scope, or the account for `None`. A rate that is low because the server refused everything
    /// returns fast to nine tenths of the one before.
    pub fn resume(&self, scope: Option<&ScopeId>) {
        self.driver.resume(scope);
    }

    /// Ends all stops, because their cause is mended (a key was replaced, an account paid); holds and pauses go on, which
    /// [`resume`](Self::resume) ends too.
    pub fn end_stops(&self) {
        self.driver.end_stops();
    }

    /// Replaces the configured limits while calls go on. What was sent still counts under each new limit of the same dimension,
    /// also where its window or its kind changes. A waiting caller whose request exceeds a new limit gets
    /// [`Error::TooLarge`].
    ///
    /// # Errors
    /// The invalid setting; the old configuration stays then.
    pub fn reconfigure(&self, config: PacerConfig) -> Result<(), ConfigError> {
        self.driver.reconfigure(config)
    }

    /// The configuration in force: the one of the beginning, or the last that replaced it.
    pub fn config(&self) -> PacerConfig {
        self.driver.look(|state, _| state.pacer.config().clone())
    }

    /// Grants nothing any more: a caller that waits, or comes later, gets [`Error::Closed`]. Granted permits stay valid, so that
    /// calls in flight can still report their outcome.
    pub fn close(&self) {
        self.driver.close();
    }

    pub(crate) const fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").finish_non_exhaustive()
    }
}
