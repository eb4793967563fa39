//! Requests from outside to end a run: Ctrl-C, SIGTERM, and a terminal that is closed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tokio::sync::watch;

use crate::stops::stop::StopReason;

/// The number of Ctrl-C's signal.
const INTERRUPT: u8 = 2;

/// Requests to end a run, of which the second asks to end it at once.
pub(crate) enum Interruptions {
    /// The signals of the process.
    Signals(Signals),
    /// Those of the program that the run is a part of.
    Asked {
        asked: SignalCount,
        /// How many were heard.
        heard: u32,
    },
}

impl Interruptions {
    /// Those that the program sends by that channel, as their number so far.
    pub(crate) fn asked(times: watch::Receiver<u32>) -> Self {
        Self::Asked { asked: SignalCount { times, last: Arc::default() }, heard: 0 }
    }

    /// Why a run ends by one.
    pub(crate) const fn reason(&self) -> StopReason {
        match self {
            Self::Signals(_) => StopReason::Interrupted,
            Self::Asked { .. } => StopReason::Asked,
        }
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        match self {
            Self::Signals(signals) => drop(signals.next().await),
            Self::Asked { asked, heard } => {
                asked.reaches(*heard + 1).await;
                *heard += 1;
            }
        }
    }
}

/// Interruptions, one after the other.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    /// None where the process is to outlive its terminal.
    #[cfg(unix)]
    hang_up: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    /// From now on these signals do not end the process, but are delivered here.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(crate) fn new() -> io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let hang_up = if may_listen_for_hang_up() { Some(signal(SignalKind::hangup())?) } else { None };
            Ok(Self { hang_up, ..Self::without_hang_up()? })
        }
        #[cfg(not(unix))]
        Self::without_hang_up()
    }

    /// The same for a service, to which a hang-up says something else.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(crate) fn without_hang_up() -> io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            Ok(Self { interrupt, terminate, hang_up: None })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// The next interruption: the number of its signal.
    pub(crate) async fn next(&mut self) -> u8 {
        #[cfg(unix)]
        tokio::select! {
            _ = self.interrupt.recv() => INTERRUPT,
            _ = self.terminate.recv() => 15,
            Some(()) = async { self.hang_up.as_mut()?.recv().await } => 1,
        }
        #[cfg(not(unix))]
        {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            INTERRUPT
        }
    }
}

/// How many signals asked the process to end.
#[derive(Clone, Debug)]
pub(crate) struct SignalCount {
    times: watch::Receiver<u32>,
    /// The number of the last one.
    last: Arc<AtomicU8>,
}

impl SignalCount {
    /// Listens from now on.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self::of(Signals::new()?))
    }

    /// Counts these.
    pub(crate) fn of(mut signals: Signals) -> Self {
        let (sender, times) = watch::channel(0);
        let last = Arc::<AtomicU8>::default();
        let count = Self { times, last: Arc::clone(&last) };
        tokio::spawn(async move {
            while !sender.is_closed() {
                last.store(signals.next().await, Ordering::Relaxed);
                sender.send_modify(|times| *times += 1);
            }
        });
        count
    }

    /// Whether there was one.
    pub(crate) fn any(&self) -> bool {
        *self.times.borrow() > 0
    }

    /// The number of the last signal.
    pub(crate) fn last(&self) -> u8 {
        self.last.load(Ordering::Relaxed)
    }

    /// Waits for the first.
    pub(crate) async fn first(&self) {
        self.reaches(1).await;
    }

    /// Waits for the second.
    pub(crate) async fn second(&self) {
        self.reaches(2).await;
    }

    async fn reaches(&self, times: u32) {
        if self.times.clone().wait_for(|signals| *signals >= times).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Not where it is ignored, because the user typed `nohup`. Where that cannot be looked up, a hang-up ends the process as
/// it always did.
#[cfg(unix)]
fn may_listen_for_hang_up() -> bool {
    const HANG_UP: u64 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & HANG_UP == 0)
}

/// A process that may write no larger file (`ulimit -f`) gets an error from the write, as on a full disk, and is not
/// killed. To be called within the runtime.
///
/// # Errors
/// An error of the operating system.
#[cfg(unix)]
pub(crate) fn outlive_full_files() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    // The handler stays installed when this listener is dropped.
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop)
}

/// A flag that the next interruption sets, for work that cannot wait for one.
///
/// # Errors
/// An error of the operating system.
pub(crate) fn interrupt_flag() -> io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let (mut signals, flag) = (Signals::new()?, Arc::clone(&interrupted));
    tokio::spawn(async move {
        signals.next().await;
        flag.store(true, Ordering::Relaxed);
    });
    Ok(interrupted)
}
