//! What the log says: one warning for each re-send, one error for an item that failed in the end.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use http::Response;
use tracing_subscriber::fmt::MakeWriter;

use super::run::Cut;
use super::*;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn parsed(&self) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().expect("no test panics here").clone();
        let text = String::from_utf8(bytes).expect("JSON is UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no test panics here").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Runs one item that gets these answers, the last one for ever; returns the log, parsed.
async fn log_of(answers: &[u16]) -> Vec<serde_json::Value> {
    let lines = Lines::default();
    // Without one for all threads, a line that another thread comes to first would be taken for an unwanted one.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let limiter = limiter(fixed(vec![], None, 5));
    limiter.reconfigure(PacerConfig { retry: backing_off(S, 2), ..fixed(vec![], None, 5) }).expect("sensible");
    let calls = AtomicU32::new(0);
    let send = async || {
        let call = calls.fetch_add(1, Ordering::Relaxed) as usize;
        let status = *answers.get(call).or(answers.last()).expect("an answer");
        Ok::<_, io::Error>(Response::builder().status(status).body("").expect("a response"))
    };
    let request = Request { item: Some(7), ..request(&limiter) };
    limiter.run(send).request(request).await.expect("an answer");
    lines.parsed()
}

#[test]
fn a_hold_and_a_stop_are_logged_once() {
    let lines = Lines::default();
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        let limiter = limiter(fixed(vec![], None, 5));
        limiter.hold(None, limiter.now() + S);
        (0..3).for_each(|_| limiter.stop(None, "a bad key"));
        limiter.blocking().acquire(request(&limiter)).expect_err("stopped");
    });
    let log = lines.parsed();
    let messages: Vec<_> = log.iter().map(|line| line["fields"]["message"].as_str().expect("a message")).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[0].starts_with("no calls for ") && messages[1] == "stopped", "{messages:?}");
    assert_eq!(log[1]["fields"]["reason"], "a bad key");
}

#[test]
fn a_limiter_with_a_name_is_told_from_others() {
    let lines = Lines::default();
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        for limiter in [limiter(fixed(vec![], None, 5)).with_name("openai"), limiter(fixed(vec![], None, 5))] {
            limiter.stop(None, "no credit");
        }
    });
    let names: Vec<_> = lines.parsed().iter().map(|line| line["fields"]["upstream"].clone()).collect();
    assert_eq!(names, ["openai".into(), serde_json::Value::Null]);
}

#[tokio::test(start_paused = true)]
async fn a_recovered_item_logs_one_warning_for_each_re_send() {
    let log = log_of(&[429, 503, 500, 200]).await;
    let messages: Vec<_> = log.iter().map(|line| line["fields"]["message"].as_str().expect("a message")).collect();
    assert_eq!(
        messages,
        [
            "rate limit hit (try 1), next try in 1s",
            "server overloaded (try 1 of at most 3), next try in 1s",
            "transient failure (try 2 of at most 3), next try in 1s",
        ]
    );
    for (line, class) in log.iter().zip(["throttled", "overloaded", "transient"]) {
        let fields = &line["fields"];
        assert_eq!((line["level"].as_str(), fields["class"].as_str()), (Some("WARN"), Some(class)));
        assert_eq!((fields["scope"].as_str(), fields["item"].as_u64()), (Some("test"), Some(7)));
        assert_eq!(fields["hint_source"], "policy");
        assert!(fields["not_before"].as_str().is_some_and(|time| time.ends_with('Z')), "{fields}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_says_where_a_wait_comes_from_and_why_a_call_failed() {
    let lines = Lines::default();
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let limiter = limiter(PacerConfig { retry: backing_off(S, 0), ..fixed(vec![], None, 5) });
    let calls = AtomicU32::new(0);
    let send = async || match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(Response::builder().status(429).header("retry-after", "2").body("").expect("a response")),
        _ => Err(Box::<dyn std::error::Error + Send + Sync>::from(Cut(io::Error::other("a digger")))),
    };
    limiter.run(send).request(request(&limiter)).await.expect_err("the cable stays cut");
    let log = lines.parsed();
    assert_eq!(log[0]["fields"]["hint_source"], "retry-after");
    assert_eq!(log[1]["fields"]["words"], "the cable is cut: a digger");
}

#[tokio::test(start_paused = true)]
async fn what_an_operation_logs_says_of_which_call_it_is() {
    let lines = Lines::default();
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let debug =
        tracing_subscriber::fmt().json().with_max_level(tracing::Level::DEBUG).with_writer(lines.clone()).finish();
    let _guard = tracing::subscriber::set_default(debug);
    let limiter = limiter(PacerConfig { retry: backing_off(S, 1), ..fixed(vec![], None, 5) });
    let send = || {
        tracing::info!("begins");
        async {
            tracing::info!("is sent");
            Err::<(), _>(io::Error::other("a digger"))
        }
    };
    limiter.run(send).request(Request { item: Some(7), ..request(&limiter) }).await.expect_err("no server");
    let of_calls =
        |line: &&serde_json::Value| line["target"].as_str().is_some_and(|target| !target.starts_with("paceline"));
    let log = lines.parsed();
    let spans: Vec<_> = log.iter().filter(of_calls).map(|line| &line["span"]).collect();
    let span = |calls| serde_json::json!({ "name": "call", "scope": "test", "item": 7, "calls": calls });
    assert_eq!(spans, [&span(1), &span(1), &span(2), &span(2)]);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_fails_logs_one_error() {
    for (answers, warnings) in [(vec![503], 2), (vec![400], 0), (vec![401], 0)] {
        let log = log_of(&answers).await;
        let count = |level: &str| log.iter().filter(|line| line["level"] == level).count();
        assert_eq!((count("WARN"), count("ERROR")), (warnings, 1), "{log:#?}");
    }
}
