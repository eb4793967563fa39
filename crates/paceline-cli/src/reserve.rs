//! A file that is written again and again, on a full disk too: a reserve beside it, which was made while there was room, takes
//! turns with it, and both need no more than they have.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use paceline_store::is_disk_full;

use crate::files;

/// The extension of a reserve.
pub(crate) const RESERVE: &str = "reserve";

/// A text that takes the place of the file later may be somewhat longer.
const MORE: usize = 4 << 10;

/// A text with room behind it: in blanks, which a reader of JSON skips.
pub(crate) fn with_room(mut text: Vec<u8>) -> Vec<u8> {
    text.resize(text.len() + MORE, b' ');
    text
}

/// Puts a text there by `replace`, and over the reserve where the disk is full; else makes a reserve, where there is none that is
/// as long.
///
/// # Errors
/// What `replace` says. The file stays as it was then.
pub(crate) fn write(path: &Path, text: &[u8], replace: impl Fn(&Path, &[u8]) -> io::Result<()>) -> io::Result<()> {
    match replace(path, text) {
        Err(error) if is_disk_full(&error) => {
            return files::with_spare(|| take_turns(path, text.trim_ascii_end())).map_err(|_| error);
        }
        replaced => replaced?,
    }
    if let Some(blanks) = wanted(path, text.len()) {
        // Without one, a disk that is full takes no text.
        let _ = replace(&of(path), &blanks);
    }
    Ok(())
}

/// The reserve of a file.
pub(crate) fn of(path: &Path) -> PathBuf {
    path.with_extension(RESERVE)
}

/// What a reserve is made of for a text of so many bytes; none where there is one that is as long.
pub(crate) fn wanted(path: &Path, bytes: usize) -> Option<Vec<u8>> {
    let has_one = of(path).metadata().is_ok_and(|found| found.len() >= bytes as u64);
    (!has_one).then(|| vec![b' '; bytes + MORE])
}

/// Writes a text over the reserve, with blanks behind it, and has it and the file change places.
///
/// # Errors
/// There is no reserve, or it is too small on a disk that is full. The file stays then.
fn take_turns(path: &Path, text: &[u8]) -> io::Result<()> {
    let reserve = of(path);
    let mut file = File::options().write(true).open(&reserve)?;
    let blanks = file.metadata()?.len().saturating_sub(text.len() as u64);
    file.write_all(text)?;
    io::copy(&mut io::repeat(b' ').take(blanks), &mut file)?;
    exchange(&reserve, path)
}

#[cfg(target_os = "linux")]
fn exchange(reserve: &Path, path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, reserve, CWD, path, RenameFlags::EXCHANGE)?)
}

/// Then there is no reserve until there is room for one.
#[cfg(not(target_os = "linux"))]
fn exchange(reserve: &Path, path: &Path) -> io::Result<()> {
    std::fs::rename(reserve, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_its_reserve_take_turns() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("counts.json");
        assert!(take_turns(&path, b"{}").is_err(), "there is none");
        std::fs::write(&path, "[1]").expect("writable");
        std::fs::write(of(&path), wanted(&path, 3).expect("none is there")).expect("writable");
        assert_eq!(wanted(&path, 3 + MORE), None);
        assert!(wanted(&path, 4 + MORE).is_some(), "it is too short");
        take_turns(&path, b"[2]").expect("there is room");
        let read = || std::fs::read_to_string(&path).expect("it is there");
        assert_eq!((read().trim_end(), read().len()), ("[2]", 3 + MORE));
        #[cfg(target_os = "linux")]
        {
            take_turns(&path, b"[3]").expect("there is room");
            assert_eq!(read(), "[3]", "the first one has come back");
        }
    }
}
