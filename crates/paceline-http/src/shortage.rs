//! A shortage of file descriptors or ports: it passes when other calls end, and is no failure of a call.

use std::error::Error;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use paceline::{Clock, Repeats};

use crate::no_answer::{causes, root_cause};

/// A descriptor is free again when another call ends; a port is taken for a minute after its connection.
const SHORTEST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(90);

/// Between two lines about it: what helps is not done in a moment.
const TOLD_EACH: Duration = Duration::from_mins(1);

/// Waits until this machine has room for a call. The log says so at most once a minute.
#[derive(Debug)]
pub struct Shortage {
    clock: Clock,
    repeats: Mutex<Repeats>,
}

impl Default for Shortage {
    fn default() -> Self {
        Self { clock: Clock::default(), repeats: Mutex::new(Repeats::each(TOLD_EACH)) }
    }
}

impl Shortage {
    /// Retries locally until the machine has a descriptor and a port for the call, or has had none for 90 s. Nothing is sent
    /// until then, so the failures concern neither the item nor the server.
    ///
    /// # Errors
    /// How the call failed otherwise, or at last.
    pub async fn sit_out<T, E, Sent>(&self, send: impl Fn() -> Sent) -> Result<T, E>
    where
        E: Error + 'static,
        Sent: Future<Output = Result<T, E>>,
    {
        let (mut wait, mut waited) = (SHORTEST_WAIT, Duration::ZERO);
        loop {
            match send().await {
                Err(error) if waited < LONGEST_WAIT && Self::is_why(&error) => self.warn(&error),
                sent => return sent,
            }
            tokio::time::sleep(wait).await;
            waited += wait;
            wait = (2 * wait).min(Duration::from_secs(1));
        }
    }

    /// Whether a call was not sent, or a file not opened, because this machine had no file descriptor or port for it: that is the
    /// error, or among its causes.
    pub fn is_why(error: &(dyn Error + 'static)) -> bool {
        std::iter::once(error).chain(causes(error)).filter_map(<dyn Error>::downcast_ref).any(is_used_up)
    }

    fn warn(&self, error: &(dyn Error + 'static)) {
        let came = self.repeats.lock().unwrap_or_else(PoisonError::into_inner).came(self.clock.now());
        if let Some(times) = came {
            tracing::warn!(
                times = (times > 1).then_some(times),
                "this machine has no free files or ports ({}): calls wait until others end, without using up retries; raise \
                 `ulimit -n` or lower --concurrency",
                root_cause(error),
            );
        }
    }
}

/// Whether the system had no file descriptor or no port left.
#[cfg(unix)]
fn is_used_up(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let known = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL];
    known.iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
}

/// Likewise.
#[cfg(not(unix))]
fn is_used_up(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn a_shortage_is_of_this_machine_and_a_refusal_is_the_servers() {
        use rustix::io::Errno;
        #[derive(Debug)]
        struct Call(io::Error);
        impl std::fmt::Display for Call {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("no call")
            }
        }
        impl Error for Call {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        for (errno, is_shortage) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::ADDRNOTAVAIL, true),
            (Errno::CONNREFUSED, false),
            (Errno::ACCESS, false),
        ] {
            let call = Call(io::Error::from_raw_os_error(errno.raw_os_error()));
            assert_eq!((Shortage::is_why(&call), Shortage::is_why(&call.0)), (is_shortage, is_shortage), "{errno:?}");
        }
    }

    /// The only test of this program that opens files, for the limit is that of the process.
    #[tokio::test]
    async fn a_call_that_finds_no_descriptor_goes_when_there_is_one() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            let read = stream.read(&mut [0; 1_024]).await.unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            read
        });
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let (before, tries, shortage) = (getrlimit(Resource::Nofile), AtomicU32::new(0), Shortage::default());
        let limited = |current| setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
        let send = || {
            limited(if tries.fetch_add(1, Ordering::Relaxed) < 2 { Some(3) } else { before.current });
            client.get(&address).send()
        };
        let answer = shortage.sit_out(send).await.unwrap();
        assert_eq!((answer.status().as_u16(), tries.into_inner()), (204, 3));
        assert!(server.await.unwrap() > 0 && shortage.repeats.into_inner().unwrap().is_known());
    }
}
