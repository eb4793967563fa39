//! What a process did to the files of its folder, in order, as `strace` saw it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Names the folder of the job to the process that is recorded, which is this test binary again.
pub(crate) const FOLDER: &str = "PACELINE_RECORDED_FOLDER";

/// The file that a recorded job writes its acknowledgements to. No part of the disk: a caller that heard one knows it.
pub(crate) const ACKNOWLEDGED: &str = "acknowledged";

/// One thing that happened. Files are named without their folder, by the name that they have at that moment.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Create { file: String },
    Write { file: String, offset: usize, bytes: Vec<u8> },
    Truncate { file: String, len: usize },
    Sync { file: String },
    SyncFolder,
    Rename { from: String, to: String },
    Remove { file: String },
    Acknowledge(String),
    Nothing,
}

/// A recorded job.
pub(crate) struct Trace {
    pub(crate) acts: Vec<Act>,
    folder: TempDir,
}

const CALLS: &str = "trace=openat,write,pwrite64,lseek,ftruncate,fsync,fdatasync,rename,unlink,close,fcntl";

/// The only file that is there before the job.
pub(crate) const INPUT: &str = "requests.jsonl";

impl Trace {
    /// Records the test `job` of this binary, alone in a process.
    pub(crate) fn of(job: &str) -> Self {
        let folder = in_memory();
        fs::write(folder.path().join(INPUT), "the input\n".repeat(100)).unwrap();
        let log = tempfile::NamedTempFile::new().unwrap();
        let recorded = Command::new("strace")
            .args(["-f", "--seccomp-bpf", "-xx", "-s", "100000000", "-e", CALLS, "-o"])
            .arg(log.path())
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", job, "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .output()
            .expect("strace is on the PATH");
        assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
        let acts = Reading::new(folder.path()).acts(&fs::read_to_string(log.path()).unwrap());
        Self { acts, folder }
    }

    /// A folder as that of the job was at its beginning.
    pub(crate) fn folder_as_it_began(&self) -> TempDir {
        let copy = in_memory();
        let (from, to) = (self.folder.path().join(INPUT), copy.path().join(INPUT));
        fs::copy(&from, &to).unwrap();
        // By which an input is recognized.
        let changed = fs::metadata(&from).unwrap().modified().unwrap();
        fs::File::options().write(true).open(&to).unwrap().set_modified(changed).unwrap();
        copy
    }
}

/// The calls by the time at which they ended. Those that another thread's call fell into stand in two lines; the order of
/// two such calls would be unknown, but for the words that the test harness prints.
fn whole_calls(log: &str) -> Vec<String> {
    let (mut begun, mut calls) = (BTreeMap::<&str, &str>::new(), Vec::new());
    for line in log.lines() {
        let (thread, call) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((start, _)) = call.split_once("<unfinished") {
            begun.insert(thread, start);
            let silent = begun.values().filter(|start| !start.trim_start().starts_with("write(1,")).count();
            assert!(silent <= 1, "two threads at once, in no order: {line}");
        } else if let Some((_, end)) = call.split_once("resumed>") {
            let start = begun.remove(thread).unwrap_or_default();
            calls.push(format!("{thread} {start}{end}"));
        } else {
            calls.push(line.to_owned());
        }
    }
    calls
}

fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// An open file: what stands behind one or several descriptors.
#[derive(Clone, Debug)]
enum Open {
    Folder,
    /// Which of the files, counted as they were created, and where in it the next write goes.
    File {
        number: usize,
        at: usize,
    },
}

struct Reading {
    folder: String,
    /// Index into `opened` by descriptor: duplicates share their place in the file.
    descriptors: BTreeMap<i64, usize>,
    opened: Vec<Open>,
    /// Today's name of each file; none once it is removed.
    names: Vec<Option<String>>,
}

impl Reading {
    fn new(folder: &Path) -> Self {
        let folder = folder.to_str().unwrap().to_owned();
        Self { folder, descriptors: BTreeMap::new(), opened: Vec::new(), names: Vec::new() }
    }

    fn acts(mut self, log: &str) -> Vec<Act> {
        let mut acts = Vec::new();
        for line in whole_calls(log) {
            let Some((call, result)) = line.rsplit_once(" = ") else { continue };
            let Some((name, arguments)) = call.split_once(' ').and_then(|(_, call)| call.trim().split_once('(')) else {
                continue;
            };
            let Ok(result) = result.split(' ').next().unwrap_or_default().parse::<i64>() else { continue };
            if result >= 0 {
                acts.extend(self.act(name, &split(arguments), result));
            }
        }
        acts
    }

    fn act(&mut self, call: &str, arguments: &[String], result: i64) -> Option<Act> {
        match call {
            "openat" => return self.open(&arguments[1], &arguments[2], result),
            "rename" => {
                let (from, to) = (self.inside(&arguments[0])?, self.inside(&arguments[1])?);
                self.forget(&to);
                self.rename(&from, Some(&to));
                return Some(Act::Rename { from, to });
            }
            "unlink" => {
                let file = self.inside(&arguments[0])?;
                self.forget(&file);
                return Some(Act::Remove { file });
            }
            _ => {}
        }
        let descriptor = arguments[0].parse().ok()?;
        let open = *self.descriptors.get(&descriptor)?;
        match call {
            "close" => drop(self.descriptors.remove(&descriptor)),
            "fcntl" if arguments[1].starts_with("F_DUPFD") => drop(self.descriptors.insert(result, open)),
            "fsync" | "fdatasync" => {
                return Some(match &self.opened[open] {
                    Open::Folder => Act::SyncFolder,
                    Open::File { number, .. } => Act::Sync { file: self.names[*number].clone()? },
                });
            }
            _ => return self.change(call, arguments, result, open),
        }
        None
    }

    fn change(&mut self, call: &str, arguments: &[String], result: i64, open: usize) -> Option<Act> {
        let result = result as usize;
        let Open::File { number, at } = &mut self.opened[open] else { return None };
        let file = self.names[*number].clone()?;
        let bytes = || bytes(&arguments[1])[..result].to_vec();
        match call {
            "lseek" => *at = result,
            "ftruncate" => return Some(Act::Truncate { file, len: arguments[1].parse().unwrap() }),
            "write" if file == ACKNOWLEDGED => return Some(Act::Acknowledge(String::from_utf8(bytes()).unwrap())),
            "write" => {
                let offset = *at;
                *at += result;
                return Some(Act::Write { file, offset, bytes: bytes() });
            }
            "pwrite64" => {
                return Some(Act::Write { file, offset: arguments[3].parse().unwrap(), bytes: bytes() });
            }
            _ => {}
        }
        None
    }

    fn open(&mut self, path: &str, flags: &str, descriptor: i64) -> Option<Act> {
        let path = String::from_utf8(bytes(path)).unwrap();
        self.descriptors.remove(&descriptor);
        let open = self.opened.len();
        if path == self.folder {
            self.descriptors.insert(descriptor, open);
            self.opened.push(Open::Folder);
            return None;
        }
        let file = self.relative(&path)?;
        let known = self.names.iter().position(|name| name.as_deref() == Some(&*file));
        let number = known.unwrap_or(self.names.len());
        self.descriptors.insert(descriptor, open);
        self.opened.push(Open::File { number, at: 0 });
        if known.is_none() {
            self.names.push(Some(file.clone()));
            return Some(Act::Create { file });
        }
        flags.contains("O_TRUNC").then_some(Act::Truncate { file, len: 0 })
    }

    fn forget(&mut self, file: &str) {
        self.rename(file, None);
    }

    fn rename(&mut self, from: &str, to: Option<&str>) {
        if let Some(name) = self.names.iter_mut().find(|name| name.as_deref() == Some(from)) {
            *name = to.map(str::to_owned);
        }
    }

    fn inside(&self, quoted: &str) -> Option<String> {
        self.relative(&String::from_utf8(bytes(quoted)).unwrap())
    }

    /// The name of a file of the folder. The index of the write-ahead log is memory, not disk, and the lock and the input
    /// hold nothing.
    fn relative(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix(&self.folder)?.strip_prefix('/')?;
        let ignored = name.ends_with("-shm") || name.ends_with(".lock") || name == INPUT;
        (!ignored).then(|| name.to_owned())
    }
}

/// The arguments of a call. With `-xx` every string is hexadecimal, so that no comma stands within one.
fn split(arguments: &str) -> Vec<String> {
    arguments.trim_end().trim_end_matches(')').split(", ").map(str::to_owned).collect()
}

/// `"\x61\x62"` as bytes.
fn bytes(quoted: &str) -> Vec<u8> {
    let digits = quoted.trim_matches('"').split("\\x").skip(1);
    digits.map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect()
}
