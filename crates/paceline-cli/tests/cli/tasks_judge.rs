//! A language model as the judge of `paceline tasks run`, behind an upstream of the configuration.

use paceline_store::work::State;
use serde_json::{Value, json};

use crate::support::{Arrival, Reply, Server};
use crate::tasks_run::Store;

/// A completion with that text.
fn says(text: &str) -> Reply {
    Reply::new(200, &json!({"choices": [{"message": {"role": "assistant", "content": text}}]}))
}

#[test]
fn a_model_decides_and_is_told_no_payload() {
    let server = Server::new(|arrival: &Arrival| {
        let text = String::from_utf8_lossy(&arrival.body);
        says(if text.contains("locked") { r#"{"action":"skip","reason":"it is locked"}"# } else { "I cannot tell." })
    });
    let store = Store::new();
    store.add("locked", &json!({"secret": "the payload of it"}));
    store.add("broken", &json!({"secret": "the payload of it"}));
    let toml = format!("[upstream.thinker]\nprovider = \"openai\"\nbase_url = \"{}/v1\"\n", server.url());
    std::fs::write(store.job.path("paceline.toml"), toml).expect("writable");
    let script = r#"cat >&2; echo "$PACELINE_KEY" >&2; exit 75"#;
    let ran = store.run(&["--judge-upstream", "thinker", "--judge-model", "m", "--max-retries", "2"], script);
    assert_eq!(ran.code, 1, "{}", ran.log);
    let (locked, broken) = (store.item("locked"), store.item("broken"));
    assert_eq!((locked.state, locked.reason.as_deref(), locked.attempts), (State::Skipped, Some("it is locked"), 1));
    assert_eq!((broken.state, broken.reason.as_deref(), broken.attempts), (State::Failed, Some("max_retries"), 3));
    let asked = server.arrivals();
    assert_eq!(asked.len(), 4, "one question for each failure");
    for question in asked {
        assert_eq!((question.path.as_str(), &question.method), ("/v1/chat/completions", &http::Method::POST));
        let body: Value = serde_json::from_slice(&question.body).expect("JSON");
        assert!(!body.to_string().contains("the payload of it"), "{body}");
    }
    assert!(ran.log.contains("the judge did not decide, the rules do"), "{}", ran.log);
}

#[test]
fn half_a_judge_is_refused() {
    let store = Store::of(&["a"]);
    for flags in [["--judge-model", "m"], ["--judge-upstream", "openai"]] {
        let ran = store.run(&flags, "true");
        assert_eq!((ran.code, store.item("a").state), (2, State::Waiting), "{}", ran.log);
    }
    let ran = store.run(&["--judge-upstream", "mock", "--judge-model", "m"], "true");
    assert_eq!(ran.code, 2, "{}", ran.log);
    assert!(ran.log.contains("--judge-upstream mock has no address"), "{}", ran.log);
}
