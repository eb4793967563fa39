//! Converts merged settings to a checked upstream.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Background, Limits, Pace, PacerConfig, part_of_tier};
use paceline_providers::secrets::{SECRET, looks_secret};
use paceline_providers::table::Scope;
use paceline_providers::{Dialect, Provider, below, join_url, path_of};

use super::access::{self, Access, KeySource};
use super::acting;
use super::concurrency;
use super::dialect;
use super::effective::{EffectiveValue, Ledger};
use super::environment::Environment;
use super::error::{SettingError, Source};
use super::fallback::{self, FallbackStep};
use super::fleet::{self, FleetSettings};
use super::limits::Named;
use super::names::MOCK;
use super::pacing;
use super::preset::Preset;
use super::price::{self, Prices};
use super::responsive;
use super::schema::{TierSection, UpstreamSection};
use super::setting::Setting;
use super::tier_hosts;
use super::via::{self, Through, Via};

/// Without a `_` for longer a text is no name of a variable.
const LONGEST_WORD: usize = 24;

/// The properties of a call that determine its scope.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallNames<'a> {
    /// The path of its URL, or its whole address where that is not below the upstream's.
    pub path: &'a str,
    /// The model that its body names.
    pub model: Option<&'a str>,
    /// The label of its item, which a tier may match.
    pub label: Option<&'a str>,
    /// The group of its item.
    pub group: Option<&'a str>,
    /// Its body.
    pub body: &'a [u8],
}

/// One API account, its limits, and how it is to be called.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Upstream {
    /// The entry's name.
    pub name: String,
    /// The configuration file that was read. Default: none.
    pub file: Option<PathBuf>,
    /// The dialect that it speaks.
    pub provider: Provider,
    /// Where calls go, without a slash at the end: the API, or its part of a gateway. `None` only for [`MOCK`], whose address is
    /// not known yet.
    pub base_url: Option<String>,
    /// The gateway that calls go through. It has the key and keeps the limits: none of them stands here. Default: none.
    pub via: Option<Via>,
    /// The fleet that the limits are shared with. Default: none.
    pub fleet: Option<FleetSettings>,
    /// Where the key is.
    pub key: KeySource,
    /// The headers of its calls, trusted and client certificates, and the proxy.
    pub access: Access,
    /// Limits, concurrency, retries, breaker and pace.
    pub pacer: PacerConfig,
    /// How a gateway's requests of the priority `batch` share the account with interactive ones. Default: both shares 0.05.
    pub background: Background,
    /// Parts of the account with limits of their own, in the order in which they are tried.
    pub tiers: Vec<Tier>,
    /// The provider's table, with the rules, header fields and charges of this upstream.
    pub dialect: Dialect,
    /// How long an item may take from its first send. Default: 24 h.
    pub deadline: Duration,
    /// The command that stands in for the API where it stays down. Default: none.
    pub fallback: Option<String>,
    /// Where a gateway sends requests while the API stays down, step by step. Default: nowhere.
    pub fallback_to: Vec<FallbackStep>,
    /// What tokens cost. Default: not known.
    pub prices: Prices,
    /// Describes the acting pace: its name, what it does, and its source.
    pub acting: String,
    /// Every value in force, defaults included.
    pub effective: Vec<EffectiveValue>,
    /// Values that the user set and that do not act under this pace.
    pub idle: Vec<EffectiveValue>,
}

/// Calls with limits of their own inside the upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tier {
    /// The scope that these calls share, as in [`PacerConfig::tiers`].
    pub scope: Arc<str>,
    /// Which calls.
    pub matches: TierMatch,
}

/// Which calls belong to a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierMatch {
    /// Those whose path begins so.
    Path(String),
    /// Those that name this model.
    Model(String),
    /// Those whose item has this label.
    Label(String),
    /// Those to this host, with or without its port.
    Host(String),
}

impl Upstream {
    /// The files that are read for its calls: its key, certificates and their key.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let key = match &self.key {
            KeySource::File(path) => Some(path),
            KeySource::None | KeySource::Variable { .. } => None,
        };
        let client = self.access.client.iter().flat_map(|(certificate, key)| [certificate, key]);
        key.into_iter().chain(&self.access.ca_file).chain(client)
    }

    /// The first tier that a call belongs to.
    pub fn tier(&self, path: &str, model: Option<&str>, label: Option<&str>) -> Option<&Tier> {
        self.tiers.iter().find(|tier| match &tier.matches {
            TierMatch::Path(prefix) => path_of(path).starts_with(prefix.as_str()),
            TierMatch::Model(name) => model == Some(name),
            TierMatch::Label(name) => label == Some(name),
            TierMatch::Host(name) => {
                let base = self.base_url.as_deref().unwrap_or_default();
                tier_hosts::goes_to(if path.starts_with('/') { base } else { path }, name)
            }
        })
    }

    /// The path of a call to that whole address, if it is below the upstream's, or below that of the API behind a gateway.
    pub fn path_below(&self, url: &str) -> Option<String> {
        let api = self.via.as_ref().and_then(|via| via.api.as_deref());
        [self.base_url.as_deref(), api].into_iter().flatten().find_map(|base| below(url, base))
    }

    /// The scope that a call belongs to: its tier, where hosts are apart that of its host alone, else what is limited together.
    /// `group`: that of its item. A fleet divides the limits of whole tiers.
    pub fn scope_name(&self, call: &CallNames<'_>) -> String {
        let CallNames { path, model, label, group, body } = *call;
        match (self.tier(path, model, label), group, self.dialect.scope()) {
            (Some(tier), _, Scope::Host) if self.fleet.is_none() => match self.host_scope(path, model, body) {
                host if tier_hosts::is_part(&tier.matches, &host) => part_of_tier(&tier.scope, &host),
                _ => tier.scope.to_string(),
            },
            (Some(tier), ..) => tier.scope.to_string(),
            (None, Some(group), Scope::Group) => group.to_owned(),
            (None, _, Scope::Host) => self.host_scope(path, model, body),
            (None, ..) => self.dialect.scope_name(path, model, body),
        }
    }

    fn host_scope(&self, path: &str, model: Option<&str>, body: &[u8]) -> String {
        let base = self.base_url.as_deref().filter(|_| path.starts_with('/'));
        match base {
            Some(base) => self.dialect.scope_name(&join_url(base, path), model, body),
            None => self.dialect.scope_name(path, model, body),
        }
    }

    /// Whether all calls are one scope although nothing is known about what the API limits together: a user who knows more can
    /// divide them.
    pub fn is_one_scope_by_default(&self) -> bool {
        self.provider == Provider::Generic && self.tiers.is_empty() && self.dialect.is_one_scope()
    }

    /// Calls of one group are limited together, unless the configuration or a known provider defines other scopes.
    pub fn limits_groups(&mut self) {
        let is_configured =
            |row: &EffectiveValue| row.key == "scope" && !matches!(row.source, Source::Default | Source::Preset(_));
        if self.provider == Provider::Generic && !self.effective.iter().any(is_configured) {
            self.dialect = self.dialect.clone().with_scope(Scope::Group);
        }
    }

    /// Checks and converts a merged section.
    pub(crate) fn new(name: &str, section: &UpstreamSection, environment: &Environment) -> Result<Self, SettingError> {
        let mut ledger = Ledger::new(format!("upstream.{name}"));
        let provider = provider(name, section, &mut ledger)?;
        let through = via::through(name, section, &mut ledger)?;
        let section = through.as_ref().map_or(section, |through| &through.section);
        let (base_url, via, mut key) = match &through {
            Some(through) => at_gateway(through, name, provider, environment, &mut ledger)?,
            None => directly(name, provider, section, environment, &mut ledger)?,
        };
        let access = access::access(provider, section, &mut key, &mut ledger)?;
        let mut pace = pacing::pace(section, &mut ledger)?;
        let named = Named::of_upstream(section, &ledger)?;
        let off = section.pace.as_ref().filter(|_| pace.pace == Pace::None);
        let limits = named.settle(off, &mut ledger)?;
        let start = pacing::start(section, pace, &limits, &mut ledger)?;
        let concurrency = concurrency::concurrency(section, named.concurrent, &mut pace, &mut ledger)?;
        let retry = pacing::retry(section, pace, &mut ledger)?;
        let deadline = pacing::deadline(section, &mut ledger)?;
        let fallback = fallback::command(section.fallback.as_ref(), &mut ledger);
        let fallback_to = fallback::steps(name, provider, section.fallback_to.as_ref(), &mut ledger)?;
        let background = pacing::background(section, &mut ledger)?;
        let responsive = responsive::responsive(section, pace, &mut ledger)?;
        let breaker = pacing::breaker(section, &mut ledger)?;
        let given = section.tier.as_deref().unwrap_or_default();
        let (tiers, limits_of_tiers) = match &via {
            Some(_) => (tiers_at_gateway(given, &mut ledger)?, TierLimits::default()),
            None => tiers(given, off, &mut ledger)?,
        };
        let has_key = via.is_some() || key != KeySource::None || access.secret_headers().next().is_some();
        let dialect = dialect::dialect(provider, section, has_key, &mut ledger)?;
        through.as_ref().map_or(Ok(()), |through| through.refuse_hosts(&dialect, &ledger))?;
        let prices = price::prices(section.price.as_ref(), &mut ledger)?;
        let mut pacer = PacerConfig {
            limits,
            concurrency,
            places: named.places_of_all(concurrency.max()),
            start,
            tiers: limits_of_tiers.rates,
            tier_places: limits_of_tiers.places,
            retry,
            breaker,
            pace: pace.pace,
            responsive,
            ..PacerConfig::default()
        };
        let fleet = fleet::fleet(section, &mut pacer, via.is_some(), &mut ledger)?;
        let acting = acting::acting(via.as_ref(), section, &pacer);
        let ((effective, idle), name) = (ledger.into_rows(), name.to_owned());
        Ok(Self {
            name,
            file: None,
            provider,
            base_url,
            via,
            fleet,
            key,
            access,
            pacer,
            background,
            tiers,
            dialect,
            deadline,
            fallback,
            fallback_to,
            prices,
            acting,
            effective,
            idle,
        })
    }
}

impl Preset {
    /// The configuration of a limiter under this preset alone: for one host and key.
    ///
    /// ```
    /// use std::time::Duration;
    /// use paceline_config::Preset;
    /// use paceline_core::{Instant, Pacer};
    ///
    /// // The robots.txt of the host says "Crawl-delay: 5".
    /// let config = Preset::Moderate.pacer_config().with_crawl_delay(Duration::from_secs(5));
    /// let pacer = Pacer::new(config, 1, Instant::ZERO)?;
    /// # Ok::<(), paceline_core::ConfigError>(())
    /// ```
    pub fn pacer_config(self) -> PacerConfig {
        self.upstream().pacer
    }

    /// What this preset sets, in the order of `paceline check`.
    pub fn settings(self) -> Vec<EffectiveValue> {
        let mut rows = self.upstream().effective;
        rows.retain(|row| row.source == Source::Preset(self.as_str()));
        rows
    }

    fn upstream(self) -> Upstream {
        let base_url = Some(Setting::new("http://127.0.0.1", Source::Preset(self.as_str())));
        let section = UpstreamSection { base_url, ..self.section() };
        let mut upstream = Upstream::new("generic", &section, &Environment::default()).expect("a preset is no mistake");
        upstream.effective.retain(|row| row.key != "base_url");
        upstream
    }
}

/// Where calls go, through which gateway, and with which key.
type Destination = (Option<String>, Option<Via>, KeySource);

/// Calls through a gateway, which has the key.
fn at_gateway(
    through: &Through,
    name: &str,
    provider: Provider,
    environment: &Environment,
    ledger: &mut Ledger,
) -> Result<Destination, SettingError> {
    let api = base_url(name, provider, &through.section, environment, &mut ledger.beside());
    Ok((Some(through.note(ledger)), Some(through.via(api)?), KeySource::None))
}

/// Calls to the API itself.
fn directly(
    name: &str,
    provider: Provider,
    section: &UpstreamSection,
    environment: &Environment,
    ledger: &mut Ledger,
) -> Result<Destination, SettingError> {
    let base_url = base_url(name, provider, section, environment, ledger)?;
    let key = key(name, provider, base_url.as_deref(), section, ledger)?;
    Ok((base_url, None, key))
}

fn provider(name: &str, section: &UpstreamSection, ledger: &mut Ledger) -> Result<Provider, SettingError> {
    let usual = if name == MOCK { Provider::OpenAi } else { Provider::from_name(name).unwrap_or(Provider::Generic) };
    let read = |setting: &Setting, key: &str| {
        let names = Provider::ALL.map(Provider::as_str).join(", ");
        Provider::from_name(&setting.text).ok_or_else(|| setting.refuse(key, format!("one of {names}")))
    };
    ledger.settle("provider", section.provider.as_ref(), usual, read, Provider::to_string)
}

fn base_url(
    name: &str,
    provider: Provider,
    section: &UpstreamSection,
    environment: &Environment,
    ledger: &mut Ledger,
) -> Result<Option<String>, SettingError> {
    // In place of the provider's own address, as its own libraries take it.
    let mut usual = provider.base_url_variables().filter(|_| name != MOCK);
    let usual = usual
        .find_map(|name| Some(Setting::new(environment.filled(name)?.trim(), Source::Environment(name.to_owned()))));
    if let Some(setting) = section.base_url.as_ref().or(usual.as_ref()) {
        let url = setting.web_address(&ledger.name("base_url"), "https://api.example.com/v1")?;
        ledger.note("base_url", url.clone(), setting.source().clone());
        return Ok(Some(url));
    }
    if name == MOCK {
        ledger.note("base_url", "in this process", Source::Default);
        return Ok(None);
    }
    let Some(url) = provider.base_url() else {
        let expected = format!("upstream {name} has no public address, so pass --base-url URL or set it in the file");
        return Err(SettingError::Missing { key: ledger.name("base_url"), expected });
    };
    ledger.note("base_url", url, Source::Preset(provider.as_str()));
    Ok(Some(url.to_owned()))
}

fn key(
    name: &str,
    provider: Provider,
    base_url: Option<&str>,
    section: &UpstreamSection,
    ledger: &mut Ledger,
) -> Result<KeySource, SettingError> {
    let rank = |setting: &Option<Setting>| setting.as_ref().map_or(0, |setting| setting.source().rank());
    match (&section.api_key_env, &section.api_key_file) {
        (Some(variable), Some(file)) if rank(&section.api_key_env) == rank(&section.api_key_file) => {
            // The key itself may stand there.
            let expected = format!("not both: {} gives api_key_file too", file.source());
            return Err(variable.refuse(&ledger.name("api_key_env"), expected));
        }
        (Some(variable), _) if rank(&section.api_key_env) > rank(&section.api_key_file) => {
            if !is_variable_name(&variable.text) {
                // The user may have put the key itself here, so it is not repeated.
                let hidden = Setting::new(SECRET, variable.source().clone());
                return Err(
                    hidden.refuse(&ledger.name("api_key_env"), "the name of an environment variable, not the key")
                );
            }
            ledger.note("api_key_env", &variable.text, variable.source().clone());
            return Ok(KeySource::Variable { name: variable.text.clone(), required: true });
        }
        (_, Some(file)) => {
            ledger.note("api_key_file", &file.text, file.source().clone());
            return Ok(KeySource::File(file.path()));
        }
        _ => {}
    }
    match provider.key_variable() {
        Some(variable) if name != MOCK => {
            ledger.note("api_key_env", variable, Source::Preset(provider.as_str()));
            let required = !base_url.is_some_and(paceline_providers::is_loopback);
            Ok(KeySource::Variable { name: variable.to_owned(), required })
        }
        _ => {
            ledger.note("api_key_env", "none", Source::Default);
            Ok(KeySource::None)
        }
    }
}

/// Whether a text can be the name of a variable and does not look like a key: names are words, with `_` between them.
fn is_variable_name(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let letters = text.split('_').map(str::len).max().unwrap_or_default();
    begins && text.chars().all(word) && letters <= LONGEST_WORD && !looks_secret(text)
}

/// Behind a gateway they are scopes all the same, and the limits in them are the gateway's.
fn tiers_at_gateway(sections: &[TierSection], ledger: &mut Ledger) -> Result<Vec<Tier>, SettingError> {
    let mut own = ledger.beside();
    let (tiers, _) = tiers(sections, None, &mut own)?;
    ledger.take_over(own, |_| false);
    Ok(tiers)
}

/// The limits of tiers, by the scope that the calls of each share.
#[derive(Default)]
struct TierLimits {
    rates: Vec<(Arc<str>, Limits)>,
    /// Calls in flight.
    places: Vec<(Arc<str>, u32)>,
}

fn tiers(
    sections: &[TierSection],
    off: Option<&Setting>,
    ledger: &mut Ledger,
) -> Result<(Vec<Tier>, TierLimits), SettingError> {
    let (mut tiers, mut limits): (Vec<Tier>, _) = (Vec::new(), TierLimits::default());
    for (index, section) in sections.iter().enumerate() {
        let mut own = Ledger::new(ledger.name(&format!("tier.{index}")));
        let (matches, setting) = tier_match(section, &own)?;
        let scope: Arc<str> = match &matches {
            TierMatch::Path(prefix) => format!("tier {prefix}").into(),
            TierMatch::Model(model) => format!("tier model={model}").into(),
            TierMatch::Label(label) => format!("tier label={label}").into(),
            TierMatch::Host(host) => format!("tier host={host}").into(),
        };
        if tiers.iter().any(|tier| tier.scope == scope) {
            return Err(setting.refuse(&own.name("match"), "a tier of its own: an earlier one takes these calls"));
        }
        let named = Named::of_tier(section, &own)?;
        if named.is_empty() {
            return Err(setting.refuse(&own.name("match"), "a limit beside it, such as rpm: this tier limits nothing"));
        }
        let held = named.settle(off, &mut own)?;
        if let (Some(most), Some(setting)) = (named.places(), named.concurrent) {
            own.note("concurrency.max", most.to_string(), setting.source().clone());
            limits.places.push((scope.clone(), most));
        }
        for row in own.into_rows().0 {
            ledger.note(format!("{scope}: {}", row.key), row.value, row.source);
        }
        limits.rates.push((scope.clone(), held));
        tiers.push(Tier { scope, matches });
    }
    Ok((tiers, limits))
}

fn tier_match<'a>(section: &'a TierSection, ledger: &Ledger) -> Result<(TierMatch, &'a Setting), SettingError> {
    let expected = "exactly one of match (a path prefix), model, label and host";
    let (matches, setting, key) = match (&section.path, &section.model, &section.label, &section.host) {
        (Some(path), None, None, None) => (TierMatch::Path(path.text.clone()), path, "match"),
        (None, Some(model), None, None) => (TierMatch::Model(model.text.clone()), model, "model"),
        (None, None, Some(label), None) => (TierMatch::Label(label.text.clone()), label, "label"),
        (None, None, None, Some(host)) => (TierMatch::Host(host.text.clone()), host, "host"),
        (path, model, label, host) => {
            let one = path.as_ref().or(model.as_ref()).or(label.as_ref()).or(host.as_ref());
            let missing = || SettingError::Missing { key: ledger.name("match"), expected: expected.to_owned() };
            return Err(one.map_or_else(missing, |setting| setting.refuse(&ledger.name("match"), expected)));
        }
    };
    if setting.text.trim().is_empty() {
        return Err(setting.refuse(&ledger.name(key), "a text"));
    }
    if matches!(&matches, TierMatch::Path(path) if !path.starts_with('/')) {
        return Err(
            setting.refuse(&ledger.name(key), "a path that begins with /; a model, a label or a host has its own key")
        );
    }
    if matches!(&matches, TierMatch::Host(host) if host.contains(['/', '@']) || host.contains(char::is_whitespace)) {
        return Err(
            setting.refuse(&ledger.name(key), "the name of a host alone, such as slow.example or slow.example:8080")
        );
    }
    Ok((matches, setting))
}
