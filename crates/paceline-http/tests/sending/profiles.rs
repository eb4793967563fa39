//! The upstreams of a configuration, as clients of a program.

use std::time::Duration;

use http::{Method, Request};
use paceline::{Admit, Class, Error, Limiter, RunError, UnknownOutcome, WaitCause};
use paceline_config::{CallNames, Config, Environment, Overrides};
use paceline_http::{Call, Profiles};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{Server, answer, ok, with};

/// The profiles of a file; `HOST` is that of the server.
fn profiles(server: &Server, file: &str) -> Profiles {
    read(&file.replace("HOST", &server.url), &[]).unwrap()
}

fn read(file: &str, variables: &[(&str, &str)]) -> Result<Profiles, String> {
    let environment: Environment = variables.iter().copied().collect();
    let config = Config::parse("paceline.toml".as_ref(), file, environment, Overrides::default());
    Profiles::new(config.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

fn full(limiter: &Limiter) -> bool {
    limiter.snapshot().account.quotas[0].remaining == 0
}

#[tokio::test]
async fn all_clients_of_a_profile_obey_its_one_limit() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let profiles = profiles(&server, "[upstream.a]\nbase_url = 'HOST'\nlimits = ['3 per 1h']");
    let (one, other) = (profiles.client("a").unwrap(), profiles.client("a").unwrap());
    for client in [&one, &other, &one] {
        client.send(Call::get("/things")).await.unwrap();
    }
    assert!(full(&profiles.limiter("a").unwrap()) && full(other.limiter()));
    let refused = other.send(Call::get("/things")).within(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(refused, RunError::Limiter(Error::DeadlineExceeded { needed: Some(_), .. })), "{refused:?}");
    assert_eq!((refused.calls(), refused.is_retryable(), refused.is_fatal()), (0, true, false));
    assert_eq!(server.arrivals().len(), 3);
}

#[tokio::test]
async fn one_host_and_key_configured_alike_is_one_limiter() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let file = "[upstream.a]\nbase_url = 'HOST'\nlimits = ['9 per 1h']\napi_key_env = 'A'\n\
        [upstream.b]\nbase_url = 'HOST/v1'\nlimits = ['9 per 1h']\napi_key_env = 'A'\n\
        [upstream.c]\nbase_url = 'HOST'\nlimits = ['8 per 1h']\napi_key_env = 'A'\n\
        [upstream.d]\nbase_url = 'HOST'\nlimits = ['9 per 1h']\napi_key_env = 'D'\n";
    let profiles = read(&file.replace("HOST", &server.url), &[("A", "one"), ("D", "other")]).unwrap();
    profiles.client("a").unwrap().send(Call::get("/")).await.unwrap();
    let left = |name: &str| profiles.limiter(name).unwrap().snapshot().account.quotas[0].remaining;
    assert_eq!(["a", "b", "c", "d"].map(left), [8, 8, 8, 9]);
}

#[test]
fn what_is_wrong_is_said_before_anything_is_sent() {
    let two = "[upstream.mine]\nbase_url = 'http://127.0.0.1:9'\n[upstream.other]\nbase_url = 'http://127.0.0.1:9'\n";
    let of = |name: &str, variables: &[(&str, &str)]| {
        read(two, variables).unwrap().client(name).map(drop).unwrap_err().to_string()
    };
    let unknown = of("default", &[]);
    assert!(unknown.contains("unknown upstream \"default\": expected one of mine, other, openai, "), "{unknown}");
    let missing = of("anthropic", &[]);
    assert!(missing.contains("no key for anthropic: ANTHROPIC_API_KEY is not set or empty"), "{missing}");
    let broken = of("openai", &[("OPENAI_API_KEY", "sk-a\nb")]);
    assert!(broken.contains("the key in OPENAI_API_KEY holds characters") && !broken.contains("sk-a"), "{broken}");
    let file = "[upstream.a]\nbase_url = 'https://127.0.0.1:9'\nca_file = '/nowhere.pem'";
    let untrusted = read(file, &[]).unwrap().client("a").map(drop).unwrap_err().to_string();
    assert!(untrusted.contains("ca_file /nowhere.pem cannot be read"), "{untrusted}");
    let mock = of("mock", &[]);
    assert!(mock.contains("upstream.mock.base_url is missing"), "{mock}");
    // Of any profile, as soon as the file is read.
    for (wrong, key, value, expected) in [
        ("rpm = 'many'", "upstream.other.rpm", "\"many\"", "expected"),
        ("retry = { max_retries = -1 }", "upstream.other.retry.max_retries", "\"-1\"", "expected"),
        ("scope = 'hosts'", "upstream.other.scope", "\"hosts\"", "expected one of"),
    ] {
        let message = read(&format!("{two}{wrong}"), &[]).map(drop).unwrap_err();
        let names = [key, value, expected, "paceline.toml, line 5"];
        assert!(names.iter().all(|name| message.contains(name)), "{message}");
    }
    let variable = read(two, &[("PACELINE_UPSTREAM__MINE__RPM", "lots")]).map(drop).unwrap_err();
    assert!(variable.contains("PACELINE_UPSTREAM__MINE__RPM = \"lots\""), "{variable}");
    let nothing = read("", &[]).unwrap().chosen().map(drop).unwrap_err().to_string();
    assert!(nothing.contains("no upstream chosen"), "{nothing}");
}

#[test]
fn a_file_is_read_and_one_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("paceline.toml");
    let missing = Profiles::load(&file).map(drop).unwrap_err().to_string();
    assert!(missing.contains("paceline.toml: the configuration file cannot be read"), "{missing}");
    std::fs::write(&file, "[upstream.b]\nbase_url = 'http://b'\n[upstream.a]\nbase_url = 'http://a'\nrpm = 7\n")
        .unwrap();
    let profiles = Profiles::load(&file).unwrap();
    assert_eq!(profiles.names(), ["a", "b"]);
    assert_eq!(profiles.limiter("a").unwrap().snapshot().account.quotas[0].limit, 7);
    assert_eq!(format!("{profiles:?}"), r#"Profiles { names: ["a", "b"], .. }"#);
}

#[tokio::test]
async fn the_environment_alone_configures_a_known_provider() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let variables = [
        ("OPENAI_API_KEY", "sk-of-the-environment"),
        ("OPENAI_BASE_URL", &server.url),
        ("PACELINE_UPSTREAM__OPENAI__RPM", "7"),
    ];
    let client = read("", &variables).unwrap().chosen().unwrap();
    client.send(Call::post("/v1/embeddings", r#"{"model":"m","input":""}"#)).await.unwrap();
    let arrival = &server.arrivals()[0];
    assert_eq!(
        (arrival.headers["authorization"].as_bytes(), &*arrival.path),
        (&b"Bearer sk-of-the-environment"[..], "/v1/embeddings")
    );
    assert_eq!(client.limiter().snapshot().account.quotas[0].limit, 7);
}

/// Each line of this file changes what a program sees.
#[tokio::test]
async fn what_a_profile_says_acts() {
    let file = "[upstream.a]\nbase_url = 'HOST/base'\nprovider = 'openai'\npace = 'fixed'\nlimits = ['99 per 1h']\n\
        api_key_env = 'KEY'\nkey_header = 'x-api-key'\nkey_scheme = 'Token'\nheaders = { x-team = 'blue' }\n\
        idempotency_header = 'x-once'\nretry = { max_retries = 2, base = '1ms' }\nprice = 'in=1,out=2'\n\
        [[upstream.a.tier]]\nmodel = 'large'\nlimits = ['8 per 1h']\n\
        [[upstream.a.tier]]\nlabel = 'nightly'\nlimits = ['6 per 1h']\n\
        [[upstream.a.rule]]\nmatch = { status = 400, pointer = '/error/code', equals = 'badNonce' }\nclass = 'transient'\n\
        scope = 'item'\nwait = '0s'\n";
    let server = Server::new(|arrival| {
        Some(match arrival.before {
            0 => answer(400, r#"{"error":{"code":"badNonce"}}"#),
            1 => answer(503, "{}"),
            2 => ok(r#"{"choices":[{"message":{}}],"usage":{"prompt_tokens":1000000,"completion_tokens":1000000}}"#),
            _ => answer(503, "{}"),
        })
    })
    .await;
    let profiles = read(&file.replace("HOST", &server.url), &[("KEY", "secret")]).unwrap();
    let client = profiles.client("a").unwrap();
    let call = || Call::post("/v1/chat/completions", r#"{"model":"large","max_tokens":3}"#);
    let mut heard = Vec::new();
    let answered = client.send(call()).notify(|retrying| heard.push(retrying.class)).await.unwrap();
    assert_eq!(heard, [Class::Transient, Class::Overloaded]);
    assert_eq!((answered.usage.unwrap().total(), answered.cost.unwrap().to_string()), (2_000_000, "3.00".to_owned()));
    let failed = client.with_label("nightly").send(call()).await.unwrap_err();
    assert_eq!((failed.calls(), failed.is_retryable(), failed.is_rate_limited()), (3, true, false));
    let failure = failed.into_operation().unwrap();
    assert_eq!((failure.status(), failure.reading().class), (Some(503), Class::Overloaded));
    assert!(failure.to_string().contains("503"), "{failure}");

    let arrivals = server.arrivals();
    let sent = |number: usize, name: &str| arrivals[number].headers[name].to_str().unwrap();
    assert_eq!(["x-api-key", "x-team"].map(|name| sent(0, name)), ["Token secret", "blue"]);
    assert_eq!((&*arrivals[0].path, &arrivals[0].method), ("/base/v1/chat/completions", &Method::POST));
    let once: Vec<_> = (0..6).map(|number| sent(number, "x-once")).collect();
    assert!(once[..3] == [once[0]; 3] && once[3..] == [once[3]; 3] && once[0] != once[3], "{once:?}");
    let client = profiles.client("a").unwrap();
    let left = |names: CallNames<'_>| {
        let scope = client.scope(&names);
        client.limiter().scope_snapshot(&scope).unwrap().quotas[0].remaining
    };
    assert_eq!(left(CallNames { model: Some("large"), ..CallNames::default() }), 8 - 3 - 3, "the first tier is taken");
    assert_eq!(client.limiter().snapshot().account.quotas[0].remaining, 99 - 6);
}

#[tokio::test]
async fn of_a_partly_accepted_batch_the_rest_is_sent_and_the_answer_is_whole() {
    let server = Server::new(|arrival| {
        Some(ok(match arrival.before {
            0 => r#"{"Responses":{"t":["A"]},"UnprocessedKeys":{"t":{"Keys":["b"]}}}"#,
            _ => r#"{"Responses":{"t":["B"]}}"#,
        }))
    })
    .await;
    let file = "[upstream.dynamodb]\nbase_url = 'HOST'\npace = 'fixed'\nretry = { base = '1ms' }";
    let client = profiles(&server, file).client("dynamodb").unwrap();
    let answered = client.send(Call::post("/", r#"{"RequestItems":{"t":{"Keys":["a","b"]}}}"#)).await.unwrap();
    assert_eq!(answered.response.body(), r#"{"Responses":{"t":["A","B"]}}"#);
    let bodies: Vec<_> = server.arrivals().into_iter().map(|arrival| arrival.body).collect();
    assert_eq!(bodies, [r#"{"RequestItems":{"t":{"Keys":["a","b"]}}}"#, r#"{"RequestItems":{"t":{"Keys":["b"]}}}"#]);
}

#[tokio::test]
async fn a_call_that_is_dropped_gives_its_place_back() {
    let server = Server::new(|arrival| (arrival.before > 0).then(|| ok("{}"))).await;
    let file = "[upstream.a]\nbase_url = 'HOST'\npace = 'fixed'\nconcurrency = 1";
    let client = profiles(&server, file).client("a").unwrap();
    let silent = async {
        while server.arrivals().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answered = client.send(Call::get("/silent")) => panic!("{answered:?}"),
        () = silent => {}
    }
    client.send(Call::get("/")).await.unwrap();
}

#[tokio::test]
async fn labels_and_whole_addresses_find_their_tiers() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let file = "[upstream.a]\nbase_url = 'HOST/v1'\npace = 'fixed'\n\
        [[upstream.a.tier]]\nlabel = 'nightly'\nlimits = ['6 per 1h']\n[[upstream.a.tier]]\nmatch = '/v1/slow'\nlimits = ['5 per 1h']\n";
    let client = profiles(&server, file).client("a").unwrap();
    client.clone().with_label("nightly").send(Call::get("/other")).await.unwrap();
    client.send(Call::get(format!("{}/v1/slow/1", server.url))).await.unwrap();
    client.send(Request::get("/v1/slow/2").body("").unwrap()).await.unwrap();
    let scopes = client.limiter().snapshot().scopes;
    let left: Vec<_> =
        scopes.iter().filter_map(|scope| Some((&*scope.name, scope.quotas.first()?.remaining))).collect();
    assert_eq!(left, [("tier label=nightly", 5), ("tier /v1/slow", 3)]);
    let paths: Vec<_> = server.arrivals().into_iter().map(|arrival| arrival.path).collect();
    assert_eq!(paths, ["/v1/other", "/v1/slow/1", "/v1/slow/2"]);
}

#[tokio::test]
async fn a_limiter_of_a_profile_reads_the_answers_of_another_client_by_its_rules() {
    let server = Server::new(|arrival| Some(if arrival.before == 0 { answer(418, "{}") } else { ok("{}") })).await;
    let file = "[upstream.a]\nbase_url = 'HOST'\npace = 'fixed'\nretry = { base = '1ms' }\n\
        [[upstream.a.rule]]\nmatch = { status = 418 }\nclass = 'transient'\n";
    let limiter = profiles(&server, file).limiter("a").unwrap();
    let client = paceline_http::client_to(&server.url).build().unwrap();
    let answer = limiter.run(paceline_http::operation(client.get(&server.url))).await.unwrap();
    assert_eq!((answer.status().as_u16(), server.arrivals().len()), (200, 2));
}

#[tokio::test]
async fn what_may_have_been_done_is_not_sent_again_and_the_error_says_so() {
    let server = Server::new(|_| Some(answer(504, "{}"))).await;
    let file = "[upstream.a]\nbase_url = 'HOST'\nunknown_outcome = 'hold'\nretry = { base = '1ms' }\n";
    let client = profiles(&server, file).client("a").unwrap();
    let held = client.send(Call::post("/pay", "{}")).await.unwrap_err();
    assert_eq!((held.calls(), server.arrivals().len()), (1, 1));
    assert_eq!(held.into_operation().unwrap().unknown(), UnknownOutcome::Hold);
    let repeated = client.send(Call::get("/pay")).await.unwrap_err();
    assert_eq!(repeated.calls(), 8, "a GET may be repeated");
}

#[tokio::test]
async fn no_try_leaves_after_the_deadline_of_its_call() {
    let later = |_: &_| Some(with(answer(429, "{}"), "retry-after", "30"));
    let server = Server::new(later).await;
    let client = profiles(&server, "[upstream.a]\nbase_url = 'HOST'\ndeadline = '20s'").client("a").unwrap();
    let refused = client.send(Call::get("/")).await.unwrap_err();
    assert_eq!((refused.calls(), refused.is_rate_limited()), (1, true));
    assert!(refused.retry_not_before().is_some());
}

#[tokio::test]
async fn a_request_that_cannot_be_sent_fails_at_once() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let client = profiles(&server, "[upstream.a]\nbase_url = 'HOST'\npace = 'fixed'").client("a").unwrap();
    let wrong = client.send(Call::get("things")).await.unwrap_err();
    assert!(wrong.is_fatal() && wrong.calls() == 1 && wrong.to_string().contains("cannot be sent"), "{wrong:?}");
    let (again, other) = (client.send(Call::get("/")).await, "the account goes on");
    assert!(again.is_ok(), "{other}");
}

#[tokio::test]
async fn a_client_inside_run_makes_one_send_of_its_permit() {
    let server = Server::new(|_| Some(answer(503, "{}"))).await;
    let file =
        "[upstream.a]\nbase_url = 'HOST'\npace = 'fixed'\nconcurrency = 1\nretry = { max_retries = 2, base = '1ms' }\n";
    let client = profiles(&server, file).client("a").unwrap();
    let scope = client.scope(&CallNames { path: "/", ..CallNames::default() });
    let operation = async || client.send(Call::get("/")).await.map_err(std::io::Error::other);
    let outer = client.limiter().run(operation).when(|_| true).scope(scope);
    assert_eq!((outer.await.unwrap_err().calls(), server.arrivals().len()), (3, 3));
}

/// A stream whose head says that nothing is left, and that ends when the test says so.
#[tokio::test]
async fn what_the_head_of_a_stream_announces_acts_while_it_runs() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let file = format!("[upstream.openai]\nbase_url = 'http://{}'\n", listener.local_addr().unwrap());
    let client = read(&file, &[]).unwrap().client("openai").unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4_096]).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\
            x-ratelimit-limit-requests: 1\r\nx-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 1h\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        ended.await.unwrap();
        stream
            .write_all(
                b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
            )
            .await
            .unwrap();
    });
    let call = || Call::post("/v1/chat/completions", r#"{"model":"m","stream":true}"#);
    let streaming = tokio::spawn({
        let client = client.clone();
        async move { client.send(call()).await.map(|answered| answered.response) }
    });
    let names = CallNames { path: "/v1/chat/completions", model: Some("m"), ..CallNames::default() };
    let request = paceline::Request::from(client.scope(&names));
    let known = |admit| matches!(admit, Admit::At { cause: WaitCause::ServerLimit { remaining: 0, .. }, .. });
    let is_known = || known(client.limiter().admit(&request));
    while !is_known() {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.limiter().snapshot().account.concurrency.in_flight, 1, "it still runs");
    end.send(()).unwrap();
    assert!(streaming.await.unwrap().unwrap().body().starts_with(b"{"), "collected");
    assert!(is_known());
    serving.await.unwrap();
}

#[tokio::test]
async fn a_profile_with_a_fleet_never_counts_alone() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let file = "[upstream.a]\nbase_url = 'HOST'\nlimits = ['60 per 3s']\nfleet = 'redis://me:sesame@127.0.0.1:1'\nalone_share = '2 of 10 per 3s'\n\
        [upstream.b]\nbase_url = 'HOST/v1'\nlimits = ['60 per 3s']\nfleet = 'redis://me:sesame@127.0.0.1:1'\nalone_share = '2 of 10 per 3s'\n\
        [upstream.c]\nbase_url = 'HOST'\nlimits = ['50 per 3s']\n";
    let profiles = profiles(&server, file);
    for refused in [profiles.client("a").map(drop), profiles.limiter("a").map(drop)].map(Result::unwrap_err) {
        let refused = refused.to_string();
        let words = ["upstream.a.fleet", "paceline.toml, line 4", "`Profiles::join`", "none"];
        assert!(words.iter().all(|word| refused.contains(word)) && !refused.contains("sesame"), "{refused}");
    }
    let client = profiles.join("a").await.unwrap();
    let known = client.limiter().fleet().expect("it has joined");
    let share = &known.shares[0];
    assert_eq!((share.limit.quota.limit, share.alone, known.state.as_str()), (50, 2, "out"), "no store is there");
    // Both have what was set aside for one process, and no more; it is theirs a window after the start.
    let other = profiles.client("b").unwrap();
    for client in [&client, &other] {
        client.send(Call::get("/things")).await.unwrap();
    }
    let refused = other.send(Call::get("/things")).within(Duration::from_millis(500)).await.unwrap_err();
    assert!(matches!(refused, RunError::Limiter(_)), "{refused:?}");
    assert!(profiles.join("c").await.unwrap().limiter().fleet().is_none(), "it names none");
}
