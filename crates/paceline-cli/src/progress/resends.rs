//! One line now and then for all calls or commands that failed and are tried again: one line each would bury everything else.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use paceline::Instant;

use crate::text;

/// Between two lines.
pub(super) const EVERY: Duration = Duration::from_secs(10);

/// Retried calls that were not reported yet.
#[derive(Debug, Default)]
pub(crate) struct Resends {
    are_commands: bool,
    by_class: BTreeMap<&'static str, u64>,
    /// The last of their error messages.
    last_answer: String,
    /// Calls that a gateway made again, and of how many of those before them it is unknown whether they were executed.
    by_gateway: (u64, u64),
    reported: Option<Instant>,
}

impl Resends {
    /// Those of commands.
    pub(crate) fn of_commands() -> Self {
        Self { are_commands: true, ..Self::default() }
    }

    /// A call failed and is sent again. `class`: the description of its class.
    pub(crate) fn add(&mut self, class: &'static str, last_answer: &str) {
        *self.by_class.entry(class).or_default() += 1;
        self.last_answer = text::printable(last_answer).into_owned();
    }

    /// A gateway made so many calls again for what it answered, and of so many it is unknown whether they were executed.
    pub(crate) fn add_by_gateway(&mut self, again: u32, unknown: u32) {
        self.by_gateway.0 += u64::from(again);
        self.by_gateway.1 += u64::from(unknown);
    }

    /// The line, when it is time for one.
    pub(crate) fn line(&mut self, now: Instant) -> Option<String> {
        if self.reported.is_some_and(|reported| now < reported + EVERY) {
            return None;
        }
        let line = self.take(false);
        if line.is_some() {
            self.reported = Some(now);
        }
        line
    }

    /// The line of those that no line has told of, at the end of a run: they were tried again since, or wait for a later run.
    pub(crate) fn last_line(&mut self) -> Option<String> {
        self.take(true)
    }

    fn take(&mut self, is_last: bool) -> Option<String> {
        let gateway = std::mem::take(&mut self.by_gateway);
        let by_gateway = (gateway.0 > 0).then(|| words_of_gateway(gateway));
        let by_class = std::mem::take(&mut self.by_class);
        if by_class.is_empty() {
            return by_gateway;
        }
        let (what, will) =
            if self.are_commands { ("command", "will run again") } else { ("call", "will be sent again") };
        let failed = by_class.values().sum();
        let again = match (is_last, self.are_commands, failed) {
            (false, ..) => will,
            (true, true, 1) => "ran again, or waits for a later run",
            (true, true, _) => "ran again, or wait for a later run",
            (true, false, 1) => "was sent again, or waits for a later run",
            (true, false, _) => "were sent again, or wait for a later run",
        };
        let calls = text::counted(failed, what);
        let words = format!(
            "{calls} failed and {again}: {}; the last one: {} (-v shows each)",
            kinds(&by_class),
            self.last_answer
        );
        Some([Some(words), by_gateway].into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

/// Which kinds there are, and how many of each where there are several.
pub(super) fn kinds<Kind: Display>(by_kind: &BTreeMap<Kind, u64>) -> String {
    match by_kind.len() {
        1 => by_kind.keys().map(ToString::to_string).collect(),
        _ => {
            let counted = |(kind, number): (&Kind, &u64)| format!("{kind} ({})", text::count(*number));
            by_kind.iter().map(counted).collect::<Vec<_>>().join(", ")
        }
    }
}

fn words_of_gateway((again, unknown): (u64, u64)) -> String {
    let unknown = if unknown > 0 {
        format!("; {} before may have been done and may be billed", text::counted(unknown, "call"))
    } else {
        String::new()
    };
    format!("the gateway sent {} again{unknown}", text::counted(again, "call"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_counts_them_all() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut resends = Resends::default();
        assert_eq!(resends.line(at(0)), None);
        resends.add("server overloaded", "try later");
        assert_eq!(
            resends.line(at(1)).as_deref(),
            Some("1 call failed and will be sent again: server overloaded; the last one: try later (-v shows each)")
        );
        for _ in 0..1_200 {
            resends.add("server overloaded", "try later");
        }
        resends.add("rate limit hit", "slow\x1b[31m down");
        assert_eq!(resends.line(at(10)), None);
        let line = resends.line(at(11)).expect("ten seconds later");
        assert!(
            line.starts_with(
                "1,201 calls failed and will be sent again: rate limit hit (1), server overloaded (1,200); "
            ),
            "{line}"
        );
        assert!(!line.contains('\x1b'), "{line:?}");
        assert_eq!(resends.line(at(40)), None, "nothing failed since");
        resends.add("server overloaded", "try later");
        assert!(resends.line(at(41)).is_some());
        resends.add("server overloaded", "try later");
        assert_eq!(resends.line(at(42)), None, "it is too early");
        let last = resends.last_line().expect("the run ends");
        let told = "1 call failed and was sent again, or waits for a later run: server overloaded; ";
        assert!(last.starts_with(told), "{last}");
        assert_eq!(resends.last_line(), None, "they are told");
        let mut commands = Resends::of_commands();
        commands.add("transient failure", "exit code 1");
        assert_eq!(
            commands.line(at(0)).as_deref(),
            Some("1 command failed and will run again: transient failure; the last one: exit code 1 (-v shows each)")
        );
        resends.add_by_gateway(2, 0);
        assert_eq!(resends.line(at(60)).as_deref(), Some("the gateway sent 2 calls again"));
        resends.add_by_gateway(2, 1);
        resends.add("server overloaded", "try later");
        assert_eq!(
            resends.line(at(70)).as_deref(),
            Some(
                "1 call failed and will be sent again: server overloaded; the last one: try later (-v shows each); \
                 the gateway sent 2 calls again; 1 call before may have been done and may be billed"
            )
        );
    }
}
