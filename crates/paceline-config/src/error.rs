//! The source of a value, and the error for an invalid one.

use std::fmt;
use std::path::PathBuf;

use paceline_providers::Provider;
use paceline_providers::secrets::hidden;

/// Where an effective value came from. Later variants win over earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// No layer of the configuration sets it.
    Default,
    /// A preset or the provider's own facts, by name.
    Preset(&'static str),
    /// The configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line of the value, counted from 1; `None` when it is not known.
        line: Option<usize>,
    },
    /// An environment variable, by name.
    Environment(String),
    /// A command-line flag, with its dashes.
    Flag(&'static str),
}

impl Source {
    /// The precedence: flag over environment over file over preset over default.
    pub(crate) const fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::Preset(_) => 1,
            Self::File { .. } => 2,
            Self::Environment(_) => 3,
            Self::Flag(_) => 4,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Preset(name) if Provider::from_name(name).is_some() => write!(f, "provider {name}"),
            Self::Preset(name) => write!(f, "preset {name}"),
            Self::File { path, line: Some(line) } => write!(f, "{}, line {line}", path.display()),
            Self::File { path, line: None } => write!(f, "{}", path.display()),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// An invalid configuration. Each variant names the setting, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// A value that its setting does not accept.
    #[error("{}", refusal(key, value, origin, expected))]
    Value {
        /// The setting, as in the configuration file: `upstream.openai.retry.base`.
        key: String,
        /// What it was set to.
        value: String,
        /// Where it was set.
        origin: Source,
        /// The accepted values.
        expected: String,
    },
    /// Something needed was not given.
    #[error("{key} is missing: {expected}")]
    Missing {
        /// The setting, as in the configuration file.
        key: String,
        /// How to give it.
        expected: String,
    },
    /// The file cannot be read, is no TOML, or has names that do not exist.
    #[error("{}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        message: String,
    },
    /// A variable that begins like one of ours and names nothing.
    #[error("unknown environment variable {variable}: {expected}")]
    UnknownVariable {
        /// The variable.
        variable: String,
        /// The existing names.
        expected: String,
    },
    /// The upstream asked for is neither configured nor built in.
    #[error("unknown upstream {:?}: expected one of {}", hidden(name), choices.join(", "))]
    UnknownUpstream {
        /// The requested name.
        name: String,
        /// The existing names.
        choices: Vec<String>,
    },
    /// No upstream was named.
    #[error(
        "no upstream chosen: {}pass {}, or set OPENAI_API_KEY; `--upstream mock` needs no key and no network",
        file.as_ref().map_or_else(String::new, |file| format!("the file {} configures none; ", file.display())),
        ways(*hosts, choices)
    )]
    NoUpstream {
        /// The file that was read, where it configures none.
        file: Option<PathBuf>,
        /// Lines may name any host.
        hosts: bool,
        /// The existing names.
        choices: Vec<String>,
    },
}

/// Where a key belongs instead.
pub(crate) const KEY_PLACE: &str = "a key belongs in an environment variable (api_key_env, --api-key-env) or in a file of its own (api_key_file, --api-key-file)";

/// How an upstream is chosen.
fn ways(hosts: bool, choices: &[String]) -> String {
    let names = choices.join(", ");
    if hosts {
        let where_to = "--base-url URL with one of the hosts (any of them will do; urls that are paths go there, and so does a key)";
        format!("{where_to}, or --upstream with one of {names}")
    } else {
        format!("--upstream with one of {names}, or --base-url URL")
    }
}

/// Names a value the way the reader wrote it: the variable, the flag, or the key with its file and line. A secret in the wrong
/// place is not repeated.
fn refusal(key: &str, value: &str, origin: &Source, expected: &str) -> String {
    let value = hidden(value);
    match origin {
        Source::Environment(variable) => format!("{variable} = {value:?} (from the environment): expected {expected}"),
        Source::Flag(flag) => format!("{flag} {value:?} (from the command line): expected {expected}"),
        Source::File { .. } => format!("{key} = {value:?} (from {origin}): expected {expected}"),
        Source::Default | Source::Preset(_) => format!("{key} = {value:?} ({origin}): expected {expected}"),
    }
}
