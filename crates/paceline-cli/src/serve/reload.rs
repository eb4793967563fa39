//! When the configuration is to be read again: on SIGHUP, and when its file or a file that it names has changed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::whole_file;

/// How often files are looked at. A change is taken once two looks agree: an editor may write a file in parts.
const LOOKED_AT: Duration = Duration::from_secs(1);

/// Asks for a new reading of the configuration.
pub(super) struct Changes {
    #[cfg(unix)]
    hang_up: tokio::signal::unix::Signal,
    known: Contents,
}

/// Why the configuration is to be read again.
#[derive(Debug)]
pub(super) struct Change {
    /// A person asks for it.
    hang_up: bool,
    /// The files that have changed.
    files: Vec<PathBuf>,
}

impl Change {
    /// Whether it says that the cause of a stop is mended: a change of one of the `upstreams`' files, or a SIGHUP that is for no
    /// other file. A new certificate or a new key of a client mends nothing there.
    pub(super) fn mends(&self, upstreams: &[PathBuf]) -> bool {
        let is_theirs = |file: &PathBuf| upstreams.contains(file);
        self.files.iter().any(is_theirs) || (self.hang_up && self.files.is_empty())
    }
}

/// A print of what is in each file; none of one that cannot be read.
type Contents = BTreeMap<PathBuf, Option<u64>>;

impl Changes {
    /// From now on SIGHUP does not end the process.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            hang_up: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
            known: Contents::new(),
        })
    }

    /// Returns once the configuration is to be read again, which is in these files now.
    pub(super) async fn next(&mut self, files: &[PathBuf]) -> Change {
        self.known.retain(|file, _| files.contains(file));
        for file in files {
            self.known.entry(file.clone()).or_insert_with(|| print(file));
        }
        let before = self.known.clone();
        #[cfg(unix)]
        let hang_up = tokio::select! {
            _ = self.hang_up.recv() => {
                self.known = contents(files);
                true
            }
            () = changed(&mut self.known, files) => false,
        };
        #[cfg(not(unix))]
        let hang_up = {
            changed(&mut self.known, files).await;
            false
        };
        let files = self.known.iter().filter(|(file, print)| before.get(*file) != Some(*print));
        Change { hang_up, files: files.map(|(file, _)| file.clone()).collect() }
    }
}

async fn changed(known: &mut Contents, files: &[PathBuf]) {
    let mut before = contents(files);
    loop {
        tokio::time::sleep(LOOKED_AT).await;
        let now = tokio::task::block_in_place(|| contents(files));
        if now == before && now != *known {
            *known = now;
            return;
        }
        before = now;
    }
}

fn contents(files: &[PathBuf]) -> Contents {
    files.iter().map(|file| (file.clone(), print(file))).collect()
}

/// The first of them that is there and cannot be read to its end while the gateway serves.
pub(super) fn unreadable(files: &[PathBuf]) -> Option<String> {
    let refused =
        |file: &PathBuf| whole_file::check(file).err().filter(|error| error.kind() != io::ErrorKind::NotFound);
    files.iter().find_map(|file| refused(file).map(|error| format!("{}: {error}", file.display())))
}

fn print(file: &Path) -> Option<u64> {
    whole_file::check(file).ok()?;
    let content = std::fs::read(file).ok()?;
    let mut print = DefaultHasher::new();
    content.hash(&mut print);
    Some(print.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_certificate_or_key_of_a_client_ends_no_stop() {
        let [configuration, key, certificate] = ["paceline.toml", "key", "tls.pem"].map(PathBuf::from);
        let upstreams = [configuration.clone(), key.clone()];
        for (hang_up, files, mends) in [
            (false, vec![certificate.clone()], false),
            (true, vec![certificate.clone()], false),
            (true, vec![], true),
            (false, vec![configuration], true),
            (true, vec![certificate, key], true),
        ] {
            let change = Change { hang_up, files };
            assert_eq!(change.mends(&upstreams), mends, "{change:?}");
        }
    }
}
