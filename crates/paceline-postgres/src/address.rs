//! The address of a database: `postgres://user@host/database`, and how its connection is encrypted.
//!
//! `sslmode` means what it means to Postgres's own programs. Nothing of an address is ever repeated in a message but its
//! hosts, ports and database: anything else may be a password.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::password::Source;
use crate::tls::{self, Trust};

/// A server, and how to speak to it.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it has a password")]
pub struct Address {
    /// Whom to call, and as whom; with a password where the address has one.
    pub config: Config,
    /// How the connection is encrypted.
    pub tls: MakeRustlsConnect,
    /// How long a server that is not there yet is waited for, where the address says so (`connect_timeout`).
    pub timeout: Option<Duration>,
    /// After how long without an answer it is gone, where the address says so (`tcp_user_timeout`).
    pub silent: Option<Duration>,
    password: Source,
}

/// Why an address cannot be read: never with any of its words, for they may be a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(pub String);

/// How long one try to connect may take, unless the address says something else (`connect_timeout`).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A host that takes nothing for so long is gone, unless the address says something else (`tcp_user_timeout`).
const SILENT: Duration = Duration::from_secs(30);

/// An idle connection is asked after so long whether it is still there, unless the address says something about `keepalives`, ...
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// ... again so often, ...
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

/// ... and so many times.
const KEEPALIVES: u32 = 4;

/// The port of a server whose address has none.
pub(crate) const PORT: u16 = 5_432;

/// How far a connection is encrypted, and who is believed to be at its other end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Address {
    /// Reads `postgres://user@host/database?sslmode=...&sslrootcert=FILE` and whatever else tokio-postgres knows.
    ///
    /// # Errors
    /// What is wrong with it, without its words.
    pub fn read(url: &str) -> Result<Self, AddressError> {
        let (front, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut roots, mut others) = (Mode::Prefer, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", name)) => mode = Mode::from_name(name)?,
                Some(("sslrootcert", file)) => roots = Some(decoded(file)?).filter(|file| file != "system"),
                _ => others.push(pair),
            }
        }
        let mut config: Config = format!("{front}?{}", others.join("&"))
            .parse()
            .map_err(|error: tokio_postgres::Error| AddressError(error.to_string()))?;
        let timeout = config.get_connect_timeout().copied();
        if timeout.is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        let silent = config.get_tcp_user_timeout().copied();
        if silent.is_none() {
            config.tcp_user_timeout(SILENT);
        }
        if !others.iter().any(|pair| pair.starts_with("keepalives")) {
            config.keepalives_idle(KEEPALIVE_IDLE).keepalives_interval(KEEPALIVE_EVERY).keepalives_retries(KEEPALIVES);
        }
        config.ssl_mode(match mode {
            Mode::Disable => SslMode::Disable,
            // Only processes of this machine listen to its sockets, and Postgres does not encrypt there.
            _ if config.get_hosts().iter().all(is_local) => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        let trust = match mode {
            Mode::Disable | Mode::Prefer => Trust::Anyone,
            Mode::Require if roots.is_none() => Trust::Anyone,
            Mode::Require | Mode::VerifyCa => Trust::Issuer(tls::roots(roots.as_deref())?),
            Mode::VerifyFull => Trust::IssuerAndName(tls::roots(roots.as_deref())?),
        };
        Ok(Self {
            config,
            tls: MakeRustlsConnect::new(tls::client(trust)?),
            timeout,
            silent,
            password: Source::of_process()?,
        })
    }

    /// Whom to call now, and as whom: without a password in the address it is that of the environment (`PGPASSWORD`), or of a
    /// line of the file that `PGPASSFILE` names, else of `~/.pgpass`. The file is read anew each time.
    pub fn with_password(&self) -> Config {
        let mut config = self.config.clone();
        self.password.put_into(&mut config);
        config
    }

    /// The server and the database, for messages: never with a password.
    pub fn describe(&self) -> String {
        let ports = self.config.get_ports();
        let hosts: Vec<String> = self
            .config
            .get_hosts()
            .iter()
            .enumerate()
            .map(|(n, host)| match (host, ports.get(n).or(ports.last()).copied().unwrap_or(PORT)) {
                (Host::Tcp(name), PORT) => name.clone(),
                (Host::Tcp(name), port) => format!("{name}:{port}"),
                #[cfg(unix)]
                (Host::Unix(path), _) => path.display().to_string(),
            })
            .collect();
        format!("{}/{}", hosts.join(","), self.config.get_dbname().unwrap_or_default())
    }
}

impl Mode {
    fn from_name(name: &str) -> Result<Self, AddressError> {
        match name {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            _ => Err(AddressError(
                "its sslmode is none of disable, prefer, require, verify-ca and verify-full".to_owned(),
            )),
        }
    }
}

fn decoded(text: &str) -> Result<String, AddressError> {
    let decoded =
        percent_decode_str(text).decode_utf8().map_err(|_| AddressError("its sslrootcert is not UTF-8".to_owned()))?;
    Ok(decoded.into_owned())
}

const fn is_local(host: &Host) -> bool {
    !matches!(host, Host::Tcp(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_server_and_nothing_else() {
        for (url, expected) in [
            ("postgres://me:secret@db.example.org/jobs", "db.example.org/jobs"),
            ("postgres://me:secret@db.example.org:6432/jobs?sslmode=require", "db.example.org:6432/jobs"),
            ("postgres://me:secret@a,b:6432/jobs?sslmode=disable&application_name=x", "a,b:6432/jobs"),
            ("postgres://me@/jobs?host=/run/postgresql&sslmode=verify-full&password=secret", "/run/postgresql/jobs"),
        ] {
            assert_eq!(Address::read(url).expect("an address").describe(), expected);
        }
        for url in [
            "postgres://me:secret@[::bad/jobs",
            "postgres://me:secret@host:port/jobs",
            "postgres://me@host/jobs?sslmode=secret",
            "postgres://me@host/jobs?secret=1",
            "postgres://me:secret@host/jobs?sslmode=verify-full&sslrootcert=/nowhere/root.pem",
        ] {
            let Err(error) = Address::read(url) else { panic!("{url} was read") };
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_silent_server_has_a_bound_which_the_address_may_change() {
        let read = |url| Address::read(url).expect("an address");
        let (usual, own) = (read("postgres://me@host/jobs"), read("postgres://me@host/jobs?tcp_user_timeout=7"));
        assert_eq!((usual.silent, usual.config.get_tcp_user_timeout()), (None, Some(&SILENT)));
        let seven = Duration::from_secs(7);
        assert_eq!((own.silent, own.config.get_tcp_user_timeout()), (Some(seven), Some(&seven)));
    }

    #[test]
    fn a_socket_of_this_machine_is_not_encrypted() {
        for (url, expected) in [
            ("postgres://me@/jobs?host=/run/postgresql&sslmode=require", SslMode::Disable),
            ("postgres://me@host/jobs", SslMode::Prefer),
            ("postgres://me@host/jobs?sslmode=verify-full", SslMode::Require),
            ("postgres://me@host/jobs?sslmode=disable", SslMode::Disable),
        ] {
            assert_eq!(Address::read(url).expect("an address").config.get_ssl_mode(), expected, "{url}");
        }
    }
}
