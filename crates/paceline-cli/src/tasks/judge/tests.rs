//! Judges that are real processes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use paceline_core::{Class, Instant, Timestamp};
use paceline_store::work::{Decision, Forgiven, Item, State};

use super::*;

fn item() -> Item {
    Item {
        id: 1,
        key: "example.org".to_owned(),
        group: "default".into(),
        priority: 0,
        state: State::InFlight,
        attempts: 0,
        deferrals: 0,
        abandoned: 0,
        forgiven: Forgiven::default(),
        crashes: 0,
        not_before: None,
        delay: Duration::ZERO,
        created: Timestamp::from_millis(0),
        first: None,
        ended: None,
        deadline: None,
        last: None,
        reason: None,
    }
}

async fn asked(judge: &CommandJudge) -> Option<Decision> {
    let (item, failure) = (item(), paceline_store::work::Failure::new(Class::Transient, "the server is in trouble"));
    judge.decide(Case { item: &item, payload: "", failure: &failure, retry: 1, max_retries: 3, history: &[] }).await
}

/// How often each cause was met.
fn causes(judge: &CommandJudge) -> Vec<(&'static str, u64)> {
    judge.with_patience(|patience| patience.causes())
}

fn shell(script: &str) -> CommandJudge {
    CommandJudge::parse(&format!("sh -c {}", shlex::try_quote(script).expect("no zero byte")))
        .expect("there is a shell")
}

fn retry(seconds: u64) -> Option<Decision> {
    Some(Decision::Retry { delay: Some(Duration::from_secs(seconds)), reason: None })
}

#[tokio::test]
async fn a_command_reads_the_question_and_decides() {
    let judge = shell(
        r#"read line; case "$line" in
        *'"key":"example.org"'*'"class":"transient"'*'"retry":1,"max_retries":3'*)
            echo '{"action":"retry","suggested_delay_seconds":7}';;
        esac"#,
    );
    assert_eq!(asked(&judge).await, retry(7));
    assert_eq!((judge.name(), causes(&judge)), ("judge", vec![]));
}

#[tokio::test]
async fn a_command_need_not_read_the_question() {
    let judge = shell(r#"exec <&-; echo '{"action":"skip","reason":"x"}'"#);
    assert_eq!(asked(&judge).await, Some(Decision::Skip { reason: Some("x".to_owned()) }));
}

#[tokio::test]
async fn nonsense_of_every_kind_is_left_to_the_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("answer");
    for answer in NONSENSE {
        std::fs::write(&file, answer).expect("writable");
        let judge = CommandJudge::parse(&format!("cat '{}'", file.display())).expect("there is cat");
        assert_eq!(asked(&judge).await, None, "{answer:?}");
        assert_eq!(causes(&judge), [("nonsense", 1)], "{answer:?}");
    }
}

#[tokio::test]
async fn each_way_to_fail_has_its_cause() {
    for (script, cause) in [
        ("echo '{\"action\":\"skip\"}'; exit 1", "failed"),
        ("echo '{\"action\":\"skip\"}'; kill -9 $$", "failed"),
        ("exit 75", "rate-limited"),
        (r#"echo '{"error":{"message":"slow down"}}'"#, "rate-limited"),
        (r#"echo '{"error":"slow down","action":null}'"#, "rate-limited"),
        ("while :; do echo '{\"action\":\"skip\"}'; done", "too long"),
        ("head -c 70000 /dev/zero", "too long"),
    ] {
        let judge = shell(script);
        assert_eq!((asked(&judge).await, causes(&judge)), (None, vec![(cause, 1)]), "{script}");
    }
}

#[tokio::test]
async fn words_on_standard_error_are_told_however_many_they_are() {
    let program =
        Program::parse("sh -c 'echo no quota left >&2; head -c 300000 /dev/zero >&2; exit 1'").expect("a shell");
    let silence = program.ask("{}".to_owned()).await.expect_err("it failed").to_string();
    assert!(silence.starts_with("it ended with exit status: 1; it said: no quota left"), "{silence}");
    assert!(silence.len() < 500, "{} bytes", silence.len());
}

/// The judge's child would outlive it, if only the judge were killed.
#[cfg(unix)]
#[tokio::test]
async fn who_takes_too_long_is_killed_with_all_that_it_began() {
    let folder = tempfile::tempdir().expect("a folder");
    let (begun, fifo) = (folder.path().join("begun"), folder.path().join("fifo"));
    // The reader of a pipe sees its end once everybody who could write has ended.
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("there is mkfifo");
    assert!(made.success());
    let script = format!("sleep 600 > '{}' & echo > '{}'; wait", fifo.display(), begun.display());
    let judge = shell(&script);
    let reader = std::thread::spawn(move || std::fs::read(fifo));
    tokio::select! {
        answer = asked(&judge) => panic!("{answer:?}"),
        () = there(&begun) => {}
    }
    assert_eq!(causes(&judge), [("too slow", 1)]);
    assert_eq!(reader.join().expect("no panic").expect("readable"), b"", "the child is gone too");
}

/// Waits until there is such a file.
async fn there(path: &Path) {
    while !path.exists() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_judge_that_fails_in_a_row_is_not_begun_for_each_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let seen = folder.path().join("seen");
    let seconds = Arc::new(AtomicU64::new(0));
    let clock = {
        let seconds = seconds.clone();
        let now = move || Instant::ZERO + Duration::from_secs(seconds.load(Ordering::SeqCst));
        Clock::new(now, || Timestamp::from_millis(0))
    };
    let judge = shell(&format!("echo >> '{}'; exit 1", seen.display())).with_clock(clock);
    let begun = || std::fs::read_to_string(&seen).map_or(0, |text| text.lines().count());
    for _ in 0..20 {
        assert_eq!(asked(&judge).await, None);
    }
    assert_eq!(begun(), 3);
    seconds.fetch_add(1, Ordering::SeqCst);
    for _ in 0..20 {
        assert_eq!(asked(&judge).await, None);
    }
    assert_eq!(begun(), 4);
}

#[test]
fn a_line_that_names_no_program_is_refused() {
    for (line, words) in [
        ("", "names no command"),
        ("  ", "names no command"),
        ("decide 'it", "quotes are not closed"),
        ("no-such-judge --fast", "cannot begin \"no-such-judge\""),
        ("/no/such/judge", "cannot begin \"/no/such/judge\""),
        ("/dev/null", "cannot begin \"/dev/null\""),
    ] {
        let refused = CommandJudge::parse(line).expect_err(line).to_string();
        assert!(refused.contains(words), "{refused}");
    }
}

const NONSENSE: [&str; 37] = [
    "",
    " \n",
    "skip",
    "retry",
    "\"skip\"",
    "null",
    "true",
    "42",
    "[]",
    r#"["skip"]"#,
    r#"[{"action":"skip"}]"#,
    "{}",
    r#"{"action":null}"#,
    r#"{"action":true}"#,
    r#"{"action":["skip"]}"#,
    r#"{"action":{"skip":true}}"#,
    r#"{"action":""}"#,
    r#"{"action":"skip it"}"#,
    r#"{"action":"skip|retry"}"#,
    r#"{"action":"delete"}"#,
    r#"{"action":"fail"}"#,
    r#"{"reason":"skip"}"#,
    r#"{"action":"skip""#,
    r#"{"action":"skip"}}"#,
    r#"{"action":"skip"} {"action":"retry"}"#,
    r#"{'action':'skip'}"#,
    r#"I would skip this one: {"action":"skip"}"#,
    r#"{"action":"retry","suggested_delay_seconds":"soon"}"#,
    r#"{"action":"retry","suggested_delay_seconds":"inf"}"#,
    r#"{"action":"retry","suggested_delay_seconds":"NaN"}"#,
    r#"{"action":"retry","suggested_delay_seconds":NaN}"#,
    r#"{"action":"retry","suggested_delay_seconds":[5]}"#,
    r#"{"action":"retry","suggested_delay_seconds":true}"#,
    "```json\n```",
    "<html>502 Bad Gateway</html>",
    "Error: rate limit exceeded, retry after 20 s",
    "\u{0}\u{1}\u{fffd}",
];
