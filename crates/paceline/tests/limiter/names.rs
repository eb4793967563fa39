//! `use paceline::*` hides no name of the prelude, nor one that a program imports by name.

use std::error::Error;
use std::time::{Duration, Instant};

use paceline::*;

/// Each name here means what it means without the crate.
fn names_of_std(start: Option<Instant>) -> Result<Option<Vec<String>>, Box<dyn Error>> {
    let name = ToString::to_string("default").clone();
    let names: Vec<String> = Iterator::map([name].iter(), String::from).collect();
    if start.is_some() || Ord::max(Duration::ZERO, Duration::MAX) == Duration::ZERO {
        return Err(From::from(AsRef::<str>::as_ref(&names[0])));
    }
    Ok(Some(Default::default()))
}

#[test]
fn a_glob_import_hides_nothing() {
    assert_eq!(names_of_std(None).ok().flatten(), Some(Vec::new()));
    let limiter = Limiter::new(Quota::per_second(50).burst(100)).expect("sensible");
    assert!(
        limiter
            .try_acquire("chat")
            .is_ok_and(|permit| permit.complete(Outcome::new(Class::Success)) == NextAction::Done)
    );
}
