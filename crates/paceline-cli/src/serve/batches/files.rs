//! Files that clients uploaded, and those with the results of batches: a folder for each, with its content and its record.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use paceline_store::private_file;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use uuid::Uuid;

use super::disk;
use super::object::now;
use crate::account::make_private;
use crate::serve::whole_file;

/// The content of a file in its folder.
const CONTENT: &str = "content";

/// Folders with that name are no files yet, or no files any more: a start deletes them.
const UNFINISHED: &str = "unfinished-";

/// So many files are known that were deleted: as many as the longest page has.
const MOST_GONE: usize = 10_000;

/// The purpose of the input of batches.
pub(super) const BATCH: &str = "batch";

/// A file: OpenAI's object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FileObject {
    pub(super) id: String,
    pub(super) object: String,
    pub(super) bytes: u64,
    /// Seconds since 1970.
    pub(super) created_at: i64,
    /// None: it stays until a client deletes it.
    pub(super) expires_at: Option<i64>,
    pub(super) filename: String,
    pub(super) purpose: String,
    pub(super) status: String,
}

/// The files of a gateway.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    known: Mutex<BTreeMap<String, FileObject>>,
    /// When those were created that were deleted last: a client that deletes what it lists reads on behind them.
    gone: Mutex<VecDeque<(String, i64)>>,
}

/// A file on its way. Dropped, it is gone.
#[derive(Debug)]
pub(super) struct Upload {
    folder: TempDir,
    pub(super) content: File,
}

impl Files {
    /// The files in that folder, without what was cut off.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        make_private(&folder)?;
        let mut known = BTreeMap::new();
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                std::fs::remove_dir_all(entry.path())?;
                continue;
            }
            match disk::read::<FileObject>(&entry.path()) {
                Ok(file) => drop(known.insert(file.id.clone(), file)),
                Err(error) => tracing::warn!("{} is left alone: {error}", entry.path().display()),
            }
        }
        Ok(Self { folder, known: Mutex::new(known), gone: Mutex::default() })
    }

    /// Begins a file.
    pub(super) fn begin(&self) -> io::Result<Upload> {
        let folder = self.unfinished()?;
        let content = private_file().create_new(true).open(folder.path().join(CONTENT))?;
        Ok(Upload { folder, content })
    }

    fn unfinished(&self) -> io::Result<TempDir> {
        let mut folder = tempfile::Builder::new();
        #[cfg(unix)]
        folder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
        folder.prefix(UNFINISHED).tempdir_in(&self.folder)
    }

    /// Keeps a file that is complete.
    pub(super) fn keep(&self, upload: Upload, filename: String, purpose: &str) -> io::Result<FileObject> {
        self.keep_as(format!("file-{}", Uuid::now_v7().simple()), upload, filename, purpose)
    }

    fn keep_as(&self, id: String, upload: Upload, filename: String, purpose: &str) -> io::Result<FileObject> {
        let Upload { folder, content } = upload;
        content.sync_all()?;
        let file = FileObject {
            object: "file".into(),
            bytes: content.metadata()?.len(),
            created_at: now(),
            expires_at: None,
            filename,
            purpose: purpose.into(),
            status: "processed".into(),
            id,
        };
        disk::write(folder.path(), &file)?;
        std::fs::rename(folder.path(), self.folder.join(&file.id))?;
        // It has another name now.
        let _ = folder.keep();
        whole_file::sync_names(&self.folder)?;
        self.known().insert(file.id.clone(), file.clone());
        Ok(file)
    }

    /// Keeps results as the file of that id; does nothing where that is done already, or where there are none.
    pub(super) fn adopt(
        &self,
        id: &str,
        results: &Path,
        filename: String,
        purpose: &str,
    ) -> io::Result<Option<String>> {
        if self.known().contains_key(id) {
            return Ok(Some(id.to_owned()));
        }
        if !std::fs::metadata(results).is_ok_and(|results| results.len() > 0) {
            return Ok(None);
        }
        let folder = self.unfinished()?;
        let content = folder.path().join(CONTENT);
        // Not every file system has links.
        std::fs::hard_link(results, &content).or_else(|_| std::fs::copy(results, &content).map(drop))?;
        let content = private_file().open(&content)?;
        self.keep_as(id.to_owned(), Upload { folder, content }, filename, purpose).map(|file| Some(file.id))
    }

    /// The file of that id.
    pub(super) fn get(&self, id: &str) -> Option<FileObject> {
        self.known().get(id).cloned()
    }

    /// Where the content of a known file is.
    pub(super) fn content(&self, file: &FileObject) -> PathBuf {
        self.folder.join(&file.id).join(CONTENT)
    }

    /// All files, the oldest first.
    pub(super) fn all(&self) -> Vec<FileObject> {
        let mut all: Vec<_> = self.known().values().cloned().collect();
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        all
    }

    /// Deletes a known file.
    pub(super) fn delete(&self, id: &str) -> io::Result<()> {
        let mut known = self.known();
        if let Some(file) = known.get(id) {
            let gone = self.folder.join(format!("{UNFINISHED}{}", Uuid::now_v7().simple()));
            std::fs::rename(self.folder.join(id), &gone)?;
            let mut deleted = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
            deleted.truncate(MOST_GONE - 1);
            deleted.push_front((file.id.clone(), file.created_at));
            drop(deleted);
            known.remove(id);
            drop(known);
            std::fs::remove_dir_all(gone)?;
        }
        Ok(())
    }

    /// When a file was created that was deleted lately.
    pub(super) fn gone(&self, id: &str) -> Option<i64> {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.iter().find(|(of, _)| of == id).map(|(_, at)| *at)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, FileObject>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn an_upload_that_was_cut_off_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("files");
        let files = Files::open(path.clone()).expect("a folder");
        let mut whole = files.begin().expect("a file");
        whole.content.write_all(b"{}\n").expect("writable");
        let whole = files.keep(whole, "whole.jsonl".into(), BATCH).expect("kept");
        let mut cut_off = files.begin().expect("a file");
        cut_off.content.write_all(b"{").expect("writable");
        // As a kill leaves it.
        std::mem::forget(cut_off);
        let files = Files::open(path.clone()).expect("a folder");
        assert_eq!(
            files.all().iter().map(|file| (&*file.filename, file.bytes)).collect::<Vec<_>>(),
            [("whole.jsonl", 3)]
        );
        assert_eq!(std::fs::read_dir(&path).expect("a folder").count(), 1);
        files.delete(&whole.id).expect("deleted");
        assert!(Files::open(path.clone()).expect("a folder").all().is_empty());
        assert_eq!(std::fs::read_dir(&path).expect("a folder").count(), 0);
    }

    #[test]
    fn results_become_a_file_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Files::open(folder.path().join("files")).expect("a folder");
        let results = folder.path().join("results.jsonl");
        let adopt = || files.adopt("file-a-output", &results, "a.jsonl".into(), "batch_output").expect("no error");
        assert_eq!(adopt(), None, "there are none");
        std::fs::write(&results, "{}\n").expect("writable");
        assert_eq!((adopt(), adopt()), (Some("file-a-output".into()), Some("file-a-output".into())));
        std::fs::remove_file(&results).expect("it is there");
        assert_eq!((adopt().is_some(), files.all().len()), (true, 1), "a start after a kill finds it done");
    }
}
