//! Policies: they decide when a client's calls leave. The pacer of this project, and what people use elsewhere.

mod aimd;
mod aws;
mod bucket;
mod concurrency_limits;
mod cookbook;
mod crew;
mod google;
mod known;
mod ours;
#[cfg(test)]
mod seer;
mod simple;
mod waits;
mod window;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use paceline_core::{Class, ConfigError, Cost, Instant, LimitReport, Pace, PacerConfig};
use paceline_model::ToldWait;

use crate::fleet::Fleet;
use crate::scenario::{Item, Scenario};

use crew::Crew;

pub use waits::Wait;

/// One client's policy, or that of several who share it.
pub trait Policy {
    /// What to do now. The engine asks again after each `Send`, at the instant of an `At` and whenever something happened;
    /// a question that is answered with anything but `Send` must change nothing that later answers depend on.
    fn next(&mut self, now: Instant, work: &mut Work<'_>) -> Next;

    /// From now on at most so many calls can be under way. Called once at the start, if that is less than the most of
    /// [`Setting::in_flight`], and at each change; the engine asks for no more in any case.
    fn workers(&mut self, _now: Instant, _count: u32) {}

    /// From now on notes what its calls wait for.
    fn watch(&mut self) {}

    /// What they have waited for since, and the longest time between two calls; none if the policy does not record it.
    fn waited(&mut self, _now: Instant) -> (Vec<Wait>, Duration) {
        (Vec::new(), Duration::ZERO)
    }

    /// How many of its calls tested whether a failing server is back.
    fn probes(&self, _now: Instant) -> u64 {
        0
    }

    /// A call of this client was answered.
    fn answered(&mut self, now: Instant, answer: &CallResult<'_>) -> Fate;

    /// Calls per second that it lets out at present, where it has such a number.
    fn rate(&self, _now: Instant) -> Option<f64> {
        None
    }

    /// Calls that it lets be under way at present, where it decides that.
    fn limit(&self, _now: Instant) -> Option<u32> {
        None
    }

    /// The delay between two calls at present, where it has one.
    fn delay(&self, _now: Instant) -> Option<Duration> {
        None
    }

    /// A short description of its present pace, and why.
    fn explain(&self, _now: Instant) -> Option<String> {
        None
    }
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A call for this item leaves.
    Send(u32),
    /// This item is given up without a call: it can never be sent.
    Lose(u32),
    /// Nothing before that instant, unless a call is answered.
    At(Instant),
    /// Nothing before a call is answered.
    OnEvent,
}

/// What follows for an item after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has its answer.
    Done,
    /// It will be sent again.
    Again,
    /// It was given up.
    Lost,
}

/// The end of a call as its client sees it.
#[derive(Clone, Copy, Debug)]
pub struct CallResult<'a> {
    /// Which item.
    pub item: u32,
    /// Success, throttled, overloaded or transient.
    pub class: Class,
    /// When the call left.
    pub sent: Instant,
    /// Calls of this client in flight when it left, itself included.
    pub in_flight: u32,
    /// The hint of a refusal.
    pub wait: Option<ToldWait>,
    /// The limits that its headers announced.
    pub limits: &'a [LimitReport],
    /// What the call cost.
    pub cost: &'a Cost,
}

impl CallResult<'_> {
    /// Whether the provider refused the call.
    pub fn is_refused(&self) -> bool {
        matches!(self.class, Class::Throttled | Class::Overloaded)
    }
}

/// The items that a client has not begun yet.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    items: &'a [Item],
    next: u32,
    step: u32,
}

impl<'a> Work<'a> {
    /// Every `step`th item from `first` on.
    pub(crate) const fn new(items: &'a [Item], first: u32, step: u32) -> Self {
        Self { items, next: first, step }
    }

    /// The next item.
    pub fn peek(&self) -> Option<u32> {
        ((self.next as usize) < self.items.len()).then_some(self.next)
    }

    /// Begins the next item.
    pub fn take(&mut self) -> Option<u32> {
        let item = self.peek()?;
        self.next += self.step;
        Some(item)
    }

    /// What an item is believed to cost.
    pub fn estimate(&self, item: u32) -> &Cost {
        &self.items[item as usize].estimate
    }
}

/// The information that a policy gets when it is made.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "a fleet has none")]
pub struct Setting<'a> {
    /// The provider's documentation.
    pub scenario: &'a Scenario,
    /// How many policies share its limits.
    pub processes: u32,
    /// The name of the scope that a configured pacer's calls belong to.
    pub scope: &'a str,
    /// The most calls that can ever be in flight.
    pub in_flight: u32,
    /// The seed of this policy's randomness.
    pub seed: u64,
    /// The fleet that it joins.
    pub(crate) fleet: Option<&'a Rc<RefCell<Fleet>>>,
}

impl Setting<'_> {
    /// This process's share of the documented rate, in calls per second.
    fn rate(&self) -> f64 {
        self.scenario.nominal_rate() / f64::from(self.processes)
    }

    /// Workers of a policy that does not bound its calls by itself.
    fn workers(&self) -> u32 {
        WORKERS.min(self.in_flight)
    }
}

/// Calls at once of a policy that does not bound them by itself.
const WORKERS: u32 = 50;

/// The names of the policies that drive this project's pacer.
pub const OURS: [&str; 8] =
    ["auto", "fixed", "aimd", "responsive", "responsive-classic", "linear", "exponential", "none"];

/// The names of the others.
pub const PEERS: [&str; 15] = [
    "A",
    "A-raising",
    "A@limit",
    "B",
    "C",
    "openai",
    "tenacity",
    "aws",
    "aws-inf",
    "vegas",
    "gradient2",
    "google",
    "google-1.1",
    "cookbook",
    "known",
];

/// The names of the policies that get the documented limits.
pub const TOLD: [&str; 4] = ["fixed", "A@limit", "cookbook", "known"];

/// This project's pacer as the user configured it, retries, breaker and all.
///
/// # Errors
/// The first invalid setting.
pub fn configured(config: &PacerConfig, setting: &Setting<'_>) -> Result<Box<dyn Policy>, ConfigError> {
    Ok(Box::new(ours::Ours::configured(config.clone(), setting)?))
}

/// A policy of that name; none when there is no such policy.
pub fn named(name: &str, setting: &Setting<'_>) -> Option<Box<dyn Policy>> {
    let seed = setting.seed;
    Some(match name {
        "responsive-classic" => Box::new(ours::Ours::classic(setting)),
        "auto" => Box::new(ours::Ours::new(Pace::Auto, setting)),
        "fixed" => Box::new(ours::Ours::new(Pace::Fixed, setting)),
        "aimd" => Box::new(ours::Ours::new(Pace::Aimd, setting)),
        "responsive" => Box::new(ours::Ours::new(Pace::Responsive, setting)),
        "linear" => Box::new(ours::Ours::new(Pace::Linear, setting)),
        "exponential" => Box::new(ours::Ours::new(Pace::Exponential, setting)),
        "none" => Box::new(ours::Ours::new(Pace::None, setting)),
        "A" => Box::new(Crew::held(window::Window::new(50.0, 10.0, false, seed), setting.workers())),
        "A-raising" => Box::new(Crew::held(window::Window::new(50.0, 10.0, true, seed), setting.workers())),
        "A@limit" => {
            let per_minute = 60.0 * setting.rate();
            Box::new(Crew::held(window::Window::new(per_minute, per_minute / 5.0, false, seed), setting.in_flight))
        }
        "B" => Box::new(Crew::held(simple::Responsive::new(seed), setting.workers())),
        "C" => Box::new(Crew::passing(aimd::Aimd::new(seed), setting.workers())),
        "openai" => Box::new(Crew::held(simple::OpenAi::new(seed), setting.workers())),
        "tenacity" => Box::new(Crew::held(simple::Tenacity::new(seed), setting.workers())),
        "aws" => Box::new(Crew::held(aws::Adaptive::new(true, seed), setting.workers())),
        "aws-inf" => Box::new(Crew::held(aws::Adaptive::new(false, seed), setting.workers())),
        "vegas" => {
            let vegas = concurrency_limits::Vegas::new(seed);
            Box::new(Crew::passing(concurrency_limits::Limited::new(vegas, seed), setting.in_flight))
        }
        "gradient2" => {
            let gradient = concurrency_limits::Gradient2::new();
            Box::new(Crew::passing(concurrency_limits::Limited::new(gradient, seed), setting.in_flight))
        }
        "google" => Box::new(Crew::held(google::Throttling::new(2.0, seed), setting.workers())),
        "google-1.1" => Box::new(Crew::held(google::Throttling::new(1.1, seed), setting.workers())),
        "cookbook" => Box::new(Crew::passing(cookbook::Cookbook::new(setting), setting.in_flight)),
        "known" => Box::new(Crew::passing(known::Known::new(setting), setting.in_flight)),
        #[cfg(test)]
        "peeking" => Box::new(seer::Seer::peeking(setting)),
        #[cfg(test)]
        "foreseeing" => Box::new(seer::Seer::foreseeing(setting)),
        _ => return None,
    })
}
