//! The command itself, in processes of their own: as a file that `curl -i` printed, and as lines of JSON.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use paceline_core::Rng;
use paceline_providers::Provider;

use crate::corpus::Recording;
use crate::mutate::below;

/// Hands an answer to `paceline explain`, which may refuse it, but must end by itself and with JSON where it does not.
pub(crate) fn run(recording: &Recording, rng: &mut Rng) {
    let provider = Provider::ALL[below(rng, Provider::ALL.len())].as_str();
    let lines = below(rng, 2) == 0;
    let input = if lines { line(recording) } else { printed(recording) };
    let mut command = Command::new(paceline());
    command.args(["explain", "--json", "--provider", provider]).args(lines.then_some("--jsonl")).env_clear();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cargo build -p paceline-cli comes first");
    let mut stdin = child.stdin.take().expect("piped");
    let fed = std::thread::spawn({
        let input = input.clone();
        // A command that refuses its input early does not read the rest.
        move || drop(stdin.write_all(&input))
    });
    let output = child.wait_with_output().expect("it ends");
    fed.join().expect("writing does not panic");
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert!(output.stdout.is_empty() || output.stdout.starts_with(b"{"), "{recording:?}"),
        Some(2) => assert!(said.starts_with("error: "), "{said}: {recording:?}"),
        other => panic!("{other:?}, {said}: {recording:?}"),
    }
}

/// The binary beside this one.
fn paceline() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    own.with_file_name(format!("paceline{}", std::env::consts::EXE_SUFFIX))
}

fn printed(recording: &Recording) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {}\r\n", recording.status).into_bytes();
    for (name, value) in &recording.headers {
        text.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    [&text[..], b"\r\n", &recording.body].concat()
}

fn line(recording: &Recording) -> Vec<u8> {
    let quoted = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let escaped: String = text.chars().map(|c| format!("\\u{:04x}", (c as u32).min(0xFFFD))).collect();
        format!("\"{escaped}\"")
    };
    let fields = recording.headers.iter().map(|(name, value)| format!("\"{name}\":[{}]", quoted(value)));
    let headers = fields.collect::<Vec<_>>().join(",");
    format!("{{\"status\":{},\"headers\":{{{headers}}},\"body\":{}}}\n", recording.status, quoted(&recording.body))
        .into_bytes()
}
