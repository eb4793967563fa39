use paceline::clock;
use serde_json::{Value, json};

use super::state::Changes;

use super::*;

/// A scope as the gateway tells it.
fn scope(name: &str, trouble: u8, waiting: u64, why: Value) -> Value {
    let state = ["open", "paced", "paced", "stopped", "paced"][usize::from(trouble)];
    let word = ["open", "waits", "closed", "stopped", "down"][usize::from(trouble)];
    json!({
        "upstream": "openai", "name": name, "state": state, "word": word, "trouble": trouble, "waiting": waiting, "why": why,
        "concurrency": { "in_flight": 2, "current_limit": 512 },
        "last_minute": { "succeeded": 118, "throttled": 4, "overloaded": 1, "failed": 0, "p95_ms": 1430.5 },
        "belief": null, "quotas": [], "announced": [], "waiting_by_priority": { "interactive": waiting, "batch": 0 },
        "totals": { "sends": 1_234, "by_class": { "throttled": 30, "quota_exhausted": 1, "overloaded": 2 } },
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

/// What the page shows beside scopes and decisions.
fn busy() -> Screen {
    let mut screen =
        screen(vec![scope("", 0, 40, Value::Null), limited(), scope("/v1/embeddings small", 0, 0, Value::Null)]);
    let client = |name: &str, cost: Value, waits_for: Value| {
        json!({
            "client": name, "upstream": "openai", "waiting": 3, "requests": 12_345, "tokens_in": 1_200_000,
            "tokens_out": 90_000, "cost": cost, "waits_for": waits_for,
        })
    };
    let more = json!({
        "at": clock::wall().to_string(), "version": "0.1.0", "first": false, "gone": [], "scopes": [],
        "clients": [client("nightly", json!(12.345), json!("5 requests per minute of its key")), client("dev", Value::Null, Value::Null)],
        "jobs": [{ "name": "out.jsonl", "upstream": "openai", "state": "runs", "done": 250, "total": 1_000, "failed": 2, "left_ms": 61_000, "waits": null }],
        "batches": [{ "id": "batch_1", "upstream": "openai", "status": "in_progress", "done": 1, "total": 3, "failed": 0, "waits_for": "its share" }],
    });
    screen.state.take(serde_json::from_value(more).expect("it is what a gateway tells"));
    let steps = |of: fn(usize) -> Value| (0..90).map(of).collect::<Vec<_>>();
    let nothing = steps(|_| json!(0));
    let history = json!({
        "step_s": 10, "succeeded": steps(|step| if step < 30 { Value::Null } else { json!(step / 10) }),
        "throttled": steps(|step| json!(usize::from(step == 40))), "overloaded": nothing, "failed": nothing,
        "in_flight": steps(|_| json!(2)), "waiting": nothing, "rate": steps(|_| json!(0.9)), "p95_ms": steps(|_| json!(1430.5)),
    });
    let place = screen.subject().expect("a scope");
    screen.state.take_history(place, serde_json::from_value(history).expect("a history"));
    screen
}

/// A scope with limits of each origin, one of which is used up.
fn limited() -> Value {
    let mut scope = scope("/v1/chat/completions gpt-4o", 1, 40, wait(185));
    let quota = |limit: u64, remaining: u64, window: u64| {
        let free = clock::wall() + Duration::from_millis(184_500);
        json!({ "dimension": "requests", "limit": limit, "remaining": remaining, "window_s": window, "next_free": free.to_string() })
    };
    scope["quotas"] = json!([quota(500, 0, 60)]);
    scope["announced"] = json!([quota(10_000, 9_876, 86_400)]);
    scope["belief"] = json!({ "text": "about 54 requests a minute" });
    scope
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

#[test]
fn a_picture_has_all_that_the_page_has() {
    let mut screen = busy();
    screen.is_picture = true;
    let height = screen.wanted_height(120);
    insta::assert_snapshot!("all", drawn(&mut screen, 120, height));
}

#[test]
fn tab_chooses_what_stands_first_below_and_a_tall_terminal_has_several() {
    let mut screen = busy();
    let first = |screen: &mut Screen| drawn(screen, 100, 24);
    for (tabs, expected) in [
        (0, "recent decisions"),
        (1, "clients (2)"),
        (1, "jobs and batches (2)"),
        (1, "limit 500 requests per minute (configured): 0 left, room again in 3m 05s"),
        (1, "recent decisions"),
    ] {
        (0..tabs).for_each(|_| screen.key(KeyCode::Tab));
        let text = first(&mut screen);
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let text = drawn(&mut screen, 120, 60);
    for expected in
        ["recent decisions", "clients (2)", "jobs and batches (2)", "last 15 minutes", "openai: 2 of 512 in flight"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    for (width, height) in [(1, 1), (20, 5), (40, 10), (80, 8), (300, 100)] {
        drawn(&mut screen, width, height);
    }
}
