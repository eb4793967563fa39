//! Private Postgres servers in folders of their own, which end with the test that started them, however that ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use paceline_store::work::PostgresStore;
use tokio_postgres::{Client, NoTls};

use crate::support::{Bench, START, Turned};

/// Makes a cluster and serves it on a socket in its folder until its standard input closes; `stop` and `start` lines stop it
/// as a crash would, and start it again. Everything goes with it.
const KEEPER: &str = r#"
    set -e
    dir=$(mktemp -d "$1/paceline-postgres.XXXXXX")
    trap 'pg_ctl -D "$dir/data" -m immediate stop > /dev/null 2>&1 || true; rm -rf "$dir"' EXIT
    trap 'exit 1' HUP INT TERM
    initdb -D "$dir/data" -A trust -U tester --no-sync > "$dir/initdb.log" 2>&1
    start() {
        pg_ctl -D "$dir/data" -w -l "$dir/log" \
            -o "-k $dir -c listen_addresses= -c fsync=off -c max_connections=100" start > /dev/null
    }
    start
    echo "$dir"
    while read -r word; do
        case $word in
            stop) pg_ctl -D "$dir/data" -m immediate stop > /dev/null ;;
            start) start ;;
        esac
        echo done
    done
"#;

/// A server.
pub(crate) struct Cluster {
    keeper: Child,
    answers: BufReader<std::process::ChildStdout>,
    folder: PathBuf,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let shared = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        // A server refuses to run as root.
        let as_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
        let mut command = if as_root {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        let mut keeper = command
            .args(["-c", KEEPER, "keeper", shared])
            .env("PATH", format!("{}:{}", programs(), std::env::var("PATH").unwrap()))
            .current_dir(shared)
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

/// Where Debian puts a server's programs: not on the path.
fn programs() -> String {
    let mut versions: Vec<PathBuf> =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    versions.sort();
    versions.pop().map_or_else(String::new, |newest| newest.join("bin").display().to_string())
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
    pub(crate) async fn turn(&self, by: Duration) {
        let sql = format!("UPDATE {}.turned SET ms = ms + $1", self.schema);
        self.client.execute(&sql, &[&(by.as_millis() as i64)]).await.unwrap();
    }
}

pub(crate) async fn bench() -> Bench {
    let (url, schema) = (shared().url(), schema());
    let store = PostgresStore::open_in(&url, &schema).await.unwrap();
    let client = connect(&url).await;
    let turned = format!(
        "CREATE TABLE {schema}.turned AS SELECT {}::bigint AS ms;
         CREATE OR REPLACE FUNCTION {schema}.now_ms() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT ms FROM {schema}.turned'",
        START.as_millis()
    );
    client.batch_execute(&turned).await.unwrap();
    Bench::of(Arc::new(store), Turned::default()).with_remote_clock(RemoteClock { client, schema })
}
