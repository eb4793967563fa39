//! Groups whose commands hang share places as hosts that do, once a run has met several groups.

use std::sync::{Arc, Mutex, PoisonError};

use paceline::Limiter;
use paceline_core::{Class, WaitCause};

/// What a run has met. One group alone keeps all places, whatever its commands do.
#[derive(Debug, Default)]
pub(super) struct GroupsOfCommands(Mutex<Met>);

#[derive(Debug, Default)]
struct Met {
    first: Option<Arc<str>>,
    several: bool,
    hung: bool,
    told: bool,
}

impl GroupsOfCommands {
    /// A command of that group begins.
    pub(super) fn begins(&self, group: &Arc<str>, limiter: &Limiter) {
        self.note(limiter, |met| met.several |= met.first.get_or_insert_with(|| group.clone()) != group);
    }

    /// A command has ended like that, as the limiter is told.
    pub(super) fn ended(&self, class: Class, limiter: &Limiter) {
        self.note(limiter, |met| met.hung |= class == Class::Transient);
    }

    fn note(&self, limiter: &Limiter, note: impl FnOnce(&mut Met)) {
        let mut met = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if met.told {
            return;
        }
        note(&mut met);
        if met.several && met.hung {
            met.told = true;
            limiter.expect_scopes();
        }
    }
}

/// What a command waits for, for people: commands have no host.
pub(super) fn words_for(cause: &WaitCause) -> String {
    match cause {
        WaitCause::Place { in_vain: true } => "a place: the commands of its group hung before".to_owned(),
        WaitCause::Place { in_vain: false } => "a place: no command of its group has ended yet".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline::{Concurrency, Cost, Outcome, Pace, PacerConfig, Permit, Request};

    use super::*;

    /// Eight places; commands of a good group end well, and those of six others hang for ten seconds. A minute later the others
    /// come again, and the good one only after them.
    async fn places_of_those_that_hang(groups: u32, is_noted: bool) -> usize {
        let config =
            PacerConfig { pace: Pace::None, concurrency: Concurrency::Fixed { max: 8 }, ..PacerConfig::default() };
        let (limiter, met) = (Limiter::new(config).expect("sensible"), GroupsOfCommands::default());
        let begin = |group: &str| {
            if is_noted {
                met.begins(&group.into(), &limiter);
            }
            limiter.try_acquire(Request::new(limiter.scope(group), Cost::request())).ok()
        };
        let end = |permit: Option<Permit>, class| {
            let _ = permit.expect("a place").complete(Outcome::new(class));
            if is_noted {
                met.ended(class, &limiter);
            }
        };
        let names: Vec<String> = (1..groups).map(|bad| format!("bad{bad}")).collect();
        let first: Vec<_> = names.iter().map(|bad| begin(bad)).collect();
        let good = begin("bad0");
        tokio::time::sleep(Duration::from_secs(10)).await;
        end(good, if groups == 1 { Class::Transient } else { Class::Success });
        first.into_iter().for_each(|permit| end(permit, Class::Transient));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let names: Vec<String> = if groups == 1 { vec!["bad0".to_owned(); 8] } else { names };
        names.iter().chain(&names).filter_map(|bad| begin(bad)).map(std::mem::forget).count()
    }

    #[test]
    fn a_command_waits_for_no_host() {
        for in_vain in [false, true] {
            let (of_command, of_call) = (words_for(&WaitCause::Place { in_vain }), WaitCause::Place { in_vain });
            assert!(of_command.contains("its group") && !of_command.contains("host"), "{of_command}");
            assert!(of_call.to_string().contains("its host"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn groups_whose_commands_hang_leave_places_to_the_others() {
        assert_eq!(places_of_those_that_hang(7, false).await, 8, "without it they take all");
        assert_eq!(places_of_those_that_hang(7, true).await, 2);
        assert_eq!(places_of_those_that_hang(1, true).await, 8, "there is no other");
    }
}
