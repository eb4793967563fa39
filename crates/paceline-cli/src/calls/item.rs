//! One try of one item: read its line, wait for a permit, send, read the answer, report it to the pacer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response};
use paceline::{Limiter, Permit};
use paceline_core::{
    Class, Cost, Dimension, GiveUp, Instant, Level, LimitReport, LimitScope, NextAction, PauseCause, Request,
    Timestamp, UnknownOutcome,
};
use paceline_gateway::Guest;
use paceline_http::{Call, Exchange, NoAnswer, Sender, is_unknown};
use paceline_providers::{PromptSize, Reading, Usage};
use paceline_store::{ClaimedItem, Departure, Journal, ModelUsage, Room};
use serde_json::value::RawValue;
use tokio::sync::{oneshot, watch};

use crate::budget::{Budget, Exceeded, Expected, asks_for_stream};
use crate::calls::admission::{Admitted, InFlight};
use crate::calls::entry;
use crate::calls::handed::Gateway;
use crate::calls::impossible::Impossible;
use crate::calls::permit_queue::PermitTurn;
use crate::calls::tested::{Test, Tested};
use crate::calls::unheard::Unheard;
use crate::lines::format::Format;
use crate::lines::input::{Input, Span};
use crate::lines::line::{self, Echo, LineError};
use crate::other_hosts::others::Others;
use crate::stops::fail_fast::may_be_alike;
use crate::upstream;

/// A longer body stays in the input while its item waits for a permit: hundreds wait at once.
const LONG_BODY: usize = 64 << 10;

/// A call that could leave.
struct Ready<C> {
    request: Request,
    expected: Expected,
    /// None while it is left in the input.
    call: C,
}

/// What every try needs. One for the whole run.
pub(crate) struct Context {
    pub(crate) input: Input,
    /// How its lines are read.
    pub(crate) format: Format,
    pub(crate) limiter: Limiter,
    /// Where others use the limiter too, the place of this job among them.
    pub(crate) guest: Option<Arc<Guest>>,
    pub(crate) sender: Arc<Sender>,
    /// How long an item may be tried, from its first send.
    pub(crate) deadline: Duration,
    /// What calls may use.
    pub(crate) budget: Budget,
    /// What a gateway is handed, where a budget counts it.
    pub(crate) gateway: Option<Gateway>,
    /// Whether the run goes on.
    pub(crate) phase: watch::Receiver<Phase>,
    /// Where answers go: no call leaves while its disk has no room for one more.
    pub(crate) journal: Journal,
    /// Items whose call had left and whose end no earlier run recorded, each with whether it
    /// [moved](paceline_store::CutOff::moved).
    pub(crate) unanswered: BTreeMap<u64, bool>,
    /// The other hosts of the job, where it has some.
    pub(crate) others: Arc<Others>,
    /// Scopes that an earlier run stopped, as long as none of their calls has told more.
    pub(crate) tested: Tested,
    /// Calls that have left and are not answered.
    pub(crate) in_flight: AtomicU64,
    /// Failures that are not recorded before it is known whether they stop their scope, or the run.
    pub(crate) held_back: AtomicU64,
    /// Refusals that the dispatcher has not heard of.
    pub(crate) unheard: Unheard,
    /// The wall clock when the run began: its steps within a run change no wait.
    pub(crate) epoch: Timestamp,
    /// The limiter's clock at the same moment.
    pub(crate) began: Instant,
}

/// How far the end of a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Calls leave.
    Running,
    /// No call leaves any more; those in flight are awaited.
    Draining,
    /// Calls in flight are aborted.
    Abandoning,
}

/// A try that is over.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) item: ClaimedItem,
    pub(crate) end: TryEnd,
}

/// How a try ended.
#[derive(Debug)]
pub(crate) enum TryEnd {
    /// It never left, and the item can leave later: the run ends, or its scope is stopped.
    Withheld,
    /// It never left: another user of the limiter met with what stops its scope, or the account.
    Stopped {
        /// The scope or the account.
        reach: LimitScope,
        /// Why.
        reason: Arc<str>,
    },
    /// It never left: another host of the job has it, or may have it.
    Elsewhere,
    /// It never left: its scope is closed for a wait that is better spent in the journal.
    PutOff(Pause),
    /// It never left, because what calls may use would not be enough.
    OverBudget(Exceeded),
    /// It never left, and never can.
    Impossible(Impossible),
    /// It left.
    Sent(Box<Sent>),
    /// The input could not be read as it was when the job was loaded.
    InputBroken(InputBroken),
}

impl TryEnd {
    /// Whether it is a refusal that may stop others.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Sent(sent) if is_refusal(&sent.exchange.reading))
    }
}

const fn is_refusal(reading: &Reading) -> bool {
    may_be_alike(reading.class, reading.unexpected)
}

/// A scope is closed, or the whole account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    /// When it opens.
    pub(crate) until: Timestamp,
    /// What it is closed for.
    pub(crate) cause: PauseCause,
    /// Whose it is.
    pub(crate) level: Level,
}

/// A call that left.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) echo: Echo,
    pub(crate) exchange: Exchange,
    /// It was refused, or told to wait, as is the client of this job alone among others that use the limiter.
    pub(crate) is_refused_alone: bool,
    /// Where it went.
    pub(crate) address: Arc<str>,
    /// The header fields of the answer that its line keeps.
    pub(crate) headers: Option<Box<RawValue>>,
    /// What it used.
    pub(crate) usage: Vec<ModelUsage>,
    pub(crate) at: Timestamp,
    pub(crate) deadline: Timestamp,
    /// Kept until the answer is on the disk.
    pub(crate) room: Room,
}

/// Why a line cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputBroken {
    /// An error of the file system.
    #[error("line {line} of the input cannot be read: {source}")]
    Io {
        /// Counted from 1.
        line: u64,
        source: io::Error,
    },
    /// It is no request any more.
    #[error("the input changed while the job was running: {0}")]
    Line(#[from] LineError),
    /// It is another request.
    #[error("line {line} of the input is not the line that the job began with")]
    Changed {
        /// Counted from 1.
        line: u64,
    },
}

impl Context {
    /// The number of an item among all that its limiter knows.
    fn number(&self, item: &ClaimedItem) -> u64 {
        self.guest.as_ref().map_or(item.ordinal, |guest| guest.item(item.ordinal))
    }

    /// The wall clock of this run.
    pub(crate) fn now(&self) -> Timestamp {
        self.timestamp(self.limiter.now())
    }

    /// The limiter's time for a time of the wall clock.
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        self.began + at.saturating_since(self.epoch)
    }

    /// The wall clock's time for one of the limiter.
    pub(crate) fn timestamp(&self, at: Instant) -> Timestamp {
        self.epoch + (at - self.began)
    }

    /// Tries an item once; it asks for its permit when its turn comes. Nothing is lost if the future is dropped, but the call
    /// may be repeated then.
    pub(crate) async fn attempt(&self, item: ClaimedItem, turn: PermitTurn) -> Tried {
        let test = self.tested.begin(&item.scope);
        let end = match self.prepare(&item) {
            _ if test == Test::Behind => TryEnd::Withheld,
            Ok(Ready { request, expected, call }) => match self.was_cut_off(&item, &call.1) {
                Some(reason) => TryEnd::Impossible(Impossible::Unknown(reason)),
                None if !self.may_leave(&item, &call.1).await => TryEnd::Elsewhere,
                None => {
                    let call = Some(call).filter(|(_, call)| call.body.len() <= LONG_BODY);
                    self.perform(Ready { request, expected, call }, &item, turn).await
                }
            },
            Err(error) => TryEnd::InputBroken(error),
        };
        if test == Test::First && !matches!(end, TryEnd::Sent(_)) {
            self.tested.ended(&item.scope, false);
        }
        Tried { item, end }
    }

    /// The request of an item, and what its result line repeats.
    ///
    /// # Errors
    /// The input is not what it was.
    pub(crate) fn request_of(&self, item: &ClaimedItem) -> Result<(Echo, Call), InputBroken> {
        self.prepare(item).map(|ready| ready.call)
    }

    /// Whether a call of the item may have been executed, at least in part: it is not for a fallback then.
    pub(crate) fn may_have_been_done(&self, item: &ClaimedItem) -> bool {
        let is_begun = |call: &Call| self.was_cut_off(item, call).is_some();
        self.sender.rest_of(self.number(item)).is_some() || self.request_of(item).is_ok_and(|(_, call)| is_begun(&call))
    }

    fn prepare(&self, item: &ClaimedItem) -> Result<Ready<(Echo, Call)>, InputBroken> {
        let span = Span { offset: item.src_off, len: item.src_len };
        let bytes = self.input.read(span).map_err(|source| InputBroken::Io { line: item.line, source })?;
        let line = self.format.read(&bytes, item.line)?;
        if !item.body_unchanged(line.hashed) {
            return Err(InputBroken::Changed { line: item.line });
        }
        let model = line.billed_model().map(Cow::into_owned);
        let mut headers = line.headers;
        if let Some(guest) = &self.guest {
            guest.leave_out(&mut headers);
        }
        let call = Call {
            method: line.method,
            url: line.url.into_owned(),
            headers,
            body: self.sender.rest_of(self.number(item)).unwrap_or_else(|| Bytes::from(line.body.into_owned())),
            idempotency_key: self.sender.config().idempotency_header.as_ref().map(|_| self.same_at_each_try(item)),
            within: None,
            // Each try reserves its part of a budget: so a gateway leaves them to the run.
            retries: self.budget.has_an_end().then_some(0),
        };
        let cost = self.sender.charge(&item.scope, &call);
        let expected = self.expected(model.as_deref(), item, &call, &cost);
        let tally = &item.tally;
        let request = Request {
            item: Some(self.number(item)),
            arrival: Some(item.ordinal),
            priority: self.guest.as_ref().map_or(0, |_| Guest::PRIORITY),
            caller: self.guest.as_ref().and_then(|guest| guest.caller()),
            attempts: tally.attempts.saturating_sub(item.forgiven.attempts),
            deferrals: tally.deferrals.saturating_sub(item.forgiven.deferrals),
            unsent: tally.unsent,
            deadline: tally.deadline.map(|at| self.instant(at)),
            ..Request::new(self.limiter.scope(&item.scope), cost)
        };
        let echo = Echo {
            custom_id: line.custom_id,
            metadata: line.metadata.map(ToOwned::to_owned),
            form: self.format.results(),
        };
        Ok(Ready { request, expected, call: (echo, call) })
    }

    /// What a call may use: its input, and its longest answer, or as much as answers had so far. Not every provider counts
    /// the answer against its limits, but each bills it.
    fn expected(&self, model: Option<&str>, item: &ClaimedItem, call: &Call, cost: &Cost) -> Expected {
        let (dialect, ratio) = (&self.sender.config().dialect, self.sender.ratio(&item.scope));
        let bound = dialect.longest_answer(&call.url, &call.body);
        let output_tokens = bound.unwrap_or_else(|| ratio.output_tokens());
        let charged = cost.get(&Dimension::InputTokens);
        // It reads the body, and only a budget asks.
        let is_asked = self.budget.has_an_end() && charged > 0;
        let size = is_asked.then(|| PromptSize::of(&call.body));
        let prompt = size.map(|size| ratio.budgeted(size)).unwrap_or_default();
        let dearest = if is_asked { dialect.dearest_input(&call.body) } else { 100 };
        let input_tokens = charged.min(prompt.greatest.unwrap_or(u64::MAX));
        Expected {
            model: model.unwrap_or_default().into(),
            usage: Usage { input_tokens, output_tokens, ..Usage::default() },
            size,
            prompt,
            is_untold: dialect.tells_no_tokens(&call.url, &call.body),
            bytes: item.src_len,
            bound,
            streams: is_asked && asks_for_stream(&call.body),
            dearer: dearest.saturating_sub(100),
            dearer_model: None,
        }
    }

    /// The tokens that an answer of a model seems to have, by its length: for one that reports no usage or only a part of it, as
    /// streams do unless they are asked for it. None where the call was refused.
    fn tokens_that_came(&self, scope: &str, call: &Call, exchange: &Exchange) -> u64 {
        match &exchange.answer {
            Ok(answer)
                if self.sender.config().dialect.is_prompt(&call.url)
                    && (exchange.reading.class == Class::Success
                        || exchange.reading.is_cut_short(answer.status().as_u16())) =>
            {
                self.sender.ratio(scope).answer_tokens(answer.body())
            }
            _ => 0,
        }
    }

    /// Ends an item whose non-repeatable call had been sent, and whose end no earlier run recorded.
    fn was_cut_off(&self, item: &ClaimedItem, call: &Call) -> Option<GiveUp> {
        let moved = match self.unanswered.get(&item.ordinal) {
            Some(moved) => *moved,
            None if self.others.may_have_sent(item.ordinal) => false,
            None => return None,
        };
        // The key of the item that was called is not this one's: no server would know that both are one request.
        let keyless = moved.then(|| Call { idempotency_key: None, ..call.clone() });
        self.sender.unknown_outcome(keyless.as_ref().unwrap_or(call)).ends()
    }

    /// Whether the item may be sent from here and not from another host. Waits where that is not known; not once the run ends.
    async fn may_leave(&self, item: &ClaimedItem, call: &Call) -> bool {
        let twice = self.sender.unknown_outcome(call) == UnknownOutcome::Resend;
        tokio::select! {
            may_leave = self.others.leave_once_heard(item.ordinal, twice) => may_leave,
            () = self.reached(Phase::Draining) => false,
        }
    }

    /// The other hosts are told of a call that leaves. An item that may not is another host's, or waits until that is known.
    async fn leaves(&self, ordinal: u64, twice: bool) -> Result<(), TryEnd> {
        let leaves = tokio::select! {
            leaves = self.others.leaves(ordinal, twice, self.unanswered.contains_key(&ordinal)) => leaves,
            () = self.reached(Phase::Draining), if !twice => false,
        };
        match leaves {
            true => Ok(()),
            false if self.others.have(ordinal) => Err(TryEnd::Elsewhere),
            false => Err(TryEnd::Withheld),
        }
    }

    fn same_at_each_try(&self, item: &ClaimedItem) -> HeaderValue {
        let key = format!("{}-{}", self.journal.id(), item.key_number);
        HeaderValue::from_maybe_shared(Bytes::from(key)).expect("a job's name and a number are digits and letters")
    }

    async fn perform(&self, ready: Ready<Option<(Echo, Call)>>, item: &ClaimedItem, turn: PermitTurn) -> TryEnd {
        let Ready { request, expected, call } = ready;
        // Of a request that names no model it is not known whether its answer is of tokens at all.
        if self.budget.has_an_end() && expected.bound.is_none() && !expected.model.is_empty() {
            upstream::warn_of_unbounded("the budget", || true);
        } else if self.budget.is_limited() && expected.bound.is_none() {
            upstream::warn_of_unbounded("a configured limit", || true);
        }
        let Admitted { budgeted, permit, room, mut place, handed } = match self.admitted(request, expected, turn).await
        {
            Ok(admitted) => admitted,
            Err(end) => return end,
        };
        let (echo, call) = match call.map_or_else(|| self.prepare(item).map(|ready| ready.call), Ok) {
            Ok(ready) => ready,
            Err(error) => {
                permit.withdraw();
                return TryEnd::InputBroken(error);
            }
        };
        let durable = self.sender.unknown_outcome(&call) != UnknownOutcome::Resend;
        if let Err(end) = self.leaves(item.ordinal, !durable).await {
            permit.withdraw();
            return end;
        }
        if !self.note(Departure { ordinal: item.ordinal, reserved: budgeted.expected(), durable }).await {
            permit.withdraw();
            return TryEnd::Withheld;
        }
        if let Some(place) = &mut place {
            place.left();
        }
        let _in_flight = InFlight::new(&self.in_flight);
        let at = self.now();
        let (exchange, is_refused_alone) = self.send(permit, &call, &item.scope).await;
        // What the gateway itself refuses was no call.
        if exchange.answer.is_ok() && exchange.calls > 0 {
            handed.iter().for_each(|handed| handed.answered(exchange.latency, exchange.held));
        }
        drop(handed);
        if durable && !matches!(exchange.action, NextAction::GiveUp { .. }) && exchange.reading.class != Class::Success
        {
            self.others.stays(item.ordinal);
        }
        let lost = budgeted.lost(exchange.unknown_before, entry::lost_at(&exchange));
        let mut budgeted = budgeted.answered_by(entry::answered_by(&exchange)).cut_off(exchange.told.is_some());
        if exchange.told.is_none() && is_unknown(&exchange.answer, &exchange.reading) {
            budgeted = budgeted.lost_after(exchange.latency, |size| self.sender.ratio(&item.scope).budgeted(size));
        }
        let used = match entry::is_static(&exchange) {
            true => budgeted.settle(Some(exchange.used().unwrap_or_default()), || 0),
            false => budgeted.settle(exchange.used(), || self.tokens_that_came(&item.scope, &call, &exchange)),
        };
        let usage = lost.into_iter().chain([used]).collect();
        let deadline = item.tally.deadline.unwrap_or(at + self.deadline);
        let headers = exchange.answer.as_ref().ok().and_then(entry::kept_headers);
        let address = call.url.as_str().into();
        TryEnd::Sent(Box::new(Sent { echo, exchange, is_refused_alone, address, headers, usage, at, deadline, room }))
    }

    /// Sends a call. Returns whether what its client alone was refused or told keeps it from being done, and stops no other.
    async fn send(&self, permit: Permit, call: &Call, scope: &Arc<str>) -> (Exchange, bool) {
        let given_up = self.reached(Phase::Abandoning);
        let noted = |reading: Reading| {
            if is_refusal(&reading) {
                self.unheard.refused(scope);
            }
            reading
        };
        let Some(guest) = &self.guest else {
            return (self.sender.send_judged(permit, call, given_up, |_, reading| noted(reading)).await, false);
        };
        let (departed, mut is_refused_alone) = (guest.departs(call, scope), false);
        let announced = |limits: &mut Vec<LimitReport>| departed.leave_out_announced(limits);
        let judged = |answer: &Result<Response<Bytes>, NoAnswer>, mut reading: Reading| {
            let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            is_refused_alone = departed.weigh(status, &mut reading);
            noted(reading)
        };
        let exchange = self.sender.send_weighed(permit, call, given_up, announced, judged).await;
        if !is_refused_alone {
            departed.ends(&exchange.reading);
        }
        (exchange, is_refused_alone)
    }

    /// Records in the journal that a call is sent, and waits for that where a kill right after it must not lose it: the call
    /// must not be made twice, or may exceed the budget of the job. Returns whether it may be sent: not when the journal stopped,
    /// and not when the run ends while a full disk keeps the note back.
    async fn note(&self, departure: Departure) -> bool {
        if !departure.durable && !self.budget.is_of_job() {
            self.journal.leaves_unawaited(departure);
            return true;
        }
        let (noted, done) = oneshot::channel();
        self.journal.leaves(departure, |result| _ = noted.send(result.is_ok()));
        tokio::select! {
            biased;
            noted = done => noted.unwrap_or(false),
            () = self.ends_on_full_disk() => false,
        }
    }

    /// What the result of an item repeats, from the input.
    pub(crate) fn echo(&self, item: &ClaimedItem) -> Echo {
        let span = Span { offset: item.src_off, len: item.src_len };
        let bytes = self.input.read(span).unwrap_or_default();
        let read = self.format.read(&bytes, item.line).ok();
        let metadata = read.and_then(|line| line.metadata).map(ToOwned::to_owned);
        Echo { custom_id: line::custom_id(&bytes, item.line), metadata, form: self.format.results() }
    }

    pub(super) async fn reached(&self, phase: Phase) {
        // The dispatcher outlives every try; if it were gone, waiting would have no end.
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }
}
