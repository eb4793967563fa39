//! Files that are whole at every instant: certificates, and what has to be known before it is used.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The state of an order that a crash must not lose. It is on the disk before any of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Begun {
    /// The work item it belongs to: an order for an older certificate is not resumed.
    pub(crate) item: String,
    /// The CA's account that made it.
    pub(crate) account: String,
    /// Where the CA keeps it; empty while it is being made.
    pub(crate) url: String,
    /// The key that the certificate will be for, as PEM.
    pub(crate) key: String,
}

/// The orders that have begun, one file each.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    folder: PathBuf,
}

impl Orders {
    /// Those in that folder, which is made when it is missing.
    pub(crate) fn open(folder: PathBuf) -> io::Result<Self> {
        private_folder(&folder)?;
        Ok(Self { folder })
    }

    /// What has begun for a domain, if it was for that item. A file that cannot be read is as good as none: it costs one
    /// more order.
    pub(crate) fn begun(&self, domain: &str, item: &str, account: &str) -> io::Result<Option<Begun>> {
        match read_json::<Begun>(&self.path(domain)) {
            Ok(begun) => Ok(begun.filter(|begun| begun.item == item && begun.account == account)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(domain, %error, "cannot go on with an order; a new one is made");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps it.
    pub(crate) fn keep(&self, domain: &str, begun: &Begun) -> io::Result<()> {
        write_json(&self.path(domain), begun)
    }

    /// Forgets it: the order has ended.
    pub(crate) fn forget(&self, domain: &str) -> io::Result<()> {
        remove(&self.path(domain))
    }

    fn path(&self, domain: &str) -> PathBuf {
        self.folder.join(file_name(domain, ".json"))
    }
}

/// Puts a certificate chain and its key in the place of the old ones. They are one file, so that no reader and no crash
/// ever finds a key beside the certificate of another. The old file stays as `NAME.pem.previous`, see [`file_name`].
pub(crate) fn replace_certificate(path: &Path, chain: &str, key: &str) -> io::Result<()> {
    if path.metadata().is_ok_and(|found| found.len() > 0) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        replace(&path.with_file_name(file_name(&stem, ".pem.previous")), &fs::read(path)?)?;
    }
    replace(path, format!("{}\n{}\n", chain.trim_end(), key.trim_end()).as_bytes())
}

/// A file's name: what it is about, and an ending. What would be longer than a file system takes loses letters before the
/// ending, and has a hash of the whole instead.
pub(crate) fn file_name(about: &str, ending: &str) -> String {
    if about.len() + ending.len() <= LONGEST_NAME {
        return format!("{about}{ending}");
    }
    let hash = blake3::hash(about.as_bytes()).to_hex();
    let hash = &hash[..HASH];
    let kept = about.floor_char_boundary(LONGEST_NAME - ending.len() - HASH - 1);
    format!("{}~{hash}{ending}", &about[..kept])
}

/// A file of JSON; none where there is no file.
///
/// # Errors
/// `InvalidData` for anything but what was written.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{} cannot be read: {error}", path.display()))
        })?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file of JSON that is whole at every instant, for its owner alone.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    replace(path, &serde_json::to_vec_pretty(value)?)
}

/// Makes a folder for its owner alone, where there is none.
pub(crate) fn private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Finds out whether files can be made in a folder: better before an order is paid for with a rate limit than after.
pub(crate) fn try_folder(folder: &Path) -> io::Result<()> {
    tempfile::Builder::new().prefix(UNFINISHED).rand_bytes(RANDOM).tempfile_in(folder).map(drop)
}

/// Removes what a crash left half-written in a folder. To be called while no other process writes there.
pub(crate) fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_ours =
            name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) && name.len() == UNFINISHED.len() + RANDOM;
        if is_ours && entry.file_type()?.is_file() {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// The new content is on the disk before it gets the name, and the name before this returns. Mode 0600.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        let mut unfinished = tempfile::Builder::new().prefix(UNFINISHED).rand_bytes(RANDOM).tempfile_in(folder)?;
        unfinished.write_all(content)?;
        unfinished.as_file().sync_all()?;
        unfinished.persist(path)?;
        if cfg!(unix) {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    };
    // The system's error names no file.
    write().map_err(|error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// How names of unfinished files begin: hidden from a user who lists the folder, and recognizable.
const UNFINISHED: &str = ".acme-renewal-";

/// How many letters, by chance, end them.
const RANDOM: usize = 12;

/// The bytes that a file's name may have nearly everywhere.
const LONGEST_NAME: usize = 255;

/// The letters of a hash that stand for what was cut off a name.
const HASH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_and_its_key_change_together_and_the_old_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("example.org.pem");
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        File::create(&path).unwrap();
        replace_certificate(&path, "chain 1\n", "key 1\n").unwrap();
        assert!(!folder.path().join("example.org.pem.previous").exists(), "an empty file is no certificate");
        replace_certificate(&path, "chain 2", "key 2").unwrap();
        replace_certificate(&path, "chain 3\n\n", "key 3").unwrap();
        assert_eq!(read("example.org.pem"), "chain 3\nkey 3\n");
        assert_eq!(read("example.org.pem.previous"), "chain 2\nkey 2\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("example.org.pem");
        fs::write(&path, "old").unwrap();
        fs::create_dir(folder.path().join("example.org.pem.previous")).unwrap();
        let error = replace_certificate(&path, "chain", "key").unwrap_err().to_string();
        assert!(error.contains("example.org.pem.previous: "), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old", "what cannot be kept is not replaced");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing half-written is left");
    }

    #[test]
    fn the_longest_names_have_an_old_version_and_an_order_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let orders = Orders::open(folder.path().join("orders")).unwrap();
        // 251 letters and `.pem` are all that a file system takes. Two of each length, and letters of two bytes.
        let long = |length: usize| ["x", "y"].map(|last| "a".repeat(length - 1) + last);
        let names: Vec<String> =
            [242, 243, 250, 251].into_iter().flat_map(long).chain(["\u{e4}".repeat(125)]).collect();
        for name in &names {
            let path = folder.path().join(format!("{name}.pem"));
            replace_certificate(&path, &format!("old {name}"), "key").unwrap();
            replace_certificate(&path, "new", "key").unwrap();
            orders.keep(name, &begun(name)).unwrap();
        }
        for name in &names {
            assert_eq!(orders.begun(name, name, "me").unwrap(), Some(begun(name)), "{name}");
        }
        let previous = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut previous: Vec<String> = previous
            .filter(|path| path.extension().is_some_and(|extension| extension == "previous"))
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        previous.sort();
        let mut expected: Vec<String> = names.iter().map(|name| format!("old {name}\nkey\n")).collect();
        expected.sort();
        assert_eq!(previous, expected);
    }

    #[cfg(unix)]
    #[test]
    fn keys_are_for_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("example.org.pem");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        replace_certificate(&path, "chain", "key").unwrap();
        let orders = Orders::open(folder.path().join("orders")).unwrap();
        orders.keep("a", &begun("a 1")).unwrap();
        for (name, mode) in [
            ("example.org.pem", 0o600),
            ("example.org.pem.previous", 0o600),
            ("orders", 0o700),
            ("orders/a.json", 0o600),
        ] {
            let found = folder.path().join(name).metadata().unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{name}");
        }
    }

    #[test]
    fn an_order_is_gone_on_with_for_the_same_item_and_account_only() {
        let folder = tempfile::tempdir().unwrap();
        let orders = Orders::open(folder.path().join("a/b")).unwrap();
        assert_eq!(orders.begun("example.org", "example.org 1", "me").unwrap(), None);
        orders.keep("example.org", &begun("example.org 1")).unwrap();
        assert_eq!(orders.begun("example.org", "example.org 1", "me").unwrap(), Some(begun("example.org 1")));
        assert_eq!(orders.begun("example.org", "example.org 2", "me").unwrap(), None);
        assert_eq!(orders.begun("example.org", "example.org 1", "you").unwrap(), None);
        fs::write(folder.path().join("a/b/example.org.json"), "{\"item\":").unwrap();
        assert_eq!(orders.begun("example.org", "example.org 1", "me").unwrap(), None);
        orders.forget("example.org").unwrap();
        orders.forget("example.org").unwrap();
        assert_eq!(orders.begun("example.org", "example.org 1", "me").unwrap(), None);
    }

    #[test]
    fn what_a_crash_left_is_swept_away_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".acme-renewal-x7x7x7x7x7x7", ".acme-renewal-notes", "example.org.pem", ".hidden"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        sweep(folder.path()).unwrap();
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".acme-renewal-notes", ".hidden", "example.org.pem"]);
    }

    fn begun(item: &str) -> Begun {
        Begun { item: item.to_owned(), account: "me".to_owned(), url: "https://ca/1".to_owned(), key: String::new() }
    }
}
