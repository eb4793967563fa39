//! The programs of examples/ beside the same with other crates, each in a process of its own: all of them do what they are for.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use cookbook::dynamodb::client;

use super::aws::{Moto, TABLE, config, create_table};
use super::http_clients::limited;
use super::serve;

/// What an example prints, given that address. Cargo has built them beside the tests.
async fn printed(name: &'static str, url: String) -> String {
    let run = move || {
        let tests = std::env::current_exe().expect("this program");
        let folder = tests.ancestors().nth(2).map_or_else(PathBuf::new, |target| target.join("examples"));
        Command::new(folder.join(name)).arg(url).output().expect("an example that is built")
    };
    let output = tokio::task::spawn_blocking(run).await.expect("no panic");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_calls_keep_the_limit_of_a_server() {
    for name in ["layer", "layer_tower", "threads", "threads_governor"] {
        let nginx = limited().await;
        let statuses = printed(name, nginx.url.clone()).await;
        assert_eq!(statuses.lines().filter(|status| *status == "200 OK").count(), 50, "{name}: {statuses}");
        assert_eq!(nginx.counts("429"), (50, 0), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fails_twice_is_made_three_times() {
    for name in ["retry", "retry_backon"] {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let answer = async move || match count.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => (StatusCode::SERVICE_UNAVAILABLE, "later"),
            _ => (StatusCode::OK, "done"),
        };
        let address = serve(Router::new().route("/", get(answer))).await;
        assert_eq!(printed(name, format!("http://{address}")).await, "done\n", "{name}");
        assert_eq!(calls.load(Ordering::Relaxed), 3, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_printed_as_it_comes() {
    for name in ["stream", "stream_reqwest"] {
        let nginx = limited().await;
        assert!(printed(name, format!("{}/chat/completions", nginx.url)).await.contains("chat.completion"), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_items_are_in_the_table() {
    for name in ["table", "table_aws"] {
        let moto = Moto::start();
        let url = format!("http://{}", moto.address);
        let client = client(config(&url));
        create_table(&client).await;
        assert_eq!(printed(name, url).await, "100 items\n");
        let written = client.scan().table_name(TABLE).send().await.expect("a page").count;
        assert_eq!(written, 100, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tenant_has_a_burst_of_its_own() {
    for name in ["keyed", "keyed_governor"] {
        let served = printed(name, String::new()).await;
        for tenant in ["ada", "bob"] {
            assert!(served.lines().filter(|line| line.starts_with(tenant)).count() >= 10, "{name}: {served}");
        }
    }
}
