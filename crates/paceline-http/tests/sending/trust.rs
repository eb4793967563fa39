//! Servers that are not trusted, and the way past proxies.

use std::process::Command;
use std::sync::Arc;

use paceline::{Class, LimitScope};
use paceline_http::{NoAnswer, SenderConfig};
use paceline_providers::Provider;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

use crate::support::{Server, ok, post, send};

fn acceptor(name: &str) -> TlsAcceptor {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    TlsAcceptor::from(Arc::new(
        config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap(),
    ))
}

/// No other try changes it: a person must act, so the account stops like one with a bad key.
#[tokio::test]
async fn distrust_stops_the_account_and_says_what_to_do() {
    let server = Server::tls(acceptor("localhost")).await;
    let exchange = send(&server.sender(Provider::Generic), 1, &post("/", "{}")).await;
    assert_eq!((exchange.reading.class, exchange.reading.reach), (Class::Account, LimitScope::Account));
    let Err(NoAnswer::Tls(message)) = exchange.answer else { panic!("{:?}", exchange.answer) };
    assert!(message.starts_with("the server's certificate is not trusted") || message.contains("ca_file"), "{message}");
    assert!(server.arrivals().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn a_server_without_tls_is_told_from_one_that_is_not_there() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let config = SenderConfig::new(server.url.replace("http:", "https:"), Provider::Generic);
    let exchange = send(&crate::support::sender(config), 1, &post("/", "{}")).await;
    let message = exchange.answer.unwrap_err().to_string();
    assert!(message.starts_with("the server does not speak TLS there"), "{message}");
}

/// The environment belongs to the process, so the call is made by another one of this program.
#[test]
fn a_proxy_of_the_environment_is_not_asked_for_this_machine() {
    let name = "trust::a_proxy_of_the_environment_is_not_asked_for_this_machine";
    if std::env::var_os("HTTP_PROXY").is_none_or(|proxy| proxy != "http://127.0.0.1:1") {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let ran = child.args([name, "--exact"]).env("HTTP_PROXY", "http://127.0.0.1:1").output().unwrap();
        let message = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && message.contains("1 passed"), "{message}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::new(|_| Some(ok("{}"))).await;
        let exchange = send(&server.sender(Provider::Generic), 1, &post("/", "{}")).await;
        assert_eq!(exchange.status(), Some(200));
        let other = SenderConfig::new("http://paceline.invalid", Provider::Generic);
        let exchange = send(&crate::support::sender(other), 1, &post("/", "{}")).await;
        assert!(exchange.answer.unwrap_err().to_string().contains("refused"), "the proxy is asked for another host");
    });
}
