//! Pebble and its DNS server, in a folder of their own and stopped with the value.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};

use super::free_ports::free_ports;

/// A CA. Every domain leads to 127.0.0.1, and challenges are asked for on one port.
pub(crate) struct Pebble {
    pub(crate) folder: tempfile::TempDir,
    /// Where it speaks ACME, over HTTPS.
    pub(crate) port: u16,
    /// Where it asks for the answers of challenges.
    pub(crate) http_port: u16,
    management: u16,
    dns_management: u16,
    processes: [Child; 2],
}

impl Pebble {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [port, management, http_port, tls_port, dns, dns_management] = free_ports();
        let key = KeyPair::generate().expect("a key");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names).expect("names").self_signed(&key).expect("a certificate");
        let put = |name: &str, content: String| fs::write(folder.path().join(name), content).expect("writes");
        put("cert.pem", certificate.pem());
        put("key.pem", key.serialize_pem());
        let config = serde_json::json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": "cert.pem", "privateKey": "key.pem", "httpPort": http_port, "tlsPort": tls_port,
            "ocspResponderURL": "", "externalAccountBindingRequired": false,
        }});
        put("config.json", config.to_string());
        let dns_server = [
            "-defaultIPv4",
            "127.0.0.1",
            "-defaultIPv6",
            "",
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
            "-dns01",
            &format!("127.0.0.1:{dns}"),
            "-management",
            &format!("127.0.0.1:{dns_management}"),
        ]
        .map(str::to_owned);
        let dns_process = spawn(Command::new("pebble-challtestsrv").args(dns_server), dns_management);
        let mut pebble = Command::new("pebble");
        pebble.args(["-config", "config.json", "-dnsserver", &format!("127.0.0.1:{dns}")]).current_dir(folder.path());
        pebble.env("PEBBLE_WFE_NONCEREJECT", "30").env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0");
        let processes = [spawn(&mut pebble, port), dns_process];
        Self { folder, port, http_port, management, dns_management, processes }
    }

    /// The certificate of its HTTPS, which is also that of the front, with its key.
    pub(crate) fn https(&self) -> (String, String) {
        let read = |name| fs::read_to_string(self.folder.path().join(name)).expect("written at the start");
        (read("cert.pem"), read("key.pem"))
    }

    /// Leads a domain to another address than 127.0.0.1.
    pub(crate) fn lead(&self, domain: &str, address: &str) {
        let body = serde_json::json!({ "host": format!("{domain}."), "addresses": [address] }).to_string();
        for action in ["clear-a", "add-a"] {
            self.ask(&format!("http://127.0.0.1:{}/{action}", self.dns_management), Some(body.clone()));
        }
    }

    /// The root of the certificates that it issues, as PEM.
    pub(crate) fn root(&self) -> String {
        self.ask(&format!("https://127.0.0.1:{}/roots/0", self.management), None)
    }

    fn ask(&self, url: &str, body: Option<String>) -> String {
        let root = reqwest::Certificate::from_pem(self.https().0.as_bytes()).expect("a certificate");
        runtime().block_on(async {
            let client = reqwest::Client::builder().no_proxy().add_root_certificate(root).build().expect("a client");
            let request = match body {
                Some(body) => client.post(url).body(body),
                None => client.get(url),
            };
            let answer = request.send().await.and_then(reqwest::Response::error_for_status).expect("an answer");
            answer.text().await.expect("text")
        })
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Starts a server and returns once it listens. What it logs is read and dropped, so that it never waits for a reader.
fn spawn(command: &mut Command, port: u16) -> Child {
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("pebble is installed; scripts/test does it");
    let output = process.stdout.take().expect("piped");
    std::thread::spawn(move || BufReader::new(output).lines().for_each(drop));
    let clock = paceline::Clock::new();
    let begun = clock.now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(clock.now().saturating_since(begun) < Duration::from_secs(30), "{command:?} does not listen");
        std::thread::yield_now();
    }
    process
}
