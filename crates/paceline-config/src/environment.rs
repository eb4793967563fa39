//! The environment as a layer: `PACELINE_UPSTREAM__OPENAI__RETRY__BASE` is `upstream.openai.retry.base`.

use std::collections::BTreeMap;
use std::ffi::OsString;

use paceline_providers::secrets::{SECRET, hidden, is_secret_name};

use super::error::{KEY_PLACE, SettingError, Source};
use super::schema::UpstreamSection;
use super::setting::{Layered, Locator};

const PREFIX: &str = "PACELINE_";
const UPSTREAM: &str = "PACELINE_UPSTREAM__";

/// Variables that Paceline gives to the commands it starts; they configure nothing.
const FOR_CHILDREN: [&str; 3] = ["PACELINE_KEY", "PACELINE_ATTEMPT", "PACELINE_GROUP"];

/// A copy of the environment, so that nothing here reads the process's own.
///
/// It may hold keys of APIs: it has no `Debug`, and nothing prints it.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    /// Takes what `std::env::vars_os` gives. A name that is no Unicode is none of ours; a value that is none keeps its
    /// readable part, so that the error can show it.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let text = |(name, value): (K, V)| {
            let name = name.into().into_string().ok()?;
            Some((name, value.into().to_string_lossy().into_owned()))
        };
        Self(variables.into_iter().filter_map(text).collect())
    }
}

impl Environment {
    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The names of all variables, in alphabetical order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The value of a variable that is more than blanks.
    pub(crate) fn filled(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.trim().is_empty())
    }

    /// The upstreams that variables name. `known` are all names there are, in any spelling of case and hyphens:
    /// `MY_API` is the entry `my-api`. A variable for another name is an error, because it would change nothing.
    pub(crate) fn upstreams(&self, known: &[&str]) -> Result<BTreeMap<String, UpstreamSection>, SettingError> {
        let mut upstreams: BTreeMap<String, UpstreamSection> = BTreeMap::new();
        let ours = self.0.iter().filter(|(name, _)| name.starts_with(PREFIX) && !FOR_CHILDREN.contains(&name.as_str()));
        for (variable, value) in ours {
            let Some((upstream, path)) = variable.strip_prefix(UPSTREAM).and_then(|rest| rest.split_once("__")) else {
                return Err(unknown(variable, "the form is PACELINE_UPSTREAM__NAME__KEY".to_owned()));
            };
            let spelled = |name: &&&str| name.replace('-', "_").eq_ignore_ascii_case(upstream);
            let Some(name) = known.iter().find(spelled) else {
                return Err(stray(variable, upstream, value, known));
            };
            let section = parse(variable, path, value)?;
            let others = upstreams.remove(*name).unwrap_or_default();
            upstreams.insert((*name).to_owned(), section.over(others));
        }
        Ok(upstreams)
    }
}

/// Reads one variable as an equivalent file of one line.
fn parse(variable: &str, path: &str, value: &str) -> Result<UpstreamSection, SettingError> {
    let path = path.to_ascii_lowercase().replace("__", ".");
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '.';
    if !path.chars().all(plain) {
        return Err(unknown(variable, format!("{path:?} is no key")));
    }
    let line = format!("{path} = {}", toml::Value::String(value.to_owned()));
    let mut section: UpstreamSection = toml::from_str(&line).map_err(|error| {
        let key = path.rsplit('.').next().is_some_and(is_secret_name);
        let place = if key { format!("; {KEY_PLACE}") } else { String::new() };
        unknown(variable, format!("{}{place}", hidden(error.message())))
    })?;
    section.locate(&Locator::Variable(variable));
    Ok(section)
}

/// A variable for an upstream that does not exist. Where its value may be a secret in the wrong place, it is not shown.
fn stray(variable: &str, upstream: &str, value: &str, known: &[&str]) -> SettingError {
    let name = upstream.to_ascii_lowercase();
    let secret = is_secret_name(variable) || value.contains('@');
    SettingError::Value {
        key: format!("upstream.{name}"),
        value: if secret { SECRET.to_owned() } else { value.to_owned() },
        origin: Source::Environment(variable.to_owned()),
        expected: format!(
            "the name of an upstream in place of {upstream} ({}), or an entry [upstream.{name}] in the configuration file",
            known.join(", ")
        ),
    }
}

fn unknown(variable: &str, expected: String) -> SettingError {
    SettingError::UnknownVariable { variable: variable.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstreams(variables: &[(&str, &str)]) -> Result<BTreeMap<String, UpstreamSection>, SettingError> {
        variables.iter().copied().collect::<Environment>().upstreams(&["my-api", "openai"])
    }

    #[test]
    fn names_are_mechanical() {
        let found = upstreams(&[
            ("PACELINE_UPSTREAM__OPENAI__RPM", "500"),
            ("PACELINE_UPSTREAM__OPENAI__RETRY__BASE", "2s"),
            ("PACELINE_UPSTREAM__OPENAI__RETRY__JITTER", "[0.1, 1]"),
            ("PACELINE_UPSTREAM__OPENAI__LIMITS", "90 per 10s, 1M tokens per 1h"),
            ("PACELINE_UPSTREAM__OPENAI__CONCURRENCY", "20"),
            ("PACELINE_UPSTREAM__MY_API__BASE_URL", "http://a"),
            ("PACELINE_KEY", "an item"),
            ("PACELINE_ATTEMPT", "1"),
            ("PACELINE_GROUP", "its group"),
            ("PACELINER", "not ours"),
        ])
        .expect("all known");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["my-api", "openai"]);
        let openai = &found["openai"];
        let text = |setting: Option<&super::super::setting::Setting>| setting.map(|setting| setting.text.clone());
        assert_eq!(text(openai.rpm.as_ref()).as_deref(), Some("500"));
        let retry = openai.retry.as_ref().expect("two of its keys");
        assert_eq!(text(retry.base.as_ref()).as_deref(), Some("2s"));
        assert_eq!(text(retry.jitter.as_ref()).as_deref(), Some("[0.1, 1]"));
        assert_eq!(openai.limits.as_ref().expect("given").0.len(), 2);
        assert_eq!(text(openai.concurrency.as_ref().and_then(|c| c.max.as_ref())).as_deref(), Some("20"));
    }

    #[test]
    fn unknown_names_are_errors_that_name_the_variable() {
        for name in [
            "PACELINE_RPM",
            "PACELINE_UPSTREAM__OPENAI",
            "PACELINE_UPSTREAM__OPENAI__RMP",
            "PACELINE_UPSTREAM__OPENAI__RETRY__BSE",
            "PACELINE_UPSTREAM__OPENAI__RPM__X",
            "PACELINE_UPSTREAM__OPENAI__",
            "PACELINE_UPSTREAM__OPENAI__R=1\nrpm",
        ] {
            match upstreams(&[(name, "5")]).map(drop) {
                Err(SettingError::UnknownVariable { variable, .. }) => assert_eq!(variable, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_variable_for_an_upstream_that_does_not_exist_is_named_with_its_value_and_the_names_there_are() {
        for (name, value, shown) in [
            ("PACELINE_UPSTREAM__OPNEAI__RPM", "5", "\"5\""),
            ("PACELINE_UPSTREAM__OPNEAI__BASE_URL", "http://a", "\"http://a\""),
            ("PACELINE_UPSTREAM__OPNEAI__BASE_URL", "http://me:secret@a", SECRET),
            ("PACELINE_UPSTREAM__OPNEAI__API_KEY_ENV", "sk-secret", SECRET),
        ] {
            let message = upstreams(&[(name, value)]).map(drop).expect_err("no such upstream").to_string();
            for expected in [name, shown, "my-api, openai", "[upstream.opneai]"] {
                assert!(message.contains(expected), "{expected} in {message}");
            }
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
