//! Workers in processes of their own, which may be killed and frozen, and what they say.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_store::work::{
    Scheduler, SchedulerConfig, SchedulerEvent, SqliteStore, Summary, WorkClock, WorkError, WorkStore,
};

/// Where a worker process finds its store.
const STORE: &str = "PACELINE_TEST_STORE";

/// For how many milliseconds it works on each item.
const TAKES: &str = "PACELINE_TEST_TAKES_MS";

/// How many workers share its store.
const WORKERS: &str = "PACELINE_TEST_WORKERS";

/// What worker processes say: what they worked on to the end, and what they recorded.
#[derive(Clone, Default)]
pub(crate) struct Said(Arc<Mutex<BTreeMap<(&'static str, String), usize>>>);

impl Said {
    pub(crate) fn hear(&self, line: &str) -> bool {
        for word in ["begun", "done", "recorded", "lost", "failed"] {
            if let Some(key) = line.strip_prefix(word).and_then(|rest| rest.strip_prefix(' ')) {
                *self.0.lock().unwrap().entry((word, key.to_owned())).or_default() += 1;
                return true;
            }
        }
        false
    }

    /// Of what that was said.
    pub(crate) fn all(&self, word: &str) -> Vec<String> {
        self.0.lock().unwrap().keys().filter(|(said, _)| *said == word).map(|(_, rest)| rest.clone()).collect()
    }

    /// How many items that was said of, and how often at most of one.
    pub(crate) fn of(&self, word: &str) -> (usize, usize) {
        let said = self.0.lock().unwrap();
        let counts: Vec<usize> = said.iter().filter(|((said, _), _)| *said == word).map(|(_, count)| *count).collect();
        (counts.len(), counts.into_iter().max().unwrap_or(0))
    }
}

pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// This very program, as one test of which it is a process of so many workers that work on each item for so long.
    pub(crate) fn start(store: &str, workers: usize, takes: Duration) -> Self {
        Self::start_as(Command::new(std::env::current_exe().unwrap()), store, workers, takes)
    }

    /// The same, but no file may be longer than that.
    pub(crate) fn start_with_files_of(kib: u64, store: &str) -> Self {
        let mut command = Command::new("bash");
        let limited = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"");
        command.args(["-c", &limited]).arg(std::env::current_exe().unwrap());
        Self::start_as(command, store, 1, Duration::from_millis(1))
    }

    fn start_as(mut program: Command, store: &str, workers: usize, takes: Duration) -> Self {
        let mut child = program
            .args(["--exact", "workers::as_a_process_of_workers", "--nocapture"])
            .env(STORE, store)
            .env(TAKES, takes.as_millis().to_string())
            .env(WORKERS, workers.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Listens to so many words; false when it has ended before.
    pub(crate) fn listen(&mut self, said: &Said, mut words: u64) -> bool {
        while words > 0 {
            let Some(Ok(line)) = self.lines.next() else { return false };
            words -= u64::from(said.hear(&line));
        }
        true
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Kills it, and hears what it said before.
    pub(crate) fn kill(mut self, said: &Said) {
        self.child.kill().unwrap();
        self.end(said);
    }

    pub(crate) fn end(&mut self, said: &Said) {
        self.listen(said, u64::MAX);
        self.child.wait().unwrap();
    }
}

/// The other side of [`Process::start`]; as a test of its own it does nothing.
#[test]
fn as_a_process_of_workers() {
    let Ok(store) = std::env::var(STORE) else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(&store).await;
        let takes = Duration::from_millis(number(TAKES));
        let workers = (0..number(WORKERS)).map(|_| tokio::spawn(work(store.clone(), takes, |line| println!("{line}"))));
        for worker in workers.collect::<Vec<_>>() {
            if let Err(error) = worker.await.unwrap() {
                println!("failed {error}");
            }
        }
    });
}

/// A store by the path of its file, or by `address#schema`.
pub(crate) async fn open(store: &str) -> Arc<dyn WorkStore> {
    #[cfg(feature = "postgres-tests")]
    if let Some((url, schema)) = store.rsplit_once('#') {
        return Arc::new(paceline_store::work::PostgresStore::open_in(url, schema).await.unwrap());
    }
    Arc::new(SqliteStore::open(store, WorkClock::system()).unwrap())
}

/// Works until everything has ended, and says what it does. Work is done in steps of a millisecond, so that much of it is
/// still to be done after a worker was frozen in the middle; some items take up to four times as long as others.
pub(crate) async fn work(
    store: Arc<dyn WorkStore>,
    takes: Duration,
    say: impl Fn(String) + Clone + Send + Sync + 'static,
) -> Result<Summary, WorkError> {
    let config = SchedulerConfig { concurrency: 8, lease: Duration::from_secs(1), ..SchedulerConfig::default() };
    let tell = say.clone();
    let observer = Arc::new(move |note: &SchedulerEvent<'_>| match note {
        SchedulerEvent::Succeeded(item) => tell(format!("recorded {}", item.key)),
        SchedulerEvent::Lost(item) => tell(format!("lost {}", item.key)),
        _ => {}
    });
    let scheduler = Scheduler::new(store, config, WorkClock::system()).unwrap().with_observer(observer);
    let summary = scheduler.run(|task| {
        let say = say.clone();
        async move {
            say(format!("begun {}", task.key()));
            for _ in 0..takes.as_millis() as u64 * (1 + task.item().id % 4) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            say(format!("done {}", task.key()));
            Ok(())
        }
    });
    summary.await
}
