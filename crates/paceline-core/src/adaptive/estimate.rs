//! The estimate of the limit, for people and for the next process.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt;
use core::time::Duration;

use super::AdaptiveRate;
use super::cap::Cap;
use super::decision::RateDecision;
use super::rate::Trend;
use super::unit::Unit;
use crate::admit::PerSecond;
use crate::fleet::MemberId;
use crate::gate::Gate;
use crate::state::LearntState;
use crate::time::Instant;

/// A cap that another process had learnt longer ago is forgotten, and so is the unit.
const HOLDS: Duration = Duration::from_mins(60);

/// What a scope estimates its limit to be, under [`Pace::Auto`](crate::Pace::Auto). Its `Display` is one line with the
/// estimate and its reasons.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RateEstimate {
    /// Calls a second.
    pub rate: f64,
    /// The same in tokens a second, where refusals show that tokens are what the limit counts.
    pub tokens: Option<f64>,
    /// Where the rate is going.
    pub trend: Trend,
    /// How long ago a call was refused, a canary too, and at what rate the scope was slowed down last.
    pub refused: Option<(Duration, f64)>,
    /// Calls in flight, where refusals follow their number.
    pub cap: Option<u32>,
    /// Whether calls may pass.
    pub gate: GateState,
    /// Where one process of a fleet decides for all: then the rate is that of all of them.
    pub shared: Option<SharedRate>,
}

/// A learnt rate that the processes of a fleet share.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SharedRate {
    /// Whether this process decides for all.
    pub decides: bool,
    /// The process that does, as far as this one has heard.
    pub reader: Option<MemberId>,
    /// Calls a second that this process may send; none while configured limits alone hold back.
    pub share: Option<f64>,
    /// The number of the last reaction: all processes know the same.
    pub era: u64,
}

/// Whether calls may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateState {
    /// At the learnt rate.
    Open,
    /// Not before that time has passed.
    Closed {
        /// From now on.
        wait: Duration,
    },
    /// One call, which tests whether the limit has reopened.
    Canary,
}

impl GateState {
    /// The name used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed { .. } => "closed",
            Self::Canary => "canary",
        }
    }
}

impl AdaptiveRate {
    /// The state that another process can restore, unused for `ago`. None during the start, which learns faster by itself.
    pub(crate) fn export(&self, ago: Duration) -> Option<LearntState> {
        let RateDecision { rate, unit, cap, .. } = &self.decision;
        let rate = rate.handed_on();
        (!self.is_starting()).then(|| LearntState { rate, tokens: unit.tokens(rate), cap: cap.limit(), ago })
    }

    /// Restores what another process had exported `since` ago, unless this one has sent a call.
    pub(crate) fn restore(&mut self, state: &LearntState, since: Duration) {
        let LearntState { rate, tokens, cap, ago } = *state;
        let decision = &mut self.decision;
        if decision.is_new() && rate.is_finite() && rate > 0.0 {
            let age = ago.saturating_add(since);
            decision.rate.restore_estimate(rate, age);
            decision.cap = Cap::restored(cap.filter(|_| age < HOLDS));
            decision.unit = Unit::restored(tokens.filter(|_| age < HOLDS).map(|tokens| tokens / rate));
        }
    }

    pub(crate) fn estimate(&self, now: Instant, gate: &Gate) -> RateEstimate {
        let RateDecision { rate, unit, cap, .. } = &self.decision;
        let told = self.told();
        let (decides, reader) = (self.reads(), self.reader());
        let shared = told.map(|(belief, share)| SharedRate { decides, reader, share, era: belief.era });
        let all = told.filter(|_| self.follows()).map_or(rate.acting(), |(belief, _)| belief.rate);
        RateEstimate {
            rate: all,
            shared,
            trend: rate.trend(),
            refused: rate.refused().map(|(at, rate)| (now.saturating_since(at), rate)),
            tokens: unit.tokens(all),
            cap: cap.limit(),
            gate: match gate.closed_until(now) {
                Some(until) => GateState::Closed { wait: until - now },
                None if gate.is_open() => GateState::Open,
                None => GateState::Canary,
            },
        }
    }
}

impl RateEstimate {
    /// Its text, without how long nothing leaves.
    pub fn without_pause(&self) -> String {
        let open = match self.gate {
            GateState::Closed { wait } => format!("; no calls for {}", Ago(wait)),
            GateState::Open | GateState::Canary => String::new(),
        };
        let text = self.to_string();
        text.strip_suffix(&*open).map(str::to_owned).unwrap_or(text)
    }
}

impl fmt::Display for RateEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "estimated limit about {}", PerSecond(self.rate))?;
        self.tokens.map_or(Ok(()), |tokens| write!(f, " or {tokens:.0} tokens/s"))?;
        match self.refused {
            Some((ago, at)) => write!(f, " (last refusal {} ago at {})", Ago(ago), PerSecond(at))?,
            None => f.write_str(" or more")?,
        }
        match self.trend {
            Trend::Starting if self.refused.is_none() => {}
            // Behind a closed gate nothing grows.
            _ if self.gate != GateState::Open => {}
            Trend::Starting | Trend::Growing => f.write_str(", rising")?,
            Trend::Returning => f.write_str(", returning to a rate that worked")?,
        }
        self.cap.map_or(Ok(()), |cap| write!(f, "; at most {cap} in flight"))?;
        if let Some(share) = self.shared.and_then(|shared| shared.share) {
            write!(f, "; of it {} here", PerSecond(share))?;
        }
        match self.gate {
            GateState::Open => Ok(()),
            GateState::Closed { wait } => write!(f, "; no calls for {}", Ago(wait)),
            GateState::Canary => f.write_str("; one call tests the limit"),
        }
    }
}

/// A duration in the unit that suits it.
struct Ago(Duration);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0 => write!(f, "{} ms", self.0.as_millis()),
            seconds @ 1..120 => write!(f, "{seconds} s"),
            seconds @ 120..7_200 => write!(f, "{} min", seconds / 60),
            seconds => write!(f, "{} h", seconds / 3_600),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn one_line_says_what_and_why() {
        let mut estimate = RateEstimate {
            rate: 19.8,
            tokens: None,
            trend: Trend::Growing,
            refused: Some((Duration::from_secs(41), 22.14)),
            cap: None,
            gate: GateState::Open,
            shared: None,
        };
        let line = "estimated limit about 19.8/s (last refusal 41 s ago at 22.1/s), rising";
        assert_eq!(estimate.to_string(), line);
        estimate.gate = GateState::Canary;
        assert_eq!(
            estimate.to_string(),
            "estimated limit about 19.8/s (last refusal 41 s ago at 22.1/s); one call tests the limit"
        );
        estimate.gate = GateState::Open;
        estimate.trend = Trend::Starting;
        assert_eq!(estimate.to_string(), line, "it starts again after a refusal");
        estimate.shared = Some(SharedRate { decides: true, reader: None, share: Some(1.24), era: 7 });
        assert_eq!(estimate.to_string(), alloc::format!("{line}; of it 1.24/s here"));
        estimate = RateEstimate {
            rate: 0.02,
            tokens: Some(98.6),
            trend: Trend::Starting,
            refused: None,
            cap: Some(8),
            gate: GateState::Closed { wait: Duration::from_millis(1_500) },
            shared: None,
        };
        assert_eq!(
            estimate.to_string(),
            "estimated limit about 1.20/min or 99 tokens/s or more; at most 8 in flight; no calls \
             for 1 s"
        );
        assert_eq!(
            estimate.without_pause(),
            "estimated limit about 1.20/min or 99 tokens/s or more; at most 8 in flight"
        );
    }

    #[test]
    fn a_rate_has_three_digits_that_count() {
        let shown = [1_234.4, 99.96, 99.94, 9.996, 9.994, 0.1, 0.0999].map(|rate| PerSecond(rate).to_string());
        assert_eq!(shown, ["1234/s", "100/s", "99.9/s", "10.0/s", "9.99/s", "0.10/s", "5.99/min"]);
        let shown = [(0, 999), (1, 0), (119, 0), (120, 0), (7_199, 0), (7_200, 0)]
            .map(|(seconds, ms)| Ago(Duration::from_secs(seconds) + Duration::from_millis(ms)).to_string());
        assert_eq!(shown, ["999 ms", "1 s", "119 s", "2 min", "119 min", "2 h"]);
    }
}
