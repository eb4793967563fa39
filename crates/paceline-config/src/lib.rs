#![doc = include_str!("../README.md")]

mod access;
mod account;
mod acting;
mod alone_share;
mod concurrency;
mod dialect;
mod effective;
mod environment;
mod error;
mod fallback;
mod fleet;
mod json_schema;
mod limits;
mod names;
mod overrides;
mod pacing;
mod preset;
mod price;
mod responsive;
mod rules;
mod schema;
mod setting;
mod shapes;
#[cfg(test)]
mod tests;
mod tier_hosts;
mod units;
mod upstream;
mod via;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use paceline_providers::Provider;
use paceline_providers::secrets::hidden;

pub use access::{Access, InvalidKey, KeySource, Proxy, is_hop_by_hop, is_of_connection, title_case};
pub use account::{account_host, account_name};
pub use alone_share::alone_shares;
pub use effective::EffectiveValue;
pub use environment::Environment;
pub use error::{SettingError, Source};
pub use fallback::FallbackStep;
pub use fleet::FleetSettings;
pub use json_schema::json_schema;
pub use names::{MOCK, pace_names, scope_names, upstream_names};
pub use overrides::Overrides;
pub use preset::Preset;
pub use price::{CountedAs, Money, MoneyError, Price, PriceError, Prices};
pub use units::{CountError, DurationError, Limit, LimitError, pacer_of, parse_count, parse_duration};
pub use upstream::{CallNames, Tier, TierMatch, Upstream};
pub use via::Via;

use error::KEY_PLACE;
use schema::{FileSection, UpstreamSection};
use setting::{Layered, Locator};

/// The file's name in the current folder and in `paceline/` of the user's configuration folder.
const FILE_NAME: &str = "paceline.toml";

/// The upstream that `--base-url` alone means.
const GENERIC: &str = "generic";

/// All settings by layer, before an upstream is chosen.
pub struct Config {
    path: Option<PathBuf>,
    file: BTreeMap<String, UpstreamSection>,
    variables: BTreeMap<String, UpstreamSection>,
    environment: Environment,
    overrides: Overrides,
}

/// A thousand tiers and rules. The TOML parser's stack grows with tables that are left open.
const LARGEST_FILE: usize = 64 << 10;

impl Config {
    /// Reads the file that the flag names, else `./paceline.toml`, else `paceline/paceline.toml` in the user's
    /// configuration folder (`$XDG_CONFIG_HOME`, `~/.config` or `%APPDATA%`); no file at all is fine.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, and names that do not exist. Values are checked by [`Self::upstream`].
    pub fn load(environment: Environment, overrides: Overrides) -> Result<Self, SettingError> {
        match find_file(&environment, &overrides) {
            None => Self::from_layers(None, BTreeMap::new(), environment, overrides),
            Some(path) => {
                let unreadable = |error: std::io::Error| {
                    let target = std::fs::read_link(&path).ok();
                    let link = target.map_or_else(String::new, |target| format!(", a link to {},", target.display()));
                    let message = format!("the configuration file{link} cannot be read: {error}");
                    SettingError::File { path: path.clone(), message }
                };
                let text = std::fs::read_to_string(&path).map_err(unreadable)?;
                Self::parse(&path, &text, environment, overrides)
            }
        }
    }

    /// [`Self::load`] with the text of the file already at hand; `path` is only named.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(
        path: &Path,
        text: &str,
        environment: Environment,
        overrides: Overrides,
    ) -> Result<Self, SettingError> {
        let wrong = |message: String| SettingError::File { path: path.to_path_buf(), message };
        if text.len() > LARGEST_FILE {
            return Err(wrong(format!("has {} bytes: expected at most {} KiB", text.len(), LARGEST_FILE >> 10)));
        }
        let mut file: FileSection =
            toml::from_str(text).map_err(|error| wrong(without_secrets(error.to_string().trim_end())))?;
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        for (name, section) in &mut file.upstream {
            if name.is_empty() || !name.chars().all(word) || name.contains("__") {
                let expected = "letters, digits, - and _ (not two in a row)";
                return Err(wrong(format!("upstream.{name}: expected a name of {expected}")));
            }
            section.locate(&Locator::File(path, text));
        }
        Self::from_layers(Some(path.to_owned()), file.upstream, environment, overrides)
    }

    fn from_layers(
        path: Option<PathBuf>,
        file: BTreeMap<String, UpstreamSection>,
        environment: Environment,
        overrides: Overrides,
    ) -> Result<Self, SettingError> {
        let variables = environment.upstreams(&with_built_ins(file.keys().map(String::as_str).collect()))?;
        Ok(Self { path, file, variables, environment, overrides })
    }

    /// The file that was read, if there was one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The upstreams that the file or the environment configures, in alphabetical order.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.file.keys().chain(self.variables.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The upstream that the flags ask for: `--upstream`, or `generic` for `--base-url` alone. Without either the only
    /// configured one, else `openai` when `OPENAI_API_KEY` is set.
    ///
    /// # Errors
    /// No choice, an unknown name, or an invalid value, with the setting, the value, its source and the accepted values.
    pub fn upstream(&self) -> Result<Upstream, SettingError> {
        self.upstream_of(self.chosen()?)
    }

    /// The same without gateways in between: how the gateway itself calls its upstreams.
    #[must_use]
    pub fn direct(mut self) -> Self {
        let sections = self.file.values_mut().chain(self.variables.values_mut());
        sections.for_each(|section| section.via = None);
        self.overrides.via = None;
        self
    }

    /// The name of [`upstream`](Self::upstream).
    ///
    /// # Errors
    /// No choice.
    pub fn chosen(&self) -> Result<&str, SettingError> {
        match (&self.overrides.upstream, &self.overrides.base_url) {
            (Some(name), _) => return Ok(name),
            (None, Some(_)) => return Ok(GENERIC),
            (None, None) => {}
        }
        let by_via = self.overrides.via.as_deref().and_then(via::named);
        if let Some(name) = by_via.filter(|name| self.is_known(name)) {
            return Ok(name);
        }
        match self.names()[..] {
            [only] => Ok(only),
            _ if self.environment.filled("OPENAI_API_KEY").is_some() => Ok(preset::OPENAI),
            _ if let (Some(name), Some(address)) = (by_via, &self.overrides.via) => Err(SettingError::Value {
                key: "via".to_owned(),
                value: address.clone(),
                origin: Source::Flag("--via"),
                expected: format!(
                    "an upstream in its path, and none is called {:?}: name one of {}, or say which it is with --upstream NAME",
                    hidden(name),
                    self.choices().join(", ")
                ),
            }),
            _ => {
                let hosts = self.overrides.scope.as_deref() == Some("host");
                let file = self.path.clone().filter(|_| self.names().is_empty());
                Err(SettingError::NoUpstream { file, hosts, choices: self.choices() })
            }
        }
    }

    /// The upstream of that name: a configured one, or a built-in name.
    ///
    /// # Errors
    /// As [`upstream`](Self::upstream).
    pub fn upstream_of(&self, name: &str) -> Result<Upstream, SettingError> {
        if !self.is_known(name) {
            return Err(SettingError::UnknownUpstream { name: name.to_owned(), choices: self.choices() });
        }
        let merged = self.overrides.section().over(self.lower_layers(name)?);
        let upstream = Upstream::new(name, &merged, &self.environment)?;
        let prices = upstream.prices.clone().with_others(self.prices_of_others(name)?);
        Ok(Upstream { file: self.path.clone(), prices, ..upstream })
    }

    fn prices_of_others(&self, name: &str) -> Result<Vec<(String, Price)>, SettingError> {
        let mut all = Vec::new();
        for other in self.names().into_iter().filter(|other| *other != name) {
            let layers = [&self.variables, &self.file].into_iter().filter_map(|layer| layer.get(other)?.price.as_ref());
            if let Some(priced) = { layers }.next() {
                all.extend(price::others::of_other(other, priced)?);
            }
        }
        Ok(all)
    }

    /// The environment that it was read with.
    pub const fn environment(&self) -> &Environment {
        &self.environment
    }

    fn is_known(&self, name: &str) -> bool {
        self.file.contains_key(name) || self.variables.contains_key(name) || is_built_in(name)
    }

    /// Everything but the flags: environment over the preset's variables over the file over the preset.
    fn lower_layers(&self, name: &str) -> Result<UpstreamSection, SettingError> {
        let variables = self.variables.get(name).cloned().unwrap_or_default();
        let file = self.file.get(name).cloned().unwrap_or_default();
        let paces = [self.overrides.section().pace, variables.pace.clone(), file.pace.clone()];
        let wanted = paces.into_iter().flatten().next().and_then(|pace| Preset::from_name(&pace.text));
        let by_name = wanted == Some(Preset::OpenAiApp);
        let preset = wanted.filter(|_| !by_name).map(Preset::section).unwrap_or_default();
        if !by_name && name != preset::OPENAI {
            return Ok(variables.over(file).over(preset));
        }
        Ok(match preset::openai_app(&self.environment, by_name)? {
            Some((upper, lower)) => variables.over(upper).over(file).over(preset).over(lower),
            None => variables.over(file).over(preset),
        })
    }

    fn choices(&self) -> Vec<String> {
        with_built_ins(self.names()).into_iter().map(str::to_owned).collect()
    }
}

/// An error about a file quotes its line, which may hold a key.
fn without_secrets(message: &str) -> String {
    match hidden(message) {
        Cow::Borrowed(message) => message.to_owned(),
        Cow::Owned(message) => format!("{message}\n{KEY_PLACE}"),
    }
}

fn with_built_ins(mut names: Vec<&str>) -> Vec<&str> {
    for name in upstream_names() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn is_built_in(name: &str) -> bool {
    name == MOCK || Provider::from_name(name).is_some()
}

/// The file to read: one that a flag names must exist, the usual places are only looked at.
fn find_file(environment: &Environment, overrides: &Overrides) -> Option<PathBuf> {
    if let Some(path) = &overrides.config {
        return Some(path.clone());
    }
    let here = PathBuf::from(FILE_NAME);
    let folder = |name: &str| environment.filled(name).map(PathBuf::from);
    let users = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
    let users = users.or_else(|| folder("APPDATA")).map(|folder| folder.join("paceline").join(FILE_NAME));
    // A link that leads nowhere was meant to be there, and what it would say is missing.
    [Some(here), users].into_iter().flatten().find(|path| path.exists() || path.is_symlink())
}
