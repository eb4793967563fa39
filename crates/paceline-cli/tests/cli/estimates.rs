//! What prompts are expected to use: by their script, then by the answers of the job; and what a budget says of that.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Arrival, Job, Reply, Server, finish};

/// Short prompts in English, then long ones in Chinese, each with a bound of 5 tokens on its answer.
fn input(english: usize, chinese: usize) -> String {
    let line = |n: usize| {
        let prompt = if n < english { "A nice hotel. ".repeat(8) } else { "服务".repeat(400) };
        let body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": prompt}]});
        json!({"custom_id": format!("item-{n}"), "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
    };
    (0..english + chinese).map(line).collect()
}

/// The answer of a tokenizer that makes a token of four ASCII characters of the body or of one other, `times` as many.
fn tokens_of(arrival: &Arrival, times: u64) -> u64 {
    let text = String::from_utf8_lossy(&arrival.body);
    let (ascii, other) = text.chars().fold((0, 0), |(a, o), c| if c.is_ascii() { (a + 1, o) } else { (a, o + 1) });
    times * (ascii / 4 + other)
}

fn answering(times: u64) -> impl Fn(&Arrival) -> Reply + Send + Sync + 'static {
    move |arrival| {
        let tokens = tokens_of(arrival, times);
        Reply::new(200, &json!({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 2}}))
    }
}

fn dry(job: &Job, args: &[&str]) -> String {
    let mut command = job.paceline();
    command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", "http://127.0.0.1:9", "--dry-run"]);
    let output = command.args(args).ended_with_output();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn plan(job: &Job, args: &[&str]) -> Value {
    serde_json::from_str(&dry(job, &[args, &["--json"]].concat())).expect("JSON")
}

#[test]
fn a_dry_run_expects_a_token_for_a_chinese_character_and_learns_from_the_answers_of_the_job() {
    let job = Job::with_input(&input(20, 20));
    let before = plan(&job, &[]);
    let tokens_in = before["tokens_in"].as_u64().expect("a count");
    assert!((16_000..19_000).contains(&tokens_in), "800 for each long prompt: {before}");
    assert_eq!(before["estimated_by_answers"], 0);
    let most = (4 * tokens_in).to_string();
    let text = dry(&job, &["--budget-tokens", &tokens_in.to_string()]);
    assert!(
        text.contains("one for each 4 letters, one for each Chinese character; the first answers tell more\n"),
        "{text}"
    );
    assert!(text.contains("--budget-tokens may be too small: about "), "its answers come on top: {text}");
    let text = dry(&job, &["--budget-tokens", "21k"]);
    let doubt =
        "this budget is enough for one call for each item if the prompts have as many tokens as estimated; retries";
    assert!(text.contains(doubt), "{text}");
    assert_eq!(plan(&job, &["--budget-tokens", "21k"])["budget_is_enough"], Value::Null);
    assert_eq!(plan(&job, &["--budget-tokens", &most])["budget_is_enough"], true, "a token for each byte");

    // A tokenizer of twice as many: the first short prompts tell what the long ones will have.
    let server = Server::new(answering(2));
    let (code, log) = finish(job.run(&server).args(["--max-items", "10", "--concurrency", "1"]));
    assert_eq!(code, 3, "{log}");
    let after = plan(&job, &["--budget-tokens", "21k"]);
    let learnt = after["tokens_in"].as_u64().expect("a count");
    assert!((32_000..38_000).contains(&learnt), "twice as many: {after}");
    assert_eq!((&after["estimated_by_answers"], &after["budget_is_enough"]), (&json!(10), &json!(false)));
    assert_eq!(plan(&job, &["--budget-tokens", "60k"])["budget_is_enough"], true, "as the answers of the job say");
    assert!(dry(&job, &[]).contains("tokens in are estimated, by 10 answers of this job\n"), "{after}");
}

#[test]
fn long_prompts_in_another_script_keep_to_the_budget() {
    let used = Arc::new(Mutex::new(0));
    let all = Arc::clone(&used);
    let answer = answering(1);
    let server = Server::new(move |arrival| {
        *all.lock().expect("no panic") += tokens_of(arrival, 1) + 2;
        answer(arrival)
    });
    let job = Job::with_input(&input(20, 40));
    let (code, log) = finish(job.run(&server).args(["--budget-tokens", "9k"]));
    let used = *used.lock().expect("no panic");
    assert!(code == 3 && (8_000..=9_000).contains(&used), "{used}: {log}");
    assert!(!log.contains("exceeded"), "{log}");
}

/// Prompts of so many characters each, with a bound of 20 tokens on the answers; a budget in money at 2.50 and 10.
fn of_lengths(lengths: impl Iterator<Item = usize>) -> (Job, [&'static str; 6]) {
    let line = |(n, chars): (usize, usize)| {
        let body = json!({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "fa51b ".repeat(chars / 6)}]});
        json!({"custom_id": format!("item-{n}"), "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
    };
    let args = ["--price", "in=2.5,out=10", "--pace", "none", "--concurrency", "20"];
    (Job::with_input(&lengths.enumerate().map(line).collect::<String>()), args)
}

/// A token for so many characters of the prompt and seven around it, and 20 of the answer; adds up what it charged.
fn charging(characters: usize, charged: &Arc<Mutex<f64>>) -> Server {
    let charged = Arc::clone(charged);
    Server::new(move |arrival| {
        let body: Value = serde_json::from_slice(&arrival.body).expect("JSON");
        let text = body["messages"][0]["content"].as_str().expect("a text").len();
        let tokens = text / characters + 7;
        *charged.lock().expect("no panic") += (tokens as f64 * 2.5 + 200.0) / 1e6;
        Reply::new(200, &json!({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 20}}))
    })
}

/// The form around a short prompt is half of it, and nothing of a long one.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn dense_prompts_that_follow_short_ones_keep_to_the_budget() {
    let rising = (0..300).map(|n| (50.0 * 1.015_f64.powi(n)) as usize);
    let step = std::iter::repeat_n(100, 30).chain(std::iter::repeat_n(6_000, 60));
    for lengths in [rising.collect::<Vec<_>>(), step.collect()] {
        let charged = Arc::default();
        let (server, (job, args)) = (charging(2, &charged), of_lengths(lengths.into_iter()));
        let (code, log) = finish(job.run(&server).args(args).args(["--budget-cost", "0.1"]));
        let charged = *charged.lock().expect("no panic");
        assert!(code == 3 && charged <= 0.1 && charged > 0.085, "{charged}: {log}");
        let used = job.summary()["budget"]["cost"]["used"].as_f64().expect("a sum");
        assert!((used - charged).abs() < 1e-9, "{used} for {charged}");
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn one_long_prompt_does_not_speak_for_the_short_ones_behind_it() {
    let charged = Arc::default();
    let (server, (job, args)) = (charging(4, &charged), of_lengths(std::iter::once(60_000).chain([140; 400])));
    let (code, log) = finish(job.run(&server).args(args).args(["--budget-cost", "0.05"]));
    let sum = *charged.lock().expect("no panic");
    assert!(code == 3 && sum > 0.049 && sum <= 0.05, "{sum}: {log}");
    let whole = 0.0378 + 400.0 * (41.0 * 2.5 + 200.0) / 1e6;
    let larger = log.split("such as: ").nth(1).and_then(|rest| rest.split("--budget-cost ").nth(1));
    let larger = larger.and_then(|rest| rest.split_whitespace().next()).expect("a sum");
    let sum: f64 = larger.parse().expect("a number");
    assert!(sum >= whole && sum < 1.25 * whole, "{larger} for {whole}: {log}");
    let rest = plan(&job, &["--price", "in=2.5,out=10"]);
    let [most, so_far] = ["cost", "cost_as_so_far"].map(|part| rest[part].as_f64().expect("a sum"));
    assert!(so_far < 1.2 * most && most < whole, "{so_far} beside at most {most}");
    let text = dry(&job, &["--price", "in=2.5,out=10"]);
    assert!(!text.contains("as answers so far cost") || so_far <= most, "{text}");
    let (code, log) = finish(job.run(&server).args(args).args(["--budget-cost", larger]));
    assert_eq!(code, 0, "{log}");
}

#[test]
fn prompts_that_had_more_tokens_than_estimated_are_named_and_answers_are_not() {
    // A surprise of the last prompts alone.
    let server = Server::new(|arrival| answering(if arrival.body.is_ascii() { 1 } else { 5 })(arrival));
    let job = Job::with_input(&input(20, 40));
    let (code, log) = finish(job.run(&server).args(["--budget-tokens", "3k", "--concurrency", "1"]));
    assert_eq!(code, 3, "{log}");
    let cause = "exceeded, by prompts that had more tokens than estimated (";
    assert_eq!(log.matches(cause).count(), 2, "in the warning and in the summary: {log}");
    assert!(!log.contains("answers that came longer"), "{log}");
}

#[test]
fn a_bound_of_a_run_that_no_call_fits_into_says_what_a_call_may_use() {
    let server = Server::new(answering(1));
    let job = Job::with_input(&input(3, 0));
    let text = dry(&job, &["--max-tokens", "20"]);
    assert!(text.contains("--max-tokens 20 is for all calls of a run, and the smallest of them may use "), "{text}");
    let (code, log) = finish(job.run(&server).args(["--max-tokens", "20"]));
    assert_eq!((code, server.count()), (3, 0), "{log}");
    assert!(log.contains("stopping: the next call might exceed --max-tokens 20: it may use "), "{log}");
    assert!(
        log.contains(" tokens, and --max-tokens 20 is for all calls of a run (--max-output-tokens bounds each answer)"),
        "{log}"
    );
    let again = log.split("continue with a larger budget, such as: ").nth(1).expect("another command");
    assert!(again.contains("--max-tokens ") && !again.contains("--max-tokens 20 "), "{again}");
}

#[test]
fn a_dry_run_says_which_bound_on_answers_a_budget_is_enough_for_and_what_overwrite_would_delete() {
    let open = |n: usize| {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(400)}]});
        json!({"custom_id": format!("item-{n}"), "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
    };
    let job = Job::with_input(&(0..10).map(open).collect::<String>());
    let args = ["--budget-cost", "0.02", "--price", "in=1,out=10"];
    let text = dry(&job, &args);
    let bound = text.split("with --max-output-tokens ").nth(1).and_then(|rest| rest.split(' ').next());
    let bound: u64 = bound.and_then(|bound| bound.parse().ok()).expect("a bound");
    assert!((180..190).contains(&bound), "0.0012 for the prompts, 0.0001 for ten tokens: {text}");
    let less = dry(&job, &["--budget-cost", "0.0005", "--price", "in=1,out=10"]);
    assert!(less.contains("--budget-cost is too small: the prompts alone take about 0.00"), "{less}");
    let server = Server::new(answering(1));
    assert_eq!(finish(job.run(&server).args(args).args(["--max-items", "4"])).0, 3);
    let text = dry(&job, &args);
    assert!(
        text.contains(
            "6 items set no bound on their answers, which come on top (about 12 tokens, if as long as so far)"
        ),
        "{text}"
    );
    let mut command = job.paceline();
    command.args([
        "run",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--base-url",
        "http://127.0.0.1:9",
        "--dry-run",
        "--overwrite",
    ]);
    let output = command.args(args).ended_with_output();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        log.contains("--overwrite would delete 4 results in ") && log.contains(", of 4 calls; budget: 0.00"),
        "{log}"
    );
    assert_eq!(job.lines("out.jsonl").len(), 4, "nothing was deleted");
}

/// The flag writes a member into each request, which is a part of its prompt as it is estimated.
#[test]
fn the_bound_on_answers_that_a_dry_run_names_fits() {
    let job = Job::new(0);
    let rows = (0..50).map(|n| format!("p{n},a short prompt\n")).collect::<String>();
    std::fs::write(job.path("in.csv"), format!("id,prompt\n{rows}")).expect("writable");
    let dry = |bound: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "in.csv", "-o", "out.jsonl", "--upstream", "openai", "--model", "m", "--dry-run"]);
        command.args(["--budget-cost", "0.01", "--price", "in=1,out=4"]).env("OPENAI_API_KEY", "key");
        String::from_utf8(command.args(bound).ended_with_output().stdout).expect("text")
    };
    let text = dry(&[]);
    let bound = text.split("with --max-output-tokens ").nth(1).and_then(|rest| rest.split(' ').next());
    let bound = bound.expect(&text);
    let text = dry(&["--max-output-tokens", bound]);
    assert!(!text.contains("too small"), "{bound}: {text}");
    let more = (bound.parse::<u64>().expect("a bound") + 4).to_string();
    let text = dry(&["--max-output-tokens", &more]);
    assert!(text.contains("too small"), "{more}: {text}");
}
