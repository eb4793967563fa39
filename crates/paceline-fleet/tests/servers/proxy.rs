//! A proxy on loopback that treats connections as a bad network does.

use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;

/// What becomes of what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fair,
    /// Each way takes so long.
    Slow(Duration),
    /// Requests arrive, replies do not.
    RepliesLost,
    /// Nothing arrives, and no connection ends.
    Silent,
    /// Connections end, and none begins.
    Cut,
}

/// Between clients on TCP and a server on a socket; it ends with the value.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: watch::Sender<(Weather, PathBuf)>,
}

impl Proxy {
    pub(crate) async fn start(server: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free loopback port");
        let port = listener.local_addr().expect("it is bound").port();
        let (state, seen) = watch::channel((Weather::Fair, server));
        tokio::spawn(async move {
            let mut over = seen.clone();
            loop {
                let client = tokio::select! {
                    accepted = listener.accept() => accepted.expect("loopback").0,
                    _ = gone(&mut over) => return,
                };
                let (weather, server) = seen.borrow().clone();
                if weather == Weather::Cut {
                    continue;
                }
                // A server that is not there is a connection that ends at once.
                let Ok(server) = UnixStream::connect(server).await else { continue };
                let (mut client, mut server) = (client.into_split(), server.into_split());
                let (mut up, mut down, mut until) = (seen.clone(), seen.clone(), seen.clone());
                let is_of = seen.borrow().1.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = carry(&mut client.0, &mut server.1, &mut up, false) => {}
                        () = carry(&mut server.0, &mut client.1, &mut down, true) => {}
                        _ = until.wait_for(|(weather, server)| *weather == Weather::Cut || *server != is_of) => {}
                    }
                });
            }
        });
        Self { port, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.state.send_modify(|state| state.0 = weather);
    }

    /// All connections end, and later ones go to another server.
    pub(crate) fn lead_to(&self, server: PathBuf) {
        self.state.send_modify(|state| state.1 = server);
    }
}

async fn gone(state: &mut watch::Receiver<(Weather, PathBuf)>) {
    while state.changed().await.is_ok() {}
}

async fn carry<R, W>(from: &mut R, to: &mut W, state: &mut watch::Receiver<(Weather, PathBuf)>, are_replies: bool)
where
    R: tokio::io::AsyncRead + Unpin,
    W: tokio::io::AsyncWrite + Unpin,
{
    let mut bytes = vec![0; 1 << 16];
    loop {
        let Ok(read @ 1..) = from.read(&mut bytes).await else { return };
        let weather = state.borrow().0;
        match weather {
            Weather::Slow(delay) => tokio::time::sleep(delay).await,
            Weather::RepliesLost if are_replies => continue,
            Weather::Silent => continue,
            _ => {}
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
