//! When the configuration is to be read again: on SIGHUP, and when its file or a file that it names has changed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline::{Clock, Repeats};
use paceline_http::Shortage;

use super::whole_file;
use crate::files;

/// How often files are looked at. A change is taken once two looks agree: an editor may write a file in parts.
const LOOKED_AT: Duration = Duration::from_secs(1);

/// Asks for a new reading of the configuration.
pub(super) struct Changes {
    #[cfg(unix)]
    hang_up: tokio::signal::unix::Signal,
    known: Contents,
    /// A file is known that may have changed between its reading and the first look at it.
    is_unsure: bool,
    reader: Reader,
    /// What was to be read again, and could not be for want of file descriptors.
    again: Option<Change>,
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

/// A print of what is in each file; none of one that is not there, or is none.
type Contents = BTreeMap<PathBuf, Option<u64>>;

/// Reads files again and again. One that cannot be read for want of file descriptors has not changed.
struct Reader {
    print: fn(&Path) -> io::Result<Option<u64>>,
    clock: Clock,
    repeats: Repeats,
}

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
            is_unsure: false,
            reader: Reader { print, clock: Clock::new(), repeats: Repeats::new() },
            again: None,
        })
    }

    /// Looks at files that will be read: what changes from now on has changed.
    pub(super) fn look_at(&mut self, files: &[PathBuf]) {
        self.known.extend(self.reader.contents(files, &self.known));
    }

    /// What has changed was not taken. Where file descriptors are missing, that is why, and it comes again.
    pub(super) fn was_refused(&mut self, change: Change) {
        if files::are_missing() {
            tracing::warn!(
                "that was for want of file descriptors, and is tried again; raise `ulimit -n` (LimitNOFILE of a unit)"
            );
            self.again = Some(change);
        }
    }

    /// Returns once the configuration is to be read again, which is in these files now.
    pub(super) async fn next(&mut self, files: &[PathBuf]) -> Change {
        if let Some(change) = self.again.take() {
            tokio::time::sleep(LOOKED_AT).await;
            return change;
        }
        self.known.retain(|file, _| files.contains(file));
        let new: Vec<_> = files.iter().filter(|file| !self.known.contains_key(*file)).cloned().collect();
        self.is_unsure |= !new.is_empty();
        self.look_at(&new);
        let before = self.known.clone();
        #[cfg(unix)]
        let hang_up = tokio::select! {
            _ = self.hang_up.recv() => {
                self.known = self.reader.contents(files, &self.known);
                true
            }
            () = self.reader.changed(&mut self.known, files, self.is_unsure) => false,
        };
        #[cfg(not(unix))]
        let hang_up = {
            self.reader.changed(&mut self.known, files, self.is_unsure).await;
            false
        };
        self.is_unsure = false;
        let files = self.known.iter().filter(|(file, print)| before.get(*file) != Some(*print));
        Change { hang_up, files: files.map(|(file, _)| file.clone()).collect() }
    }
}

impl Reader {
    /// Returns once files have changed; where that is unsure, also once they are as they were for a while.
    async fn changed(&mut self, known: &mut Contents, files: &[PathBuf], is_unsure: bool) {
        let mut before = self.contents(files, known);
        loop {
            tokio::time::sleep(LOOKED_AT).await;
            let now = tokio::task::block_in_place(|| self.contents(files, known));
            if now == before && (is_unsure || now != *known) {
                *known = now;
                return;
            }
            before = now;
        }
    }

    /// What is in these files now, as far as they can be read.
    fn contents(&mut self, files: &[PathBuf], known: &Contents) -> Contents {
        let print = |file: &PathBuf| {
            let read = (self.print)(file).unwrap_or_else(|error| {
                if let Some(times) = self.repeats.came(self.clock.now()) {
                    tracing::warn!(
                        times = (times > 1).then_some(times),
                        "{} cannot be looked at for changes, and all stays as it was: {error}; raise `ulimit -n` (LimitNOFILE of a \
                         unit)",
                        file.display()
                    );
                }
                known.get(file).copied().flatten()
            });
            (file.clone(), read)
        };
        files.iter().map(print).collect()
    }
}

/// The first of them that is there and cannot be read to its end while the gateway serves.
pub(super) fn unreadable(files: &[PathBuf]) -> Option<String> {
    let refused =
        |file: &PathBuf| whole_file::check(file).err().filter(|error| error.kind() != io::ErrorKind::NotFound);
    files.iter().find_map(|file| refused(file).map(|error| format!("{}: {error}", file.display())))
}

/// # Errors
/// This process has no file descriptor left to read it.
fn print(file: &Path) -> io::Result<Option<u64>> {
    match whole_file::check(file).and_then(|()| files::with_spare(|| std::fs::read(file))) {
        Err(error) if Shortage::is_why(&error) => Err(error),
        content => Ok(content.ok().map(|content| {
            let mut print = DefaultHasher::new();
            content.hash(&mut print);
            print.finish()
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_for_want_of_descriptors_has_not_changed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [there, gone] = ["there", "gone"].map(|name| folder.path().join(name));
        std::fs::write(&there, "1").expect("writable");
        let files = [there.clone(), gone.clone()];
        let mut reader = Reader { print, clock: Clock::new(), repeats: Repeats::new() };
        let known = reader.contents(&files, &Contents::new());
        assert!(known[&there].is_some() && known[&gone].is_none());
        reader.print = |_| Err(io::Error::from_raw_os_error(24));
        assert_eq!(reader.contents(&files, &known), known);
        reader.print = print;
        std::fs::remove_file(&there).expect("it is there");
        assert_ne!(reader.contents(&files, &known), known, "a file that is gone has changed");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_changes_between_its_reading_and_the_first_look_at_it_is_read_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [first, named_later] = ["first", "named later"].map(|name| folder.path().join(name));
        std::fs::write(&first, "1").expect("writable");
        let mut changes = Changes::listen().expect("signals can be caught");
        changes.look_at(std::slice::from_ref(&first));
        std::fs::write(&first, "2").expect("writable");
        let change = changes.next(std::slice::from_ref(&first)).await;
        assert_eq!(change.files, std::slice::from_ref(&first));
        let change = changes.next(&[first, named_later]).await;
        assert!(!change.hang_up && change.files.is_empty(), "it may have changed: {change:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_read_for_want_of_descriptors_comes_again_by_itself() {
        let mut changes = Changes::listen().expect("signals can be caught");
        changes.again = Some(Change { hang_up: true, files: vec!["paceline.toml".into()] });
        let change = changes.next(&[]).await;
        assert!(change.hang_up && change.files.len() == 1, "{change:?}");
    }

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
