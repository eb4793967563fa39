//! What is known about each provider, as one readable file per provider.
//!
//! A table holds data alone: addresses, header names, what codes mean, what a call is charged, and the shapes of errors.
//! Logic that needs more than a comparison has a function of its own beside the decision procedure.

mod charge;
mod errors;
mod provider;
mod rules;
mod values;

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use http::HeaderName;
use paceline_core::{Class, Dimension, RefillMode};
use serde::Deserialize;

pub use self::charge::{CachePercent, CachedInput, Charge, Counts, Free, NotFree, Reserves};
pub use self::errors::{ErrorFields, ErrorShape, MockError, MockErrors, fill};
pub use self::provider::Provider;
use self::rules::rules;
pub(super) use self::rules::{TableRule, usual_reach};
pub use self::values::HeaderFields;
use self::values::{
    authorization, class, dimension, duration, fields, header_fields, header_name, one_header_name, prefixes, restores,
};
use super::{address, dynamodb};

/// The phrases and codes that decide, whichever provider sends them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Common {
    pub(super) filtered: Vec<String>,
    pub(super) filtered_phrase: String,
    pub(super) account: Vec<String>,
    pub(super) monthly_cap: Vec<String>,
    pub(super) capacity: Vec<String>,
    pub(super) capacity_phrases: Vec<String>,
    pub(super) long_window: Vec<String>,
    pub(super) ramp: Vec<String>,
    pub(super) throttled: Vec<String>,
    pub(super) long_periods: Vec<String>,
    #[serde(deserialize_with = "values::header_names")]
    pub(super) request_ids: Vec<HeaderName>,
    pub(super) late_status: BTreeMap<String, u16>,
    pub(super) base_resp: BTreeMap<String, u16>,
    pub(super) graphql: BTreeMap<String, u16>,
    pub(super) gateway: BTreeMap<String, OfGateway>,
}

/// What a code of the gateway means.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfGateway {
    #[serde(deserialize_with = "values::class")]
    pub(super) class: Class,
    /// It concerns a scope, whatever is usual for the class.
    #[serde(default)]
    pub(super) of_scope: bool,
    /// It has not sent the call.
    #[serde(default)]
    pub(super) unsent: bool,
}

/// The values of [`Common`].
pub(super) static COMMON: LazyLock<Common> = LazyLock::new(|| {
    toml::from_str(include_str!("../tables/common.toml")).expect("the built-in table is read by a test")
});

/// What is known about one provider.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The provider in one line.
    pub about: String,
    /// What its calls are.
    pub kind: Kind,
    /// The provider whose rules hold after its own.
    like: Option<String>,
    /// What a limit applies to, as text.
    pub limits_belong_to: String,
    /// What a user should know, a sentence or two each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// How it is spoken to.
    pub api: Api,
    /// What a call is charged.
    #[serde(default)]
    pub charge: Charge,
    /// The limits that its headers announce.
    #[serde(default, rename = "limit")]
    pub limits: Vec<LimitHeaders>,
    /// The widespread ones, which are looked for where none of these is announced.
    #[serde(skip)]
    pub(super) usual_limits: Vec<LimitHeaders>,
    /// Answers that its own codes decide, before all that is common.
    #[serde(default, rename = "rule", deserialize_with = "rules")]
    pub(super) rules: Vec<TableRule>,
    /// The shape of its errors.
    pub errors: ErrorShape,
    /// Answers that it is known to give, and what each means.
    #[serde(default, rename = "answer")]
    pub answers: Vec<KnownAnswer>,
    /// Which of its errors a mock sends when.
    pub mock: MockErrors,
}

/// What the calls of a provider are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Prompts for a model: every body, and almost every success, is a JSON object.
    LanguageModel,
    /// Anything.
    Api,
}

/// How a provider is spoken to.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    /// The public address; none where every customer has one of his own.
    pub base_url: Option<String>,
    /// The environment variables in which the provider's own libraries look for another address, the first of them first.
    #[serde(default)]
    pub base_url_variables: Vec<String>,
    /// Where requests go that name no path.
    pub endpoint: Option<String>,
    /// The key of a chat completion's body that bounds its answer, in tokens. Default: `max_tokens`.
    #[serde(default = "max_tokens")]
    pub answer_bound: String,
    /// The environment variable that usually holds the key.
    pub key_variable: Option<String>,
    /// The header that carries the key. Default: `authorization`.
    #[serde(default = "authorization", deserialize_with = "one_header_name")]
    pub key_header: HeaderName,
    /// What stands before the key in it.
    #[serde(default)]
    pub key_prefix: String,
    /// Headers that every request needs.
    #[serde(default, deserialize_with = "header_fields")]
    pub headers: HeaderFields,
    /// The header that names a request, so that its repetition can be recognised.
    #[serde(default, deserialize_with = "header_name")]
    pub idempotency_header: Option<HeaderName>,
    /// What is limited together.
    pub scope: Scope,
    /// Prefixes of paths that are limited apart from the rest, and the names of their scopes; the longest first.
    #[serde(default, deserialize_with = "prefixes")]
    pub paths: Vec<(String, String)>,
    /// A 409 passes by itself.
    #[serde(default)]
    pub conflicts_pass: bool,
    /// It speaks GraphQL: errors in a 200 without data are failures. Default: they are the caller's to judge.
    #[serde(default)]
    pub graphql: bool,
    /// Keys without which a success need not be read. Default: every success is read.
    pub success: Option<Vec<String>>,
}

fn max_tokens() -> String {
    "max_tokens".to_owned()
}

/// What is limited together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scope {
    /// The calls of one path and one model.
    Model,
    /// The calls of one path.
    Endpoint,
    /// The calls to one host: nothing reaches further, for no two hosts share an account.
    Host,
    /// The calls whose bodies name the same table of DynamoDB's.
    Table,
    /// All calls with one key.
    Key,
    /// The calls of one group of items; of those without a group the calls whose paths begin with the same segment.
    Group,
}

/// The header fields that announce one limit.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitHeaders {
    /// What is counted: `requests`, `tokens`, `input_tokens`, or a name of the provider's own.
    #[serde(rename = "of", deserialize_with = "dimension")]
    pub dimension: Dimension,
    /// Where it stands; in the file limit, remainder and resets in a list.
    #[serde(default, deserialize_with = "fields")]
    pub headers: Fields,
    /// One field that holds `used/limit` instead.
    #[serde(default, deserialize_with = "header_name")]
    pub used_of_limit: Option<HeaderName>,
    /// How the provider writes the reset. Readers go by its shape, whatever this says.
    #[serde(default)]
    pub reset: ResetForm,
    /// How the limit comes back.
    #[serde(deserialize_with = "restores")]
    pub restores: RefillMode,
    /// The documented window, where none can be derived.
    #[serde(default, deserialize_with = "duration")]
    pub window: Option<Duration>,
    /// Ignored beside the IETF's fields.
    #[serde(default)]
    pub unless_standard: bool,
}

/// The fields of one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Units allowed in a window.
    pub limit: Option<HeaderName>,
    /// Units left.
    pub remaining: Option<HeaderName>,
    /// When all of it is back; the first usable one holds.
    pub resets: Vec<HeaderName>,
}

impl Fields {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &HeaderName> {
        self.limit.iter().chain(&self.remaining).chain(&self.resets)
    }
}

/// How a reset is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetForm {
    /// In one way or another.
    #[default]
    Any,
    /// `6m0s`, `20ms`.
    GoDuration,
    /// Whole seconds from now.
    Seconds,
    /// Seconds from now, with decimals.
    DecimalSeconds,
    /// Seconds since 1970.
    Epoch,
    /// A date.
    Rfc3339,
}

/// An answer that a provider is known to give.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct KnownAnswer {
    /// The status.
    pub status: u16,
    /// The code in the error.
    pub code: Option<String>,
    /// The type of the error.
    #[serde(rename = "type")]
    pub error_type: Option<String>,
    /// The message.
    pub message: Option<String>,
    /// What it means.
    #[serde(deserialize_with = "class")]
    pub class: Class,
    /// The wait that it tells.
    #[serde(default, deserialize_with = "duration")]
    pub wait: Option<Duration>,
    /// What to know about it.
    pub note: Option<String>,
}

impl Table {
    /// The table of a provider. It is read when it is first asked for.
    pub(super) fn of(provider: Provider) -> &'static Self {
        static TABLES: [OnceLock<Table>; Provider::ALL.len()] = [const { OnceLock::new() }; Provider::ALL.len()];
        TABLES[provider as usize].get_or_init(|| Self::read(provider))
    }

    fn read(provider: Provider) -> Self {
        let mut table: Self = toml::from_str(provider.table_text()).expect("built-in tables are read by a test");
        if let Some(like) = table.like.as_deref().and_then(Provider::from_name) {
            table.rules.extend(Self::of(like).rules.iter().cloned());
        }
        if provider != Provider::Generic {
            let usual = Self::of(Provider::Generic).limits.iter();
            let usual = usual.filter(|row| !table.limits.iter().any(|own| own.shares_a_field(row)));
            table.usual_limits = usual.cloned().collect();
        }
        table
    }

    /// Whether every success is a JSON object of the API, so that a page or an empty body is none.
    pub(super) fn is_strict(&self) -> bool {
        self.kind == Kind::LanguageModel
    }
}

impl Api {
    /// The name of the scope that a call belongs to.
    pub(super) fn scope_name(&self, path: &str, model: Option<&str>, body: &[u8]) -> String {
        let path = address::path_before(path, b"?#");
        if let Some((_, name)) = self.paths.iter().find(|(prefix, _)| path.starts_with(prefix.as_str())) {
            return name.clone();
        }
        match (self.scope, model) {
            (Scope::Key, _) => "all".to_owned(),
            (Scope::Host, _) => address::host(path).unwrap_or_else(|| "all".to_owned()),
            (Scope::Table, _) => dynamodb::tables(body).unwrap_or_else(|| "all".to_owned()),
            (Scope::Model, Some(model)) => [path, model].join(" "),
            (Scope::Model, None) | (Scope::Endpoint, _) => path.to_owned(),
            (Scope::Group, _) => {
                let start = path.len() - path.trim_start_matches('/').len();
                path[..path[start..].find('/').map_or(path.len(), |end| start + end)].to_owned()
            }
        }
    }
}

impl LimitHeaders {
    /// A limit that stands in these fields.
    pub const fn new(dimension: Dimension, headers: Fields, restores: RefillMode) -> Self {
        let (used_of_limit, reset, window) = (None, ResetForm::Any, None);
        Self { dimension, headers, used_of_limit, reset, restores, window, unless_standard: false }
    }

    /// Whether both read the same field.
    pub fn shares_a_field(&self, other: &Self) -> bool {
        self.fields().any(|name| other.fields().any(|known| known == name))
    }

    /// Every field that it reads.
    pub fn fields(&self) -> impl Iterator<Item = &HeaderName> {
        self.headers.iter().chain(&self.used_of_limit)
    }
}

/// Whether a text has one of the phrases of a table in it.
pub(super) fn contains_any(text: &str, phrases: &[String]) -> bool {
    phrases.iter().any(|phrase| text.contains(phrase.as_str()))
}
