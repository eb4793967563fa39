//! Workers in processes of their own, killed and frozen at random instants: every item is recorded once, whatever was
//! worked on twice.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_core::Rng;
use paceline_store::work::{Clock, Note, Policy, Scheduler, SqliteStore, State, Status, Summary, WorkStore};

use crate::support::{folder, item};

/// Where a worker process finds its store.
const STORE: &str = "PACELINE_TEST_STORE";

/// For how many milliseconds it works on each item.
const TAKES: &str = "PACELINE_TEST_TAKES_MS";

/// How often a worker is killed.
const KILLS: usize = 100;

/// What a worker process says: what it worked on to the end, and what it recorded.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<BTreeMap<(&'static str, String), usize>>>);

impl Said {
    fn hear(&self, line: &str) -> bool {
        for word in ["begun", "done", "recorded", "lost"] {
            if let Some(key) = line.strip_prefix(word).and_then(|rest| rest.strip_prefix(' ')) {
                *self.0.lock().unwrap().entry((word, key.to_owned())).or_default() += 1;
                return true;
            }
        }
        false
    }

    /// How many items that was said of, and how often at most of one.
    fn of(&self, word: &str) -> (usize, usize) {
        let said = self.0.lock().unwrap();
        let counts: Vec<usize> = said.iter().filter(|((said, _), _)| *said == word).map(|(_, count)| *count).collect();
        (counts.len(), counts.into_iter().max().unwrap_or(0))
    }
}

struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// This very program, as one test of which it is a worker process.
    fn start(store: &str) -> Self {
        Self::that_takes(store, Duration::from_millis(1))
    }

    /// One that works on each item for that long.
    fn that_takes(store: &str, takes: Duration) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::as_a_worker_process", "--nocapture"])
            .env(STORE, store)
            .env(TAKES, takes.as_millis().to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Listens to so many words; false when it has ended before.
    fn listen(&mut self, said: &Said, mut words: u64) -> bool {
        while words > 0 {
            let Some(Ok(line)) = self.lines.next() else { return false };
            words -= u64::from(said.hear(&line));
        }
        true
    }

    #[cfg(feature = "postgres-tests")]
    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Kills it, and hears what it said before.
    fn kill(mut self, said: &Said) {
        self.child.kill().unwrap();
        self.end(said);
    }

    fn end(&mut self, said: &Said) {
        self.listen(said, u64::MAX);
        self.child.wait().unwrap();
    }
}

/// The other side of [`Worker::start`]; as a test of its own it does nothing.
#[test]
fn as_a_worker_process() {
    if let Ok(store) = std::env::var(STORE) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let takes = Duration::from_millis(std::env::var(TAKES).unwrap().parse().unwrap());
        runtime.block_on(async { work(open(&store).await, takes, |line| println!("{line}")).await });
    }
}

async fn open(store: &str) -> Arc<dyn WorkStore> {
    #[cfg(feature = "postgres-tests")]
    if let Some((url, schema)) = store.rsplit_once('#') {
        return Arc::new(paceline_store::work::PostgresStore::open_in(url, schema).await.unwrap());
    }
    Arc::new(SqliteStore::open(store, Clock::system()).unwrap())
}

/// Works until everything has ended, and says what it does.
async fn work(
    store: Arc<dyn WorkStore>,
    takes: Duration,
    say: impl Fn(String) + Clone + Send + Sync + 'static,
) -> Summary {
    let policy = Policy { concurrency: 8, lease: Duration::from_secs(1), ..Policy::default() };
    let tell = say.clone();
    let observer = Arc::new(move |note: &Note<'_>| match note {
        Note::Succeeded(item) => tell(format!("recorded {}", item.key)),
        Note::Lost(item) => tell(format!("lost {}", item.key)),
        _ => {}
    });
    let scheduler = Scheduler::new(store, policy, Clock::system()).unwrap().with_observer(observer);
    let summary = scheduler.run(|task| {
        let say = say.clone();
        async move {
            say(format!("begun {}", task.key()));
            tokio::time::sleep(takes).await;
            say(format!("done {}", task.key()));
            Ok(())
        }
    });
    summary.await.unwrap()
}

async fn fill(store: &str, items: usize) {
    open(store).await.insert((0..items).map(|n| item(&format!("item-{n}"))).collect()).await.unwrap();
}

/// Ends what is left, and looks at the whole.
async fn check(store: &str, said: &Said, items: usize) {
    let store = open(store).await;
    let heard = said.clone();
    let summary = work(store.clone(), Duration::from_millis(1), move |line| assert!(heard.hear(&line))).await;
    assert_eq!(summary.status(), Status::Success);
    assert_eq!(store.counts().await.unwrap().of(State::Succeeded), items as u64);
}

/// What must hold of everything that was said, and that the test was one.
fn assert_once(said: &Said, items: usize) {
    assert_eq!(said.of("done").0, items, "every item was worked on");
    assert!(said.of("recorded").1 <= 1, "an item was recorded twice");
    // The control: some items were worked on twice, so without the guard there would be doubles.
    assert!(said.of("done").1 > 1, "nothing was worked on twice");
}

#[tokio::test]
async fn killed_workers_lose_and_double_nothing() {
    let (folder, said, items) = (folder(), Said::default(), 3_000);
    let store = folder.path().join("work.db").display().to_string();
    fill(&store, items).await;
    let mut rng = Rng::new(8);
    for _ in 0..KILLS {
        let mut worker = Worker::start(&store);
        assert!(worker.listen(&said, 1 + rng.next_u64() % 40), "the worker ended before it was killed");
        worker.kill(&said);
    }
    check(&store, &said, items).await;
    assert_once(&said, items);
}

#[cfg(feature = "postgres-tests")]
mod postgres {
    use super::*;
    use crate::cluster;

    fn store() -> String {
        format!("{}#{}", cluster::shared().url(), cluster::schema())
    }

    #[tokio::test]
    async fn killed_workers_lose_and_double_nothing() {
        let (store, said, items) = (store(), Said::default(), 3_000);
        fill(&store, items).await;
        let mut rng = Rng::new(8);
        let mut workers: Vec<Worker> = (0..3).map(|_| Worker::start(&store)).collect();
        for _ in 0..KILLS {
            let mut worker = workers.swap_remove((rng.next_u64() % 3) as usize);
            worker.listen(&said, 1 + rng.next_u64() % 40);
            worker.kill(&said);
            workers.push(Worker::start(&store));
        }
        workers.iter_mut().for_each(|worker| worker.end(&said));
        check(&store, &said, items).await;
        assert_once(&said, items);
    }

    /// A worker that is frozen until others have done its work, and then goes on as if nothing had been.
    #[tokio::test]
    async fn a_frozen_worker_records_nothing_that_others_have() {
        let (store, said, items) = (store(), Said::default(), 400);
        fill(&store, items).await;
        // Long enough for it to be frozen in the middle.
        let mut frozen = Worker::that_takes(&store, Duration::from_millis(500));
        assert!(frozen.listen(&said, 1));
        frozen.signal("-STOP");
        check(&store, &said, items).await;
        frozen.signal("-CONT");
        frozen.end(&said);
        assert_once(&said, items);
        assert_eq!(said.of("lost").1, 1, "the frozen worker was told, once for each item that it had");
    }
}
