//! Private Postgres servers in folders of their own, which end with the test that started them, however that ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use paceline_store::work::PostgresStore;
use tokio_postgres::{Client, NoTls};

use crate::support::{Bench, START, Turned};

/// Serves a cluster until its standard input closes.
const KEEPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/private-postgres");

/// A server.
pub(crate) struct Cluster {
    keeper: Child,
    answers: BufReader<std::process::ChildStdout>,
    folder: PathBuf,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these variables for `scripts/private-postgres`.
    pub(crate) fn start_with(variables: &[(&str, &str)]) -> Self {
        let mut keeper = Command::new(KEEPER)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answers = BufReader::new(keeper.stdout.take().unwrap());
        let mut folder = String::new();
        answers.read_line(&mut folder).unwrap();
        assert!(!folder.is_empty(), "Postgres did not start; is the package postgresql installed?");
        Self { keeper, answers, folder: folder.trim_end().into() }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://tester@/postgres?host={}", self.folder.display())
    }

    /// `stop` or `start`.
    pub(crate) fn tell(&mut self, word: &str) {
        writeln!(self.keeper.stdin.as_ref().unwrap(), "{word}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().unwrap();
    }
}

/// The server that all tests share which leave it running, each in a schema of its own.
pub(crate) fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(Cluster::start)
}

/// A name that no other test has.
pub(crate) fn schema() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The database's clock, as a test turns it.
pub(crate) struct RemoteClock {
    client: Client,
    schema: String,
}

impl RemoteClock {
    pub(crate) async fn turn(&self, by_ms: i64) {
        let sql = format!("UPDATE {}.turned SET ms = ms + $1", self.schema);
        self.client.execute(&sql, &[&by_ms]).await.unwrap();
    }
}

pub(crate) async fn bench() -> Bench {
    let (url, schema) = (shared().url(), schema());
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    let client = connect(&url).await;
    let turned = format!(
        "CREATE TABLE {schema}.turned AS SELECT {}::bigint AS ms;
         CREATE OR REPLACE FUNCTION {schema}.now_ms() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT ms FROM {schema}.turned';
         UPDATE {schema}.clock SET last_ms = 0",
        START.as_millis()
    );
    client.batch_execute(&turned).await.unwrap();
    Bench::of(Arc::new(store), Turned::default()).with_remote_clock(RemoteClock { client, schema })
}
