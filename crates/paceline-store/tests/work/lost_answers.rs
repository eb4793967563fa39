//! The server does what it was asked, and its answer is lost: what is said again counts once.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_store::blocks::{BlockStore, Held, Joined, NewBlock, Offer, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::blocks::Bench;
use crate::cluster;

const LEASE: Duration = Duration::from_secs(30);

/// Connections to a server, of which the answer to the next word of a kind can be lost.
struct Between {
    folder: tempfile::TempDir,
    loses_next: Arc<Mutex<Option<&'static [u8]>>>,
}

/// What Postgres calls its socket, at its usual port.
const SOCKET: &str = ".s.PGSQL.5432";

impl Between {
    fn before(server: &Path) -> Self {
        let (folder, loses_next): (_, Arc<Mutex<_>>) = (tempfile::tempdir().unwrap(), Arc::default());
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let (server, loses) = (server.join(SOCKET), loses_next.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, UnixStream::connect(&server).await.unwrap(), loses.clone()));
            }
        });
        Self { folder, loses_next }
    }

    fn url(&self) -> String {
        format!("postgres://tester@/postgres?host={}&tcp_user_timeout=1", self.folder.path().display())
    }

    fn lose_next(&self, word: &'static [u8]) {
        *self.loses_next.lock().unwrap() = Some(word);
    }

    fn has_lost(&self) -> bool {
        self.loses_next.lock().unwrap().is_none()
    }
}

/// The end of a transaction, and of a statement that is one.
const COMMIT: &[u8] = b"COMMIT";
const STATEMENT: &[u8] = b"E\0\0\0\x09\0\0\0\0\0";

/// Ends once either side does; when the server has answered a word whose answer is to be lost, it falls silent as a lost host
/// does, until the client is gone.
async fn carry(mut client: UnixStream, mut server: UnixStream, loses: Arc<Mutex<Option<&'static [u8]>>>) {
    let (mut asked, mut answered) = ([0; 8_192], [0; 8_192]);
    let mut loses_this = false;
    loop {
        tokio::select! {
            Ok(read @ 1..) = client.read(&mut asked) => {
                let said = |word: &mut &'static [u8]| asked[..read].windows(word.len()).any(|part| part == *word);
                loses_this |= loses.lock().unwrap().take_if(said).is_some();
                server.write_all(&asked[..read]).await.unwrap();
            }
            Ok(read @ 1..) = server.read(&mut answered) => {
                if loses_this {
                    while client.read(&mut asked).await.is_ok_and(|read| read > 0) {}
                    return;
                }
                if client.write_all(&answered[..read]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}

#[tokio::test]
async fn what_is_said_again_counts_once() {
    let url = cluster::shared().url();
    let (_, server) = url.split_once("host=").unwrap();
    let between = Between::before(&PathBuf::from(server));
    let schema = cluster::schema();
    let store = BlockStore::open_in(&between.url(), &schema).await.unwrap();
    between.lose_next(COMMIT);
    let Joined::Job(job) = store.join("requests", &Settings::new()).await.unwrap() else { panic!("a new one") };
    assert!(between.has_lost());
    let line = NewBlock { lines: 1, body: b"line".to_vec() };
    for first in 0..3 {
        between.lose_next(STATEMENT);
        assert_eq!(store.append(job.id, first, vec![line.clone()]).await.unwrap(), Some(first + 1));
    }
    between.lose_next(COMMIT);
    assert!(store.complete(job.id, 3).await.unwrap());
    let worker = store.register(job.id, "a", LEASE).await.unwrap().unwrap();
    between.lose_next(STATEMENT);
    let claim = store.claim(worker, 1).await.unwrap().unwrap();
    assert!(between.has_lost());
    let [block] = &claim.blocks[..] else { panic!("one block") };
    assert_eq!(store.heartbeat(worker).await.unwrap(), Some(vec![block.held]), "no block that it does not know of");
    let offers = vec![Offer { held: block.held, line: 0, ok: true, body: b"done".to_vec() }];
    between.lose_next(STATEMENT);
    store.offer(job.id, offers).await.unwrap();
    assert!(between.has_lost());
    assert_eq!(store.results(job.id, 0, 9).await.unwrap().len(), 1);
    let [status] = &store.jobs().await.unwrap()[..] else { panic!("one job") };
    assert_eq!((status.lines, status.blocks, status.open, status.ok, status.failed), (3, 3, 2, 1, 0));
    store.deregister(worker).await.unwrap();
    between.lose_next(COMMIT);
    assert!(store.forget("requests").await.unwrap(), "it was removed");
    assert!(between.has_lost());
}

#[tokio::test]
async fn a_claim_whose_answer_was_never_heard_is_given_back_and_no_other() {
    let on = Bench::new(3, 1).await;
    let (worker, other) = (on.worker("a").await, on.worker("b").await);
    let held: Vec<Held> = on.claim(worker, 2).await.iter().map(|block| block.held).collect();
    let theirs = on.claim(other, 1).await[0].held;
    let of_before = Held { fence: held[1].fence - 1, ..held[1] };
    on.store.release(worker, &[held[0], of_before, theirs]).await.unwrap();
    assert_eq!(on.store.heartbeat(worker).await.unwrap(), Some(vec![held[1]]));
    assert_eq!(on.store.heartbeat(other).await.unwrap(), Some(vec![theirs]));
    let again = on.claim(other, 9).await.remove(0);
    assert_eq!((again.held.first, again.lost), (0, 0));
}
