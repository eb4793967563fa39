//! What the end of a command means: its exit code, and the last line of what it wrote.

use std::process::ExitStatus;
use std::time::Duration;

use paceline_core::Class;
use paceline_store::work::Failure;
use serde_json::{Map, Value};

use crate::process::{Ended, Exit, OUTPUT_BYTES, Output};
use crate::text;

/// A shorter wait is the item's own; the pace sees to the others.
const HELD_ABOVE: Duration = Duration::from_secs(1);

/// A machine that has too much to do is asked again after that.
const UNTIL_THERE_IS_ROOM: Duration = Duration::from_secs(1);

/// How much of an invalid line is quoted.
const SHOWN: usize = 80;

/// Success, or the failure with its class.
pub(super) fn outcome(ended: &Ended) -> Result<(), Failure> {
    match &ended.exit {
        Exit::Status(status) if status.success() => Ok(()),
        Exit::Status(status) => Err(status.code().map_or_else(|| killed(*status), |code| failed(code, ended))),
        Exit::TimedOut(after) => Err(Failure {
            code: Some("timeout".to_owned()),
            ..Failure::new(Class::Transient, format!("killed: it did not end within {}", text::duration(*after)))
        }),
        Exit::GivenUp => Err(Failure::new(Class::Abandoned, "abandoned: the run had to end")),
        Exit::NotBegun(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            Err(Failure::new(Class::Invalid, format!("cannot be passed to a command: {error}")))
        }
        Exit::NotBegun(error) => {
            let message = format!("the command cannot be started: {error}");
            // Whatever it is, no item is at fault: this machine has too much to do, or the command needs a person.
            Err(match is_of_the_moment(error) {
                true => Failure::new(Class::Abandoned, message).with_retry_after(UNTIL_THERE_IS_ROOM),
                false => Failure { code: Some("not_begun".to_owned()), ..Failure::new(Class::Account, message) },
            })
        }
    }
}

/// Whether a failure concerns its item alone: a command that only failed, or crashed, says nothing about a server that others
/// need too. One that names a class does, 75 is the exit code for that, and one that hangs may hang on it.
pub(super) fn is_of_the_item(ended: &Ended) -> bool {
    match &ended.exit {
        Exit::Status(status) => match (status.code(), last_line(&ended.output)) {
            (Some(75), _) => false,
            (Some(_), LastLine::Report(report)) => !report.contains_key("class"),
            _ => true,
        },
        Exit::TimedOut(_) | Exit::GivenUp | Exit::NotBegun(_) => false,
    }
}

/// Too many open files or processes, too little memory.
fn is_of_the_moment(error: &std::io::Error) -> bool {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        let errors = [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM];
        errors.iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
    }
    #[cfg(not(unix))]
    {
        error.kind() == std::io::ErrorKind::OutOfMemory
    }
}

/// The classes of sysexits that are more specific than "failed".
const fn by_exit_code(code: i32) -> Class {
    match code {
        65 => Class::Invalid,
        77 => Class::Account,
        _ => Class::Transient,
    }
}

fn failed(code: i32, ended: &Ended) -> Failure {
    let status = u16::try_from(code).ok();
    let by_code = |message: String| Failure { status, ..Failure::new(by_exit_code(code), message) };
    let exit = format!("exit code {code}");
    match last_line(&ended.output) {
        LastLine::Report(report) => Failure { status, ..read(&report, code, ended) },
        LastLine::TooLong => {
            let limit = OUTPUT_BYTES >> 20;
            by_code(format!("{exit}; more than {limit} MB on standard output, so its last line was not read"))
        }
        LastLine::Broken(line) => {
            let line = text::cut(&line, SHOWN);
            by_code(format!("{exit}; the last line of standard output is no JSON: {line}{}", behind(ended)))
        }
        LastLine::Other => by_code(format!("{exit}{}", behind(ended))),
    }
}

/// The last line of standard error that is not blank.
fn behind(ended: &Ended) -> String {
    let last = ended.stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.map(|line| format!(": {}", text::printable(line))).unwrap_or_default()
}

/// What the last line of standard output is.
enum LastLine {
    Report(Map<String, Value>),
    /// It begins like a report.
    Broken(String),
    TooLong,
    /// Nothing, or something that is meant for others.
    Other,
}

fn last_line(output: &Output) -> LastLine {
    if output.too_long {
        return LastLine::TooLong;
    }
    let lines = output.text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let Some(line) = lines.rev().find(|line| !line.is_empty()).filter(|line| line.starts_with(b"{")) else {
        return LastLine::Other;
    };
    match serde_json::from_slice(line) {
        Ok(report) => LastLine::Report(report),
        Err(_) => LastLine::Broken(text::printable(&String::from_utf8_lossy(line)).into_owned()),
    }
}

fn read(report: &Map<String, Value>, code: i32, ended: &Ended) -> Failure {
    let field = |key: &str| match report.get(key) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Some(other) => Some(other.to_string()),
    };
    let (class, objection) = class(field("class"), code);
    let retry_after = report.get("retry_after_s").and_then(seconds);
    let message = field("message").unwrap_or_else(|| {
        let wait = retry_after.filter(|_| matches!(class, Class::Throttled | Class::QuotaExhausted));
        // It may hold a group, and an exit code is no cause of that.
        let reported = wait.map(|wait| format!(", reported as {class} for {}", text::duration(wait)));
        format!("exit code {code}{}{}", reported.unwrap_or_default(), behind(ended))
    });
    let message = objection.map_or_else(|| message.clone(), |objection| format!("{objection}; {message}"));
    Failure {
        code: field("code"),
        retry_after,
        // All of a group are limited together.
        is_for_group: class == Class::QuotaExhausted
            || class == Class::Throttled && retry_after.is_some_and(|wait| wait > HELD_ABOVE),
        ..Failure::new(class, message)
    }
}

/// The class that a report names, and what is wrong with the name.
fn class(name: Option<String>, code: i32) -> (Class, Option<String>) {
    let Some(name) = name else { return (by_exit_code(code), None) };
    let known = Class::from_name(&name.to_ascii_lowercase());
    match known {
        Some(Class::Success) => {
            let objection = format!("it reports success, but exit code {code}");
            (by_exit_code(code), Some(objection))
        }
        // That we gave up is known here alone.
        Some(class) if class != Class::Abandoned => (class, None),
        _ => {
            let name = text::cut(&text::printable(&name), SHOWN);
            (Class::Transient, Some(format!("unknown class {name:?}, taken as transient")))
        }
    }
}

/// A number of seconds, also as a text. One that is not positive is ignored.
fn seconds(value: &Value) -> Option<Duration> {
    let seconds = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    Duration::try_from_secs_f64(seconds).ok().filter(|wait| !wait.is_zero())
}

#[cfg(unix)]
fn killed(status: ExitStatus) -> Failure {
    use std::os::unix::process::ExitStatusExt as _;
    let name = status.signal().map_or_else(|| "a signal".to_owned(), signal_name);
    Failure { code: Some(name.clone()), ..Failure::new(Class::Transient, format!("killed by {name}")) }
}

#[cfg(not(unix))]
fn killed(status: ExitStatus) -> Failure {
    Failure::new(Class::Transient, format!("ended with {status}"))
}

/// Those that end a process without its doing, by POSIX; the same numbers everywhere but for SIGBUS.
#[cfg(unix)]
fn signal_name(number: i32) -> String {
    use rustix::process::Signal;
    let names = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
    ];
    let known = names.into_iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| name.to_owned())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn of(wait_status: i32, stdout: &str, stderr: &str) -> Result<(), Failure> {
        let output = Output { text: stdout.as_bytes().to_vec(), too_long: stdout.len() > OUTPUT_BYTES };
        let exit = Exit::Status(ExitStatus::from_raw(wait_status));
        outcome(&Ended { exit, output, stderr: stderr.to_owned() })
    }

    fn exited(code: i32, stdout: &str, stderr: &str) -> Failure {
        of(code << 8, stdout, stderr).expect_err("it failed")
    }

    #[test]
    fn an_exit_code_of_0_is_success_whatever_was_said() {
        for stdout in ["", r#"{"class":"invalid"}"#, "{", &"x".repeat(OUTPUT_BYTES + 1)] {
            assert_eq!(of(0, stdout, "trouble"), Ok(()));
        }
    }

    #[test]
    fn without_a_report_the_exit_code_decides() {
        for (code, class) in [
            (1, Class::Transient),
            (65, Class::Invalid),
            (75, Class::Transient),
            (77, Class::Account),
            (127, Class::Transient),
            (255, Class::Transient),
        ] {
            let failure = exited(code, "done\nnothing", "first\nno luck today\n\n");
            assert_eq!((failure.class, failure.status), (class, Some(code as u16)));
            assert_eq!(failure.message, format!("exit code {code}: no luck today"));
        }
        assert_eq!(exited(3, "", "").message, "exit code 3");
    }

    #[test]
    fn a_command_that_only_failed_says_nothing_of_other_items() {
        let ended = |wait_status: i32, stdout: &str| {
            let output = Output { text: stdout.as_bytes().to_vec(), too_long: false };
            Ended { exit: Exit::Status(ExitStatus::from_raw(wait_status)), output, stderr: String::new() }
        };
        for (wait_status, stdout, expected) in [
            (1 << 8, "", true),
            (1 << 8, r#"{"code":"x"}"#, true),
            (9, r#"{"class":"overloaded"}"#, true),
            (75 << 8, "", false),
            (1 << 8, r#"{"class":"transient"}"#, false),
        ] {
            assert_eq!(is_of_the_item(&ended(wait_status, stdout)), expected, "{wait_status} {stdout}");
        }
    }

    #[test]
    fn the_last_line_decides_when_it_is_a_report() {
        let report = r#"{"class":" Throttled","code":42,"message":"slow down","retry_after_s":"1.5"}"#;
        for stdout in [report.to_owned(), format!("{{\"class\":\"invalid\"}}\n{report}\n\n  \n")] {
            let failure = exited(65, &stdout, "unseen");
            assert_eq!((failure.class, failure.code.as_deref()), (Class::Throttled, Some("42")));
            assert_eq!(
                (failure.message.as_str(), failure.retry_after),
                ("slow down", Some(Duration::from_millis(1_500)))
            );
        }
        let failure = exited(77, r#"{"code":"no_class"}"#, "");
        assert_eq!(
            (failure.class, failure.code.as_deref()),
            (Class::Account, Some("no_class")),
            "as the exit code says"
        );
        assert_eq!(exited(65, "[1]", "").class, Class::Invalid, "an array is meant for another reader");
    }

    #[test]
    fn a_report_that_makes_no_sense_is_told() {
        for (report, class, message) in [
            (r#"{"class":"meh","message":"m"}"#, Class::Transient, "unknown class \"meh\", taken as transient; m"),
            (
                r#"{"class":"abandoned"}"#,
                Class::Transient,
                "unknown class \"abandoned\", taken as transient; exit code 65",
            ),
            (r#"{"class":5}"#, Class::Transient, "unknown class \"5\", taken as transient; exit code 65"),
            (r#"{"class":"success","message":"fine"}"#, Class::Invalid, "it reports success, but exit code 65; fine"),
            (
                r#"{"class":"inva"#,
                Class::Invalid,
                "exit code 65; the last line of standard output is no JSON: {\"class\":\"inva",
            ),
        ] {
            let failure = exited(65, report, "");
            assert_eq!((failure.class, failure.message.as_str()), (class, message), "{report}");
        }
        let long = format!("{}\n{{\"class\":\"throttled\"}}", "x".repeat(OUTPUT_BYTES));
        let failure = exited(65, &long, "");
        assert_eq!(failure.class, Class::Invalid);
        assert_eq!(failure.message, "exit code 65; more than 1 MB on standard output, so its last line was not read");
    }

    #[test]
    fn waits_are_read_with_patience() {
        for (value, wait) in [
            ("1", Some(1_000)),
            ("0.25", Some(250)),
            ("\" 90 \"", Some(90_000)),
            ("0", None),
            ("-5", None),
            ("\"NaN\"", None),
            ("\"inf\"", None),
            ("1e300", None),
            ("\"soon\"", None),
            ("null", None),
            ("[1]", None),
        ] {
            let failure = exited(1, &format!("{{\"class\":\"throttled\",\"retry_after_s\":{value}}}"), "");
            assert_eq!(failure.retry_after, wait.map(Duration::from_millis), "{value}");
        }
        let failure = exited(1, r#"{"class":"quota_exhausted","retry_after_s":7200}"#, "none left");
        assert_eq!(failure.message, "exit code 1, reported as quota_exhausted for 2h 00m: none left");
    }

    #[test]
    fn signals_have_names_and_end_with_a_retry() {
        for (number, name) in [(9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM"), (50, "signal 50")] {
            let failure = of(number, r#"{"class":"invalid"}"#, "").expect_err("killed");
            assert_eq!((failure.class, failure.message), (Class::Transient, format!("killed by {name}")));
        }
    }
}
