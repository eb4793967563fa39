//! Few file descriptors: no server is to blame for that, and no item pays for it.

use std::io::{BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::bounded::{Bounded, read_line, reading};
use crate::support::{Job, Reply, Server, finish};

/// The same command under limits on open files.
fn limited(command: &Command, limits: &str) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("{limits} && exec \"$0\" \"$@\"")]).arg(command.get_program());
    limited.args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    limited.current_dir(command.get_current_dir().expect("a folder"));
    limited
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_job_under_64_files_sees_no_phantom_errors_and_writes_its_report() {
    let server = Server::new(|_| Reply::ok().after(Duration::from_millis(10)));
    let job = Job::new(400);
    let mut command = job.run(&server);
    command.args(["--concurrency", "200", "--pace", "none", "--max-retries", "0"]);
    let (code, log) = finish(&mut limited(&command, "ulimit -n 64"));
    assert_eq!((code, server.count()), (0, 400), "{log}");
    assert_eq!(log.matches("the system lets this process open few files").count(), 1, "{log}");
    assert!(!log.contains("next try in"), "{log}");
    job.assert_adds_up(400);
    assert!(job.path("out.report.jsonl").exists());
}

#[test]
fn a_run_without_room_for_its_own_files_says_what_is_short_before_it_begins() {
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(1));
    let (code, log) = finish(&mut limited(&job.run(&server), "ulimit -n 18"));
    assert_eq!((code, server.count(), job.path("out.journal").exists()), (2, 0, false), "{log}");
    assert!(
        log.contains("lets this process open 18 files at once, and the run needs ") && log.contains("ulimit -n"),
        "{log}"
    );
}

#[test]
fn a_soft_limit_below_the_hard_one_is_raised() {
    let server = Server::new(|_| Reply::ok().after(Duration::from_millis(10)));
    let job = Job::new(200);
    let mut command = job.run(&server);
    command.args(["--concurrency", "100", "--pace", "none", "--max-retries", "0"]);
    let (code, log) = finish(&mut limited(&command, "ulimit -S -n 64 && ulimit -H -n 512"));
    assert_eq!((code, server.count()), (0, 200), "{log}");
    assert!(!log.contains("few files") && !log.contains("next try in"), "{log}");
}

/// Each host is asked once, and its connection would be kept for the next call. One does not answer before all others were asked.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn idle_connections_of_many_hosts_leave_descriptors_to_new_ones() {
    let (asked, (all_asked, are_asked)) = (Arc::new(AtomicU32::new(0)), std::sync::mpsc::channel());
    let are_asked = Mutex::new(are_asked);
    let answers = move || {
        let (asked, all_asked) = (Arc::clone(&asked), all_asked.clone());
        Server::new(move |_| {
            if asked.fetch_add(1, Ordering::Relaxed) == 78 {
                all_asked.send(()).expect("the last one waits");
            }
            Reply::ok()
        })
    };
    let waits = Server::new(move |_| {
        are_asked.lock().expect("one").recv().expect("the others are asked");
        Reply::ok()
    });
    let servers: Vec<Server> = std::iter::once(waits).chain((0..79).map(|_| answers())).collect();
    let line = |(n, server): (usize, &Server)| {
        json!({"custom_id": n.to_string(), "method": "GET", "url": format!("{}/page", server.url())}).to_string() + "\n"
    };
    let job = Job::with_input(&servers.iter().enumerate().map(line).collect::<String>());
    let mut command = job.run(&servers[0]);
    command.args(["--scope", "host", "--concurrency", "2", "--pace", "none", "--max-retries", "0"]);
    let (code, log) = finish(&mut limited(&command, "ulimit -n 64"));
    assert_eq!((code, servers.iter().map(Server::count).sum::<usize>()), (0, 80), "{log}");
    assert!(!log.contains("no free files or ports") && !log.contains("next try in"), "{log}");
}

/// The limit of a process that runs is taken away and given back.
#[test]
#[cfg(target_os = "linux")]
fn calls_that_find_no_descriptor_wait_and_count_as_none() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

    let limit = |pid: Pid, current| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(Some(pid), Resource::Nofile, Rlimit { current, maximum }).expect("a child of ours");
    };
    let (lowered, is_lowered) = std::sync::mpsc::channel();
    let is_lowered = Mutex::new(is_lowered);
    let server = Server::new(move |arrival| {
        if arrival.item == "item-0" {
            is_lowered.lock().expect("one").recv().expect("the test goes on");
        }
        Reply::ok().with_header("connection", "close")
    });
    let job = Job::new(30);
    let mut command = job.run(&server);
    command.args(["--concurrency", "1", "--pace", "none", "--max-retries", "0"]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it runs");
    let pid = Pid::from_child(&child);
    server.wait_for(1);
    limit(pid, Some(3));
    lowered.send(()).expect("the server waits");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut log = String::new();
    while !log.contains("no free files or ports") {
        assert!(read_line(&child, &mut stderr, &mut log) > 0, "{log}");
    }
    limit(pid, getrlimit(Resource::Nofile).maximum);
    reading(&child, "its log", || stderr.read_to_string(&mut log)).expect("text");
    assert_eq!(child.ended().code(), Some(0), "{log}");
    assert_eq!((server.count(), log.matches("no free files").count()), (30, 1), "{log}");
    assert!(!log.contains("next try in"), "{log}");
    assert_eq!(job.summary()["calls"], 30);
}
