//! What is known about each provider, as one readable file per provider.
//!
//! A table holds data alone: addresses, header names, what codes mean, what a call is charged, and the shapes of errors.
//! Logic that needs more than a comparison has a function of its own beside the decision procedure.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use paceline_core::{Class, Dimension, Reach, Restores};
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;

use super::api::Provider;
use super::rule::{Phrase, Place, Rule};

/// The words that decide whoever sends them.
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
    pub(super) late_status: BTreeMap<String, u16>,
    pub(super) base_resp: BTreeMap<String, u16>,
}

/// The words of [`Common`].
pub(super) static COMMON: LazyLock<Common> =
    LazyLock::new(|| toml::from_str(include_str!("tables/common.toml")).expect("the built-in table is read by a test"));

/// What is known about one provider.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The provider in one line.
    pub about: String,
    /// What its calls are.
    pub kind: Kind,
    /// The provider whose rules hold after its own.
    like: Option<String>,
    /// What a limit applies to, in words.
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
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    /// The public address; none where every customer has one of his own.
    pub base_url: Option<String>,
    /// Where requests go that name no path.
    pub endpoint: Option<String>,
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
    /// Keys without which a success need not be read. Default: every success is read.
    pub success: Option<Vec<String>>,
}

/// Header fields with their values.
pub type HeaderFields = Vec<(HeaderName, HeaderValue)>;

/// What is limited together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The calls of one path and one model.
    Model,
    /// The calls of one path.
    Endpoint,
    /// All calls with one key.
    Key,
}

/// What a call is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Charge {
    /// A call is admitted only when there is room for all the tokens that it may produce.
    #[serde(default = "yes")]
    pub reserves_output: bool,
    /// Whether input that the provider had in its cache counts.
    #[serde(default)]
    pub cached_input: CachedInput,
}

impl Default for Charge {
    fn default() -> Self {
        Self { reserves_output: true, cached_input: CachedInput::Counts }
    }
}

/// Whether cached input counts against a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachedInput {
    /// Like any other.
    #[default]
    Counts,
    /// Not at all.
    Free,
}

/// The header fields that announce one limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitHeaders {
    /// What is counted: `requests`, `tokens`, `input_tokens`, or a name of the provider's own.
    #[serde(rename = "of", deserialize_with = "dimension")]
    pub dimension: Dimension,
    /// Limit, remainder and resets, of which the first usable one holds.
    #[serde(default, deserialize_with = "header_names")]
    pub headers: Vec<HeaderName>,
    /// One field that holds `used/limit` instead.
    #[serde(default, deserialize_with = "header_name")]
    pub used_of_limit: Option<HeaderName>,
    /// How the provider writes the reset. Readers go by its shape, whatever this says.
    #[serde(default)]
    pub reset: ResetForm,
    /// How the limit comes back.
    #[serde(deserialize_with = "restores")]
    pub restores: Restores,
    /// The documented window, where none can be derived.
    #[serde(default, deserialize_with = "duration")]
    pub window: Option<Duration>,
    /// Ignored beside the IETF's fields.
    #[serde(default)]
    pub unless_standard: bool,
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

/// The shape of a provider's errors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorShape {
    /// A JSON text in which `$message`, `$type`, `$code`, `$status` and the like stand for values.
    pub body: String,
    /// The same for errors without a code.
    pub plain_body: Option<String>,
    /// Default: `application/json`.
    pub content_type: Option<String>,
    /// Fields that every answer carries.
    #[serde(default, deserialize_with = "header_fields")]
    pub headers: HeaderFields,
    /// A field that carries the code.
    #[serde(default, deserialize_with = "header_name")]
    pub code_header: Option<HeaderName>,
    /// The field that names a request.
    #[serde(deserialize_with = "one_header_name")]
    pub request_id: HeaderName,
    /// The key under which the body names it too.
    pub id_in_body: Option<String>,
    /// The fields that carry the wait of a refusal: `retry-after`, `retry-after-ms`.
    pub wait: Vec<String>,
}

/// An answer that a provider is known to give.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// The errors of a mock. In their texts `$dimension`, `$short`, `$limit`, `$used`, `$requested`, `$size`, `$model`, `$wait`
/// and `$wait_s` stand for values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MockErrors {
    /// A limit is used up.
    pub limit: MockError,
    /// The call is larger than a limit.
    pub too_large: MockError,
    /// Too many calls are in service.
    pub concurrency: MockError,
    /// The service is out of capacity.
    pub overloaded: MockError,
    /// A call that was admitted failed.
    pub fault: MockError,
    /// The call makes no sense.
    pub invalid: MockError,
    /// There is nothing at that path. Default: as `invalid`.
    pub not_found: Option<MockError>,
    /// The body is too long to be read. Default: as `invalid`.
    pub too_long: Option<MockError>,
    /// What `$figures` stands for where figures may be told.
    #[serde(default)]
    pub figures: String,
    /// What it stands for where they may not.
    #[serde(default)]
    pub no_figures: String,
    /// What `$hint` stands for where a wait is told.
    #[serde(default)]
    pub hint: String,
    /// An entry of `error.details`, for figures.
    pub details: Option<String>,
    /// Another, for the wait.
    pub retry_details: Option<String>,
    /// The wait of a limit is told by the reset in the headers alone.
    #[serde(default)]
    pub reset_wait: bool,
    /// Limits are told in the IETF's fields.
    #[serde(default)]
    pub ietf: bool,
}

/// One error of a mock.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MockError {
    /// The status; where there is none the mock knows it.
    pub status: Option<u16>,
    /// The code.
    pub code: Option<String>,
    /// The type.
    #[serde(rename = "type")]
    pub error_type: Option<String>,
    /// The message.
    pub message: Option<String>,
}

/// A rule of a table, and why it is there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TableRule {
    pub(super) rule: Rule,
    pub(super) note: Option<String>,
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

impl LimitHeaders {
    /// The fields of limit, remainder and resets.
    pub(super) fn fields(&self) -> (Option<&HeaderName>, Option<&HeaderName>, &[HeaderName]) {
        (self.headers.first(), self.headers.get(1), self.headers.get(2..).unwrap_or_default())
    }

    fn shares_a_field(&self, other: &Self) -> bool {
        self.headers.iter().any(|name| other.headers.contains(name))
    }
}

/// What an error says.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorWords<'a> {
    /// The status.
    pub status: u16,
    /// The code.
    pub code: Option<&'a str>,
    /// The type.
    pub error_type: Option<&'a str>,
    /// The message.
    pub message: Option<&'a str>,
    /// The wait that the body tells, where it does.
    pub wait: Option<Duration>,
}

impl ErrorShape {
    /// An error in this shape.
    pub fn render(&self, words: &ErrorWords<'_>) -> String {
        let ErrorWords { status, code, error_type, message, wait } = *words;
        let shape = self.plain_body.as_ref().filter(|_| code.is_none()).unwrap_or(&self.body);
        let number = code.and_then(|code| code.parse::<u64>().ok());
        fill(
            shape,
            &[
                ("status", status.into()),
                ("code", code.into()),
                ("code_number", number.into()),
                ("type", error_type.into()),
                ("message", message.into()),
                ("wait_number", wait.map(|wait| wait.as_secs_f64()).into()),
            ],
        )
    }
}

/// A JSON text with its names replaced: a name that stands alone by the value, one inside a text by its words. A name of
/// which nothing is known is null; inside a text it is left out.
pub fn fill(shape: &str, values: &[(&str, Value)]) -> String {
    let mut filled = String::with_capacity(shape.len() + 200);
    let (mut rest, mut in_text) = (shape, false);
    while let Some(at) = rest.find('$') {
        let (before, after) = rest.split_at(at);
        in_text ^= before.matches('"').count() % 2 == 1;
        filled += before;
        let end = after[1..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(after.len(), |end| end + 1);
        let value = values.iter().find(|(name, _)| *name == &after[1..end]).map(|(_, value)| value);
        let json = value.unwrap_or(&Value::Null).to_string();
        filled += match (in_text, value) {
            (false, _) => &json,
            (true, None | Some(Value::Null)) => "",
            (true, Some(_)) => json.trim_matches('"'),
        };
        rest = &after[end..];
    }
    filled + rest
}

/// A rule as files write it: the form that a user's configuration has, with lists.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(rename = "match")]
    matches: MatchFile,
    #[serde(deserialize_with = "class")]
    class: Class,
    scope: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    wait: Option<Duration>,
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchFile {
    status: Option<Statuses>,
    code: Option<OneOrMany>,
    #[serde(default, deserialize_with = "header_name")]
    header: Option<HeaderName>,
    pointer: Option<String>,
    #[serde(default)]
    equals: OneOrMany,
    message: Option<String>,
    starts: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Statuses {
    One(u16),
    Range(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl From<OneOrMany> for Vec<String> {
    fn from(values: OneOrMany) -> Self {
        match values {
            OneOrMany::One(value) => vec![value],
            OneOrMany::Many(values) => values,
        }
    }
}

impl RuleFile {
    fn into_rule(self) -> Result<TableRule, String> {
        let MatchFile { status, code, header, pointer, equals, message, starts } = self.matches;
        let status = status.map(Statuses::range).transpose()?;
        let (place, equals) = match (code, header, pointer) {
            (Some(code), None, None) => (Some(Place::Code), code.into()),
            (None, Some(header), None) => (Some(Place::Header(header)), equals.into()),
            (None, None, Some(pointer)) => (Some(Place::Pointer(pointer)), equals.into()),
            (None, None, None) => (None, Vec::new()),
            _ => return Err("a rule looks at one of code, header and pointer".to_owned()),
        };
        let phrase = match (message, starts) {
            (None, None) => None,
            (Some(text), None) => Some(Phrase::Contains(text.to_ascii_lowercase())),
            (None, Some(text)) => Some(Phrase::Starts(text.to_ascii_lowercase())),
            (Some(_), Some(_)) => return Err("a rule has one of message and starts".to_owned()),
        };
        let reach = match self.scope.as_deref() {
            None => usual_reach(self.class),
            Some("item") => Reach::Item,
            Some("model") => Reach::Scope,
            Some("key") => Reach::Account,
            Some(other) => return Err(format!("{other} is no scope")),
        };
        let rule = Rule { status, place, equals, phrase, class: self.class, reach, wait: self.wait };
        Ok(TableRule { rule, note: self.note })
    }
}

impl Statuses {
    fn range(self) -> Result<RangeInclusive<u16>, String> {
        match self {
            Self::One(status) => Ok(status..=status),
            Self::Range(text) => {
                let ends = text.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                ends.map(|(first, last)| first..=last).ok_or_else(|| format!("{text} is no range of statuses"))
            }
        }
    }
}

/// How far an answer of a class usually reaches.
pub(super) const fn usual_reach(class: Class) -> Reach {
    match class {
        Class::Account => Reach::Account,
        Class::Throttled | Class::QuotaExhausted | Class::Overloaded | Class::Partial => Reach::Scope,
        Class::Success | Class::Transient | Class::Invalid | Class::Filtered | Class::Abandoned => Reach::Item,
    }
}

fn yes() -> bool {
    true
}

fn authorization() -> HeaderName {
    http::header::AUTHORIZATION
}

fn rules<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<TableRule>, D::Error> {
    let files = Vec::<RuleFile>::deserialize(from)?;
    files.into_iter().map(|file| file.into_rule().map_err(D::Error::custom)).collect()
}

fn class<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Class, D::Error> {
    let name = String::deserialize(from)?;
    Class::from_name(&name).ok_or_else(|| D::Error::custom(format!("{name} is no class")))
}

fn dimension<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Dimension, D::Error> {
    String::deserialize(from).map(|name| Dimension::from_name(&name))
}

fn restores<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Restores, D::Error> {
    match String::deserialize(from)?.as_str() {
        "gradually" => Ok(Restores::Gradually),
        "at_once" => Ok(Restores::AtOnce),
        "unknown" => Ok(Restores::Unknown),
        other => Err(D::Error::custom(format!("{other}: expected gradually, at_once or unknown"))),
    }
}

fn duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| crate::config::parse_duration(&text).map_err(D::Error::custom)).transpose()
}

fn header_name<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<HeaderName>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

fn one_header_name<'de, D: serde::Deserializer<'de>>(from: D) -> Result<HeaderName, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn header_fields<'de, D: serde::Deserializer<'de>>(from: D) -> Result<HeaderFields, D::Error> {
    let fields = BTreeMap::<String, String>::deserialize(from)?;
    let field = |(name, value): (String, String)| {
        let name = name.parse().map_err(D::Error::custom)?;
        Ok((name, value.parse().map_err(D::Error::custom)?))
    };
    fields.into_iter().map(field).collect()
}

fn prefixes<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<(String, String)>, D::Error> {
    let paths = BTreeMap::<String, String>::deserialize(from)?;
    Ok(paths.into_iter().rev().collect())
}

fn header_names<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<HeaderName>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
}
