//! How a prompt is asked, and what `--body` and `--system-prompt` add to each request.

use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::run_args::RunArgs;

/// The additions that flags ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct Additions {
    members: Map<String, Value>,
    pub(super) system: Option<String>,
}

impl Additions {
    /// What the flags ask for. `taken`: members of the body that other flags make, and by which.
    ///
    /// # Errors
    /// A member that another flag makes.
    pub(super) fn of(args: &RunArgs, taken: &[(&str, &str)]) -> Result<Self, Failure> {
        let members = args.body.clone().unwrap_or_default();
        if let Some((key, flag)) = taken.iter().find(|(key, _)| members.contains_key(*key)) {
            return Err(Failure::refused(format!(
                "--body has {key:?}, which {flag} makes: leave it out of one of them"
            )));
        }
        Ok(Self { members, system: args.system_prompt.clone() })
    }

    /// The members of `--body`.
    pub(super) fn members(&self) -> impl Iterator<Item = (String, Value)> {
        self.members.clone().into_iter()
    }

    /// By what requests are known that have these; nothing where there are none.
    pub(super) fn known_by(&self) -> String {
        let members =
            if self.members.is_empty() { String::new() } else { format!(" {}", Value::from(self.members.clone())) };
        let system = self.system.as_ref().map(|system| format!(" system {system:?}")).unwrap_or_default();
        members + &system
    }
}

/// How a prompt is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Chat,
    Messages,
    Responses,
}

impl Shape {
    /// That of an endpoint; none where it is not known.
    pub(super) fn of(endpoint: &str) -> Option<Self> {
        let path = endpoint.split(['?', '#']).next().unwrap_or_default();
        let ends = [("chat/completions", Self::Chat), ("messages", Self::Messages), ("responses", Self::Responses)];
        ends.into_iter().find_map(|(end, shape)| path.ends_with(end).then_some(shape))
    }

    /// The member of the body that holds the prompt.
    pub(super) const fn key_of_prompt(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "messages",
            Self::Responses => "input",
        }
    }

    /// The members that can bound its answer: an API takes one of them.
    pub(super) const fn keys_of_bound(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["max_tokens", "max_completion_tokens"],
            Self::Messages => &["max_tokens"],
            Self::Responses => &["max_output_tokens"],
        }
    }

    /// That of the system prompt; none where it is one of the messages.
    pub(super) const fn key_of_system(self) -> Option<&'static str> {
        match self {
            Self::Chat => None,
            Self::Messages => Some("system"),
            Self::Responses => Some("instructions"),
        }
    }

    /// The members of a body that ask a prompt, under a system prompt where there is one.
    pub(super) fn prompt(self, prompt: &str, system: Option<&str>) -> impl Iterator<Item = (String, Value)> {
        let asked = match (self, system) {
            (Self::Responses, _) => prompt.into(),
            (Self::Chat, Some(system)) => {
                json!([{"role": "system", "content": system}, {"role": "user", "content": prompt}])
            }
            (Self::Chat | Self::Messages, _) => json!([{"role": "user", "content": prompt}]),
        };
        let system = self.key_of_system().zip(system).map(|(key, system)| (key.to_owned(), system.into()));
        system.into_iter().chain([(self.key_of_prompt().to_owned(), asked)])
    }
}
