//! A server that is there and of no use for a time: silent, read-only, or shut to its users.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_store::blocks::BlockStore;
use paceline_store::work::{PostgresStore, WorkClock, WorkError, WorkStore as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::cluster::{self, Cluster};
use crate::support::item;

/// What Postgres calls its socket, at its usual port.
const SOCKET: &str = ".s.PGSQL.5432";

/// Stands before a server. Once it is told so, nothing passes any more in connections that there are; or in new ones either.
struct Between {
    folder: tempfile::TempDir,
    cuts: Arc<AtomicBool>,
    is_deaf: Arc<AtomicBool>,
}

impl Between {
    fn before(url: &str) -> Self {
        let server = PathBuf::from(url.split_once("host=").unwrap().1).join(SOCKET);
        let (folder, cuts, is_deaf) = (tempfile::tempdir().unwrap(), Arc::<AtomicBool>::default(), Arc::default());
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let between = Self { folder, cuts: cuts.clone(), is_deaf: Arc::clone(&is_deaf) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server).await.unwrap();
                tokio::spawn(carry(client, server, cuts.clone(), is_deaf.clone()));
            }
        });
        between
    }

    fn url(&self, options: &str) -> String {
        format!("postgres://tester@/postgres?host={}{options}", self.folder.path().display())
    }
}

async fn carry(mut client: UnixStream, mut server: UnixStream, cuts: Arc<AtomicBool>, is_deaf: Arc<AtomicBool>) {
    let (mut asked, mut answered) = ([0; 8_192], [0; 8_192]);
    loop {
        tokio::select! {
            Ok(read @ 1..) = client.read(&mut asked) => {
                if is_deaf.load(Ordering::SeqCst) || cuts.swap(false, Ordering::SeqCst) {
                    break;
                }
                server.write_all(&asked[..read]).await.unwrap();
            }
            Ok(read @ 1..) = server.read(&mut answered) => client.write_all(&answered[..read]).await.unwrap(),
            else => return,
        }
    }
    while client.read(&mut asked).await.is_ok_and(|read| read > 0) {}
}

/// No longer than the test would take that waits for a system's own bound.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(45), work).await.expect("it goes on by itself")
}

#[tokio::test]
async fn a_connection_that_goes_silent_is_made_anew() {
    let between = Between::before(&cluster::shared().url());
    let store = PostgresStore::open_in(&between.url("&tcp_user_timeout=2"), &cluster::schema()).await.unwrap();
    between.cuts.store(true, Ordering::SeqCst);
    assert_eq!(soon(store.insert(vec![item("a")])).await.unwrap().len(), 1);
    assert_eq!(soon(store.counts()).await.unwrap().total(), 1);
}

#[tokio::test]
async fn a_server_that_says_nothing_at_the_start_is_given_up() {
    let between = Between::before(&cluster::shared().url());
    between.is_deaf.store(true, Ordering::SeqCst);
    let refused = soon(PostgresStore::open(&between.url("&connect_timeout=2"))).await.unwrap_err();
    assert!(matches!(refused, WorkError::Silent { .. }) && refused.is_unreachable(), "{refused:?}");
    assert!(refused.to_string().contains("it has not answered for 2 s"), "{refused}");
}

#[tokio::test]
async fn who_looks_needs_no_more_than_to_read_and_makes_nothing() {
    let cluster = Cluster::start();
    let watch = cluster::connect(&cluster.url()).await;
    let missing = PostgresStore::open_to_look(&cluster.url()).await.unwrap_err();
    assert!(matches!(missing, WorkError::NoStore { .. }) && !missing.is_unreachable(), "{missing:?}");
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'paceline'";
    assert_eq!(watch.query_one(schemas, &[]).await.unwrap().get::<_, i64>(0), 0);
    PostgresStore::open(&cluster.url()).await.unwrap().insert(vec![item("a")]).await.unwrap();
    watch.batch_execute("INSERT INTO paceline.scope VALUES ('held', 1, 'over', 0)").await.unwrap();
    watch.batch_execute("ALTER DATABASE postgres SET default_transaction_read_only = on").await.unwrap();
    let store = PostgresStore::open_to_look(&cluster.url()).await.unwrap();
    assert_eq!(soon(store.counts()).await.unwrap().total(), 1);
    assert_eq!(soon(store.list(Default::default(), 0, 9)).await.unwrap().len(), 1);
    assert_eq!(soon(store.scopes()).await.unwrap(), [], "its hold is over");
}

/// As one is that is about to take over, or whose disk is full.
#[tokio::test]
async fn a_server_that_is_read_only_for_a_time_is_waited_for_at_the_start_too() {
    let cluster = Cluster::start();
    let watch = cluster::connect(&cluster.url()).await;
    let read_only = async |word: &str| {
        let sql = format!(
            "ALTER DATABASE postgres SET default_transaction_read_only = {word};
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'tester'"
        );
        watch.batch_execute(&format!("SET default_transaction_read_only = off; {sql}")).await.unwrap();
    };
    read_only("on").await;
    let refused = soon(PostgresStore::open(&format!("{}&connect_timeout=2", cluster.url()))).await.unwrap_err();
    assert!(refused.is_unreachable() && refused.to_string().contains("read-only"), "{refused:?}");
    let url = cluster.url();
    let opening = tokio::spawn(async move { PostgresStore::open(&url).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!opening.is_finished());
    read_only("off").await;
    let store = Arc::new(soon(opening).await.unwrap().unwrap());
    read_only("on").await;
    let adding = {
        let store = store.clone();
        tokio::spawn(async move { store.insert(vec![item("a")]).await })
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!adding.is_finished());
    read_only("off").await;
    assert_eq!(soon(adding).await.unwrap().unwrap().len(), 1);
}

/// An administrator shuts the database to its users, and opens it again.
#[tokio::test]
async fn a_role_that_may_not_log_in_for_a_time_is_waited_for() {
    let cluster = Cluster::start();
    let watch = cluster::connect(&cluster.url()).await;
    watch.batch_execute("CREATE ROLE worker LOGIN SUPERUSER").await.unwrap();
    let url = cluster.url().replace("tester@", "worker@");
    let shut =
        "ALTER ROLE worker NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'";
    let store = Arc::new(PostgresStore::open(&url).await.unwrap());
    let unknown = soon(PostgresStore::open(&url.replace("worker@", "nosuch@"))).await.unwrap_err().to_string();
    assert!(unknown.contains("\"nosuch\" does not exist; check the user"), "it never comes: {unknown}");
    watch.batch_execute(shut).await.unwrap();
    let adding = {
        let store = store.clone();
        tokio::spawn(async move { store.insert(vec![item("a")]).await })
    };
    let opening = tokio::spawn(async move { PostgresStore::open(&url).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!adding.is_finished() && !opening.is_finished());
    watch.batch_execute("ALTER ROLE worker LOGIN").await.unwrap();
    assert_eq!(soon(adding).await.unwrap().unwrap().len(), 1);
    assert_eq!(soon(opening).await.unwrap().unwrap().counts().await.unwrap().total(), 1);
}

/// A database that is renamed, say: whatever asks one after the other, the minute is one.
#[tokio::test]
async fn an_outage_is_waited_for_once_by_however_many_operations() {
    let cluster = Cluster::start();
    let watch = cluster::connect(&cluster.url()).await;
    watch.batch_execute("CREATE ROLE worker LOGIN SUPERUSER").await.unwrap();
    let url = cluster.url().replace("tester@", "worker@");
    let store = BlockStore::open_for(&url, Duration::from_secs(2)).await.unwrap();
    let shut =
        "ALTER ROLE worker NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'";
    watch.batch_execute(shut).await.unwrap();
    let clock = WorkClock::system();
    let began = clock.now();
    for _ in 0..5 {
        assert!(soon(store.jobs()).await.is_err());
    }
    let took = clock.now().saturating_since(began);
    assert!(took < Duration::from_secs(6), "five times two seconds: {took:?}");
    watch.batch_execute("ALTER ROLE worker LOGIN").await.unwrap();
    assert_eq!(soon(store.jobs()).await.unwrap().len(), 0);
}

/// A server that is slow, and no silent one: what it was asked is taken back before it is asked anew.
#[tokio::test]
async fn a_statement_that_is_given_up_is_not_worked_on() {
    let (url, schema) = (cluster::shared().url(), cluster::schema());
    let named = format!("{url}&application_name={schema}&tcp_user_timeout=1");
    let store = PostgresStore::open_in(&named, &schema).await.unwrap();
    let (holder, watch) = (cluster::connect(&url).await, cluster::connect(&url).await);
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.item")).await.unwrap();
    let adding = tokio::spawn(async move { store.insert(vec![item("a")]).await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
    assert_eq!(watch.query_one(waiting, &[&schema]).await.unwrap().get::<_, i64>(0), 1, "the last try alone");
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(soon(adding).await.unwrap().unwrap().len(), 1);
}
