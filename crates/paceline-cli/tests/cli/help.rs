//! The words of the interface, which scripts rely on.

use crate::support::Job;

fn help(command: &[&str]) -> String {
    let output =
        Job::new(0).paceline().args(command).arg("--help").env("COLUMNS", "120").output().expect("the binary runs");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn of_every_command() {
    insta::assert_snapshot!("paceline", help(&[]));
    for command in ["run", "check", "stats", "mock", "completions"] {
        insta::assert_snapshot!(command, help(&[command]));
    }
}
