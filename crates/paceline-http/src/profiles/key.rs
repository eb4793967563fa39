//! The headers of every call to an upstream, its key among them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use http::{HeaderMap, HeaderValue};
use paceline_config::{Environment, InvalidKey, KeySource, Upstream};
use paceline_providers::is_loopback;
use paceline_providers::secrets::{SECRET, hidden, looks_secret};

/// Why the key of an upstream cannot be used. The key itself is never named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The variable is not set or empty, or the file is empty.
    #[error(
        "no key for {upstream}: {} {}, or name another with api_key_env or api_key_file",
        looked_at(key),
        missing(key)
    )]
    Missing {
        /// The upstream, by its name.
        upstream: String,
        /// Where the key should be.
        key: KeySource,
    },
    /// The file cannot be read.
    #[error("the key file {path} cannot be read: {}", unreadable(error))]
    Unreadable {
        /// The file with its folder, without what looks like a key: it may have been put in place of the file.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// The file holds a line for a shell.
    #[error(
        "the key file {} sets a variable, {variable}=...: expected the key alone; write only what stands behind the `=` there",
        path.display()
    )]
    Assignment {
        /// The file.
        path: PathBuf,
        /// The variable that it sets.
        variable: String,
    },
    /// No header may carry it.
    #[error("the key in {} {error}", place(key))]
    Invalid {
        /// Where the key is.
        key: KeySource,
        /// Why.
        error: InvalidKey,
    },
}

fn place(key: &KeySource) -> String {
    key.place().unwrap_or_default()
}

/// Where a key was looked for; a file with its folder.
fn looked_at(key: &KeySource) -> String {
    match key {
        KeySource::File(path) => absolute(path, &shown(path)),
        KeySource::None | KeySource::Variable { .. } => place(key),
    }
}

/// Why a file gave no text.
fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidData => {
            "it is no text in UTF-8 (an editor may have written UTF-16); write it anew, with the key alone".to_owned()
        }
        _ => error.to_string(),
    }
}

const fn missing(key: &KeySource) -> &'static str {
    match key {
        KeySource::File(_) => "is an empty file; put the key into it",
        KeySource::None | KeySource::Variable { .. } => "is not set or empty; set it",
    }
}

/// The headers that every call to the upstream carries, its key among them. A key that others can read, on its way or in its
/// file, is warned about in the log.
///
/// # Errors
/// A key that is needed and missing, unreadable, or no header value.
pub fn headers(upstream: &Upstream, environment: &Environment) -> Result<HeaderMap, KeyError> {
    let key = read_key(&upstream.key, &upstream.name, environment)?;
    let invalid = |error| KeyError::Invalid { key: upstream.key.clone(), error };
    let headers = upstream.access.headers(key.as_deref()).map_err(invalid)?;
    let sent = match &upstream.via {
        Some(_) => Some("what calls say"),
        None => headers.values().any(HeaderValue::is_sensitive).then_some("the key"),
    };
    if let Some((sent, address)) = sent.zip(upstream.base_url.as_deref())
        && address.starts_with("http://")
        && !is_loopback(address)
    {
        tracing::warn!("{sent} is sent to {address} unencrypted, where others can read it: use https://");
    }
    if let Some(path) = upstream.fleet.as_ref().and_then(|fleet| fleet.password_file.as_ref())
        && let Ok(file) = File::open(path)
    {
        // The group may be that of a service.
        let what = "the configuration, which has the password of the fleet,";
        warn_if_open_to(0o007, what, &file, &path.display().to_string(), "o=");
    }
    Ok(headers)
}

fn read_key(source: &KeySource, upstream: &str, environment: &Environment) -> Result<Option<String>, KeyError> {
    let key = match source {
        KeySource::None => return Ok(None),
        KeySource::Variable { name, required } => {
            let key = environment.get(name).unwrap_or_default();
            if key.trim().is_empty() && !required {
                return Ok(None);
            }
            key.to_owned()
        }
        KeySource::File(path) => read_file(path)?,
    };
    // Editors of some systems begin a file with a byte order mark.
    let key = key.trim_start_matches('\u{feff}').trim();
    if key.is_empty() {
        return Err(KeyError::Missing { upstream: upstream.to_owned(), key: source.clone() });
    }
    if let (KeySource::File(path), Some(variable)) = (source, assigned(key)) {
        return Err(KeyError::Assignment { path: path.clone(), variable: variable.to_owned() });
    }
    Ok(Some(key.to_owned()))
}

/// The variable that a text sets, where it is a line for a shell. Keys of Base64 have nothing but `=` behind their first one.
fn assigned(text: &str) -> Option<&str> {
    let (name, value) = text.strip_prefix("export ").unwrap_or(text).split_once('=')?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    (is_name && name.starts_with(|c: char| !c.is_ascii_digit()) && !value.trim_matches('=').is_empty()).then_some(name)
}

fn read_file(path: &Path) -> Result<String, KeyError> {
    let shown = shown(path);
    let unreadable = |error| KeyError::Unreadable { path: absolute(path, &shown), error };
    if is_pipe(path) {
        tracing::info!("the key is read from the pipe {shown}: this waits until another process writes to it");
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let mut key = String::new();
    file.read_to_string(&mut key).map_err(unreadable)?;
    warn_if_exposed("the key file", &file, &shown);
    Ok(key)
}

/// A path as it may be shown. What of it is not there, and is no usual name, may be the key itself, put in place of its file.
fn shown(path: &Path) -> String {
    let is_there = |path: &&Path| path.as_os_str().is_empty() || path.symlink_metadata().is_ok();
    let known = path.ancestors().find(is_there).unwrap_or(Path::new(""));
    let rest = path.strip_prefix(known).unwrap_or(path);
    let is_usual = rest.iter().all(|part| part.to_str().is_some_and(is_usual_name));
    let shown = if is_usual { path.to_owned() } else { known.join(SECRET) };
    hidden(&shown.display().to_string()).into_owned()
}

/// The longest word of a usual name of a file, in letters.
const LONGEST_WORD: usize = 24;

/// How often letters and digits of a usual name take turns, as in `key2-2026-11`.
const MOST_TURNS: usize = 4;

/// Whether a file may have this name, and no key looks like it: of words with a point, a line or a blank between them.
fn is_usual_name(name: &str) -> bool {
    let mut words = name.split([' ', '.', '_', '-']);
    let is_word = |word: &str| word.chars().all(char::is_alphanumeric) && word.chars().count() <= LONGEST_WORD;
    let turns = name
        .chars()
        .zip(name.chars().skip(1))
        .filter(|(one, next)| one.is_alphanumeric() && next.is_alphanumeric() && one.is_numeric() != next.is_numeric());
    words.all(is_word) && turns.count() <= MOST_TURNS && !looks_secret(name)
}

/// Where a file was looked for: its name as it is shown, below the folder of the process.
fn absolute(path: &Path, shown: &str) -> String {
    match std::env::current_dir() {
        Ok(folder) if path.is_relative() => folder.join(shown).display().to_string(),
        _ => shown.to_owned(),
    }
}

/// Warns in the log, once, of a file with keys that other users than its own can read or change: `what` it is, and its name as it
/// is shown. Where files have no modes it says nothing.
pub fn warn_if_exposed(what: &str, file: &File, shown: &str) {
    let is_credential =
        std::env::var_os("CREDENTIALS_DIRECTORY").is_some_and(|folder| Path::new(shown).starts_with(folder));
    // systemd lets the user of a service read them by an access list, whose mask shows as what a group may do.
    let others = if is_credential { 0o037 } else { 0o077 };
    warn_if_open_to(others, what, file, shown, "600");
}

/// The same where it lets those do what they may not, as a mode, and which one it is to have.
fn warn_if_open_to(others: u32, what: &str, file: &File, shown: &str, wanted: &str) {
    // A key may be read again and again, until a server takes it.
    static TOLD: Mutex<BTreeSet<(String, u32)>> = Mutex::new(BTreeSet::new());
    if let Some(mode) = mode(file).filter(|mode| mode & others != 0)
        && TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert((shown.to_owned(), mode))
    {
        let may = if mode & 0o022 == 0 { "read" } else { "changed" };
        tracing::warn!("{what} {shown} can be {may} by others (mode {mode:o}): chmod {wanted} {shown}");
    }
}

/// Whether that is a pipe with a name in a folder, to which no process may ever write. One that the shell made for this process
/// is not.
#[cfg(unix)]
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    !path.starts_with("/dev/fd")
        && !path.starts_with("/proc")
        && path.metadata().is_ok_and(|about| about.file_type().is_fifo())
}

#[cfg(not(unix))]
const fn is_pipe(_path: &Path) -> bool {
    false
}

/// The mode of a file. A pipe or a device has none that matters.
#[cfg(unix)]
fn mode(file: &File) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let about = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(about.permissions().mode() & 0o777)
}

#[cfg(not(unix))]
const fn mode(_: &File) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_path_that_is_not_there_no_part_is_shown_that_may_be_a_key() {
        let folder = std::env::temp_dir();
        let in_it = |name: &str| folder.join(name).display().to_string();
        for name in ["my.key", "openai_key-2026-11.txt", "secrets/key2", "Schl\u{fc}ssel 1", "of/many/folders/key"] {
            assert_eq!(shown(Path::new(name)), name);
            assert_eq!(shown(&folder.join(name)), in_it(name));
        }
        let keys = [
            "aB3cD4eF5gH6iJ7kL8mN9oP0qR1sT2uV",
            "sk-abcdefgh\"Q/+aB3cD4eF5gH6iJ7k&L8=m",
            "abcdefghijklmnopqrstuvwxyz",
            "hunter2!",
            "me:sesame",
            "words/aB3cD4eF5gH6",
        ];
        for key in keys {
            assert_eq!(shown(Path::new(key)), SECRET, "{key}");
            assert_eq!(shown(&folder.join(key)), in_it(SECRET), "{key}");
        }
    }
}
