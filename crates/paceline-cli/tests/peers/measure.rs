//! Sizes and figures: the short form and the long form of each test, and one line of numbers from each.

use std::io::Write;

/// Whether this is the long form, by `PACELINE_SOAK=1`.
pub(crate) fn soak() -> bool {
    std::env::var_os("PACELINE_SOAK").is_some_and(|value| value == "1")
}

/// Items of a job: 2,000 in the long form, 300 in the short one.
pub(crate) fn items() -> usize {
    if soak() { 2_000 } else { 300 }
}

/// Prints one line of figures past the test runner's capture, so that passing tests report too.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "measure {line}");
}

/// The figures of a job against a limit: sends, refusals, and its time beside the `oracle`'s, the seconds of a sender
/// who knows the limit exactly. 1.0 is perfect; `bar` is the ratio to reach, if there is one.
pub(crate) fn pace(name: &str, items: usize, sends: u64, refused: u64, seconds: f64, oracle: f64, bar: Option<f64>) {
    let ratio = oracle / seconds;
    let verdict = match bar {
        Some(bar) if soak() && ratio < bar => format!("bar={bar:.2} MISSED"),
        Some(bar) if soak() => format!("bar={bar:.2} met"),
        Some(bar) => format!("bar={bar:.2} of the long form"),
        None => "no bar".to_owned(),
    };
    say(&format!(
        "{name}: items={items} sends={sends} refused={refused} seconds={seconds:.2} oracle={oracle:.2} \
         oracle/measured={ratio:.3} {verdict}"
    ));
}

/// At most 2 % of the calls were refused.
///
/// # Panics
/// When more were.
pub(crate) fn assert_few_refused(sends: u64, refused: u64) {
    assert!(refused * 50 <= sends, "{refused} of {sends} calls were refused, more than 2 %");
}

/// Learning an unannounced limit cost at most that many refused calls for each hundred items.
///
/// # Panics
/// When it cost more.
pub(crate) fn assert_learnt(items: usize, refused: u64, percent: u64) {
    assert!(refused * 100 <= items as u64 * percent, "{refused} calls refused for {items} items, over {percent} %");
}
