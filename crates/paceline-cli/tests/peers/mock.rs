//! Our own provider model behind HTTP, in a process of its own: limits told by headers only.

use std::io::BufReader;
use std::process::{Child, Command, Stdio};

use super::job::Job;
use super::measure;
use crate::bounded::{self, TestBound};

/// 50 requests a second, of which as many may come at once.
const RPM: f64 = 3_000.0;
const BURST: f64 = 50.0;

/// The mean of the mock's default latency, 50 ms to 500 ms.
const LATENCY: f64 = 0.275;

/// `paceline mock`, stopped with the value.
pub(crate) struct Mock(Child);

#[test]
fn told_by_headers_the_mock_refuses_almost_nothing() {
    let _bound = TestBound::new();
    let (_mock, url) = Mock::start();
    let items = measure::items();
    let job = Job::new(items, &url, &["--upstream", "openai", "--concurrency", "64"]);
    let ended = job.run();
    job.assert_all_succeeded(&ended);
    let (sends, refused) = (ended.count("calls"), ended.count("throttled"));
    let oracle = (items as f64 - BURST) / (RPM / 60.0) + LATENCY;
    measure::pace("mock told by headers", items, sends, refused, ended.seconds, oracle, Some(0.9));
    assert!(refused * 100 <= sends, "{refused} of {sends} calls were refused, more than 1 %");
}

impl Mock {
    pub(crate) fn start() -> (Self, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(["mock", "--listen", "127.0.0.1:0", "--rpm", "3000"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        bounded::read_line(&child, &mut BufReader::new(stdout), &mut line);
        let mock = Self(child);
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("the mock said: {line:?}"));
        (mock, format!("{url}/v1"))
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
