//! Targets that lead out of the folder of an upstream, or name another host.

use paceline_gateway::ClientConfig;

use super::cases::named;
use super::impatient;
use super::raw::{OK, Raw, statuses, told};
use crate::support::{Served, client, serve_to};

#[tokio::test]
async fn no_path_leads_out_of_the_folder_of_its_upstream() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    for path in [
        "/api/v1/../admin",
        "/api/v1/..",
        "/api/v1/./../admin",
        "/api/v1/%2e%2e/admin",
        "/api/v1/%2E./admin",
        "/api/v1/%252e%252e/admin",
        "/api/v1/%25252e%25252e%25252fadmin",
        "/api/v1/..%2fadmin",
        "/api/v1/..%5cadmin",
        "/api/v1/..\\admin",
        "/api/v1/..;/admin",
        "/api/v1/..;a=b/admin",
        "/api/v1/..%3ba/admin",
        "/api/v1/..%00/admin",
        "/api/v1/..%09/admin",
        "/api/v1/..%20/admin",
        "/api/v1/..%23/admin",
        "/api/v1/%09../admin",
        "/api/v1/.%0a./admin",
        "/api/v1/%c0%ae%c0%ae/admin",
        "/api/v1/..%c0%afadmin",
        "/api/v1/%e0%80%ae%2e/admin",
        "/api/v1/%25c0%25ae./admin",
        "/api/v1/%u002e%u002e/admin",
        "/api/v1/%ef%bc%8e%ef%bc%8e/admin",
        "/api/v1/%2e/../admin",
        "/api/..",
        "/api/%2e%2e",
        "/../api/x",
        "/x/../api/x",
        "*",
    ] {
        let text = told(&served, &named(&format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))).await;
        assert_eq!(statuses(&text), [400], "{path}: {text}");
    }
    assert_eq!(raw.paths(), [""; 0]);
}

#[tokio::test]
async fn a_path_goes_on_letter_by_letter_and_only_to_its_upstream() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    for (target, path) in [
        ("/api/v1/a%2Fb", "/v1/a%2Fb"),
        ("/api/v1//evil.example/x", "/v1//evil.example/x"),
        ("/api//evil.example/x", "/v1//evil.example/x"),
        ("/api/http://evil.example/x", "/v1/http://evil.example/x"),
        ("/api/@evil.example/x", "/v1/@evil.example/x"),
        ("/api?x=/../y", "/v1/?x=/../y"),
        ("/api/v1/x?a=%0d%0aX:1&b=../..", "/v1/x?a=%0d%0aX:1&b=../.."),
        ("/api/v1/a..b/...", "/v1/a..b/..."),
        ("/api/v1/x#y", "/v1/x"),
        ("http://localhost:1/api/v1/x", "/v1/x"),
    ] {
        let before = raw.seen().len();
        let text =
            told(&served, &named(&format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))).await;
        assert_eq!(statuses(&text), [200], "{target}: {text}");
        let seen = raw.seen().split_off(before);
        assert_eq!((seen.len(), seen[0].path()), (1, path), "{target}");
        assert_eq!(seen[0].fields("host").collect::<Vec<_>>(), [raw.address.to_string()]);
    }
}

/// Its servers may read another path there than the one that the key is for.
#[tokio::test]
async fn a_key_that_is_for_some_paths_sends_none_that_servers_read_differently() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    serve_to(&served, vec![ClientConfig { paths: vec!["/api/v1/a".to_owned()], ..client("a", &[]) }]);
    let get = async |path: &str| {
        let text = told(
            &served,
            &named(&format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Paceline-Key: pk-a\r\nConnection: close\r\n\r\n")),
        )
        .await;
        (statuses(&text), text)
    };
    for (path, why) in [
        ("/api/v1/a/x%5c..%5cb", "leaves the folder"),
        ("/api/v1/a/x%5cb", "a backslash"),
        ("/api/v1/a/x%255cb", "a backslash"),
        ("/api/v1/a/x%00", "a control character"),
        ("/api/v1/a/x%250d%250ab", "a control character"),
        ("/api/v1/a/%ff", "no UTF-8"),
        ("/api/v1/a/%c1%9c", "no UTF-8"),
        ("/api/v1/a/%zz", "hexadecimal"),
        ("/api/v1/a/%u0041", "hexadecimal"),
    ] {
        let (statuses, text) = get(path).await;
        assert!(statuses == [400] && text.contains(why), "{path}: {text}");
    }
    for path in ["/api/v1//a", "/api//v1/a", "/api/v1/ab", "/api/v1/b/a"] {
        assert_eq!(get(path).await.0, [403], "{path}");
    }
    assert_eq!(raw.paths(), [""; 0]);
    for path in [
        "/api/v1/a",
        "/api/v1/a/x%20y",
        "/api/v1/a/%C3%A9",
        "/api/v1/a/100%25",
        "/api/v1/a/x%2Fy",
        "/api/v1/a//x?y=%zz",
    ] {
        assert_eq!(get(path).await.0, [200], "{path}");
        assert_eq!(raw.paths().last().map(String::as_str), path.strip_prefix("/api"), "{path}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn what_names_another_host_is_not_sent() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", impatient());
    for request in [
        "GET http://evil.example/api/x HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET http://evil.example@127.0.0.1/api/x HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET http://127.0.0.1@evil.example/api/x HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /api/x HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET /api/x HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n",
        "GET /api/x HTTP/1.1\r\nHost: 127.0.0.1 evil.example\r\n\r\n",
        "GET /api/x HTTP/1.1\r\nHost: 127.0.0.1/evil\r\n\r\n",
        "GET /api/x HTTP/1.1\r\nHost:\r\n\r\n",
        "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
        "CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
        "GET //evil.example/x HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /api@evil.example/x HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET evil.example/api/x HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET ftp://127.0.0.1/nowhere HTTP/1.1\r\nHost: h\r\n\r\n",
    ] {
        let text = told(&served, &named(request)).await;
        let is_right = match statuses(&text)[..] {
            [501] => request.starts_with("CONNECT") && text.contains("CONNECT is not supported"),
            ref statuses => matches!(statuses, [400 | 403 | 404]) && !request.starts_with("CONNECT"),
        };
        assert!(is_right, "{request}: {text}");
    }
    assert_eq!(raw.paths(), [""; 0]);
}
