//! A disk and the system's memory before it: what is certain, and what a power cut may or may not take.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use paceline_core::Rng;

use crate::trace::Act;

/// What a disk writes as a whole, in bytes.
const SECTOR: usize = 512;

/// The files of one folder.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    files: Vec<File>,
    /// Names as programs see them, with the number of the file.
    names: BTreeMap<String, usize>,
    /// Names as they are after the last sync of the folder.
    synced_names: BTreeMap<String, usize>,
    /// Changes of names since then.
    renamed: Vec<Name>,
}

#[derive(Clone, Debug)]
enum Name {
    Set(String, usize),
    Change(String, String, usize),
    Remove(String),
}

#[derive(Debug, Default)]
struct File {
    /// As of its last sync.
    synced: Vec<u8>,
    /// Changes since then.
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Disk {
    pub(crate) fn perform(&mut self, act: Act) {
        match act {
            Act::Create { file } => {
                self.files.push(File::default());
                self.name(Name::Set(file, self.files.len() - 1));
            }
            Act::Write { file, offset, bytes } => self.file(&file).pending.push(Change::Write(offset, bytes)),
            Act::Truncate { file, len } => self.file(&file).pending.push(Change::Truncate(len)),
            Act::Sync { file } => {
                let file = self.file(&file);
                for change in std::mem::take(&mut file.pending) {
                    change.apply(&mut file.synced, |_| true);
                }
            }
            Act::SyncFolder => {
                self.synced_names = self.names.clone();
                self.renamed.clear();
            }
            Act::Rename { from, to } => {
                let number = self.names[&from];
                self.name(Name::Change(from, to, number));
            }
            Act::Remove { file } => self.name(Name::Remove(file)),
            Act::Acknowledge(_) | Act::Nothing => {}
        }
    }

    /// Writes to `folder` what is left: names up to some change of them, and of each file what survives by one of several
    /// chances: nothing that was not synced, all of it, up to some moment, or any sectors.
    pub(crate) fn lose_power(mut self, rng: &mut Rng, folder: &Path) {
        let kept = rng.next_u64() as usize % (self.renamed.len() + 1);
        let mut names = self.synced_names;
        for change in self.renamed.drain(..).take(kept) {
            change.apply(&mut names);
        }
        for (name, number) in names {
            let File { synced: mut bytes, pending } = std::mem::take(&mut self.files[number]);
            let chance = rng.next_u64() % 4;
            let moment = rng.next_u64() as usize % (pending.len() + 1);
            for (index, change) in pending.into_iter().enumerate() {
                change.apply(&mut bytes, |_| match chance {
                    0 => false,
                    1 => true,
                    2 => index < moment,
                    _ => rng.next_u64().is_multiple_of(2),
                });
            }
            fs::write(folder.join(name), bytes).unwrap();
        }
    }

    fn file(&mut self, name: &str) -> &mut File {
        &mut self.files[self.names[name]]
    }

    fn name(&mut self, change: Name) {
        change.clone().apply(&mut self.names);
        self.renamed.push(change);
    }
}

impl Name {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Set(name, number) => drop(names.insert(name, number)),
            Self::Change(from, to, number) => {
                names.remove(&from);
                names.insert(to, number);
            }
            Self::Remove(name) => drop(names.remove(&name)),
        }
    }
}

impl Change {
    /// Makes the change, of a write those sectors that `survives` is true for. A file that grew over a sector that did
    /// not survive has zeros there.
    fn apply(self, bytes: &mut Vec<u8>, mut survives: impl FnMut(usize) -> bool) {
        match self {
            Self::Truncate(len) => {
                if survives(0) {
                    bytes.resize(len, 0);
                }
            }
            Self::Write(offset, new) => {
                let (mut from, end) = (offset, offset + new.len());
                while from < end {
                    let to = end.min((from / SECTOR + 1) * SECTOR);
                    if survives(from) {
                        if bytes.len() < to {
                            bytes.resize(to, 0);
                        }
                        bytes[from..to].copy_from_slice(&new[from - offset..to - offset]);
                    }
                    from = to;
                }
            }
        }
    }
}
