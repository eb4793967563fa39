//! What the log says of items that fail: the first few of each kind have a line each, the others are counted.

use serde_json::json;

use crate::support::{Job, Reply, Server, finish};
use crate::tasks_alike::tasks;
use crate::tasks_run::{Ran, Store};

/// So many failures of one kind have a line each.
const TOLD: usize = 10;

/// How many items the lines tell of that count failures.
fn counted(log: &str) -> usize {
    let counts = |line: &str| {
        let (before, _) = line.split_once(" more item")?;
        before.rsplit(' ').next()?.parse::<usize>().ok()
    };
    log.lines().filter_map(counts).sum()
}

#[test]
fn a_run_tells_the_first_failures_of_each_kind_and_counts_the_others() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-7" | "item-30" => Reply::error(410, "gone"),
        _ => Reply::error(404, "no_such_page"),
    });
    for (flags, lines) in [(&[][..], TOLD + 2), (&["-v"], 60)] {
        let job = Job::new(60);
        let (code, log) = finish(job.run(&server).args(["--stop-after-same", "0"]).args(flags));
        assert_eq!((code, log.matches("item failed: ").count()), (1, lines), "{log}");
        assert_eq!(counted(&log), 58 - TOLD, "{log}");
        assert!(log.contains("request refused, status 404; the last one: it is no_such_page (-v shows each)"), "{log}");
        assert_eq!(job.lines("out.errors.jsonl").len(), 60);
        assert_eq!(job.summary()["failed"], json!(60));
    }
}

#[test]
fn a_run_of_tasks_tells_the_first_failures_of_each_kind_and_counts_the_others() {
    for (flags, lines) in [(&[][..], TOLD), (&["-v"], 40)] {
        let keys: Vec<_> = (0..40).map(|n| n.to_string()).collect();
        let store = Store::of(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        let told = r#"echo '{"class":"invalid","code":"410","message":"no such customer"}'; exit 1"#;
        let Ran { code, summary, log } = store.run(&[&["--stop-after-same", "0"], flags].concat(), told);
        assert_eq!((code, &summary["failed"], log.matches("failed: invalid").count()), (1, &json!(40), lines), "{log}");
        assert_eq!(counted(&log), 40 - TOLD, "{log}");
        assert!(log.contains("invalid, exit code 1; the last one: no such customer (-v shows each)"), "{log}");
        let (_, text) = tasks(&store, "work.db", &["report"]);
        assert!(text.contains(" 410 no such customer"), "as of an answer its status: {text}");
    }
}
