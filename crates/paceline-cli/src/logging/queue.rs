//! Lines on their way to standard error. One thread writes them, so nothing else waits where the reader of standard error
//! stands still: lines for which the queue has no room are counted, and told once the reader goes on.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What waits for the log to be written waits no longer for its reader.
const PATIENCE: Duration = Duration::from_secs(1);

/// What one thread writes for all.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// So many bytes of lines may wait.
    most: usize,
    /// Lines that were not written, since the program began.
    lost: AtomicU64,
}

struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The latest state of the screen, which takes the place of one that was not drawn yet.
    drawing: Option<Drawing>,
    /// Lines that were not written, and of which the log does not tell yet.
    untold: u64,
    is_writing: bool,
}

type Drawing = Box<dyn FnOnce() + Send>;

enum Next {
    Line(Vec<u8>),
    Drawing(Drawing),
}

impl Queue {
    pub(super) const fn new(most: usize) -> Self {
        let waiting = Waiting { lines: VecDeque::new(), bytes: 0, drawing: None, untold: 0, is_writing: false };
        Self { waiting: Mutex::new(waiting), changed: Condvar::new(), most, lost: AtomicU64::new(0) }
    }

    /// Adds a line, or counts it where there is no room.
    pub(super) fn add(&self, line: &[u8]) {
        let mut waiting = self.waiting();
        if waiting.bytes + line.len() > self.most {
            return self.loses(&mut waiting);
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.to_owned());
        self.changed.notify_all();
    }

    /// Adds what draws the present state of the screen.
    pub(super) fn draw(&self, drawing: impl FnOnce() + Send + 'static) {
        self.waiting().drawing = Some(Box::new(drawing));
        self.changed.notify_all();
    }

    /// Waits until all is written, for a second at most.
    pub(super) fn flush(&self) {
        let is_left =
            |waiting: &mut Waiting| waiting.is_writing || waiting.drawing.is_some() || !waiting.lines.is_empty();
        drop(self.changed.wait_timeout_while(self.waiting(), PATIENCE, is_left));
    }

    /// Lines that were not written, since the program began.
    pub(super) const fn lost(&self) -> &AtomicU64 {
        &self.lost
    }

    /// Writes for as long as the program runs. `write` returns whether the line was taken; `tell` logs that so many were not.
    pub(super) fn work(&self, mut write: impl FnMut(&[u8]) -> bool, tell: impl Fn(u64)) {
        let mut is_taken = true;
        loop {
            match self.next(is_taken, &tell) {
                Next::Drawing(drawing) => drawing(),
                Next::Line(line) => {
                    is_taken = write(&line);
                    if !is_taken {
                        self.loses(&mut self.waiting());
                    }
                }
            }
        }
    }

    /// What is written next: first the screen, for what is drawn last clears it for the lines behind it.
    fn next(&self, is_taken: bool, tell: &impl Fn(u64)) -> Next {
        let mut waiting = self.waiting();
        loop {
            let drawing = waiting.drawing.take().map(Next::Drawing);
            if let Some(next) = drawing.or_else(|| waiting.lines.pop_front().map(Next::Line)) {
                if let Next::Line(line) = &next {
                    waiting.bytes -= line.len();
                }
                waiting.is_writing = true;
                return next;
            }
            // The lines that were lost came behind those that are written now.
            if is_taken && waiting.untold > 0 {
                let untold = std::mem::take(&mut waiting.untold);
                drop(waiting);
                tell(untold);
                waiting = self.waiting();
                continue;
            }
            waiting.is_writing = false;
            self.changed.notify_all();
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn loses(&self, waiting: &mut Waiting) {
        waiting.untold += 1;
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a line, and returns whether all of it was taken. One that was cut, as by a full disk, ends before the next begins.
pub(super) fn write_line(is_cut: &mut bool, line: &[u8], out: &mut impl Write) -> bool {
    if *is_cut && !write_all(b"\n", out, |_| {}) {
        return false;
    }
    *is_cut = false;
    write_all(line, out, |is_left| *is_cut = is_left)
}

/// Whether standard error is a file whose last line has no end: a full disk has cut it before this process began.
pub(super) fn ends_within_a_line() -> bool {
    const PATH: &str = "/dev/stderr";
    let last = || {
        std::fs::metadata(PATH).ok().filter(std::fs::Metadata::is_file)?;
        let mut file = File::open(PATH).ok()?;
        file.seek(SeekFrom::End(-1)).ok()?;
        let mut last = [0];
        file.read_exact(&mut last).ok()?;
        Some(last != *b"\n")
    };
    last().unwrap_or(false)
}

/// `wrote` is told whether something is left, each time some of it was taken.
fn write_all(mut text: &[u8], out: &mut impl Write, mut wrote: impl FnMut(bool)) -> bool {
    while !text.is_empty() {
        match out.write(text) {
            Ok(0) => return false,
            Ok(taken) => text = &text[taken..],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return false,
        }
        wrote(!text.is_empty());
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc;

    use super::*;

    /// A queue for that many bytes, with a thread whose reader takes a line each time the sender is used. The receiver has first
    /// each line that is to be written, then whether it was.
    fn with_reader(most: usize) -> (&'static Queue, mpsc::Sender<bool>, mpsc::Receiver<String>) {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new(most)));
        let ((reads, read), (writes, written)) = (mpsc::channel(), mpsc::channel());
        std::thread::spawn(move || {
            let write = |line: &[u8]| {
                writes.send(String::from_utf8_lossy(line).into_owned()).is_ok() && read.recv().unwrap_or(false)
            };
            queue.work(write, |lost| queue.add(format!("lost {lost}").as_bytes()));
        });
        (queue, reads, written)
    }

    #[test]
    fn a_reader_that_stands_still_holds_up_nothing_and_what_had_no_room_is_told() {
        let (queue, reads, written) = with_reader(20);
        queue.add(b"first");
        assert_eq!(written.recv().expect("a line"), "first", "of which nothing is taken yet");
        for n in 0..10 {
            queue.add(format!("line {n}").as_bytes());
        }
        assert_eq!(queue.lost().load(Ordering::Relaxed), 7, "three have room");
        for line in ["line 0", "line 1", "line 2", "lost 7"] {
            reads.send(true).expect("it reads");
            assert_eq!(written.recv().expect("a line"), line);
        }
        reads.send(true).expect("it reads");
        queue.flush();
        assert_eq!(queue.lost().load(Ordering::Relaxed), 7, "the line that tells of them is none of them");
        queue.add(b"last");
        assert_eq!(written.recv().expect("a line"), "last");
    }

    #[test]
    fn lines_that_were_not_taken_are_told_with_the_first_that_is() {
        let (queue, reads, written) = with_reader(100);
        for (line, is_taken) in [("a", false), ("b", false), ("c", true)] {
            queue.add(line.as_bytes());
            assert_eq!(written.recv().expect("a line"), line);
            reads.send(is_taken).expect("it reads");
        }
        assert_eq!(written.recv().expect("a line"), "lost 2");
    }

    #[test]
    fn of_the_screen_only_the_last_state_is_drawn_and_before_the_lines() {
        let (queue, reads, written) = with_reader(100);
        queue.add(b"a");
        assert_eq!(written.recv().expect("a line"), "a");
        let (draws, drawn) = mpsc::channel();
        for state in 0..3 {
            let draws = draws.clone();
            queue.draw(move || draws.send(state).expect("it is there"));
        }
        queue.add(b"b");
        reads.send(true).expect("it reads");
        assert_eq!(written.recv().expect("a line"), "b");
        assert_eq!(drawn.try_iter().collect::<Vec<_>>(), [2]);
    }

    /// A disk with room for so many bytes.
    struct Disk(Vec<u8>, usize);

    impl Write for Disk {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let taken = text.len().min(self.1 - self.0.len());
            self.0.extend(&text[..taken]);
            if taken == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_a_full_disk_has_cut_ends_before_the_next() {
        let (mut disk, mut is_cut) = (Disk(Vec::new(), 10), false);
        let mut write = |disk: &mut Disk, line: &str| write_line(&mut is_cut, line.as_bytes(), disk);
        assert_eq!(["first\n", "second\n", "third\n"].map(|line| write(&mut disk, line)), [true, false, false]);
        disk.1 = 100;
        assert_eq!(["fourth\n", "fifth\n"].map(|line| write(&mut disk, line)), [true, true]);
        assert_eq!(String::from_utf8_lossy(&disk.0), "first\nseco\nfourth\nfifth\n");
    }
}
