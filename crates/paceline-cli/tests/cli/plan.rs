//! `plan`: arithmetic that can be checked by hand.

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Job, finish};

#[test]
fn plan_adds_up_the_worst_case() {
    let job = Job::new(0);
    let example = "plan --max-retries 10 --first-delay 60s --multiplier 2 --cap 300s --items 10 --window 30d";
    let text = stdout_of(&job, example);
    for expected in [
        "\n     11      5m 00s     42m 00s\n",
        "\nat worst  2,520 s (42m 00s) for an item\n",
        "\n          25,200 s (7h 00m) for 10 items, one after the other\n",
        "\nwarning: 10 retries are more than 5",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let json = stdout_of(&job, "plan --max-retries 3 --first-delay 60s --json");
    let plan: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(plan["attempts"][3], json!({"attempt": 4, "delay_s": 240, "cumulative_s": 420}));
    assert_eq!((&plan["worst_case_item_s"], &plan["worst_case_run_s"]), (&420.into(), &420.into()));
    assert_eq!(plan["warnings"], json!([]));
    let text = stdout_of(&job, "plan --max-retries 20 --first-delay 30s --cap 4h");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("unless --deadline 3d says otherwise") && !words.contains("more than 5"), "{text}");
    assert_eq!(finish(job.paceline().args(["plan", "--multiplier", "0.5"])).0, 2);
}

fn stdout_of(job: &Job, line: &str) -> String {
    let output = job.paceline().args(line.split(' ')).ended_with_output();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}
