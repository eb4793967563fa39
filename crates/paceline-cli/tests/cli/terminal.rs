//! What a person at a terminal sees while a job runs.

use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroU16;
use std::process::{Command, Stdio};

use rustix_openpty::rustix::termios::Winsize;

use crate::bounded::{Bounded, reading};
use crate::support::{Job, Reply, Server};

/// Runs a command on a terminal of that many columns and returns all that was written to it.
fn on_a_terminal(command: &mut Command, columns: u16) -> Vec<u8> {
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = rustix_openpty::openpty(None, Some(&size)).expect("a terminal");
    let end = || Stdio::from(pty.user.try_clone().expect("a handle"));
    let mut child =
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().expect("the binary runs");
    // The terminal ends with its last user, and the command keeps handles of its own.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(pty.user);
    let (mut screen, mut written, mut buffer) = (File::from(pty.controller), Vec::new(), [0; 4096]);
    // Linux reports an error where others report the end.
    reading(&child, "the end of the screen", || {
        while let Some(read) = screen.read(&mut buffer).ok().filter(|read| *read > 0) {
            written.extend_from_slice(&buffer[..read]);
        }
    });
    child.ended();
    written
}

/// The screens that a user with quick eyes would see, up to the summary and at the end.
fn watch(written: &[u8], columns: u16) -> (Vec<String>, String) {
    let size = |cells| NonZeroU16::new(cells).expect("a size");
    let mut terminal = vt100::Parser::new(size(24), size(columns), 0);
    let mut seen = Vec::new();
    for byte in written {
        terminal.process(&[*byte]);
        let screen = terminal.screen().contents();
        if !screen.contains("SUCC") && seen.last() != Some(&screen) {
            seen.push(screen);
        }
    }
    (seen, terminal.screen().contents())
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn three_lines_that_never_wrap_and_leave_the_screen_to_the_summary() {
    let server = Server::new(|_| Reply::ok());
    let check = &|columns| {
        let job = Job::new(25);
        let written = on_a_terminal(job.run(&server).args(["--limit", "10 per 1s", "--burst", "10"]), columns);
        let (seen, last) = watch(&written, columns);
        let tallest = seen.iter().map(|screen| screen.trim_end().lines().count()).max();
        assert!(tallest <= Some(3), "{tallest:?} lines at {columns} columns: {seen:?}");
        assert!(seen.iter().any(|screen| screen.contains("/25 done")), "{seen:?}");
        if columns > 25 {
            for expected in ["/s, ETA ", " in flight, ", "waiting for the limit of 10 requests"] {
                assert!(
                    seen.iter().any(|screen| screen.contains(expected)),
                    "{expected} at {columns} columns: {seen:?}"
                );
            }
        }
        assert!(last.starts_with("SUCC") && !last.contains("ETA"), "{last}");
    };
    std::thread::scope(|all| {
        for columns in [120, 60, 25] {
            all.spawn(move || check(columns));
        }
    });
}

#[test]
fn quiet_is_quiet_on_a_terminal_too() {
    let server = Server::new(|_| Reply::ok());
    let written = on_a_terminal(Job::new(3).run(&server).arg("--quiet"), 80);
    assert_eq!(String::from_utf8_lossy(&written), "");
}
