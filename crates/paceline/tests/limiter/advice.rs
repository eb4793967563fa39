//! What the compiler says about a program that cannot be compiled.

use std::fs;
use std::path::Path;
use std::process::Command;

/// What the compiler says about that program, which depends on this crate without a feature.
fn errors_of(program: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("advice");
    let crate_folder = env!("CARGO_MANIFEST_DIR");
    let manifest = format!(
        "[package]\nname = \"advice\"\nedition = \"2024\"\n[dependencies]\npaceline.path = {crate_folder:?}\n[workspace]\n"
    );
    fs::create_dir_all(folder.join("src")).expect("a folder for the program");
    fs::write(folder.join("Cargo.toml"), manifest).expect("a manifest");
    fs::write(folder.join("src/main.rs"), program).expect("a program");
    fs::copy(Path::new(crate_folder).join("../../Cargo.lock"), folder.join("Cargo.lock")).expect("the lock file");
    let mut check = Command::new(env!("CARGO"));
    check.args(["check", "--quiet", "--offline", "--target-dir", "target"]).current_dir(folder);
    let checked = check.output().expect("cargo runs");
    let errors = String::from_utf8(checked.stderr).expect("text");
    assert!(!checked.status.success(), "it compiles: {errors}");
    errors
}

#[test]
fn a_result_that_nothing_reads_is_told_what_would_read_it() {
    let program = "struct Busy;
fn main() {
    let limiter = paceline::Limiter::new(paceline::Quota::per_minute(60)).unwrap();
    let _ = limiter.blocking().run(|| Err::<(), _>(Busy)).call();
}
";
    let errors = errors_of(program);
    for expected in [
        "Paceline cannot tell from `Result<(), Busy>` whether a call has succeeded",
        "reqwest: `limiter.run(paceline_http::operation(client.get(url)))`, of the crate paceline-http",
        "where its body is a stream, as hyper's `Incoming`: `.read_by(ByHead)`, and `PaceLayer::new(limiter).by_head()`",
        "say which errors may pass with `.when(|error| ...)`, or read the result with `.read(|result, _| Outcome::new(...))`",
    ] {
        assert!(errors.contains(expected), "{expected} in {errors}");
    }
}
