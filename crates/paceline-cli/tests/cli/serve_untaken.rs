//! An upstream of HTTP/2 that refuses streams: its gateway sends those requests again, and spends no retry.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Reason;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::serve::{Gateway, send};
use crate::support::Job;
use crate::tls::Authority;

/// Refuses the streams of so many calls, and answers the others. Returns its port, and how many calls came.
fn server(runtime: &tokio::runtime::Runtime, authority: &Authority, refused: usize) -> (u16, Arc<AtomicUsize>) {
    let mut tls = (*authority.server("localhost", false)).clone();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, calls) = (acceptor.clone(), Arc::clone(&counted));
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.expect("TLS");
                let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                while let Some(Ok((_, mut answer))) = connection.accept().await {
                    if calls.fetch_add(1, Ordering::SeqCst) < refused {
                        answer.send_reset(Reason::REFUSED_STREAM);
                        continue;
                    }
                    let mut body = answer.send_response(http::Response::new(()), false).expect("it is open");
                    body.send_data(Bytes::from_static(br#"{"choices":[]}"#), true).expect("it is open");
                }
            });
        }
    });
    (port, calls)
}

#[test]
fn a_request_that_the_upstream_did_not_take_is_sent_again_without_a_retry() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (job, authority) = (Job::new(0), Authority::new());
    std::fs::write(job.path("ca.pem"), &authority.pem).expect("writable");
    let (port, calls) = server(&runtime, &authority, 2);
    let config = format!(
        "[upstream.main]\nprovider = \"openai\"\nbase_url = \"https://localhost:{port}/v1\"\nca_file = \"ca.pem\"\n\
         retry = {{ max_retries = 0, base = \"1ms\" }}\n"
    );
    std::fs::write(job.path("paceline.toml"), config).expect("writable");
    let mut command = job.paceline();
    command.args(["serve", "--listen", "127.0.0.1:0", "--state", "state"]).env("OPENAI_API_KEY", "sk-of-the-upstream");
    let gateway = Gateway::start(&mut command);
    let (status, body) = send(&format!("{}/main/v1/chat/completions", gateway.url), |client, url| {
        client.post(url).body(r#"{"model":"m","messages":[]}"#)
    });
    assert_eq!((status, &*body, calls.load(Ordering::SeqCst)), (200, r#"{"choices":[]}"#, 3));
    let (_, metrics) = send(&format!("{}/metrics", gateway.url), |client, url| client.get(url));
    let succeeded = r#"paceline_requests_total{class="success",scope="/v1/chat/completions m",upstream="main"} 1"#;
    assert!(metrics.contains(succeeded), "{metrics}");
}
