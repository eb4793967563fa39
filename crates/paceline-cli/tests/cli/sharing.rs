//! Two processes on one account.

use crate::support::{Job, Reply, Server, finish, start};
use crate::tasks_run::{Store, ran};

#[test]
fn the_second_process_on_a_key_is_warned_and_the_key_is_nowhere() {
    const KEY: &str = "sk-very-secret-0123456789";
    let server = Server::new(|arrival| if arrival.item == "item-0" { Reply::ok().never() } else { Reply::ok() });
    let (job, other) = (Job::new(1), Job::with_input(&crate::support::line("other")));
    let run = |on: &Job, key: &str| {
        let mut command = on.run(&server);
        // Both belong to one user, so they share a home.
        command.args(["--api-key-env", "THE_KEY"]).env("THE_KEY", key).env("HOME", job.path(""));
        command
    };
    let mut first = start(&mut run(&job, KEY));
    server.wait_for(1);
    let (code, log) = finish(&mut run(&other, KEY));
    assert_eq!(code, 0, "{log}");
    let warning = format!("process {} is calling {} with the same key", first.id(), server.url());
    assert_eq!(log.matches(&warning).count(), 1, "{log}");
    let store = Store::of(&["a"]);
    let flags = ["--http", "--base-url", &server.url(), "--api-key-env", "THE_KEY"];
    let tasks = ran(store.command().args(flags).env("THE_KEY", KEY).env("HOME", job.path("")));
    assert_eq!(tasks.log.matches(&warning).count(), 1, "{}", tasks.log);
    let (_, log) = finish(&mut run(&Job::with_input(&crate::support::line("third")), "another key"));
    assert!(!log.contains("with the same key"), "{log}");
    for entry in std::fs::read_dir(job.path(".cache/paceline")).expect("the locks") {
        let path = entry.expect("an entry").path();
        let text = format!("{}{}", path.display(), std::fs::read_to_string(&path).expect("text"));
        assert!(!text.contains("secret"), "{text}");
    }
    first.kill().expect("it runs");
    first.wait().expect("it ends");
    let (_, log) = finish(&mut run(&Job::with_input(&crate::support::line("fourth")), KEY));
    assert!(!log.contains("with the same key"), "the dead hold nothing: {log}");
}
