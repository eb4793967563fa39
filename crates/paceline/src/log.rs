//! Log lines about retries.

use std::fmt;
use std::time::Duration;

use paceline_core::{Class, Request, Retry, format_duration};

/// `server overloaded (try 1 of at most 8), next try in 1.2s`: one line for each re-send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingOff {
    class: Class,
    attempt: u32,
    /// The most sends that the bounds allow; `None` is no bound.
    of: Option<u32>,
    delay: Duration,
}

impl BackingOff {
    /// From a [`NextAction`](paceline_core::NextAction)'s `next` and its delay. Attempts are counted by kind: deferrals for
    /// throttled answers and used-up quotas, retries for the rest.
    pub fn new(class: Class, next: &Request, retry: &Retry, delay: Duration) -> Self {
        let (attempt, bound) = match class {
            Class::Throttled | Class::QuotaExhausted | Class::Partial => (next.deferrals, retry.max_deferrals),
            _ => (next.attempts.max(1), Some(retry.max_retries)),
        };
        Self { class, attempt, of: bound.map(|bound| bound.saturating_add(1)), delay }
    }
}

impl fmt::Display for BackingOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let description = self.class.description();
        match self.of {
            Some(of) => write!(f, "{description} (try {} of at most {of})", self.attempt)?,
            None => write!(f, "{description} (try {})", self.attempt)?,
        }
        match self.delay {
            Duration::ZERO => f.write_str(", next try as soon as its scope allows"),
            delay => write!(f, ", next try in {}", format_duration(delay)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{Cost, Pacer, PacerConfig};

    #[test]
    fn the_log_line_of_a_re_send() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, paceline_core::Instant::ZERO).expect("the defaults");
        let request = Request::new(pacer.scope("chat"), Cost::request());
        let retry = Retry::default();
        let bounded = Retry { max_deferrals: Some(100), ..Retry::default() };
        let (attempts, deferrals) = (1, 3);
        let next = Request { attempts, deferrals, ..request };
        for (class, retry, millis, line) in [
            (Class::Throttled, &retry, 1_240, "rate limit hit (try 3), next try in 1.2s"),
            (Class::Throttled, &bounded, 60_000, "rate limit hit (try 3 of at most 101), next try in 1m 00s"),
            (Class::Overloaded, &retry, 350, "server overloaded (try 1 of at most 8), next try in 350ms"),
            (
                Class::Transient,
                &retry,
                0,
                "transient failure (try 1 of at most 8), next try as soon as its scope allows",
            ),
        ] {
            let delay = Duration::from_millis(millis);
            assert_eq!(BackingOff::new(class, &next, retry, delay).to_string(), line);
        }
    }
}
