//! nginx that ends each connection of HTTP/2 after some requests (GOAWAY), with others on it that it has not taken.

use std::collections::BTreeMap;

use rcgen::{CertificateParams, KeyPair};

use super::gateway::{Gateway, send_all};
use super::measure;
use super::nginx::Nginx;
use crate::bounded::TestBound;

const REQUESTS: usize = 640;

/// Requests that nginx takes on a connection.
const OF_A_CONNECTION: usize = 20;

#[test]
fn no_request_is_lost_or_made_twice_where_nginx_ends_its_connections() {
    let _bound = TestBound::new();
    let key = KeyPair::generate().expect("a key");
    let certificate = CertificateParams::new(["localhost".to_owned()]).and_then(|params| params.self_signed(&key));
    let certificate = certificate.expect("a certificate").pem();
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (file, text) in [("cert.pem", certificate), ("key.pem", key.serialize_pem())] {
        std::fs::write(folder.path().join(file), text).expect("writing a certificate");
    }
    let nginx = Nginx::of_http2(folder.path(), OF_A_CONNECTION, r#"{"choices":[]}"#);
    let trusted = folder.path().join("cert.pem");
    let config = format!(
        "[upstream.first]\nca_file = {trusted:?}\npace = \"none\"\nretry = {{ max_retries = 0, base = \"10ms\", cap = \"100ms\" }}\n"
    );
    let gateway = Gateway::start(&nginx.https_url(), &config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let answers = runtime.block_on(send_all(&gateway.url, REQUESTS));
    let (taken, refused) = nginx.counts();
    measure::say(&format!(
        "gateway before nginx that ends connections: requests={REQUESTS} answers={answers:?} taken={taken}"
    ));
    assert_eq!(answers, BTreeMap::from([(200, REQUESTS)]), "none is lost, and none had a retry");
    assert_eq!((taken, refused), (REQUESTS as u64, 0), "none is made twice");
}
