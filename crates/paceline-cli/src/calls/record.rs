//! Records the outcome of a try: the item's line, its next due time, and one log line.

mod account;
mod ended;
mod fell_back;
mod held_back;
mod told;
mod unreached;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use paceline::BackingOff;
use paceline_core::{Class, GiveUp, Level, LimitScope, NextAction, Request, Retry, Timestamp};
use paceline_gateway::Guest;
use paceline_store::{
    CallTotals, ClaimedItem, End, Finished, Journal, JournalItem, LastAnswer, Rescheduled, ResultBody, Tally,
    Unanswered,
};

pub(crate) use self::account::KeyAdvice;
use crate::calls::entry;
use crate::calls::fallback::Down;
use crate::calls::held_up::HeldUp;
use crate::calls::holds::Holds;
use crate::calls::impossible::Impossible;
use crate::calls::item::{Context, Pause, Sent, Tried, TryEnd};
use crate::calls::on_their_way::OnTheirWay;
use crate::calls::reachability::Reachability;
use crate::job::acknowledge::Acknowledge;
use crate::job::holds;
use crate::progress::counters::Counters;
use crate::progress::extract::FirstLook;
use crate::progress::failures::Failures;
use crate::progress::minutes::Minutes;
use crate::progress::resends::Resends;
use crate::stops::fail_fast::{FailFast, Failed, Failure, TOO_LARGE};
use crate::stops::stop::StopReason;
use crate::text;
use crate::upstream::Destination;

/// The longest quote of a server's message in a log line, in characters: the report has all of it.
const LONGEST_CAUSE: usize = 120;

/// Where all items that failed stand.
const ALL_FAILURES: &str = "the errors file and the report name them";

/// Hands the ends of tries to the journal.
pub(crate) struct Recorder {
    journal: Journal,
    pub(crate) acknowledge: Acknowledge,
    figures: Counters,
    minutes: Minutes,
    same: FailFast,
    /// None where a server may be gone for as long as it takes.
    reachability: Option<Reachability>,
    /// The same by host, where each line names its own.
    hosts: BTreeMap<Arc<str>, Reachability>,
    /// The hosts that this run has given up.
    unreachable: Vec<Arc<str>>,
    /// The last call that found no server.
    last_unreached: Option<StopReason>,
    retry: Retry,
    address: Destination,
    key: KeyAdvice,
    /// The holds and stops in the journal.
    pub(crate) holds: Holds,
    held_up: Option<HeldUp>,
    resends: Resends,
    /// The last failure of each scope that has not succeeded since.
    failing: BTreeMap<Arc<str>, String>,
    failures: Failures,
    /// Where others use the limiter, and the log, too.
    guest: Option<Arc<Guest>>,
    /// Items for the fallback, where the run has one.
    down: Option<Vec<Down>>,
    /// Whether the first answers have what is to be taken out of them.
    extract: Option<FirstLook>,
}

/// What a recorder needs to know of its run.
pub(crate) struct About {
    pub(crate) guest: Option<Arc<Guest>>,
    pub(crate) figures: Counters,
    pub(crate) same: FailFast,
    pub(crate) retry: Retry,
    pub(crate) address: Destination,
    pub(crate) key: KeyAdvice,
    pub(crate) max_wait: Option<Duration>,
    /// Whether each host is a scope of its own.
    pub(crate) by_host: bool,
    /// Where all items are one scope that the user could divide.
    pub(crate) held_up: Option<HeldUp>,
    /// Whether the run has a fallback.
    pub(crate) falls_back: bool,
    pub(crate) extract: Option<FirstLook>,
}

/// What follows from a try for the run.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// The item can be claimed again from then on.
    pub(crate) due: Option<Timestamp>,
    /// A scope or the account was held or stopped.
    pub(crate) account: Option<StopReason>,
    /// The state of the scope has to be stored, or of all.
    pub(crate) scopes_changed: Option<LimitScope>,
    /// The run has to stop.
    pub(crate) stop: Option<StopReason>,
}

impl Recorded {
    /// What follows from both, with the stop of the first.
    fn over(self, other: Self) -> Self {
        Self {
            due: self.due.or(other.due),
            account: self.account.or(other.account),
            scopes_changed: self.scopes_changed.or(other.scopes_changed),
            stop: self.stop.or(other.stop),
        }
    }
}

impl Recorder {
    /// A recorder for one run.
    pub(crate) fn new(journal: Journal, acknowledge: Acknowledge, about: About) -> Self {
        let About { guest, figures, same, retry, address, key, max_wait, by_host, held_up, falls_back, extract } =
            about;
        let reachability = max_wait.map(Reachability::new);
        let reachability = reachability.map(|known| if by_host { known.of_many_hosts() } else { known });
        let minutes = Minutes::default();
        let holds = Holds::new(journal.clone(), acknowledge.clone());
        let resends = Resends::default();
        Self {
            journal,
            acknowledge,
            figures,
            minutes,
            same,
            reachability,
            hosts: BTreeMap::new(),
            unreachable: Vec::new(),
            last_unreached: None,
            retry,
            address,
            key,
            holds,
            held_up,
            resends,
            failing: BTreeMap::new(),
            failures: Failures::new(!tracing::enabled!(tracing::Level::WARN), ALL_FAILURES),
            guest,
            down: falls_back.then(Vec::new),
            extract,
        }
    }

    /// Why the server of a scope failed last, if nothing of the scope has succeeded since.
    pub(crate) fn last_failure(&self, scope: &str) -> Option<&str> {
        self.failing.get(scope).map(String::as_str)
    }

    /// The counters as they stand.
    pub(crate) const fn figures(&self) -> &Counters {
        &self.figures
    }

    /// What happened since it was asked for last, by minute.
    pub(crate) const fn minutes(&mut self) -> &mut Minutes {
        &mut self.minutes
    }

    /// The counters, for items that come or go.
    pub(crate) const fn figures_mut(&mut self) -> &mut Counters {
        &mut self.figures
    }

    /// How many more items must fail like those before to stop the run; none once it is known that not all do.
    pub(crate) fn undecided(&self) -> Option<usize> {
        self.same.undecided()
    }

    /// How few more refusals may stop the run, and how few of that scope may stop the scope; none where they never do.
    pub(crate) fn left(&self, scope: &str) -> (Option<usize>, Option<usize>) {
        self.same.left(scope)
    }

    /// Records the end of a try; `others`: items that have not ended.
    pub(crate) fn record(&mut self, context: &Context, tried: Tried, others: &mut OnTheirWay) -> Recorded {
        let Tried { item, end } = tried;
        let recorded = match end {
            TryEnd::Withheld => self.give_back(&item),
            TryEnd::Elsewhere => Recorded { due: None, ..self.give_back(&item) },
            TryEnd::Stopped { reach, reason } => account::stopped_elsewhere(reach, &reason).over(self.give_back(&item)),
            TryEnd::PutOff(pause) => self.put_off(context, &item, pause),
            TryEnd::OverBudget(exceeded) => {
                let stop = Some(StopReason::Budget(exceeded.at_line(item.line)));
                Recorded { stop, ..self.give_back(&item) }
            }
            TryEnd::InputBroken(broken) => {
                let stop = Some(StopReason::Input { message: broken.to_string() });
                Recorded { stop, ..self.give_back(&item) }
            }
            TryEnd::Impossible(why) => self.impossible(context, &item, &why, others),
            TryEnd::Sent(sent) => {
                let shows = shows_its_scope(sent.exchange.reading.class);
                let recorded = self.sent(context, &item, *sent, others);
                context.tested.ended(&item.scope, shows);
                recorded
            }
        };
        context.held_back.store(self.same.held_back() as u64, Ordering::Relaxed);
        recorded
    }

    fn give_back(&self, item: &ClaimedItem) -> Recorded {
        self.journal.release(item.ordinal, None, self.acknowledge.reply());
        Recorded { due: Some(Timestamp::from_millis(0)), ..Recorded::default() }
    }

    /// Gives an item of a closed scope back. The journal holds what is closed, so that its items are not claimed before.
    fn put_off(&mut self, context: &Context, item: &ClaimedItem, pause: Pause) -> Recorded {
        if pause.level == Level::Scope {
            self.note_pause(context.now(), pause.until);
        }
        self.holds.close(context, &item.scope, pause);
        Recorded { due: Some(pause.until), ..self.set_aside(context, item, pause.until) }
    }

    /// Gives an item back whose time stands still until then. Where a call of it is noted as under way, that note stays.
    fn set_aside(&self, context: &Context, item: &ClaimedItem, until: Timestamp) -> Recorded {
        let aside = item.tally.deadline.filter(|_| !context.unanswered.contains_key(&item.ordinal));
        let Some(deadline) = aside else { return self.give_back(item) };
        let deadline = Some(deadline + until.saturating_since(context.now().max(item.not_before)));
        let tally = Tally { deadline, ..item.tally.clone() };
        let (adds, usage) = (CallTotals::default(), Vec::new());
        let JournalItem { ordinal, not_before, delay, .. } = item.item;
        let later = Rescheduled { ordinal, not_before, delay, tally, adds, usage };
        self.journal.reschedule(later, self.acknowledge.reply());
        Recorded::default()
    }

    fn note_pause(&mut self, now: Timestamp, until: Timestamp) {
        if let Some(held_up) = &mut self.held_up {
            held_up.note(now, until, self.figures.pending());
        }
    }

    /// Describes what one scope held up that the user could divide.
    pub(crate) fn held_up(&self, now: Timestamp) -> Option<String> {
        self.held_up.as_ref()?.describe(now)
    }

    fn impossible(
        &mut self,
        context: &Context,
        item: &ClaimedItem,
        why: &Impossible,
        others: &mut OnTheirWay,
    ) -> Recorded {
        let (code, class, reason) = match why {
            Impossible::TooLarge(_) => (TOO_LARGE, Class::Invalid, "too_large"),
            Impossible::Unknown(reason) => ("unrecorded", Class::Transient, reason.as_str()),
            Impossible::Deadline { .. } => {
                ("deadline_exceeded", item.tally.last.as_ref().map_or(Class::Throttled, |last| last.class), "deadline")
            }
        };
        let expired = matches!(why, Impossible::Deadline { .. });
        let first = item.tally.first.map(|first| context.now().saturating_since(first));
        let message = why.after(first).to_string();
        let echo = context.echo(item);
        let answer = ResultBody::Error { code, message: &message };
        let mut finished =
            Finished::new(item.ordinal, End::Failed, echo.line(item.ordinal, item.tally.sends(), End::Failed, &answer));
        let last = LastAnswer { code: Some(code.to_owned()), message: Some(message.clone()), ..LastAnswer::new(class) };
        finished.tally = Tally { last: Some(last), ..item.tally.clone() };
        finished.reason = Some(reason.to_owned());
        let failed = Failed {
            finished,
            item: echo.custom_id.to_string(),
            scope: Arc::clone(&item.scope),
            class,
            status: None,
            code: Some(code.to_owned()),
            message,
            unexpected: false,
            address: None,
            // One that was never sent has waited for a limit.
            down: Some(item)
                .filter(|_| expired && item.tally.last.is_some() && GiveUp::Deadline.stayed_down(class))
                .cloned(),
            known: context.now(),
            overtaken: false,
        };
        self.ended(context, failed, others)
    }

    fn sent(&mut self, context: &Context, item: &ClaimedItem, sent: Sent, others: &mut OnTheirWay) -> Recorded {
        let adds = entry::added(item, &sent);
        let usage = sent.exchange.reading.usage.unwrap_or_default();
        self.figures.add(&adds, usage);
        self.resends.add_by_gateway(sent.exchange.calls.saturating_sub(1), sent.exchange.unknown_before);
        if sent.exchange.answer.is_ok() {
            self.figures.last_answer = Some(context.limiter.now());
        }
        self.minutes.called(context.now(), &adds, sent.exchange.reading.class, usage);
        let closes = matches!(sent.exchange.reading.class, Class::QuotaExhausted | Class::Account)
            || sent.exchange.reading.wait.is_some_and(|wait| wait > holds::SHORT);
        let reading = &sent.exchange.reading;
        if let Some(wait) = reading.wait.filter(|wait| *wait > holds::SHORT && reading.reach == LimitScope::Scope) {
            let now = context.now();
            self.note_pause(now, now + wait);
        }
        let mut recorded =
            Recorded { scopes_changed: closes.then_some(sent.exchange.reading.reach), ..Recorded::default() };
        recorded = self.reached(context, item, &sent).over(recorded);
        if reading.unexpected {
            self.journal.keep_refused(entry::refused_answer(item, &sent), self.acknowledge.reply());
        }
        if sent.exchange.reading.class == Class::Account {
            recorded.account = Some(self.account_stop(&sent, &item.scope));
        }
        if sent.is_refused_alone {
            return self.refused_alone(item, sent, adds).over(recorded);
        }
        match &sent.exchange.action {
            NextAction::Retry { next, delay } | NextAction::Resend { next, delay } => {
                if reading.unexpected {
                    let failure = Failure {
                        ordinal: item.ordinal,
                        scope: &item.scope,
                        status: sent.exchange.status(),
                        code: reading.code.as_deref(),
                        unexpected: true,
                        address: None,
                        message: &entry::error_message(&sent),
                    };
                    let decision = self.same.mismatched(
                        &failure,
                        ended::has_scopes(&self.journal),
                        ended::more_wait(context, &self.journal, others, &item.scope),
                    );
                    recorded = self.follow(context, &item.scope, decision).over(recorded);
                }
                recorded.due = Some(self.again(context, item, &sent, next, *delay, adds));
            }
            NextAction::GiveUp { reason, request } => {
                let failed = entry::failed(item, &sent, *reason, request, adds, context.now());
                recorded = self.ended(context, failed, others).over(recorded);
            }
            _ if sent.exchange.reading.class == Class::Success => self.succeeded(context, item, sent, adds, others),
            _ => {
                let (tally, usage) = (entry::tally(item, &sent, None), sent.usage);
                let sent = Some(Unanswered { tally, adds, usage });
                self.journal.release(item.ordinal, sent, self.acknowledge.reply());
                recorded.due = Some(Timestamp::from_millis(0));
            }
        }
        recorded
    }

    fn succeeded(
        &mut self,
        context: &Context,
        item: &ClaimedItem,
        sent: Sent,
        adds: CallTotals,
        others: &mut OnTheirWay,
    ) {
        let more_wait = ended::more_wait(context, &self.journal, others, &item.scope);
        for earlier in self.same.ended_otherwise(&item.scope, Some(sent.at), more_wait) {
            self.fail(earlier);
        }
        self.failing.remove(&item.scope);
        if let (Some(look), Ok(answer)) = (&mut self.extract, &sent.exchange.answer) {
            look.at_answer(answer.body());
        }
        let tally = entry::tally(item, &sent, None);
        let line = sent.echo.line(item.ordinal, tally.sends(), End::Succeeded, &entry::line_answer(&sent, ""));
        let mut finished = Finished::new(item.ordinal, End::Succeeded, line);
        (finished.tally, finished.adds, finished.usage) = (tally, adds, sent.usage);
        self.figures.succeeded(sent.exchange.latency);
        self.figures.cut_now += u64::from(sent.exchange.reading.at_token_limit);
        let (held, acknowledge) = ((sent.room, sent.exchange.memory), self.acknowledge.reply());
        self.journal.finish(finished, move |result| {
            drop(held);
            acknowledge(result);
        });
    }

    fn again(
        &mut self,
        context: &Context,
        item: &ClaimedItem,
        sent: &Sent,
        next: &Request,
        delay: Duration,
        adds: CallTotals,
    ) -> Timestamp {
        let mut tally = entry::tally(item, sent, Some(next));
        let now = context.now();
        let not_before = now + delay;
        tally.deadline = match sent.exchange.reading.class {
            // A person may need days to act; the item's time begins anew when it is sent again.
            Class::Account => None,
            _ => {
                let deadline = next.deadline.map_or(sent.deadline, |at| context.timestamp(at));
                // A pause may have begun while the call was under way.
                Some(deadline + self.holds.held_until(&item.scope).saturating_since(not_before))
            }
        };
        if sent.exchange.reading.class != Class::Account {
            self.minutes.delayed(now, delay);
            self.sent_again(item, sent, next, delay, not_before);
        }
        let usage = sent.usage.clone();
        let next = Rescheduled { ordinal: item.ordinal, not_before, delay, tally, adds, usage };
        self.journal.reschedule(next, self.acknowledge.reply());
        not_before
    }

    /// The one line of a re-send. What an account's stop keeps back is not sent again in this run, so it has none.
    fn sent_again(&mut self, item: &ClaimedItem, sent: &Sent, next: &Request, delay: Duration, not_before: Timestamp) {
        let class = sent.exchange.reading.class;
        let message = entry::error_message(sent);
        let message = text::cut(&message, LONGEST_CAUSE);
        if matches!(class, Class::Transient | Class::Overloaded | Class::Throttled) {
            self.failing.insert(Arc::clone(&item.scope), message.to_string());
        }
        self.resends.add(entry::kind(sent), &message);
        tracing::debug!(
            scope = &*item.scope,
            item = sent.echo.custom_id.to_string(),
            class = class.as_str(),
            cause = message,
            hint_source = sent.exchange.reading.wait_from,
            not_before = not_before.to_string(),
            "{}",
            BackingOff::new(sent.exchange.reading.reported_class(), next, &self.retry, delay),
        );
    }

    /// The failure of an item, which the fallback may take over.
    fn fail(&mut self, mut failed: Failed) {
        match failed.down.take().filter(|_| self.down.is_some()) {
            Some(item) => self.hand_over(item, failed),
            None => self.record_failure(failed),
        }
    }

    /// Records a failure, and tells the log.
    fn record_failure(&mut self, failed: Failed) {
        self.tell_failure(&failed);
        self.figures.failed();
        self.journal.finish(failed.finished, self.acknowledge.reply());
    }
}

/// Whether such an end shows that a server takes calls of the scope, or refuses them.
const fn shows_its_scope(class: Class) -> bool {
    !matches!(class, Class::Throttled | Class::Overloaded | Class::Transient | Class::Abandoned)
}

/// This run makes no more calls in the scope.
fn stop_scope(context: &Context, scope: &str, stop: StopReason) -> Recorded {
    context.limiter.stop(Some(&context.limiter.scope(scope)), &stop.to_string());
    Recorded { scopes_changed: Some(LimitScope::Scope), account: Some(stop), ..Recorded::default() }
}
