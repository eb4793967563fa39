//! This project's pacer, driven through its public interface.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use paceline_core::{
    BreakerConfig, Class, Concurrency, ConfigError, Event, Instant, Limits, NextAction, Outcome, Pace, Pacer,
    PacerConfig, Quota, Request, ResponsiveConfig, Retry, ScopeId, ScopeSnapshot, Ticket,
};

use super::waits::{Wait, Waits};
use super::{CallResult, Fate, Next, Policy, Setting, Work};
use crate::fleet::Fleet;

/// Where a pacer is.
enum Place {
    Own(Box<Pacer>),
    /// In a fleet, as that process.
    InFleet(Rc<RefCell<Fleet>>, usize),
}

impl Place {
    fn with<T>(&mut self, now: Instant, act: impl FnOnce(&mut Pacer) -> T) -> T {
        match self {
            Self::Own(pacer) => act(pacer),
            Self::InFleet(fleet, place) => {
                let process = &mut fleet.borrow_mut().processes[*place];
                let result = act(&mut process.pacer);
                process.plan(now);
                result
            }
        }
    }

    fn snapshot(&self, now: Instant) -> ScopeSnapshot {
        let mut snapshot = match self {
            Self::Own(pacer) => pacer.snapshot(now),
            Self::InFleet(fleet, place) => fleet.borrow().processes[*place].pacer.snapshot(now),
        };
        snapshot.scopes.swap_remove(0)
    }

    fn is_dead(&self) -> bool {
        match self {
            Self::Own(_) => false,
            Self::InFleet(fleet, place) => fleet.borrow().processes[*place].is_dead(),
        }
    }
}

/// One pacer with one scope.
pub(super) struct Ours {
    config: PacerConfig,
    pacer: Place,
    scope: ScopeId,
    /// Items that wait in the pacer and were never sent.
    fresh: u32,
    /// By item, while it is in flight.
    tickets: Vec<Option<Ticket>>,
    /// A call that failed at the server's side goes again after this, if not after the pacer's own delay.
    after_fault: Option<Duration>,
    /// Noted only for a plan.
    waits: Option<Waits>,
}

impl Ours {
    /// Retries are unlimited and the breaker is off, so that pacing alone is seen. Under a fixed pace the limits are this
    /// process's share of the documented ones; other paces get none.
    pub(super) fn new(pace: Pace, setting: &Setting<'_>) -> Self {
        Self::paced(PacerConfig { pace, ..PacerConfig::default() }, setting)
    }

    /// The responsive delay by its classic rule.
    pub(super) fn classic(setting: &Setting<'_>) -> Self {
        let responsive = ResponsiveConfig { compat: true, ..ResponsiveConfig::default() };
        Self::paced(PacerConfig { pace: Pace::Responsive, responsive, ..PacerConfig::default() }, setting)
    }

    fn paced(config: PacerConfig, setting: &Setting<'_>) -> Self {
        let pace = config.pace;
        let limits = if pace == Pace::Fixed { share(setting) } else { Limits::default() };
        let max = setting.in_flight;
        let concurrency = match pace {
            Pace::Aimd => Concurrency::AIMD,
            Pace::Auto | Pace::Fixed | Pace::None => Concurrency::Fixed { max },
            Pace::Responsive | Pace::Linear | Pace::Exponential => Concurrency::Fixed { max: setting.workers() },
        };
        let retry = Retry { max_retries: u32::MAX, ..Retry::default() };
        let breaker = BreakerConfig { min_distinct_items: u32::MAX, ..BreakerConfig::default() };
        let config = PacerConfig { limits, concurrency, retry, breaker, ..config };
        let ours = Self::configured(config, setting).expect("a share of sound limits is sound");
        Self { after_fault: Some(Duration::from_millis(500)), ..ours }
    }

    fn snapshot(&self, now: Instant) -> ScopeSnapshot {
        self.pacer.snapshot(now)
    }

    /// As the user configured it: each process has these limits for itself.
    pub(super) fn configured(config: PacerConfig, setting: &Setting<'_>) -> Result<Self, ConfigError> {
        let mut pacer = Pacer::new(within(&config, setting.in_flight), setting.seed, Instant::ZERO)?;
        let scope = pacer.scope(setting.scope);
        let pacer = match setting.fleet {
            None => Place::Own(Box::new(pacer)),
            Some(fleet) => {
                pacer.divide(Instant::ZERO)?;
                let place = fleet.borrow_mut().joins(pacer, scope.clone(), setting.seed);
                Place::InFleet(Rc::clone(fleet), place)
            }
        };
        Ok(Self { config, pacer, scope, fresh: 0, tickets: Vec::new(), after_fault: None, waits: None })
    }

    /// Whether the item fits into the limits at all.
    fn enqueue(&mut self, now: Instant, item: u32, work: &Work<'_>) -> bool {
        let request = Request { item: Some(u64::from(item)), ..Request::new(&self.scope, work.estimate(item).clone()) };
        let fits = self.pacer.with(now, |pacer| pacer.enqueue(now, request)).is_ok();
        self.fresh += u32::from(fits);
        fits
    }

    /// Notes a call that leaves.
    fn granted(&mut self, now: Instant, ticket: Ticket) -> u32 {
        let request =
            self.pacer.with(now, |pacer| pacer.request(ticket).map(|request| (request.item, request.sends())));
        let (item, sends) = request.expect("a granted request stays until it is completed");
        let item = item.and_then(|item| u32::try_from(item).ok()).expect("items are numbered in 32 bits");
        self.fresh -= u32::from(sends == 0);
        let index = item as usize;
        if index >= self.tickets.len() {
            self.tickets.resize(index + 1, None);
        }
        self.tickets[index] = Some(ticket);
        item
    }
}

/// The same with at most so many calls in flight.
fn within(config: &PacerConfig, most: u32) -> PacerConfig {
    PacerConfig { concurrency: config.concurrency.at_most(most), ..config.clone() }
}

/// Windows and buckets, each divided by the processes; a bucket's burst likewise, and at least a call.
fn share(setting: &Setting<'_>) -> Limits {
    let processes = u64::from(setting.processes);
    let quotas = setting.scenario.provider.limits.iter().map(|limit| Quota {
        window: limit.quota.window.saturating_mul(setting.processes),
        limit: limit.quota.limit.max(processes),
        ..limit.quota.clone()
    });
    Limits { quotas: quotas.collect(), burst: None }
}

impl Ours {
    fn decide(&mut self, now: Instant, work: &mut Work<'_>) -> Next {
        if self.pacer.is_dead() {
            return Next::OnEvent;
        }
        self.pacer.with(now, |pacer| pacer.handle_timeout(now));
        loop {
            while let Some(event) = self.pacer.with(now, Pacer::poll_event) {
                if let Event::Granted { ticket, .. } = event {
                    return Next::Send(self.granted(now, ticket));
                }
            }
            // One waiting request is enough: it shows the pacer that there is more to do.
            if self.fresh > 0 {
                break;
            }
            let Some(item) = work.take() else { break };
            if !self.enqueue(now, item, work) {
                return Next::Lose(item);
            }
        }
        let due = self.pacer.with(now, |pacer| pacer.poll_timeout());
        due.map_or(Next::OnEvent, |at| Next::At(at.max(now + Duration::from_nanos(1))))
    }
}

impl Policy for Ours {
    fn next(&mut self, now: Instant, work: &mut Work<'_>) -> Next {
        let next = self.decide(now, work);
        if let Some(waits) = &mut self.waits {
            match next {
                Next::Send(_) => waits.sent(now),
                Next::At(_) | Next::OnEvent => {
                    let scope = self.pacer.snapshot(now);
                    let rule = scope.waits_for.filter(|_| scope.waiting > 0).map(|(rule, _)| rule);
                    waits.wait(now, rule);
                }
                Next::Lose(_) => {}
            }
        }
        next
    }

    fn watch(&mut self) {
        self.waits = Some(Waits::default());
    }

    fn waited(&mut self, now: Instant) -> (Vec<Wait>, Duration) {
        let waits = self.waits.as_mut();
        waits.map_or_else(Default::default, |waits| (waits.rows(now), waits.longest()))
    }

    fn probes(&self, now: Instant) -> u64 {
        self.snapshot(now).totals.probes
    }

    fn workers(&mut self, now: Instant, count: u32) {
        // Without any the engine does not ask at all.
        let config = within(&self.config, count.max(1));
        self.pacer
            .with(now, |pacer| pacer.reconfigure(now, config))
            .expect("a sound configuration stays sound with fewer workers");
    }

    fn answered(&mut self, now: Instant, answer: &CallResult<'_>) -> Fate {
        if self.pacer.is_dead() {
            return Fate::Again;
        }
        let ticket = self.tickets[answer.item as usize].take().expect("only calls in flight are answered");
        let outcome = Outcome {
            hint: answer.wait.map(|hint| paceline_core::Hint::new(hint.wait, hint.exact)),
            limits: answer.limits.to_vec(),
            usage: (answer.class == Class::Success).then(|| answer.cost.clone()),
            ..Outcome::new(answer.class)
        };
        match self.pacer.with(now, |pacer| pacer.complete(now, ticket, outcome)) {
            NextAction::Retry { mut next, .. } | NextAction::Resend { mut next, .. } => {
                if let (Class::Transient, Some(wait)) = (answer.class, self.after_fault) {
                    next.not_before = Some(now + wait);
                }
                self.pacer.with(now, |pacer| pacer.enqueue(now, *next)).expect("it had room before");
                Fate::Again
            }
            NextAction::GiveUp { .. } => Fate::Lost,
            _ => Fate::Done,
        }
    }

    fn rate(&self, now: Instant) -> Option<f64> {
        self.snapshot(now).estimate.map(|belief| belief.rate)
    }

    fn limit(&self, now: Instant) -> Option<u32> {
        let ScopeSnapshot { estimate, concurrency, .. } = self.snapshot(now);
        estimate.map_or(Some(concurrency.current_limit), |estimate| estimate.cap)
    }

    fn delay(&self, now: Instant) -> Option<Duration> {
        Some(self.snapshot(now).delay)
    }

    fn explain(&self, now: Instant) -> Option<String> {
        self.snapshot(now).estimate.map(|estimate| estimate.to_string())
    }
}
