//! Files that are whole at every moment: what is there is the old text or the new one.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use paceline::{Clock, Repeats};
use paceline_gateway::Conditions;
use paceline_store::is_disk_full;
use tempfile::NamedTempFile;

use super::state::Folder;
use crate::{account, files, output, reserve};

/// A longer file is no configuration, no key and no certificate, and would take the memory of the gateway that reads it.
const LONGEST: u64 = 16 << 20;

/// A file that is written again and again, and cannot be: a line of the log now and then.
#[derive(Debug, Default)]
pub(super) struct WriteTrouble {
    clock: Clock,
    repeats: Mutex<Repeats>,
    conditions: Conditions,
}

impl WriteTrouble {
    /// That of a file in the folder, whose gateway is told too.
    pub(super) fn in_folder(folder: Option<&Folder>) -> Self {
        Self { conditions: folder.map(|folder| folder.conditions.clone()).unwrap_or_default(), ..Self::default() }
    }

    /// The file is written no more.
    pub(super) fn forget(&self, path: &Path) {
        self.conditions.wrote(path, true);
    }

    /// Tells of a file that could not be written, what follows from that, and that it is written again.
    pub(super) fn tell(&self, path: &Path, written: io::Result<()>, what_follows: &str) {
        self.conditions.wrote(path, written.is_ok());
        let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, now) = (path.display(), self.clock.now());
        match written {
            Ok(()) if repeats.went_well(now) => tracing::info!("{path} is written again"),
            Ok(()) => {}
            Err(error) => {
                if let Some(times) = repeats.came(now) {
                    tracing::warn!(
                        times = (times > 1).then_some(times),
                        "{path} cannot be written: {error}; {what_follows}"
                    );
                }
            }
        }
    }
}

/// Whether a file can be read to its end at once. A pipe or a device that took its place would be waited for, or never end.
pub(super) fn check(path: &Path) -> io::Result<()> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("this is a folder, a pipe or a device; expected a file"));
    }
    if found.len() > LONGEST {
        return Err(io::Error::other(format!("{} bytes; expected at most {LONGEST}", found.len())));
    }
    Ok(())
}

/// Whether files can be made in that folder, or in the nearest one that is there, where it could be made. Nothing stays behind,
/// and a disk that is full is no reason: it may have room again.
pub(super) fn can_be_in(folder: &Path) -> io::Result<()> {
    let there = folder.ancestors().find(|there| there.exists()).unwrap_or(Path::new("."));
    match NamedTempFile::new_in(there).map_err(without_its_name) {
        Err(error) if !is_disk_full(&error) => {
            Err(io::Error::new(error.kind(), format!("{} cannot be written: {error}", there.display())))
        }
        _ => Ok(()),
    }
}

/// Whether a file can be written in that folder now, or in the nearest one that is there. Nothing stays behind.
pub(super) fn has_room(folder: &Path) -> io::Result<()> {
    let there = folder.ancestors().find(|there| there.exists()).unwrap_or(Path::new("."));
    NamedTempFile::new_in(there).map_err(without_its_name)?.as_file_mut().write_all(&[0; 4 << 10])
}

/// Puts a file there, for its user alone. A power cut may bring back what was there before.
pub(super) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    files::with_spare(|| {
        fresh(path, text)?.persist(path).map_err(|failed| failed.error)?;
        Ok(())
    })
    .map_err(without_its_name)
}

/// Puts a file there, for its user alone, which is there after a power cut too.
pub(super) fn replace_durably(path: &Path, text: &[u8]) -> io::Result<()> {
    files::with_spare(|| {
        let file = fresh(path, text)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|failed| failed.error)?;
        sync_names(folder_of(path))
    })
    .map_err(without_its_name)
}

/// The same, on a full disk too, as far as the file needs no more than it did: a reserve beside it, which was made while there
/// was room, becomes the file then.
pub(super) fn replace_durably_on_a_full_disk(path: &Path, text: &[u8]) -> io::Result<()> {
    let reserve = reserve::of(path);
    match replace_durably(path, text) {
        Err(error) if is_disk_full(&error) => become_file(&reserve, path, text).map_err(|_| error)?,
        replaced => replaced?,
    }
    if let Some(blanks) = reserve::wanted(path, text.len()) {
        let _ = replace(&reserve, &blanks);
    }
    Ok(())
}

/// [`replace`] for what is written again and again, on a full disk too: then the file and a reserve beside it, which was made
/// while there was room, take turns, and need no more than they have. Behind the text are blanks then.
pub(super) fn replace_in_turn(path: &Path, text: &[u8]) -> io::Result<()> {
    reserve::write(path, text, replace)
}

/// Writes a text over a reserve, whose room it needs alone, and puts that in the place of the file.
fn become_file(reserve: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).open(reserve)?;
    if file.metadata()?.len() < text.len() as u64 {
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all(text)?;
    file.set_len(text.len() as u64)?;
    file.sync_all()?;
    std::fs::rename(reserve, path)?;
    sync_names(folder_of(path))
}

/// Gives a file that cannot be used another name, under which a person finds it, and says which: another takes its place.
pub(super) fn set_aside(path: &Path) -> String {
    let bad = |number: u32| -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(if number == 1 { ".bad".to_owned() } else { format!(".bad-{number}") });
        name.into()
    };
    match output::set_aside(path, bad) {
        Ok(kept) => format!("{} has it as it was", kept.display()),
        Err(error) => format!("it cannot be given another name: {error}"),
    }
}

/// Makes the names in a folder durable.
pub(super) fn sync_names(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

fn fresh(path: &Path, text: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(folder_of(path))?;
    hand_over(file.as_file(), path)?;
    file.as_file_mut().write_all(text)?;
    Ok(file)
}

/// An error without the name of the file that was to take the place of another: a person knows that one alone.
fn without_its_name(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((why, _)) => io::Error::new(error.kind(), why.to_owned()),
        None => error,
    }
}

/// A file that takes the place of another has its owner, group and mode. What root puts into the folder of another user is for
/// that user. So the gateway of a service reads the keys that root makes and revokes.
#[cfg(unix)]
pub(super) fn hand_over(file: &File, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let before = path.metadata().ok().filter(std::fs::Metadata::is_file);
    if let Some(before) = &before {
        file.set_permissions(std::fs::Permissions::from_mode(before.mode() & 0o777))?;
    }
    let folder = folder_of(path).metadata()?;
    match before.or_else(|| (folder.uid() != 0).then_some(folder)) {
        Some(owner) if file.metadata()?.uid() == 0 => {
            std::os::unix::fs::fchown(file, Some(owner.uid()), Some(owner.gid()))
        }
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
pub(super) fn hand_over(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}

/// Makes the folder of a file, and those above it. What root makes in the folder of another user is for that user, as a file is.
pub(super) fn make_folder_of(path: &Path) -> io::Result<()> {
    let folder = folder_of(path);
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<_> = folder.ancestors().take_while(is_missing).collect();
    account::make_private(folder)?;
    missing.into_iter().rev().try_for_each(hand_over_folder)
}

/// That user may put a link in the place of the folder meanwhile, which is not followed.
#[cfg(unix)]
fn hand_over_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::DIRECTORY).bits();
    hand_over(&File::options().read(true).custom_flags(flags.cast_signed()).open(folder)?, folder)
}

#[cfg(not(unix))]
fn hand_over_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The folder of a file; that of a bare name is the present one.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
