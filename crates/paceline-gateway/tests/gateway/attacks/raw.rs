//! A server and a client that know no HTTP but what the test writes, so that every byte can be looked at.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use paceline_gateway::listen;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::Served;

/// What a success says.
pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Up to the empty line.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The number of the connection that it came on.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn path(&self) -> &str {
        self.head.split(' ').nth(1).expect("it was checked")
    }

    pub(crate) fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields.filter_map(move |(known, value)| known.eq_ignore_ascii_case(name).then_some(value))
    }
}

/// What is answered to a request.
type Answer = dyn Fn(&Seen) -> Vec<u8> + Send + Sync;

/// A server that reads requests as RFC 9112 writes them, and takes nothing else.
pub(crate) struct Raw {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Result<Seen, String>>>>,
}

impl Raw {
    /// One that answers each request with these bytes, and keeps the connection.
    pub(crate) fn new(answer: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::of(Arc::new(answer))
    }

    /// Apart from the above, which is compiled anew for each of its answers.
    fn of(answer: Arc<Answer>) -> Self {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&seen);
        tokio::spawn(async move {
            let mut connection = 0;
            while let Ok((mut stream, _)) = listener.accept().await {
                connection += 1;
                let (all, answer) = (Arc::clone(&all), Arc::clone(&answer));
                tokio::spawn(async move {
                    let mut rest = Vec::new();
                    while let Some(request) = next(&mut stream, &mut rest).await {
                        let request = request.map(|seen| Seen { connection, ..seen });
                        let bytes = request.as_ref().map(|seen| answer(seen));
                        all.lock().expect("no panic").push(request.clone());
                        // The gateway may have gone away, which is seen there.
                        let Ok(bytes) = bytes else { return };
                        let closes = bytes.windows(21).any(|part| part == b"\r\nconnection: close\r\n");
                        if stream.write_all(&bytes).await.is_err() || closes {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, seen }
    }

    /// What came so far.
    ///
    /// # Panics
    /// Something came that is no request.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let seen = self.seen.lock().expect("no panic").clone();
        seen.into_iter().map(|seen| seen.unwrap_or_else(|wrong| panic!("the upstream saw {wrong}"))).collect()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.seen().iter().map(|seen| seen.path().to_owned()).collect()
    }
}

/// The next request; none where the connection ends before one.
async fn next(stream: &mut TcpStream, rest: &mut Vec<u8>) -> Option<Result<Seen, String>> {
    let end = loop {
        if let Some(end) = rest.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(rest).await.unwrap_or(0) == 0 {
            let text = String::from_utf8_lossy(rest).into_owned();
            return (!rest.is_empty()).then_some(Err(format!("a part of a head: {text:?}")));
        }
    };
    let Ok(head) = String::from_utf8(rest[..end].to_vec()) else {
        return Some(Err("a head that is no text".to_owned()));
    };
    rest.drain(..end + 4);
    let mut seen = Seen { head, body: Vec::new(), connection: 0 };
    if let Err(wrong) = check(&seen) {
        return Some(Err(format!("{wrong}: {:?}", seen.head)));
    }
    if seen.fields("transfer-encoding").next().is_some() {
        while !seen.body.ends_with(b"0\r\n\r\n") {
            if rest.is_empty() && stream.read_buf(rest).await.unwrap_or(0) == 0 {
                return Some(Err("chunks without an end".to_owned()));
            }
            seen.body.push(rest.remove(0));
        }
        return Some(Ok(seen));
    }
    let length = seen.fields("content-length").next().map_or(0, |length| length.parse().expect("it was checked"));
    while rest.len() < length {
        if stream.read_buf(rest).await.unwrap_or(0) == 0 {
            return Some(Err(format!("{} of {length} bytes of a body", rest.len())));
        }
    }
    seen.body = rest.drain(..length).collect();
    Some(Ok(seen))
}

/// Two readers of such a head must agree about it.
fn check(seen: &Seen) -> Result<(), &'static str> {
    let mut lines = seen.head.split("\r\n");
    let line: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    let is_token = |text: &str| {
        let is_of_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        !text.is_empty() && text.chars().all(is_of_token)
    };
    if !matches!(line[..], [method, target, "HTTP/1.1"] if is_token(method) && target.starts_with('/')) {
        return Err("a wrong request line");
    }
    if !lines.all(|line| line.split_once(": ").is_some_and(|(name, _)| is_token(name))) {
        return Err("a wrong field");
    }
    if seen.head.replace("\r\n", "").contains(|c: char| c.is_control() && c != '\t') {
        return Err("a control character");
    }
    let count = |name| seen.fields(name).count();
    match (count("host"), count("content-length"), count("transfer-encoding")) {
        (1, 0 | 1, 0) | (1, 0, 1) => {}
        _ => return Err("hosts or lengths that disagree"),
    }
    let is_number = |length: &str| length.bytes().all(|digit| digit.is_ascii_digit()) && length.len() < 19;
    if !seen.fields("content-length").all(is_number)
        || !seen.fields("transfer-encoding").all(|coding| coding == "chunked")
    {
        return Err("a length that is none");
    }
    Ok(())
}

/// A connection to a gateway.
pub(crate) async fn connected(served: &Served) -> TcpStream {
    TcpStream::connect(served.origin().strip_prefix("http://").expect("an address")).await.expect("it listens")
}

/// Sends these bytes, and reads all that comes until the gateway closes the connection.
pub(crate) async fn told(served: &Served, bytes: &[u8]) -> String {
    let mut stream = connected(served).await;
    // It may close the connection before it has read all.
    let _ = stream.write_all(bytes).await;
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all).await;
    String::from_utf8_lossy(&all).into_owned()
}

/// The statuses of the answers in a text.
pub(crate) fn statuses(text: &str) -> Vec<u16> {
    let lines = text.split("HTTP/1.").skip(1).filter_map(|rest| rest.get(2..5)?.parse().ok());
    lines.filter(|status| *status >= 200).collect()
}
