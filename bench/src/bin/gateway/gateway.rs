//! The program under test, as its users start it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::server::Server;

/// `paceline serve`, killed with the value.
pub(crate) struct Gateway {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Gateway {
    /// A gateway to the server, with those settings of its upstream.
    pub(crate) fn start(program: &str, server: &Server, settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("paceline.toml");
        let text = format!("[upstream.first]\nprovider = \"openai\"\nbase_url = \"{}\"\n{settings}", server.url());
        std::fs::write(&file, text + "api_key_env = \"KEY\"\n").expect("writing the configuration");
        // It takes no time of the clients and the server.
        let mut command = Command::new("taskset");
        command
            .args(["-c", "0", program])
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&file)
            .arg("--state")
            .arg(folder.path());
        command.env("KEY", "sk-of-the-gateway").env("XDG_STATE_HOME", folder.path());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the gateway says where it listens");
        let url = line.trim().strip_prefix("listening on ").expect("an address");
        Self { url: format!("{url}/first/v1"), child, _folder: folder }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says it");
        1_024 * line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number")
    }

    /// The memory once that many clients are connected and their requests are read.
    pub(crate) async fn while_it_holds(&self, clients: usize) -> u64 {
        let files = format!("/proc/{}/fd", self.child.id());
        while std::fs::read_dir(&files).expect("it runs").count() < clients {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.memory()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
