//! A server whose certificate `SSL_CERT_FILE` names: in a process of its own, for what is trusted is read from the environment.

use std::path::Path;
use std::process::{Command, Output};

use paceline::{Limiter, Quota};
use paceline_fleet::{Fleet, FleetConfig, MemberState};

use crate::free_ports::free_ports;
use crate::redis_server::RedisServer;

const ADDRESS: &str = "PACELINE_TEST_REDISS";

const OPENSSL: &str = "[req]\ndistinguished_name = name\n[name]\n[authority]\nbasicConstraints = critical, CA:TRUE\n\
                       [server]\nbasicConstraints = CA:FALSE\nsubjectAltName = DNS:localhost\n";

/// An authority of the test and the certificate of a server, each with its key.
fn certificates(folder: &Path) {
    std::fs::write(folder.join("openssl.cnf"), OPENSSL).expect("a file");
    let make = |name: &str, by: &[&str]| {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        let output = Command::new("openssl")
            .args(["req", "-x509", "-config", "openssl.cnf", "-extensions", name, "-newkey", "rsa:2048", "-nodes"])
            .args(["-days", "2", "-subj", &format!("/CN={name} of a test"), "-keyout", &key, "-out", &certificate])
            .args(by)
            .current_dir(folder)
            .output()
            .expect("openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    make("authority", &[]);
    make("server", &["-CA", "authority.pem", "-CAkey", "authority.key"]);
}

#[test]
fn a_server_with_tls_is_trusted_by_the_certificates_that_the_environment_names_and_by_no_others() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let [port] = free_ports();
    let options =
        ["--tls-auth-clients", "no", "--tls-port", &port.to_string(), "--tls-ca-cert-file", &file("authority.pem")];
    let own = ["--tls-cert-file", &file("server.pem"), "--tls-key-file", &file("server.key")];
    let _server = RedisServer::start(&[&options[..], &own[..]].concat());
    let joins = |trusted: &str| -> Output {
        Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "tls::joins_over_tls", "--ignored", "--nocapture"])
            .env(ADDRESS, format!("rediss://localhost:{port}"))
            .env("SSL_CERT_FILE", file(trusted))
            .output()
            .expect("it runs")
    };
    let trusts = joins("authority.pem");
    assert!(trusts.status.success(), "{}", String::from_utf8_lossy(&trusts.stderr));
    make_other(folder.path());
    let trusts_another = joins("other/authority.pem");
    let words = String::from_utf8_lossy(&trusts_another.stderr).to_lowercase();
    assert!(!trusts_another.status.success() && words.contains("certificate"), "{words}");
}

/// Another authority with the same name.
fn make_other(folder: &Path) {
    let other = folder.join("other");
    std::fs::create_dir(&other).expect("a folder");
    certificates(&other);
}

/// Fails where there is no lease within two seconds, with why.
#[tokio::test]
#[ignore = "run by the test above"]
async fn joins_over_tls() {
    let url = std::env::var(ADDRESS).expect("the address of a server");
    let limiter = Limiter::new(Quota::per_minute(60)).expect("a limit");
    let joins = Fleet::join(&limiter, FleetConfig::new(&url, "over TLS"));
    let fleet = tokio::time::timeout(std::time::Duration::from_secs(5), joins).await.expect("it answers");
    let fleet = fleet.expect("it joins");
    let state = fleet.view().expect("it is in one").state;
    assert_eq!(state, MemberState::Live, "{:?}", fleet.problem());
}
