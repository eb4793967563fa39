//! A private Postgres server, and the program beside it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A Postgres server of its own, which ends with the test.
pub(crate) struct Postgres {
    keeper: Child,
    answers: BufReader<ChildStdout>,
    folder: String,
}

impl Postgres {
    pub(crate) fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/private-postgres");
        let mut keeper =
            Command::new(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the script starts");
        let mut answers = BufReader::new(keeper.stdout.take().expect("a pipe"));
        let mut folder = String::new();
        answers.read_line(&mut folder).expect("text");
        assert!(!folder.is_empty(), "Postgres did not start; is the package postgresql installed?");
        Self { keeper, answers, folder: folder.trim_end().to_owned() }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://tester@/postgres?host={}", self.folder)
    }

    /// Stops the server as a crash would (`stop`), or starts it again (`start`).
    pub(crate) fn tell(&mut self, word: &str) {
        writeln!(self.keeper.stdin.as_ref().expect("a pipe"), "{word}").expect("it listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("text");
        assert_eq!(answer, "done\n");
    }

    /// A command of the program with this server as its store.
    pub(crate) fn command(&self, words: &[&str], more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        // The variables of the tests are none of the program's.
        command.env_remove("PACELINE_SOAK").args(words).args(["--store", &self.url(), "--quiet"]).args(more);
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // It removes its folder, whatever the test says.
        let _ = self.keeper.wait();
    }
}
