//! The program with a folder of certificates, as a user has it.

use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, PublicKeyData as _, date_time_ymd};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::front::Front;
use super::pebble::{Pebble, runtime};

/// A folder of certificates that are due, and the flags that renew them.
pub(crate) struct Agent {
    pub(crate) folder: tempfile::TempDir,
    flags: Vec<String>,
}

/// How a run ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
    pub(crate) report: Value,
}

impl Agent {
    /// With certificates for `d01.example.org` and so on, which expired a while ago, the lower the number the longer.
    pub(crate) fn new(pebble: &Pebble, front: &Front, domains: usize, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("certs")).expect("a folder");
        let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
        let root = pebble.folder.path().join("cert.pem").to_str().expect("UTF-8").to_owned();
        let own = [
            ("--certs", at("certs")),
            ("--store", at("acme.db")),
            ("--json", at("report.json")),
            ("--markdown", at("report.md")),
            ("--directory", front.directory()),
            ("--listen", format!("127.0.0.1:{}", pebble.http_port)),
            ("--ca-file", root),
            ("--contact", "admin@example.org".to_owned()),
            ("--rate", "200 per 1s".to_owned()),
        ];
        // A flag of the test replaces ours.
        let own = own.into_iter().filter(|(flag, _)| !flags.contains(flag));
        let own = own.flat_map(|(flag, value)| [flag.to_owned(), value]);
        let flags = own.chain(flags.iter().map(|&flag| flag.to_owned())).collect();
        let agent = Self { folder, flags };
        agent.expire(1..=domains);
        agent
    }

    /// Puts certificates into the folder that expired a while ago.
    pub(crate) fn expire(&self, domains: RangeInclusive<usize>) {
        for number in domains {
            fs::write(self.path(number), expired(&domain(number), number)).expect("writes");
        }
    }

    /// Where a domain's certificate is.
    pub(crate) fn path(&self, number: usize) -> PathBuf {
        self.folder.path().join("certs").join(format!("{}.pem", domain(number)))
    }

    pub(crate) fn spawn(&self) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_acme-renewal"));
        command.args(&self.flags).env("NO_PROXY", "*");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program")
    }

    pub(crate) fn run(&self) -> Ended {
        self.ended(self.spawn())
    }

    pub(crate) fn ended(&self, process: Child) -> Ended {
        let output = process.wait_with_output().expect("an end");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let report = fs::read(self.folder.path().join("report.json")).unwrap_or_default();
        Ended { code: output.status.code(), text, report: serde_json::from_slice(&report).unwrap_or_default() }
    }

    /// Kills the program; returns its log.
    pub(crate) fn kill(&self, mut process: Child) -> String {
        process.kill().expect("SIGKILL");
        let output = process.wait_with_output().expect("the killed process");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Opens a TLS connection with the certificate in a domain's file; returns the error.
    pub(crate) fn connect(&self, pebble: &Pebble, number: usize) -> Result<(), String> {
        let pem = fs::read(self.path(number)).map_err(|error| error.to_string())?;
        let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| error.to_string())?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| error.to_string())?;
        let mut roots = rustls::RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(pebble.root().as_bytes()).map_err(|error| error.to_string())?;
        roots.add(root).map_err(|error| error.to_string())?;
        let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let server = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
        let server = TlsAcceptor::from(Arc::new(server.map_err(|error| error.to_string())?));
        let name = ServerName::try_from(domain(number)).map_err(|error| error.to_string())?;
        let (here, there) = tokio::io::duplex(64 << 10);
        runtime().block_on(async {
            let client = TlsConnector::from(Arc::new(client));
            let (_server, client) = tokio::join!(server.accept(there), client.connect(name, here));
            client.map(drop).map_err(|error| error.to_string())
        })
    }

    /// All certificates and keys of the folder can be read, and each key is that of the certificate beside it.
    pub(crate) fn assert_whole(&self) {
        for entry in fs::read_dir(self.folder.path().join("certs")).expect("the folder") {
            let path = entry.expect("a name").path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                continue;
            }
            let pem = fs::read_to_string(&path).expect("text");
            let (_, first) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("a certificate");
            let key = pem.rfind("-----BEGIN PRIVATE KEY").map(|start| &pem[start..]).expect("a key");
            let key = KeyPair::from_pem(key).expect("a whole key");
            let certificate = first.parse_x509().expect("a whole certificate");
            assert_eq!(certificate.public_key().raw, key.subject_public_key_info(), "{}", path.display());
        }
        let orders = fs::read_dir(self.folder.path().join("acme.db.d/orders"));
        for entry in orders.into_iter().flatten() {
            let path = entry.expect("a name").path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let order: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("whole JSON");
                KeyPair::from_pem(order["key"].as_str().expect("a key")).expect("a whole key");
            }
        }
    }
}

impl Ended {
    /// How many domains are in that state.
    pub(crate) fn count(&self, state: &str) -> usize {
        self.rows().filter(|row| row["state"] == state).count()
    }

    pub(crate) fn row(&self, number: usize) -> &Value {
        let domain = domain(number);
        self.rows().find(|row| row["domain"] == domain).unwrap_or_else(|| panic!("{domain} is not in {}", self.report))
    }

    pub(crate) fn assert(&self, code: i32, status: &str) {
        assert_eq!((self.code, self.report["status"].as_str()), (Some(code), Some(status)), "{}", self.text);
    }

    fn rows(&self) -> impl Iterator<Item = &Value> {
        self.report["domains"].as_array().into_iter().flatten()
    }
}

pub(crate) fn domain(number: usize) -> String {
    format!("d{number:02}.example.org")
}

fn expired(domain: &str, number: usize) -> String {
    let year = 2020 + i32::try_from(number / 12).expect("few");
    certificate(domain, 2019, (year, 1 + (number % 12) as u8))
}

/// A certificate that its own key has signed, valid from the beginning of a year to that of a month, and the key.
pub(crate) fn certificate(domain: &str, from: i32, (year, month): (i32, u8)) -> String {
    let mut params = CertificateParams::new(vec![domain.to_owned()]).expect("a name");
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(year, month, 1);
    let key = KeyPair::generate().expect("a key");
    params.self_signed(&key).expect("a certificate").pem() + &key.serialize_pem()
}
