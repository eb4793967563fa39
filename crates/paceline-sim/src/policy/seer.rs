//! A client that cheats, to see it found out: it keeps a copy of the provider and looks up when the next call would be
//! admitted, changes of the limits included.

use std::time::Duration;

use paceline_core::{Class, Instant};
use paceline_model::{Admission, ProviderModel};

use super::{CallResult, Fate, Next, Policy, Setting, Work};

/// Limits that change are looked at so often.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Seer {
    provider: ProviderModel,
    /// The shortest and the longest way of a call to the provider, as far as this one knows.
    way: (Duration, Duration),
    /// Refused all the same.
    again: Vec<u32>,
}

impl Seer {
    /// Sends what would be admitted at present.
    pub(super) fn peeking(setting: &Setting<'_>) -> Self {
        Self::new(setting, (0.0, 0.0))
    }

    /// Sends what will be admitted when it gets there.
    pub(super) fn foreseeing(setting: &Setting<'_>) -> Self {
        Self::new(setting, (0.4, 0.6))
    }

    fn new(setting: &Setting<'_>, way: (f64, f64)) -> Self {
        let provider = ProviderModel::new(setting.scenario.provider.clone(), setting.seed);
        let net = setting.scenario.net;
        let way = (net.mul_f64(way.0), net.mul_f64(way.1));
        Self { provider: provider.expect("the engine has made the same one"), way, again: Vec::new() }
    }
}

impl Policy for Seer {
    fn next(&mut self, now: Instant, work: &mut Work<'_>) -> Next {
        let Some(item) = self.again.last().copied().or_else(|| work.peek()) else { return Next::OnEvent };
        let (soonest, latest) = (now + self.way.0, now + self.way.1);
        if self.provider.in_service() >= self.provider.places(soonest) {
            return Next::OnEvent;
        }
        let known = &work.items[item as usize];
        let wait = self.provider.polite_wait(soonest, &known.cost);
        if !wait.is_zero() {
            return Next::At(now + wait.min(LOOK));
        }
        // A call that has a window's last place now may find that window over.
        if let Admission::Refused(_) = self.provider.arrive_with(latest, &known.cost, known.service) {
            return Next::At(now + LOOK);
        }
        if self.again.pop().is_none() {
            work.take();
        }
        Next::Send(item)
    }

    fn answered(&mut self, now: Instant, answer: &CallResult<'_>) -> Fate {
        self.provider.finish(now);
        if answer.class != Class::Success {
            self.again.push(answer.item);
            return Fate::Again;
        }
        Fate::Done
    }
}
