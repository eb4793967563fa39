//! Every wait of a test has an end: a process that hangs fails its test by name, and holds up no run of the tests.

use std::io::{BufRead, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// A wait that takes longer has no end: the slowest test ends in less on a machine that is busy with other things.
const LONGEST_WAIT: Duration = Duration::from_mins(2);

/// A whole test that takes longer ends the run of the tests.
const LONGEST_TEST: Duration = Duration::from_mins(5);

/// The long forms of tests take so many times as long.
const LONG_FORM: u32 = 20;

/// As long, in the long form of a test (`PACELINE_SOAK=1`).
fn in_this_form(longest: Duration) -> Duration {
    if std::env::var_os("PACELINE_SOAK").is_some_and(|value| value == "1") { longest * LONG_FORM } else { longest }
}

/// Waits that end, for whatever runs as a process.
pub(crate) trait Bounded {
    /// Its status at its end.
    fn ended(&mut self) -> ExitStatus;
}

impl Bounded for Child {
    fn ended(&mut self) -> ExitStatus {
        within(in_this_form(LONGEST_WAIT), Some(self.id()), "the end", || self.wait()).expect("a process of ours")
    }
}

impl Bounded for Command {
    fn ended(&mut self) -> ExitStatus {
        within(in_this_form(LONGEST_WAIT), None, "the end", || self.status()).expect("it starts")
    }
}

/// Waits that end, and take what the process wrote where that is piped.
pub(crate) trait BoundedOutput {
    /// Its status and what it wrote, at its end.
    fn ended_with_output(self) -> Output;
}

impl BoundedOutput for Child {
    fn ended_with_output(self) -> Output {
        within(in_this_form(LONGEST_WAIT), Some(self.id()), "the end", || self.wait_with_output())
            .expect("a process of ours")
    }
}

impl BoundedOutput for &mut Command {
    fn ended_with_output(self) -> Output {
        output_of(self).expect("it starts")
    }
}

/// The same, of what may not be installed.
pub(crate) fn output_of(command: &mut Command) -> std::io::Result<Output> {
    within(in_this_form(LONGEST_WAIT), None, "the end", || command.output())
}

/// Reads a line that a process writes, behind what was read before. Returns its length; zero at the end of what it writes.
pub(crate) fn read_line(process: &Child, from: &mut impl BufRead, text: &mut String) -> usize {
    reading(process, "a line", || from.read_line(text)).expect("text")
}

/// Whatever reads what a process writes.
pub(crate) fn reading<T>(process: &Child, what: &str, read: impl FnOnce() -> T) -> T {
    within(in_this_form(LONGEST_WAIT), Some(process.id()), what, read)
}

/// Does what waits for a process, and kills it, with what it has started, when that takes too long. None: for whatever this
/// thread has started.
fn within<T>(longest: Duration, process: Option<u32>, what: &str, work: impl FnOnce() -> T) -> T {
    let thread = std::fs::read_link("/proc/thread-self").ok();
    let (over, is_over) = mpsc::channel::<()>();
    let test = test();
    let watch = thread::spawn(move || {
        let is_late = is_over.recv_timeout(longest) == Err(RecvTimeoutError::Timeout);
        is_late.then(|| kill(&test, process, thread.as_deref()))
    });
    let done = work();
    drop(over);
    if let Some(killed) = watch.join().expect("no panic") {
        panic!("{}: waited {longest:?} for {what} of{killed}", self::test());
    }
    done
}

/// The test that runs on this thread.
fn test() -> String {
    thread::current().name().unwrap_or("a thread of a test").to_owned()
}

/// Ends a process and what it has started. Returns what they were.
fn kill(test: &str, process: Option<u32>, thread: Option<&Path>) -> String {
    let children =
        thread.and_then(|thread| std::fs::read_to_string(Path::new("/proc").join(thread).join("children")).ok());
    let children = children.unwrap_or_default();
    let mut all: Vec<u32> = children.split_whitespace().filter_map(|child| child.parse().ok()).collect();
    if let Some(process) = process {
        all = vec![process];
    }
    if all.is_empty() {
        give_up(test, "waits for a process that cannot be found");
    }
    let mut next = 0;
    while let Some(process) = all.get(next).copied() {
        all.extend(children_of(process));
        next += 1;
    }
    let mut names = String::new();
    for process in &all {
        let command = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        names += &format!(" process {process} ({})", command.trim());
    }
    let ids = all.iter().map(u32::to_string);
    let _ = match cfg!(windows) {
        true => Command::new("taskkill").args(["/F", "/T"]).args(ids.flat_map(|id| ["/PID".to_owned(), id])).status(),
        false => Command::new("kill").arg("-KILL").args(ids).status(),
    };
    names
}

fn children_of(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    children.flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Ends the run of all tests, which would wait for this one for ever.
fn give_up(test: &str, why: &str) -> ! {
    // Not by a macro, whose words the harness keeps for itself.
    let _ = writeln!(std::io::stderr(), "{test}: {why}");
    std::process::exit(101);
}

/// Bounds a test for as long as it is kept.
pub(crate) struct TestBound {
    _over: Sender<()>,
}

impl TestBound {
    pub(crate) fn new() -> Self {
        let (over, is_over) = mpsc::channel::<()>();
        let (test, longest) = (test(), in_this_form(LONGEST_TEST));
        thread::spawn(move || {
            if is_over.recv_timeout(longest) == Err(RecvTimeoutError::Timeout) {
                give_up(&test, &format!("takes longer than {longest:?}"));
            }
        });
        Self { _over: over }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_that_does_not_end_fails_its_test_by_name() {
    let hangs = |wait: fn(&mut Command)| {
        let mut command = Command::new("sh");
        // What waits is a child of what was started, and holds its pipes.
        command.args(["-c", "sleep 1000 & wait"]).stdout(std::process::Stdio::piped());
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait(&mut command)));
        *caught.expect_err("it waits for ever").downcast::<String>().expect("a message")
    };
    const SHORT: Duration = Duration::from_millis(300);
    let told = hangs(|command| drop(within(SHORT, None, "the end", || command.output())));
    assert!(
        told.starts_with("bounded::a_process_that_does_not_end_fails_its_test_by_name: waited 300ms for the end"),
        "{told}"
    );
    assert!(told.contains("(sh -c sleep 1000 & wait)") && told.contains("(sleep 1000)"), "{told}");
    let told = hangs(|command| {
        let mut child = command.spawn().expect("sh");
        let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let line = within(SHORT, Some(child.id()), "a line", || out.read_line(&mut String::new()));
        drop((line, child.wait()));
    });
    assert!(told.contains("waited 300ms for a line of"), "{told}");
}
