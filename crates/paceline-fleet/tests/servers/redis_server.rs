//! Private Redis servers, which end with the test that started them, however that ends.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A server on a socket in a folder of its own.
pub(crate) struct RedisServer {
    process: Option<Child>,
    folder: tempfile::TempDir,
    options: Vec<String>,
}

impl RedisServer {
    pub(crate) fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self { process: None, folder, options };
        server.begin();
        server
    }

    /// Begins again after [`stop`](Self::stop), with what it had saved.
    pub(crate) fn begin(&mut self) {
        let mut process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(self.socket())
            .args(["--dir"])
            .arg(self.folder.path())
            .args(&self.options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is installed");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line.to_lowercase().contains("ready to accept"));
        assert!(ready, "redis-server ends at once");
        // What it says later has to be read, or it stands still.
        std::thread::spawn(move || lines.for_each(drop));
        self.process = Some(process);
    }

    /// As a crash would.
    pub(crate) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it is ours");
            process.wait().expect("it is ours");
        }
    }

    /// Makes a master of a replica, and it stays one when it begins again.
    pub(crate) fn promote(&mut self) {
        self.command(&["REPLICAOF", "NO", "ONE"]);
        if let Some(at) = self.options.iter().position(|option| option == "--replicaof") {
            self.options.drain(at..at + 3);
        }
    }

    /// Gives it a command.
    pub(crate) fn command(&self, words: &[&str]) {
        assert!(self.ask(words).starts_with("OK"), "{words:?}");
    }

    /// What it answers to a command.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli").arg("-s").arg(self.socket()).args(words).output();
        String::from_utf8(output.expect("redis-cli is installed").stdout).expect("text")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}
