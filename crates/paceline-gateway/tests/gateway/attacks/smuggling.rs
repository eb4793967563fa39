//! Requests that two servers may read differently.

use paceline_gateway::Bounds;

use super::cases::{ODD, WRONG, named};
use super::impatient;
use super::raw::{OK, Raw, statuses, told};
use crate::support::Served;

#[tokio::test]
async fn what_two_servers_may_read_differently_is_refused_and_goes_nowhere() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    let told = futures_util::future::join_all(WRONG.iter().map(|(_, case)| {
        let served = &served;
        async move { told(served, &named(&format!("{case}GET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n"))).await }
    }))
    .await;
    let taken: Vec<_> = WRONG
        .iter()
        .zip(&told)
        .filter(|(_, told)| {
            let statuses = statuses(told);
            statuses.len() > 1 || statuses.iter().any(|status| !matches!(status, 400 | 408 | 414 | 431 | 501 | 505))
        })
        .map(|((name, _), told)| (name, statuses(told)))
        .collect();
    assert!(taken.is_empty(), "{taken:?}");
    assert_eq!(raw.paths(), [""; 0]);
}

#[tokio::test]
async fn what_is_odd_and_right_reaches_the_upstream_as_one_plain_request() {
    for (name, case, answers) in ODD {
        let raw = Raw::new(|_| OK.to_vec());
        let served = Served::new(raw.address, "", impatient());
        let statuses = statuses(&told(&served, &named(case)).await);
        assert_eq!(statuses, vec![200; *answers], "{name}");
        let expected = if *answers == 2 { &["/v1/x", "/v1/smuggled"][..] } else { &["/v1/x"] };
        assert_eq!(raw.paths(), expected, "{name}");
        let seen = raw.seen().remove(0);
        if case.contains("hello") {
            assert_eq!(seen.body, b"hello", "{name}");
        }
        for gone in ["te", "upgrade", "http2-settings", "expect", "trailer", "transfer-encoding", "x-paceline-priority"]
        {
            assert_eq!(seen.fields(gone).next(), None, "{name}: {gone}");
        }
        assert_eq!(seen.fields("host").collect::<Vec<_>>(), [raw.address.to_string()], "{name}");
    }
}

/// A program behind CGI reads `Content_Length` as `Content-Length`, and `X_API_Key` as the key.
#[tokio::test]
async fn a_field_whose_name_is_one_of_ours_to_some_servers_stays_here() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    // Those of proxies go on where there are no keys of clients, as with `-`.
    let names = ["Content_Length", "Transfer_Encoding", "X_API_Key", "X_Paceline_Client", "Proxy_Authorization"];
    let fields: String = names.iter().map(|name| format!("{name}: 5\r\n")).collect();
    let request = format!(
        "POST /api/x HTTP/1.1\r\nHost: h\r\n{fields}X_Team: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
    );
    assert_eq!(statuses(&told(&served, &named(&request)).await), [200]);
    let seen = raw.seen().remove(0);
    let left: Vec<_> = names.iter().filter(|name| seen.fields(name).next().is_some()).collect();
    assert!(left.is_empty() && seen.body == b"{}", "{left:?}");
    assert_eq!(seen.fields("x_team").collect::<Vec<_>>(), ["a"], "any other goes on");
}

#[tokio::test]
async fn the_body_of_a_refused_request_is_no_request() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    for head in [
        "POST /nowhere/x HTTP/1.1\r\nHost: h\r\n",
        "POST /api/../x HTTP/1.1\r\nHost: h\r\n",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nx-paceline-deadline: soon\r\n",
        "POST /api/x HTTP/1.1\r\nHost: evil.example\r\n",
        "POST /healthz HTTP/1.1\r\nHost: h\r\n",
    ] {
        let inner = "GET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n";
        let length = named(inner).len();
        let text = told(&served, &named(&format!("{head}Content-Length: {length}\r\n\r\n{inner}"))).await;
        assert_eq!(statuses(&text).len(), 1, "{head}: {text}");
    }
    assert_eq!(raw.paths(), [""; 0]);
}

#[tokio::test]
async fn an_answer_more_than_was_asked_for_reaches_no_other_client() {
    let raw = Raw::new(|seen| match seen.path() {
        "/v1/poison" => [OK, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"].concat(),
        _ => OK.to_vec(),
    });
    // It closes no connection of the client's between two requests, however busy the machine is.
    let served = Served::new(raw.address, "", Bounds::default());
    let get = async |path: &str| {
        let answer = served.client.get(format!("{}/{path}", served.url)).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    for _ in 0..20 {
        assert_eq!(get("poison").await, (200, "{}".to_owned()));
        for _ in 0..3 {
            assert_eq!(get("x").await, (200, "{}".to_owned()));
        }
    }
}

#[tokio::test]
async fn an_answer_with_two_lengths_is_one_answer() {
    for (answer, expected) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 30\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello"),
    ] {
        let raw = Raw::new(move |_| answer.into());
        let served = Served::new(raw.address, "", impatient());
        let text = told(&served, &named("GET /api/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")).await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(!head.to_lowercase().contains("content-length"), "{text}");
        assert!(body.contains(expected), "{text}");
    }
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nx : y\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nx: y\r\n folded\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: a\rb\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/9.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "nonsense\r\n\r\n",
    ] {
        let raw = Raw::new(move |_| answer.into());
        let served = Served::new(raw.address, "retry = { max_retries = 0 }", impatient());
        let got = served.client.get(format!("{}/x", served.url)).send().await.unwrap();
        assert_eq!(got.status().as_u16(), 502, "{answer:?}");
    }
}
