//! The way to a server: one that comes late, one that refuses, and whom an encrypted connection trusts.

use std::io::Write;
use std::sync::{Arc, Mutex};

use paceline_store::work::{PostgresStore, WorkError, WorkStore as _};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::cluster::{self, Cluster};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn words(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Hears everything of this thread until the guard is dropped.
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        // Without one for all threads, a line that another thread comes to first would be taken for an unwanted one.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone()).finish();
        tracing::subscriber::set_default(subscriber)
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Time is virtual: the minute passes at once.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_not_there_is_waited_for_and_named_without_its_password() {
    let log = Log::default();
    let listening = log.listen();
    let refused = PostgresStore::open("postgres://me:secret@127.0.0.1:1/jobs").await.expect_err("no server there");
    drop(listening);
    assert!(matches!(refused, WorkError::Unreachable { .. }), "{refused:?}");
    let words = refused.to_string();
    assert!(words.starts_with("cannot reach the store on 127.0.0.1:1/jobs: "), "{words}");
    assert!(words.contains("; waited 60 s for it. Check that the server runs"), "{words}");
    let logged = log.words();
    assert_eq!(
        logged.matches("the server of the store on 127.0.0.1:1/jobs cannot be reached: ").count(),
        1,
        "{logged}"
    );
    assert!(!words.contains("secret") && !logged.contains("secret") && !format!("{refused:?}").contains("secret"));
}

#[tokio::test]
async fn what_is_no_address_is_refused() {
    for address in ["postgres://me@[::bad/jobs", "postgres://me@host/jobs?sslmode=maybe", "host=x port=y"] {
        let refused = PostgresStore::open(address).await;
        assert!(matches!(refused, Err(WorkError::Address { .. })), "{refused:?}");
    }
    let refused = PostgresStore::open_in(&cluster::shared().url(), "bad; DROP TABLE item").await;
    assert!(matches!(refused, Err(WorkError::Address { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_server_that_comes_late_is_waited_for() {
    let mut cluster = Cluster::start();
    cluster.tell("stop");
    let log = Log::default();
    let listening = log.listen();
    let url = cluster.url();
    let mut opening = tokio::spawn(async move { PostgresStore::open(&url).await });
    // On this thread alone, so the first try is over when its failure is logged.
    while !log.words().contains("s for it") {
        assert!(!opening.is_finished(), "{:?}", (&mut opening).await);
        tokio::task::yield_now().await;
    }
    drop(listening);
    cluster.tell("start");
    let store = opening.await.unwrap().unwrap();
    assert_eq!(store.counts().await.unwrap().total(), 0);
}

fn issuer(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server with TLS whose certificate is for `localhost`, the files of its issuer and of another one, and its port.
struct Encrypted {
    cluster: Cluster,
    folder: tempfile::TempDir,
    port: u16,
}

impl Encrypted {
    async fn start() -> Self {
        let folder = crate::support::folder();
        let (ours, other) = (issuer("ours"), issuer("other"));
        std::fs::write(folder.path().join("ours.pem"), ours.pem()).unwrap();
        std::fs::write(folder.path().join("other.pem"), other.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &ours).unwrap().pem();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let variables =
            [("TLS_CERTIFICATE", certificate), ("TLS_KEY", key.serialize_pem()), ("TLS_PORT", port.to_string())];
        let cluster = Cluster::start_with(&variables.each_ref().map(|(name, value)| (*name, value.as_str())));
        let local = format!("{}&port={port}", cluster.url());
        cluster::connect(&local).await.batch_execute("ALTER ROLE tester PASSWORD 'secret'").await.unwrap();
        Self { cluster, folder, port }
    }

    /// Opens a store under a name by which its connection is found again; says whether it is encrypted.
    async fn open(&self, user: &str, host: &str, database: &str, options: &str) -> Result<bool, String> {
        let schema = cluster::schema();
        let options = options.replace("FOLDER", &self.folder.path().display().to_string());
        let port = self.port;
        let url =
            format!("postgres://{user}@{host}:{port}/{database}?hostaddr=127.0.0.1&application_name={schema}{options}");
        let _store = PostgresStore::open_in(&url, &schema).await.map_err(|error| error.to_string())?;
        let watch = cluster::connect(&format!("{}&port={port}", self.cluster.url())).await;
        let sql = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = $1";
        Ok(watch.query_one(sql, &[&schema]).await.unwrap().get(0))
    }
}

#[tokio::test]
async fn sslmode_means_what_it_means_elsewhere() {
    let server = Encrypted::start().await;
    for (host, options, expected) in [
        ("localhost", "", Ok(true)),
        ("localhost", "&sslmode=disable", Ok(false)),
        ("localhost", "&sslmode=prefer", Ok(true)),
        ("127.0.0.1", "&sslmode=require", Ok(true)),
        ("127.0.0.1", "&sslmode=require&sslrootcert=FOLDER/ours.pem", Ok(true)),
        ("localhost", "&sslmode=require&sslrootcert=FOLDER/other.pem", Err("UnknownIssuer")),
        ("127.0.0.1", "&sslmode=verify-ca&sslrootcert=FOLDER/ours.pem", Ok(true)),
        ("127.0.0.1", "&sslmode=verify-ca&sslrootcert=FOLDER/other.pem", Err("UnknownIssuer")),
        ("localhost", "&sslmode=verify-full&sslrootcert=FOLDER/ours.pem", Ok(true)),
        ("127.0.0.1", "&sslmode=verify-full&sslrootcert=FOLDER/ours.pem", Err("not valid for name")),
        ("localhost", "&sslmode=verify-full&sslrootcert=FOLDER/other.pem", Err("UnknownIssuer")),
        ("localhost", "&sslmode=verify-full&sslrootcert=system", Err("UnknownIssuer")),
        ("localhost", "&sslmode=verify-full", Err("UnknownIssuer")),
        ("localhost", "&sslmode=verify-full&sslrootcert=FOLDER/none.pem", Err("none.pem cannot be read: ")),
    ] {
        match (server.open("tester:secret", host, "postgres", options).await, expected) {
            (Err(words), Err(part)) => assert!(words.contains(part) && !words.contains("secret"), "{options}: {words}"),
            (got, expected) => assert_eq!(got, expected.map_err(str::to_owned), "{host}{options}"),
        }
    }
}

/// Trying again would not help, so the caller does not wait.
#[tokio::test]
async fn who_is_refused_is_told_at_once_and_what_to_do() {
    let server = Encrypted::start().await;
    for (user, database, expected) in [
        ("tester:wrong", "postgres", "; check the user and password in the address"),
        ("nobody:wrong", "postgres", "; check the user and password in the address"),
        ("tester", "postgres", "password missing"),
        ("tester:secret", "nowhere", "; make that database, or name another one in the address"),
    ] {
        let words = server.open(user, "localhost", database, "").await.expect_err("it must be refused");
        assert!(words.contains(expected) && !words.contains("wrong") && !words.contains("secret"), "{words}");
    }
}
