use paceline::clock;
use serde_json::{Value, json};

use super::state::Changes;

use super::*;

/// A scope as the gateway tells it.
fn scope(name: &str, trouble: u8, waiting: u64, why: Value) -> Value {
    let state = ["open", "paced", "paced", "stopped", "paced"][usize::from(trouble)];
    json!({
        "upstream": "openai", "name": name, "state": state, "trouble": trouble, "waiting": waiting, "why": why,
        "concurrency": { "in_flight": 2, "current_limit": 512 },
        "last_minute": { "succeeded": 118, "throttled": 4, "overloaded": 1, "failed": 0, "p95_ms": 1430.5 },
        "belief": null,
    })
}

fn changes(first: bool, scopes: Vec<Value>, gone: &Value) -> Changes {
    let now = clock::wall().to_string();
    let decision = json!({
        "at": now, "upstream": "openai", "scope": "/v1/chat/completions gpt-4o", "kind": "throttled",
        "text": "rate limit hit (try 1), next try in 1.2s: Rate limit \u{1b}[31mreached", "times": 12,
    });
    let changes = json!({
        "at": now, "version": "0.1.0", "first": first, "draining": false, "gone": gone, "scopes": scopes,
        "upstreams": [{ "name": "openai", "subject": "", "requests": 3 }], "decisions": [decision],
    });
    serde_json::from_value(changes).expect("it is what a gateway tells")
}

fn wait(after: u64) -> Value {
    // Half a second more: the picture is drawn later than this.
    let until = clock::wall() + Duration::from_millis(1_000 * after - 500);
    json!({ "before": "the next call waits ", "until": until.to_string(), "after": " for the limit of 500 requests per 60s" })
}

fn screen(scopes: Vec<Value>) -> Screen {
    let mut screen = Screen::new("http://127.0.0.1:4747".to_owned());
    screen.state.take(changes(true, scopes, &json!([])));
    screen
}

fn drawn(screen: &mut Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
    terminal.draw(|frame| screen.draw(frame)).expect("a picture");
    let text = lines(terminal.backend().buffer());
    // The times of decisions.
    text.lines()
        .map(|line| if line.as_bytes().get(2) == Some(&b':') { &line[9..] } else { line })
        .collect::<Vec<_>>()
        .join("\n")
}

fn three() -> Vec<Value> {
    let stopped =
        json!({ "before": "nothing leaves until a person acts: Incorrect API key", "until": null, "after": "" });
    vec![
        scope("", 0, 40, Value::Null),
        scope("/v1/chat/completions gpt-4o", 1, 40, wait(185)),
        scope("/v1/chat/completions o3", 3, 7, stopped),
        scope("/v1/embeddings text-embedding-3-small", 0, 0, Value::Null),
    ]
}

#[test]
fn calls_that_failed_are_no_answers() {
    let mut account = scope("", 0, 0, Value::Null);
    account["last_minute"]["failed"] = 24.into();
    let text = drawn(&mut screen(vec![account]), 120, 24);
    assert!(text.contains("0 waiting, 123 answers in the last minute, 24 failed"), "{text}");
}

#[test]
fn an_upstream_that_is_down_for_minutes_is_no_stop() {
    let why =
        json!({ "before": "the upstream has answered no call for 5m 00s: no connection", "until": null, "after": "" });
    let text = drawn(&mut screen(vec![scope("m", 4, 1, why)]), 120, 24);
    assert!(text.contains("1 scope down for minutes") && text.contains("down     m"), "{text}");
}

#[test]
fn it_shows_the_worst_first_with_the_reason_on_every_terminal() {
    insta::assert_snapshot!("wide", drawn(&mut screen(three()), 120, 24));
    insta::assert_snapshot!("usual", drawn(&mut screen(three()), 80, 24));
    for (width, height) in [(1, 1), (20, 5), (40, 10), (80, 8), (500, 200)] {
        let text = drawn(&mut screen(three()), width, height);
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}

#[test]
fn the_reason_is_whole_on_a_narrow_terminal_and_a_long_name_moves_no_figure() {
    let text = drawn(&mut screen(three()), 40, 14);
    assert!(text.contains("nothing leaves until a person\n         acts: Incorrect API key\n"), "{text}");
    let text = drawn(&mut screen(three()), 20, 5);
    assert!(text.contains("stopped  o3") && !text.contains("recent decisions"), "{text}");
    let long = scope(&format!("/v1/x {}", "long".repeat(30)), 1, 1_234, wait(185));
    let text = drawn(&mut screen(vec![long]), 80, 24);
    let row = text.lines().nth(3).expect("a row");
    assert!(row.ends_with("1,234        4        1          123"), "{text}");
}

#[test]
fn keys_choose_sort_and_search() {
    let many = (0..100).map(|n| scope(&format!("m-{n:02}"), 0, n, Value::Null)).collect();
    let mut screen = screen(many);
    let first = |screen: &mut Screen| drawn(screen, 80, 24).lines().nth(3).expect("a row").to_owned();
    assert!(first(&mut screen).contains("m-99"), "the most waiting first");
    screen.key(KeyCode::End);
    let text = drawn(&mut screen, 80, 24);
    assert!(text.contains("m-00") && !text.contains("m-99"), "{text}");
    screen.key(KeyCode::Home);
    (0..4).for_each(|_| screen.key(KeyCode::Char('s')));
    assert!(first(&mut screen).contains("m-00") && drawn(&mut screen, 80, 24).contains("s sort: name"));
    "/m-42".chars().for_each(|letter| screen.key(KeyCode::Char(letter)));
    assert!(screen.is_searching() && drawn(&mut screen, 80, 24).contains("search: m-42_"));
    screen.key(KeyCode::Enter);
    assert!(first(&mut screen).contains("m-42") && drawn(&mut screen, 80, 24).contains("scope (1)"));
    screen.key(KeyCode::Esc);
    assert!(drawn(&mut screen, 80, 24).contains("scope (100)"));
}

#[test]
fn what_the_gateway_tells_changes_the_screen_and_its_loss_is_said() {
    let mut screen = screen(three());
    screen.state.take(changes(
        false,
        vec![scope("new", 0, 0, Value::Null)],
        &json!([["openai", "/v1/chat/completions o3"]]),
    ));
    let text = drawn(&mut screen, 80, 24);
    assert!(text.contains(" new openai") && !text.contains("o3") && text.contains("1 scope waiting"), "{text}");
    screen.state.lost("no gateway answers".to_owned());
    let text = drawn(&mut screen, 80, 24);
    assert!(text.lines().nth(1).is_some_and(|line| line.contains("What is shown is old, since ")), "{text}");
    screen.state.take(changes(true, three(), &json!([])));
    assert!(!drawn(&mut screen, 80, 24).contains("old"));
}

#[test]
fn a_gateway_in_a_fleet_says_where_it_stands() {
    let mut scopes = three();
    let until = clock::wall() + Duration::from_millis(26_500);
    let share = "live, 4 members known; here 15 of 60 requests per 60s; this process reads the learnt rate";
    scopes[0]["fleet"] = json!({ "text": share, "lease_until": until.to_string() });
    let mut screen = screen(scopes);
    let text = drawn(&mut screen, 140, 24);
    assert!(text.contains(&format!("fleet of openai: {share}; lease for 26.")), "{text}");
    assert!(!drawn(&mut screen, 140, 12).contains("fleet"), "a small screen has no room for it");
}
