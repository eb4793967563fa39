//! Private Postgres servers, which end with the test that started them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Serves a cluster until its standard input closes.
const KEEPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/private-postgres");

pub(crate) struct PostgresServer {
    keeper: Child,
    answers: BufReader<ChildStdout>,
    folder: String,
}

impl PostgresServer {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these variables for `scripts/private-postgres`.
    pub(crate) fn start_with(environment: &[(&str, &str)]) -> Self {
        let mut keeper = Command::new(KEEPER);
        keeper.envs(environment.iter().copied());
        let keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut keeper = keeper.expect("the script is there");
        let mut answers = BufReader::new(keeper.stdout.take().expect("piped"));
        let mut folder = String::new();
        answers.read_line(&mut folder).expect("it prints its folder");
        assert!(!folder.is_empty(), "Postgres did not start; is the package postgresql installed?");
        Self { keeper, answers, folder: folder.trim_end().to_owned() }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://tester@/postgres?host={}", self.folder)
    }

    /// Where its socket is.
    pub(crate) fn folder(&self) -> &str {
        &self.folder
    }

    /// `stop` (as a crash would) or `start`; of a standby also `detach` and `promote`.
    pub(crate) fn tell(&mut self, word: &str) {
        writeln!(self.keeper.stdin.as_ref().expect("piped"), "{word}").expect("it reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("it answers");
        assert_eq!(answer, "done\n");
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().expect("it is ours");
    }
}
