//! The trace of a run, span by span, for tables and charts.

use std::time::Duration;

use paceline_core::Instant;

use crate::ideal::Ideal;

/// What happened in one span of a run. Counts are of the span.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// When it begins.
    pub start: Instant,
    /// Calls that left.
    pub sent: u32,
    /// Calls that the provider took.
    pub admitted: u32,
    /// Calls that it turned away.
    pub refused: u32,
    /// Items that got their answer.
    pub succeeded: u32,
    /// Items that were given up.
    pub lost: u32,
    /// Calls that the best schedule got admitted.
    pub oracle: u32,
    /// The most calls that were under way at once, of all clients.
    pub in_flight: u32,
    /// Calls per second that the provider's limits sustain at its start, without what strangers take on average;
    /// infinite where nothing limits it.
    pub capacity: f64,
    /// What the policies do at its end.
    pub pace: PaceNow,
}

/// What the policies of the unfinished clients do at an instant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PaceNow {
    /// Calls per second that they would let out, all together. None where no policy has a rate.
    pub rate: Option<f64>,
    /// Calls that they would let be under way, all together. None where no policy bounds them by itself.
    pub limit: Option<u32>,
    /// The delay between two calls of the first client. None where its policy has no such delay.
    pub delay: Option<Duration>,
    /// The description of the first client's pace, if its policy has one.
    pub description: Option<String>,
}

/// A run in spans of the same length, from the start to the span in which it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// How long a span is.
    pub step: Duration,
    /// In order, without gaps.
    pub spans: Vec<Span>,
}

/// A run as it goes.
#[derive(Debug)]
pub(crate) struct Recorder {
    step: Duration,
    spans: Vec<Span>,
    current: Span,
    under_way: u32,
}

/// At least so many spans while the best schedule is at work, where that takes no less than ...
const SPANS: u32 = 300;

/// ... this for each.
const SHORTEST: Duration = Duration::from_millis(100);

impl Recorder {
    /// Spans of 1, 2 or 5 times a power of ten.
    pub(crate) fn new(ideal: &Ideal) -> Self {
        let longest = (ideal.finished - Instant::ZERO) / SPANS;
        let lengths = (0..6).flat_map(|power| [1, 2, 5].map(|times| SHORTEST * times * 10u32.pow(power)));
        let step = lengths.take_while(|length| *length <= longest).last().unwrap_or(SHORTEST);
        Self { step, spans: Vec::new(), current: Span::begin(Instant::ZERO, 0), under_way: 0 }
    }

    /// A call left.
    pub(crate) fn sent(&mut self) {
        self.under_way += 1;
        self.current.sent += 1;
        self.current.in_flight = self.current.in_flight.max(self.under_way);
    }

    /// A call was answered or refused.
    pub(crate) const fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// What else happens is counted here.
    pub(crate) const fn current(&mut self) -> &mut Span {
        &mut self.current
    }

    /// The end of the present span.
    pub(crate) fn ends(&self) -> Instant {
        self.current.start + self.step
    }

    /// Ends the present span and begins the next.
    pub(crate) fn close(&mut self, capacity: f64, pace: PaceNow) {
        let next = Span::begin(self.ends(), self.under_way);
        let span = std::mem::replace(&mut self.current, next);
        self.spans.push(Span { capacity, pace, ..span });
    }

    /// The whole run, the best schedule beside it.
    pub(crate) fn finish(self, ideal: &Ideal) -> Trace {
        let Self { step, mut spans, .. } = self;
        for at in &ideal.admitted {
            let index = (at.as_nanos() / u64::try_from(step.as_nanos()).unwrap_or(u64::MAX)) as usize;
            if let Some(span) = spans.get_mut(index) {
                span.oracle += 1;
            }
        }
        Trace { step, spans }
    }
}

impl Span {
    fn begin(start: Instant, in_flight: u32) -> Self {
        Self {
            start,
            sent: 0,
            admitted: 0,
            refused: 0,
            succeeded: 0,
            lost: 0,
            oracle: 0,
            in_flight,
            capacity: 0.0,
            pace: PaceNow::default(),
        }
    }
}
