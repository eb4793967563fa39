//! What a retry loop does at the end of a call, with a limiter or without one: it tells of the next try, or why there is none.

use std::fmt;
use std::time::Duration;

use paceline_core::{Class, GiveUp, NextAction, Request, Retry};

use crate::clock;
use crate::error::RunError;
use crate::log::{BackingOff, write_next_try};
use crate::nested::Report;

/// A try that is to be made again, as [`Run::notify`](crate::Run::notify) reports it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Retrying<'a> {
    /// The class of the call that ended.
    pub class: Class,
    /// Why it failed, if its answer or error says so. None where [`Run::when`](crate::Run::when) or
    /// [`Run::hint`](crate::Run::hint) has read the error: its words may have a key in them, as an address has, and a reason is
    /// logged. [`Run::read`](crate::Run::read) may set [`Outcome::reason`](crate::Outcome::reason).
    pub reason: Option<&'a str>,
    /// Calls so far.
    pub calls: u32,
    /// How long the next try waits at least; its scope may wait longer.
    pub delay: Duration,
    /// The request of the next try; its counts are those of the item. Without a limiter its scope is named "unpaced".
    pub next: &'a Request,
}

/// `server overloaded (call 1), next try in 1.2s at the earliest: upstream is full`.
impl fmt::Display for Retrying<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (call {})", self.class.description(), self.calls)?;
        write_next_try(f, self.delay)?;
        f.write_str(if self.delay.is_zero() { "" } else { " at the earliest" })?;
        self.reason.map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

/// What hears of tries that are to be made again: a closure, or nothing.
pub trait Notify {
    /// Called before the wait.
    fn notify(&mut self, retrying: &Retrying<'_>);
}

impl Notify for () {
    fn notify(&mut self, _: &Retrying<'_>) {}
}

impl<F: FnMut(&Retrying<'_>)> Notify for F {
    fn notify(&mut self, retrying: &Retrying<'_>) {
        self(retrying);
    }
}

/// What is known of a call that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) class: Class,
    /// How long the item would have to wait for another try, where it is known.
    pub(crate) wait: Option<Duration>,
}

impl Ended {
    pub(crate) const SUCCESS: Self = Self { class: Class::Success, wait: None };

    /// The error of an operation whose last call it was.
    pub(crate) fn error<E>(self, error: E, calls: u32) -> RunError<E> {
        let retry_not_before = self.wait.map(|wait| clock::wall() + wait);
        RunError::Operation { error, class: self.class, calls, retry_not_before }
    }
}

/// The request of the next try, if there is one; else the bound that ended the item, if one did. Writes a log line, which says of
/// how many tries it is: `bounds`.
pub(crate) fn follow(
    report: Report,
    calls: u32,
    notify: &mut impl Notify,
    bounds: impl FnOnce() -> Retry,
) -> Result<Request, Option<GiveUp>> {
    let Report { action, class, reason, wait_from, .. } = report;
    match action {
        NextAction::Retry { next, delay } | NextAction::Resend { next, delay } => {
            // A stopped account has no next try: a caller that requests one gets an error.
            if class != Class::Account {
                warn(class, wait_from, &next, delay, &bounds());
            }
            notify.notify(&Retrying { class, reason: reason.as_deref(), calls, delay, next: &next });
            Ok(*next)
        }
        NextAction::GiveUp { reason: bound, request } => {
            let words = reason.as_deref().unwrap_or_default();
            let (item, class, sends) = (request.item, class.as_str(), request.sends());
            tracing::error!(item, class, sends, words, "gave up after {sends} calls: {bound}");
            Err(Some(bound))
        }
        _ => Err(None),
    }
}

fn warn(class: Class, wait_from: &str, next: &Request, delay: Duration, bounds: &Retry) {
    let resend = BackingOff::new(class, next, bounds, delay);
    tracing::warn!(
        scope = &**next.scope.name(),
        item = next.item,
        class = class.as_str(),
        hint_source = wait_from,
        not_before = (clock::wall() + delay).to_string(),
        "{resend}"
    );
}
