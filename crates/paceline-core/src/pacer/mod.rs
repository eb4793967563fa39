//! The pacer: one deterministic machine per account, which composes every policy.

mod agenda;
mod answers;
mod background;
mod crowd;
mod defer;
mod dispatch;
mod divided;
mod enqueue;
mod evict;
mod export;
mod forecast;
mod gates;
mod lease;
mod paces;
mod pauses;
mod pots;
mod react;
mod rules;
mod scopes;
mod settings;
mod snapshots;
#[cfg(test)]
mod tests;
mod turn;
mod untaken;

use alloc::borrow::Cow;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;

use agenda::Agenda;
use answers::Answers;
use background::Behind;
use crowd::Active;
use defer::BoundedWaits;
use divided::Divided;
use evict::Evictions;
use gates::SharedGates;
pub use lease::Lease;
use paces::SharedPaces;
use pots::Pots;
use scopes::Scopes;
use settings::{check, is_part, limits, places, tier_of, tiers};
use turn::Turn;
use untaken::Untaken;

use crate::admit::{Admit, Level, PauseCause, WaitCause};
use crate::concurrency::InFlight;
use crate::config::PacerConfig;
use crate::cost::Cost;
use crate::error::ConfigError;
use crate::hold::Hold;
use crate::outcome::{LimitReport, Outcome};
use crate::quota::Quotas;
use crate::request::{Event, NextAction, Request, ScopeId, Ticket};
use crate::retry;
use crate::rng::Rng;
use crate::scope::Scope;
use crate::slots::{Entry, Kept, Slots, Stage};
use crate::snapshot::Totals;
use crate::time::Instant;

/// Decides when each call of one account may leave.
///
/// It does no IO and reads no clock. There are four kinds of method:
///
/// - *Inputs* take the present: [`enqueue`](Self::enqueue), [`take`](Self::take), [`cancel`](Self::cancel),
///   [`complete`](Self::complete), [`observe`](Self::observe), [`handle_timeout`](Self::handle_timeout),
///   [`reconfigure`](Self::reconfigure), [`hold`](Self::hold), [`stop`](Self::stop), [`resume`](Self::resume),
///   [`restore`](Self::restore), [`yield_turn`](Self::yield_turn), [`take_turn`](Self::take_turn), [`divide`](Self::divide) and
///   [`hear`](Self::hear). Time may stand still or jump forward; an earlier instant counts as the latest one seen.
/// - *Outputs*: after any input call [`poll_event`](Self::poll_event) until it is empty, then
///   [`poll_timeout`](Self::poll_timeout), and call `handle_timeout` at that instant or later.
/// - *Questions* change nothing: [`admit`](Self::admit), [`snapshot`](Self::snapshot), [`export`](Self::export).
/// - [`scope`](Self::scope) names a scope.
///
/// An idle scope that is open and whose limits are unused is evicted after 10 to 15 minutes when it has learnt nothing, else
/// after an hour. Its name makes it anew, its handles stay valid, and its counts stay in the sums of the account.
///
/// A request may bound its known wait ([`Request::max_wait`]): the pacer defers it as soon as a longer wait is known, so that it
/// can wait elsewhere.
///
/// There are two levels. The account counts against the configured limits; below it each scope has its own limits,
/// gate, breaker and queue. When the ceiling binds, the highest priority goes first, then the earliest arrival among
/// the heads of the scopes that may leave. The head of a scope is its earliest arrival; where its server may be down, one
/// that has no retry left lets others of its priority go first, so that an outage costs no item while they have retries left.
///
/// ```
/// use paceline_core::{Class, Cost, Event, Instant, Limits, Outcome, Pacer, PacerConfig, Quota, Request, NextAction};
///
/// let limits = Limits { quotas: vec![Quota::per_minute(60)], burst: Some(1) };
/// let config = PacerConfig { limits, ..PacerConfig::default() };
/// let mut pacer = Pacer::new(config, 1, Instant::ZERO)?;
/// let scope = pacer.scope("a model");
///
/// let first = pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request()))?;
/// let second = pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request()))?;
/// assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: first, probe: false }));
/// assert_eq!(pacer.poll_event(), None);
///
/// let due = pacer.poll_timeout().expect("the second waits for the spacing of 60 per minute");
/// assert_eq!(due, Instant::from_nanos(1_000_000_000));
/// pacer.handle_timeout(due);
/// assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: second, probe: false }));
///
/// assert_eq!(pacer.complete(due, first, Outcome::new(Class::Success)), NextAction::Done);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pacer {
    config: PacerConfig,
    /// Where the limits of the tier of a name are in the configuration.
    tiers: BTreeMap<Arc<str>, usize>,
    /// The scopes so far that are parts of tiers.
    tier_parts: BTreeSet<Arc<str>>,
    rng: Rng,
    now: Instant,
    quotas: Quotas,
    turn: Turn,
    untaken: Untaken,
    divided: Divided,
    gates: SharedGates,
    paces: SharedPaces,
    pots: Pots,
    in_flight: InFlight,
    active: Active,
    hold: Hold,
    scopes: Scopes,
    agenda: Agenda,
    bounded_waits: BoundedWaits,
    behind: Behind,
    answers: Answers,
    evictions: Evictions,
    /// The sums over all scopes, evicted ones included.
    totals: Totals,
    /// Scopes whose breaker opened, and since when nothing has succeeded there.
    failing: BTreeMap<u32, Instant>,
    /// Whether the account works has to be tested: while nothing has succeeded, one call of each new scope goes first.
    untested: bool,
    slots: Slots,
    /// What all calls in flight reserved: at most so much may be refunded to the windows.
    out: Cost,
    arrivals: u64,
    events: VecDeque<Event>,
    wake: Option<Instant>,
}

impl Pacer {
    /// A pacer with nothing in it. The same seed and the same calls give the same results, bit for bit.
    ///
    /// # Errors
    /// The first invalid setting, by name.
    pub fn new(config: PacerConfig, seed: u64, now: Instant) -> Result<Self, ConfigError> {
        check(&config)?;
        Ok(Self {
            tiers: tiers(&config),
            tier_parts: BTreeSet::new(),
            rng: Rng::new(seed),
            now,
            quotas: Quotas::new(&limits(&config))?,
            turn: Turn::default(),
            untaken: Untaken::default(),
            divided: Divided::default(),
            gates: SharedGates::default(),
            paces: SharedPaces::default(),
            pots: Pots::default(),
            in_flight: InFlight::new(places(&config))?,
            active: Active::default(),
            hold: Hold::default(),
            scopes: Scopes::default(),
            agenda: Agenda::default(),
            bounded_waits: BoundedWaits::default(),
            behind: Behind::default(),
            answers: Answers::default(),
            evictions: Evictions::default(),
            totals: Totals::default(),
            failing: BTreeMap::new(),
            untested: false,
            slots: Slots::default(),
            out: Cost::zero(),
            arrivals: 0,
            events: VecDeque::new(),
            wake: None,
            config,
        })
    }

    /// The scope of that name; it is made when it is new. One that is named like a tier has the tier's limits.
    pub fn scope(&mut self, name: &str) -> ScopeId {
        self.scopes.named(name).unwrap_or_else(|| self.make(name.into()))
    }

    /// When this request could start. It changes nothing: asking twice gives the same answer.
    ///
    /// Behind others of its scope that is an estimate, [`Admit::At`] with [`WaitCause::Queue`], from the queue and the limits; or
    /// [`Admit::OnRelease`] where those ahead wait for something without a time.
    pub fn admit(&self, now: Instant, request: &Request) -> Admit {
        let now = now.max(self.now);
        let Some(place) = self.scopes.find(&request.scope) else {
            let fresh = self.fresh(request.scope.name.clone());
            let ask = self.ask_of(request);
            let own = fresh.admit(now, &ask).strictest(self.admit_account(now, &ask));
            return self.admit_in(now, &fresh, own, request);
        };
        let guessed;
        let request = match self.cost_in(place, &request.cost) {
            Cow::Borrowed(_) => request,
            Cow::Owned(cost) => {
                guessed = Request { cost, ..request.clone() };
                &guessed
            }
        };
        self.admit_in(now, &self.scopes[place], self.admit_ask(now, place, &self.ask_of(request)), request)
    }

    /// The level of the rule that [`admit`](Self::admit) answers with: the account where no other is stricter.
    pub fn level(&self, now: Instant, request: &Request) -> Level {
        let now = now.max(self.now);
        let strictest = self.admit(now, request);
        match &strictest {
            _ if self.admit_account(now, &self.ask_of(request)).rank() == strictest.rank() => Level::Account,
            Admit::At { cause: WaitCause::Quota { .. } | WaitCause::Burst, .. } => Level::Tier,
            _ => Level::Scope,
        }
    }

    /// `own`: when the first request of the scope could start at that cost.
    fn admit_in(&self, now: Instant, scope: &Scope, own: Admit, request: &Request) -> Admit {
        let due = Admit::at(request.not_before.unwrap_or(now), now, || WaitCause::NotBefore);
        let arrival = request.arrival.unwrap_or(self.arrivals);
        let ahead = self.ahead_of(now, scope, request, arrival);
        let queued = if ahead == 0 { Admit::Now } else { self.forecast(now, scope, &request.cost, ahead, &own) };
        due.strictest(queued).strictest(own)
    }

    /// Removes a request. One that was granted counts as never sent, and all its units are refunded. Unknown and finished
    /// tickets are ignored.
    pub fn cancel(&mut self, now: Instant, ticket: Ticket) -> Option<Request> {
        let now = self.advance(now);
        let Kept { request, stage } = *self.slots.remove(ticket)?;
        let request = request?;
        let scope = &mut self.scopes[&request.scope];
        match stage {
            Stage::Waiting { place, deadline, .. } => {
                scope.queue.remove(place, request.not_before, deadline);
                self.bounded_waits.remove(request.scope.place, request.max_wait, place.2);
                self.is_behind_no_more(request.scope.place, place);
            }
            Stage::InFlight { flight, .. } => {
                let held = scope.held_places();
                scope.unsend(now, &flight, &request);
                self.active.hold(held, scope.held_places());
                self.answers.ended(request.scope.place, &request.cost);
                self.pots.end(&scope.name, &request.cost, &Cost::zero());
                for totals in [&mut scope.totals, &mut self.totals] {
                    totals.sends -= 1;
                    totals.resends -= u64::from(request.sends() > 0);
                    totals.probes -= u64::from(flight.probe);
                }
                self.in_flight.release(request.is_background());
                self.out.subtract(&request.cost);
                self.quotas.settle(now, flight.counted, &request.cost, &Cost::zero());
                flight.untaken.into_iter().for_each(|number| self.untaken.remove(number));
            }
        }
        self.pump(now);
        Some(request)
    }

    /// Reports the outcome of a granted call, and returns what follows for its item. A ticket that is not in flight gives
    /// [`NextAction::Done`] and changes nothing.
    pub fn complete(&mut self, now: Instant, ticket: Ticket, mut outcome: Outcome) -> NextAction {
        self.complete_ref(now, ticket, &mut outcome)
    }

    /// [`complete`](Self::complete), which moves no outcome; of this one nothing is of use any more.
    pub fn complete_ref(&mut self, now: Instant, ticket: Ticket, outcome: &mut Outcome) -> NextAction {
        let now = self.advance(now);
        if !self.slots.is_in_flight(ticket) {
            return NextAction::Done;
        }
        let mut kept = self.slots.remove(ticket).expect("it was in flight a moment ago");
        let Kept { request: Some(request), stage: Stage::InFlight { flight, deadline } } = &mut *kept else {
            unreachable!("it was in flight a moment ago");
        };
        let place = request.scope.place;
        if let Some(number) = flight.untaken {
            self.untaken.remove(number);
        }
        self.limit_reach(outcome);
        self.drop_vain_hint(now, &request.scope, flight.sent, outcome);
        let held = self.scopes[place].held_places();
        self.settle(now, request, flight, outcome);
        self.note_announced(now, place);
        self.react(now, request, flight, outcome, held);
        if !retry::is_done(outcome) {
            let own = deadline.map(|reading| self.scopes[request.scope.place].clock.deadline(now, reading));
            request.deadline = own.or_else(|| self.config.retry.deadline.map(|bound| flight.sent + bound));
        }
        let action = self.decide(now, request, flight.probe, outcome);
        self.slots.reuse(ticket.slot, kept);
        self.pump_after(now, place);
        action
    }

    /// Takes the limits that the head of an answer announces while the call goes on, such as a stream: they act at once. Their
    /// like in the outcome of the same call changes nothing any more. A ticket that is not in flight changes nothing.
    pub fn observe(&mut self, now: Instant, ticket: Ticket, limits: &[LimitReport]) {
        let now = self.advance(now);
        let Some(Entry { request, stage: Stage::InFlight { flight, .. } }) = self.slots.get(ticket) else { return };
        let place = request.scope.place;
        self.scopes[place].observe(flight, limits);
        self.note_announced(now, place);
        self.pump_after(now, place);
    }

    /// Processes what has become due. To be called at [`poll_timeout`](Self::poll_timeout) or later; earlier does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        let now = self.advance(now);
        self.pump(now);
    }

    /// Replaces the configuration. What was sent still counts under each new limit of the same dimension, also where its
    /// window or its kind changes, and where there was none for a while: limits that are no more count on. The pacer remembers
    /// no further back than the longest window of that dimension so far: while a longer one fills up for the first time, what
    /// left before that is not in it. A new dimension and a new tier begin empty.
    ///
    /// # Errors
    /// The first invalid setting, by name; then nothing has changed.
    pub fn reconfigure(&mut self, now: Instant, config: PacerConfig) -> Result<(), ConfigError> {
        let now = self.advance(now);
        check(&config)?;
        if self.divided.is_on() {
            divided::divided(&config)?;
        }
        self.quotas.reconfigure(now, &limits(&config))?;
        self.in_flight.reconfigure(places(&config))?;
        self.tiers = tiers(&config);
        let parts = self.scopes.iter().filter(|(_, scope)| is_part(&scope.name, &self.tiers));
        self.tier_parts = parts.map(|(_, scope)| Arc::clone(&scope.name)).collect();
        for scope in self.scopes.iter_mut() {
            let tier = tier_of(&scope.name, &self.tiers, &config);
            scope.reconfigure(now, tier, &config)?;
        }
        self.config = config;
        self.divide_anew(now);
        self.refuse_too_large();
        self.pump(now);
        Ok(())
    }

    /// The configuration in force.
    pub const fn config(&self) -> &PacerConfig {
        &self.config
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None`: not before the next input.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.wake
    }

    /// A request in the pacer.
    pub fn request(&self, ticket: Ticket) -> Option<&Request> {
        self.slots.get(ticket).map(|entry| entry.request)
    }

    /// Time never goes backwards.
    fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        self.now
    }

    /// This pacer's handle for the scope of a handle, which may come from another pacer.
    fn own(&mut self, id: &ScopeId) -> ScopeId {
        let mut own = id.clone();
        self.adopt(&mut own);
        own
    }

    /// Turns a handle, which may come from another pacer, into this pacer's own. Returns the place of its scope.
    fn adopt(&mut self, id: &mut ScopeId) -> u32 {
        if !self.scopes.is_own(id) {
            *id = match self.scopes.find(id) {
                Some(place) => self.scopes.id(place),
                None => self.make(id.name.clone()),
            };
        }
        id.place
    }

    fn make(&mut self, name: Arc<str>) -> ScopeId {
        if is_part(&name, &self.tiers) {
            self.tier_parts.insert(Arc::clone(&name));
        }
        let mut scope = self.fresh(name);
        self.divided.allow(Some(&*scope.name), &mut scope.quotas, &mut scope.in_flight);
        scope.set_clock(self.now, self.hold.is_active());
        let id = self.scopes.insert(scope);
        self.evictions.schedule(self.now, id.place);
        id
    }

    fn fresh(&self, name: Arc<str>) -> Scope {
        let tier = tier_of(&name, &self.tiers, &self.config);
        let mut scope = Scope::new(name, tier, &self.config).expect("the configuration was checked");
        if self.untested {
            scope.expect_canary(self.now, PauseCause::Program);
        }
        scope
    }

    /// Removes waiting requests that exceed a limit of a new configuration, with an event for each.
    fn refuse_too_large(&mut self) {
        let slots: alloc::vec::Vec<_> = self.scopes.iter().flat_map(|(_, scope)| scope.queue.slots()).collect();
        for slot in slots {
            let (cost, place) = (self.cost_of(slot), self.slots.at(slot).request.scope.place);
            let Some(too_large) = self.too_large(place, &cost) else { continue };
            let (ticket, _) = self.take_out(slot, place);
            self.events.push_back(Event::Refused { ticket, too_large });
        }
    }
}
