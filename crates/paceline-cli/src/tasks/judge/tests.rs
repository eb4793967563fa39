//! Judges that are real processes.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use paceline_core::{Class, Timestamp};
use paceline_store::work::{
    Failure, Forgiven, Judgement, MemoryStore, NewItem, Scheduler, SchedulerConfig, SchedulerEvent, State, WorkClock,
    WorkItem, WorkStore as _,
};

use super::process::Program;
use super::{ANSWER_WITHIN, Case, CommandJudge, Judge as _};

fn item() -> WorkItem {
    WorkItem {
        id: 1,
        key: "example.org".to_owned(),
        group: "default".into(),
        priority: 0,
        state: State::InFlight,
        attempts: 0,
        deferrals: 0,
        abandoned: 0,
        tests: 0,
        forgiven: Forgiven::default(),
        crashes: 0,
        may_be_done: false,
        in_doubt: false,
        not_before: None,
        delay: Duration::ZERO,
        created: Timestamp::from_millis(0),
        first: None,
        ended: None,
        deadline: None,
        sent_for: None,
        delivered: None,
        last: None,
        answered: None,
        reason: None,
    }
}

async fn asked(judge: &CommandJudge) -> Option<Judgement> {
    asked_about(judge, &Failure::new(Class::Transient, "the server is in trouble")).await
}

async fn asked_about(judge: &CommandJudge, failure: &Failure) -> Option<Judgement> {
    let item = item();
    judge.decide(Case { item: &item, payload: "", failure, retry: 1, max_retries: 3, history: &[] }).await
}

/// How often each cause was met.
fn causes(judge: &CommandJudge) -> Vec<(&'static str, u64)> {
    judge.with_unanswered(|unanswered| unanswered.by_cause.clone().into_iter().collect())
}

fn shell(script: &str) -> CommandJudge {
    CommandJudge::parse(&format!("sh -c {}", shlex::try_quote(script).expect("no zero byte")))
        .expect("there is a shell")
}

fn retry(seconds: u64) -> Option<Judgement> {
    Some(Judgement::Retry { delay: Some(Duration::from_secs(seconds)), reason: None })
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

/// The one that the documentation shows.
#[tokio::test]
async fn the_example_decides_by_what_the_error_is_and_not_by_what_it_quotes() {
    let judge = CommandJudge::parse(concat!("'", env!("CARGO_MANIFEST_DIR"), "/../../examples/judge.sh'"));
    let judge = judge.expect("it may be executed");
    let transient = Failure::new(Class::Transient, r#"{"status":404}"#);
    let nothing_said = Some(Judgement::Retry { delay: None, reason: None });
    let reason = |text: &str| Some(text.to_owned());
    for (failure, expected) in [
        (transient.clone(), nothing_said),
        (transient.with_status(404), Some(Judgement::Skip { reason: reason("it is gone") })),
        (
            Failure::new(Class::Invalid, "field 7"),
            Some(Judgement::Abort { reason: reason("the order form has changed") }),
        ),
        (Failure::new(Class::Overloaded, "we are down for maintenance"), retry(240)),
    ] {
        assert_eq!(asked_about(&judge, &failure).await, expected, "{failure:?}");
    }
}

#[tokio::test]
async fn a_command_need_not_read_the_question() {
    let judge = shell(r#"exec <&-; echo '{"action":"skip","reason":"x"}'"#);
    assert_eq!(asked(&judge).await, Some(Judgement::Skip { reason: Some("x".to_owned()) }));
}

#[tokio::test]
async fn nonsense_of_every_kind_is_left_to_the_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("answer");
    for line in include_str!("../../../../paceline-store/tests/invalid_decisions.jsonl").lines() {
        let answer: String = serde_json::from_str(line).expect("a text");
        std::fs::write(&file, &answer).expect("writable");
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
    assert!(silence.starts_with("it ended with exit status: 1; it wrote: no quota left"), "{silence}");
    assert!(silence.len() < 500, "{} bytes", silence.len());
}

/// The judge's child would outlive it, if only the judge were killed.
#[cfg(unix)]
#[tokio::test]
async fn who_is_given_up_is_killed_with_all_that_it_began() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("there is mkfifo");
    assert!(made.success());
    let judge = shell(&format!("(echo begun; exec sleep 600) > '{}' & wait", pipe.display()));
    let (notify, begun) = tokio::sync::oneshot::channel();
    // The reader of a pipe sees its end once every process that could write has ended.
    let reader = std::thread::spawn(move || {
        let mut pipe = std::fs::File::open(pipe).expect("there");
        let mut word = [0; 6];
        pipe.read_exact(&mut word).expect("a word");
        notify.send(word).expect("the test listens");
        pipe.read_to_end(&mut Vec::new()).expect("readable")
    });
    tokio::select! {
        answer = asked(&judge) => panic!("{answer:?}"),
        begun = begun => assert_eq!(&begun.expect("told"), b"begun\n"),
    }
    assert_eq!(causes(&judge), [], "a question that the caller gave up says nothing about the judge");
    assert_eq!(reader.join().expect("the child is gone too"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_judge_that_hangs_is_told_by_itself_and_not_by_the_scheduler_for_each_item() {
    let clock = WorkClock::system();
    let store = Arc::new(MemoryStore::new(clock.clone()));
    store.insert(vec![NewItem::new("a", ""), NewItem::new("b", "")]).await.expect("room");
    let judge_timeout = ANSWER_WITHIN + Duration::from_secs(1);
    let policy = SchedulerConfig { max_retries: 0, judge_timeout, ..SchedulerConfig::default() };
    let judge = Arc::new(shell("exec sleep 600"));
    let count = Arc::new(AtomicU64::new(0));
    let heard = count.clone();
    let observer = Arc::new(move |note: &SchedulerEvent<'_>| {
        heard.fetch_add(u64::from(matches!(note, SchedulerEvent::JudgeTimedOut(_))), Ordering::Relaxed);
    });
    let scheduler = Scheduler::new(store, policy, clock).expect("makes sense").with_judge(judge.clone());
    let scheduler = scheduler.with_observer(observer);
    let run = scheduler.run(|_| async { Err(Failure::new(Class::Transient, "down")) });
    let summary = run.await.expect("a memory");
    assert_eq!((summary.counts.of(State::Failed), causes(&judge)), (2, vec![("too slow", 2)]));
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

/// The same while time stands still, however long the process takes.
async fn asked_at_once(judge: &CommandJudge) -> Option<Judgement> {
    // Tokio's paused clock goes to the next timer where nothing is to be done, and not beside a thread that works.
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let working = tokio::task::spawn_blocking(move || is_over.recv());
    let answer = asked(judge).await;
    drop(over);
    working.await.expect("no panic").expect_err("nothing is sent");
    answer
}

#[tokio::test(start_paused = true)]
async fn a_judge_that_fails_in_a_row_is_not_begun_for_each_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let (seen, works) = (folder.path().join("seen"), folder.path().join("works"));
    let script =
        format!("echo >> '{}'; test -e '{}' && echo '{{\"action\":\"retry\"}}'", seen.display(), works.display());
    let judge = shell(&script);
    let begun = || std::fs::read_to_string(&seen).map_or(0, |text| text.lines().count());
    let mut expected = 3;
    for _ in 0..expected {
        assert_eq!(asked_at_once(&judge).await, None);
    }
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
        for _ in 0..20 {
            assert_eq!(asked_at_once(&judge).await, None);
        }
        assert_eq!(begun(), expected, "the judge is left in peace");
        tokio::time::advance(Duration::from_secs(seconds)).await;
        assert_eq!(asked_at_once(&judge).await, None);
        expected += 1;
        assert_eq!(begun(), expected, "after {seconds} s");
    }
    let said = judge.with_unanswered(|unanswered| unanswered.unreported());
    assert_eq!(said.as_deref(), Some("failed 11 more times, not asked 180 times"));

    std::fs::write(&works, "").expect("writable");
    tokio::time::advance(Duration::from_secs(60)).await;
    let answered = Some(Judgement::Retry { delay: None, reason: None });
    for _ in 0..5 {
        assert_eq!(asked_at_once(&judge).await, answered, "it is back");
    }
}

#[test]
fn a_line_that_names_no_program_is_refused() {
    for (line, text) in [
        ("", "names no command"),
        ("  ", "names no command"),
        ("decide 'it", "quotes are not closed"),
        ("no-such-judge --fast", "cannot begin \"no-such-judge\""),
        ("/no/such/judge", "cannot begin \"/no/such/judge\""),
        ("/dev/null", "cannot begin \"/dev/null\""),
    ] {
        let refused = CommandJudge::parse(line).expect_err(line).to_string();
        assert!(refused.contains(text), "{refused}");
    }
}
