//! The command that resumes a job: the one that was typed, in a form that can be pasted.

use std::ffi::OsString;

use paceline_providers::secrets::hidden;

/// Flags that have done their work: given again they would undo what was done, or allow another change.
const ONCE: [&str; 3] = ["--overwrite", "--retry-failed", "--accept-changed-input"];

/// The words of a command line, quoted for a shell. What looks like a secret is left out.
pub(crate) fn command_line(words: impl IntoIterator<Item = OsString>) -> String {
    let mut words = words.into_iter().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_else(|| "paceline".to_owned());
    let mut line = quoted(&program);
    for word in words.filter(|word| !ONCE.contains(&word.as_str())) {
        let pipe = word == "-" || word.starts_with("/dev/fd/") || word.starts_with("/proc/self/fd/");
        line.push(' ');
        line += if pipe { "-".to_owned() } else { quoted(&hidden(&word)) }.as_str();
    }
    line
}

fn quoted(word: &str) -> String {
    // Only a NUL byte cannot be quoted, and no argument can hold one.
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> String {
        command_line(words.iter().map(OsString::from))
    }

    #[test]
    fn it_can_be_pasted() {
        assert_eq!(
            line(&["paceline", "run", "my file.jsonl", "--limit", "5 per 1h", "-o", "it's.jsonl"]),
            r#"paceline run 'my file.jsonl' --limit '5 per 1h' -o "it's.jsonl""#
        );
        for pipe in ["-", "/dev/fd/63"] {
            assert_eq!(line(&["paceline", "run", pipe, "-o", "out"]), "paceline run - -o out");
        }
        assert_eq!(line(&["p", "run", "in", "--overwrite", "-o", "out"]), "p run in -o out", "not once more");
        assert_eq!(line(&["p", "run", "in", "--accept-changed-input"]), "p run in");
    }

    #[test]
    fn it_holds_no_secret() {
        assert_eq!(line(&["p", "--base-url=https://me:s@cret@host/v1@x"]), "p '--base-url=https://[key]@host/v1@x'");
        assert_eq!(line(&["p", "--header", "X-API-Key: abc"]), "p --header 'X-API-Key: [key]'");
        assert_eq!(line(&["p", "--base-url", "http://host/a@b"]), "p --base-url http://host/a@b");
    }
}
