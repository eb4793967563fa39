//! The command that resumes a job: the one that was typed, in a form that can be pasted.

use std::borrow::Cow;
use std::ffi::OsString;

use paceline_providers::secrets::{SECRET, hidden, hidden_header};

use crate::database;
use crate::text::shell_word;

/// Flags that have done their work: given again they would undo what was done, or allow another change.
const ONCE: [&str; 3] = ["--overwrite", "--retry-failed", "--accept-changed-input"];

/// Likewise, with its value.
const ONLY_STATUS: &str = "--only-status";

/// Likewise, where nothing of these hosts is left.
const ONLY_HOST: &str = "--only-host";

/// The variable for the name and the password of a proxy, `NAME:PASSWORD`.
const PROXY_LOGIN: &str = "PROXY_LOGIN";

/// The variable for the password of a store, of lines or of a fleet.
const STORE_PASSWORD: &str = "STORE_PASSWORD";

/// The words of a command line, quoted for a shell. What looks like a secret is to be given as a variable: pasted without
/// it, the command is refused before anything is sent.
pub(crate) fn command_line(words: impl IntoIterator<Item = OsString>) -> String {
    without(words, &ONCE, &[ONLY_STATUS, ONLY_HOST])
}

/// The same for the hosts that it names.
pub(crate) fn for_its_hosts(words: impl IntoIterator<Item = OsString>) -> String {
    without(words, &ONCE, &[ONLY_STATUS])
}

/// The whole command, which has done nothing yet.
pub(crate) fn as_typed(words: impl IntoIterator<Item = OsString>) -> String {
    without(words, &[], &[])
}

fn without(words: impl IntoIterator<Item = OsString>, once: &[&str], once_with_value: &[&str]) -> String {
    let mut words = words.into_iter().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_else(|| "paceline".to_owned());
    let mut line = shell_word(&program);
    let (mut variables, mut before) = (Vec::new(), String::new());
    while let Some(word) = words.next() {
        if once_with_value.contains(&word.as_str()) {
            words.next();
            continue;
        }
        let with_value = word.split_once('=').is_some_and(|(flag, _)| once_with_value.contains(&flag));
        if with_value || once.contains(&word.as_str()) {
            continue;
        }
        line.push(' ');
        line += &match without_secret(&before, &word) {
            _ if is_pipe(&word) => "-".to_owned(),
            None => shell_word(&word),
            Some((without, name)) => with_variable(&without, &unused(name, &mut variables)),
        };
        before = word;
    }
    line
}

/// A word of such a command.
pub(crate) fn word(word: &str) -> String {
    match without_secret("", word) {
        None => shell_word(word),
        Some((without, name)) => with_variable(&without, &name),
    }
}

/// A command line from here with that value of a flag, whose values are plain numbers, in the place of any other.
pub(crate) fn with_flag(line: &str, flag: &str, value: &str) -> String {
    let found = [" ", "="].iter().find_map(|separator| {
        let typed = format!(" {flag}{separator}");
        line.find(&typed).map(|at| (at, at + typed.len()))
    });
    let Some((at, from)) = found else { return format!("{line} {flag} {value}") };
    let rest = line[from..].find(' ').map_or("", |end| &line[from + end..]);
    format!("{} {flag} {value}{rest}", &line[..at])
}

/// A word with [`SECRET`] in place of what is secret in it, and the name of the variable that holds the secret; `before`: the
/// word before it.
fn without_secret(before: &str, word: &str) -> Option<(String, String)> {
    let (flag, header) = match word.split_once('=') {
        _ if before == "--header" => ("", word),
        Some(("--header", header)) => ("--header=", header),
        _ if names_a_user(word) => return None,
        Some((flag @ ("--store" | "--fleet"), address)) => return of_server(&format!("{flag}="), address),
        _ if ["--store", "--fleet"].contains(&before) => return of_server("", word),
        _ => {
            let is_proxy = before == "--proxy" || word.starts_with("--proxy=");
            let name = if is_proxy { PROXY_LOGIN } else { "KEY" };
            return changed(hidden(word)).map(|without| (without, name.to_owned()));
        }
    };
    let without = changed(hidden_header(header))?;
    let name = header.split([':', '=']).next().unwrap_or_default().trim();
    let name = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    Some((format!("{flag}{without}"), name))
}

/// The address of a store without its password. Its user is no secret, and a password alone is what people have at hand.
fn of_server(flag: &str, address: &str) -> Option<(String, String)> {
    let without = changed(hidden(address))?;
    let user = address.split_once("://").and_then(|(scheme, rest)| {
        let user = &rest[..rest.find([':', '@', '/', '?'])?];
        let has_password = rest[user.len()..].starts_with(':');
        let kept = if has_password { format!("{user}:{SECRET}") } else { user.to_owned() };
        without.strip_prefix(&format!("{scheme}://{SECRET}@")).map(|server| format!("{scheme}://{kept}@{server}"))
    });
    let without = user.unwrap_or(without);
    let by_key = ["?", "&"].into_iter().find(|before| address.contains(&format!("{before}password=")));
    let without = by_key.map_or_else(
        || without.clone(),
        |before| without.replacen(&format!("{before}{SECRET}"), &format!("{before}password={SECRET}"), 1),
    );
    Some((format!("{flag}{without}"), STORE_PASSWORD.to_owned()))
}

/// The address of a database with a user and no password.
fn names_a_user(word: &str) -> bool {
    let address = word.strip_prefix("--store=").unwrap_or(word);
    let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let rest = database::is_address(address).then(|| address.split_once("://")).flatten();
    let is_bare = |server: &str| !server.contains('@') && !server.to_ascii_lowercase().contains("password");
    rest.and_then(|(_, rest)| rest.split_once('@')).is_some_and(|(user, server)| plain(user) && is_bare(server))
}

fn changed(text: Cow<'_, str>) -> Option<String> {
    match text {
        Cow::Borrowed(_) => None,
        Cow::Owned(text) => Some(without_rest(&text)),
    }
}

/// A word in which a secret ends no sooner than it does: what looks for it stops at a quote, behind which a key may go on.
fn without_rest(word: &str) -> String {
    let mut parts = word.split(SECRET);
    let mut without = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let goes_on =
            part.strip_prefix(['"', '\'']).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphanumeric()));
        let rest = if goes_on { part.find(char::is_whitespace).map_or("", |end| &part[end..]) } else { part };
        without = without + SECRET + rest;
    }
    without
}

/// That name, with a number behind it where another secret of the line has it.
fn unused(name: String, used: &mut Vec<String>) -> String {
    let count = used.iter().filter(|other| **other == name).count();
    used.push(name.clone());
    if count == 0 { name } else { format!("{name}_{}", count + 1) }
}

fn is_pipe(word: &str) -> bool {
    word == "-" || word.starts_with("/dev/fd/") || word.starts_with("/proc/self/fd/")
}

/// A word whose secret a shell takes from a variable; without that variable it runs nothing.
fn with_variable(without: &str, name: &str) -> String {
    let escape = |c: char| ['\\'].into_iter().filter(move |_| "\\\"$`".contains(c)).chain([c]);
    let escaped: String = without.chars().flat_map(escape).collect();
    format!("\"{}\"", escaped.replace(SECRET, &format!("${{{name}:?set it first}}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> String {
        command_line(words.iter().map(OsString::from))
    }

    #[test]
    fn what_was_for_one_run_is_left_out_with_its_value() {
        let once =
            ["paceline", "run", "in", "--retry-failed", "--only-status", "403,5xx", "--only-host=a", "-o", "out"];
        assert_eq!(line(&once), "paceline run in -o out");
        assert_eq!(for_its_hosts(once.iter().map(OsString::from)), "paceline run in '--only-host=a' -o out");
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
        let first = ["p", "run", "in", "--overwrite", "--only-host", "a", "--proxy=http://u:pw@h"];
        let typed = r#"p run in --overwrite --only-host a "--proxy=http://${PROXY_LOGIN:?set it first}@h""#;
        assert_eq!(as_typed(first.iter().map(OsString::from)), typed, "it did nothing yet");
    }

    #[test]
    fn a_flag_gets_another_value() {
        for (line, expected) in [
            ("p run in", "p run in --budget-cost 1.15"),
            ("p run --budget-cost 0.5 in", "p run --budget-cost 1.15 in"),
            ("p run in --budget-cost=0.5", "p run in --budget-cost 1.15"),
            (
                r#"p "${KEY:?set it first}" --budget-cost 0.5 -o o"#,
                r#"p "${KEY:?set it first}" --budget-cost 1.15 -o o"#,
            ),
        ] {
            assert_eq!(with_flag(line, "--budget-cost", "1.15"), expected);
        }
    }

    #[test]
    fn the_user_of_a_database_is_no_secret_and_its_password_is() {
        for (word, expected) in [
            ("postgres://jobs@db.example.org/jobs", "p --store postgres://jobs@db.example.org/jobs"),
            ("postgres://jobs@/jobs?host=/run/postgresql", "p --store 'postgres://jobs@/jobs?host=/run/postgresql'"),
            (
                "postgres://jobs:hunter2@db/jobs",
                r#"p --store "postgres://jobs:${STORE_PASSWORD:?set it first}@db/jobs""#,
            ),
            (
                "postgres://jobs@db/jobs?password=hunter2",
                r#"p --store "postgres://jobs@db/jobs?password=${STORE_PASSWORD:?set it first}""#,
            ),
            ("redis://:hunter2@db/1", r#"p --store "redis://:${STORE_PASSWORD:?set it first}@db/1""#),
        ] {
            assert_eq!(line(&["p", "--store", word]), expected);
        }
        assert_eq!(line(&["p", "--store=postgres://jobs@db/jobs"]), "p '--store=postgres://jobs@db/jobs'");
        assert_eq!(line(&["p", "https://token@host/"]), r#"p "https://${KEY:?set it first}@host/""#);
    }

    #[test]
    fn a_key_with_a_quote_in_it_is_hidden_to_its_end() {
        for (word, expected) in [
            ("sk-MARK-b8-7f3a/+=Zq9\"x", r#"p "${KEY:?set it first}""#),
            ("Bearer sk-MARK-b8-7f3a\"x and more", r#"p "Bearer ${KEY:?set it first} and more""#),
            (r#"{"api_key":"hunter2","n":1}"#, r#"p "{\"api_key\":\"${KEY:?set it first}\",\"n\":1}""#),
        ] {
            assert_eq!(line(&["p", word]), expected);
        }
    }

    #[test]
    fn it_holds_no_secret_and_sends_nothing_in_its_place() {
        assert_eq!(
            line(&["p", "--base-url=https://me:s@cret@host/v1@x"]),
            r#"p "--base-url=https://${KEY:?set it first}@host/v1@x""#
        );
        assert_eq!(
            line(&["p", "--header", "X-API-Key: abc", "--header", "Authorization: Bearer abc"]),
            r#"p --header "X-API-Key: ${X_API_KEY:?set it first}" --header "Authorization: Bearer ${AUTHORIZATION:?set it first}""#
        );
        assert_eq!(
            line(&["p", "--header", "Session: a b", "--header=X-Hub-Signature-256=sha256=abc", "--header", "Team: me"]),
            r#"p --header "Session: ${SESSION:?set it first}" "--header=X-Hub-Signature-256= ${X_HUB_SIGNATURE_256:?set it first}" --header 'Team: me'"#
        );
        assert_eq!(
            line(&["p", "--header", "X-Custom: Bearer abcd", "--proxy", "http://a:b@h", "--base-url", "http://c:d@i"]),
            r#"p --header "X-Custom: Bearer ${X_CUSTOM:?set it first}" --proxy "http://${PROXY_LOGIN:?set it first}@h" --base-url "http://${KEY:?set it first}@i""#
        );
        for value in ["0123456789abcdef0123456789abcdefAA", "sk-0123456789abcdef0123"] {
            let thing = r#"p --header "X-Thing: ${X_THING:?set it first}""#;
            assert_eq!(line(&["p", "--header", &format!("X-Thing: {value}")]), thing, "as in echoes");
        }
        assert_eq!(line(&["p", "https://me:pw@h/`$x`"]), r#"p "https://${KEY:?set it first}@h/\`\$x\`""#);
        assert_eq!(line(&["p", "--base-url", "http://host/a@b"]), "p --base-url http://host/a@b");
    }
}
