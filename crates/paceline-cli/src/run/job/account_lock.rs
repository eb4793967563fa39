//! Two processes on one key know nothing of each other's calls: each keeps the limits by itself, both together do not.
//! The second one says so.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use http::HeaderMap;

/// Identifies the account of a file without revealing anything else.
const CONTEXT: &str = "paceline 2026-11 lock of a host and key";

/// Marks the account as in use for as long as the file is held, and warns when another process does already. Without a
/// folder for it no user is warned; that is no reason not to run.
pub(crate) fn mark(address: &str, headers: &HeaderMap) -> Option<File> {
    let folder = folder();
    match take(&folder, &(account(address, headers) + ".lock")) {
        Ok(Taken::Ours(file)) => return Some(file),
        Ok(Taken::Theirs { pid }) => {
            let who = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            tracing::warn!(
                "{who} is calling {} with the same key; each keeps the limits by itself, so together they may exceed \
                 them: give each its share with --limit, or wait for the other to end",
                host(address),
            );
        }
        Err(error) => tracing::debug!("whether others use this key is not known: {}: {error}", folder.display()),
    }
    None
}

enum Taken {
    Ours(File),
    Theirs { pid: Option<u32> },
}

fn take(folder: &Path, name: &str) -> io::Result<Taken> {
    make_private(folder)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(folder.join(name))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let read = file.take(32).read_to_string(&mut pid);
            return Ok(Taken::Theirs { pid: read.ok().and_then(|_| pid.trim().parse().ok()) });
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(Taken::Ours(file))
}

fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Where the user's processes can find each other's marks.
fn folder() -> PathBuf {
    let of = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    of("XDG_RUNTIME_DIR")
        .or_else(|| of("XDG_CACHE_HOME"))
        .or_else(|| of("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("paceline")
}

/// The name of an account, which reveals neither host nor key.
pub(crate) fn account(address: &str, headers: &HeaderMap) -> String {
    let mut account = host(address).into_bytes();
    for (header, value) in headers.iter().filter(|(_, value)| value.is_sensitive()) {
        for part in [header.as_str().as_bytes(), value.as_bytes()] {
            account.push(0);
            account.extend_from_slice(part);
        }
    }
    let hash = blake3::derive_key(CONTEXT, &account);
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Scheme, host and port; a path below them is the same server.
fn host(address: &str) -> String {
    reqwest::Url::parse(address).map_or_else(|_| address.to_owned(), |url| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn key(key: &'static str) -> HeaderMap {
        let mut value = HeaderValue::from_static(key);
        value.set_sensitive(true);
        let plain = ("accept".parse().expect("a name"), HeaderValue::from_static(key));
        HeaderMap::from_iter([("authorization".parse().expect("a name"), value), plain])
    }

    #[test]
    fn an_account_is_a_host_and_a_key() {
        let name = |address, secret| account(address, &key(secret));
        assert_eq!(name("https://h/v1", "a"), name("https://h:443", "a"));
        assert_ne!(name("https://h", "a"), name("https://h", "b"));
        assert_ne!(name("https://h", "a"), name("https://g", "a"));
        assert_eq!(name("https://h", "a").len(), 32);
    }

    #[test]
    fn the_second_is_told_the_first_ones_pid() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path().join("new");
        let first = take(&folder, "x").expect("a lock");
        assert!(
            matches!(take(&folder, "x").expect("readable"), Taken::Theirs { pid } if pid == Some(std::process::id()))
        );
        assert!(matches!(take(&folder, "y").expect("a lock"), Taken::Ours(_)), "another account");
        drop(first);
        assert!(matches!(take(&folder, "x").expect("a lock"), Taken::Ours(_)));
    }
}
