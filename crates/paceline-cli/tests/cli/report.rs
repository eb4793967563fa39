//! `paceline report`: a job as one page.

use serde_json::{Value, json};

use crate::support::{Job, Reply, Server, finish, line};

/// The data that the page shows.
fn data(job: &Job) -> Value {
    let page = std::fs::read_to_string(job.path("report.html")).expect("the page");
    assert!(
        page.starts_with("<!doctype html>") && !page.contains("src=\"") && !page.contains("href=\""),
        "it needs nothing else"
    );
    let (_, after) = page.split_once("id=\"data\">").expect("the data");
    let (data, _) = after.split_once("</script>").expect("its end");
    serde_json::from_str(data).expect("JSON")
}

#[test]
fn a_job_is_one_page_with_its_failures_and_its_cost() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "slow" if arrival.before == 0 => Reply::error(429, "rate_limit_exceeded").with_header("retry-after-ms", 1),
        "bad" | "</script><img src=x onerror=alert(1)>" => Reply::error(400, "invalid_value"),
        _ => Reply::ok(),
    });
    let items = ["good", "slow", "</script><img src=x onerror=alert(1)>", "bad", "fine"].map(line);
    let job = Job::with_input(&(items.join("\n") + "\n"));
    let (code, log) =
        finish(job.run(&server).args(["--upstream", "openai"]).env("OPENAI_API_KEY", "sk-of-this-test-alone"));
    assert_eq!(code, 1, "{log}");
    let report =
        |more: &[&str]| finish(job.paceline().args(["report", "out.jsonl", "--html", "report.html"]).args(more));
    assert_eq!(report(&[]), (0, String::new()));
    let told = data(&job);
    assert_eq!(
        (&told["counts"]["input"], &told["counts"]["failed"], &told["counts"]["throttled"]),
        (&5.into(), &2.into(), &1.into())
    );
    let failure = &told["failures"][0];
    assert_eq!(
        (&failure["items"], &failure["status"], &failure["code"]),
        (&2.into(), &400.into(), &"invalid_value".into())
    );
    assert_eq!(failure["example"], "</script><img src=x onerror=alert(1)>");
    assert_eq!(failure["message"], "it is invalid_value");
    assert_eq!((&told["models"][0]["tokens_in"], &told["models"][0]["cost"]), (&9.into(), &Value::Null));
    let sends: u64 =
        told["minutes"].as_array().expect("minutes").iter().filter_map(|minute| minute["sends"].as_u64()).sum();
    assert_eq!(sends, 6);
    let host = &told["hosts"][0];
    assert_eq!(
        (&host["done"], &host["failed"], &host["left"], &told["hosts_in_all"]),
        (&3.into(), &2.into(), &0.into(), &1.into())
    );
    assert!(
        told["words"][0].as_str().is_some_and(|words| words.starts_with("5 items: 3 succeeded, 2 failed")),
        "{told}"
    );
    // The input is not needed, and a page is replaced.
    std::fs::remove_file(job.path("in.jsonl")).expect("it is there");
    assert_eq!(report(&["--price", "in=1000000,out=0"]), (0, String::new()));
    let told = data(&job);
    assert_eq!((&told["models"][0]["cost"], told["failures"][0]["example"].is_string()), (&json!(9.0), true));
}

#[test]
fn what_cannot_be_reported_is_refused() {
    let job = Job::new(0);
    for (args, expected) in [
        (&["report", "--html", "r.html"][..], "no *.journal in this folder"),
        (&["report", "out.jsonl"], "--html <FILE>"),
        (&["report", "--html", "r.html", "--price", "cheap"], "is no price"),
    ] {
        let (code, log) = finish(job.paceline().args(args));
        assert!(code == 2 && log.contains(expected), "{expected}: {log}");
    }
    assert!(!job.path("r.html").exists());
}

/// `--html` is no switch: a user who takes it for one names the results behind it.
#[test]
fn no_file_but_a_page_is_replaced() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(2);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    std::fs::write(job.path("notes.html"), "<!doctype html><title>Notes</title>").expect("writable");
    std::fs::write(job.path("empty.html"), "").expect("writable");
    std::os::unix::fs::symlink(job.path("out.jsonl"), job.path("link.html")).expect("links");
    let names = ["out.jsonl", "out.journal", "in.jsonl", "notes.html", "out.report.jsonl"];
    let content = || names.map(|name| std::fs::read(job.path(name)).expect(name));
    let before = content();
    let meant = "is the results of the job: for the page of this job: paceline report out.jsonl --html out.html";
    for (args, expected) in [
        (&["--html", "out.jsonl"][..], meant),
        (
            &["out.jsonl", "--html", "out.jsonl"],
            "is the results of the job: choose a file for the page, such as --html ",
        ),
        (&["out.jsonl", "--html", "link.html"], "is the results of the job"),
        (&["out.jsonl", "--html", "out.journal"], "is the journal of the job"),
        (&["out.jsonl", "--html", "in.jsonl"], "is the input of the job"),
        (&["out.jsonl", "--html", "out.errors.jsonl"], "is the errors of the job"),
        (&["out.jsonl", "--html", "out.report.jsonl"], "is the report of the job"),
        (&["out.jsonl", "--html", "notes.html"], "is no page of `paceline report`"),
    ] {
        let (code, log) = finish(job.paceline().arg("report").args(args));
        assert!(code == 2 && log.contains(expected), "{args:?}: {log}");
    }
    assert!(content() == before && !job.path("out.errors.jsonl").exists());
    for name in ["out.html", "out.html", "empty.html"] {
        assert_eq!(finish(job.paceline().args(["report", "--html", name])), (0, String::new()), "{name}");
    }
    assert_eq!(finish(&mut job.run(&server)).0, 0, "the job is as it was");
}
