//! How calls reach an API and show who sends them.

use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use paceline_core::UnknownOutcome;
use paceline_providers::Provider;
use paceline_providers::secrets::{SECRET, hidden, is_secret_header, looks_secret};

use super::effective::Ledger;
use super::error::{KEY_PLACE, SettingError};
use super::schema::UpstreamSection;
use super::setting::Setting;

/// Where the key is; never the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The API needs none.
    None,
    /// An environment variable.
    Variable {
        /// Its name.
        name: String,
        /// Without a key no request can succeed: always so, but for a provider's usual variable on a loopback address.
        required: bool,
    },
    /// A file whose trimmed content is the key.
    File(PathBuf),
}

impl KeySource {
    /// The variable or the file, for people; none where no key is needed.
    pub fn place(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Variable { name, .. } => Some(name.clone()),
            Self::File(path) => Some(path.display().to_string()),
        }
    }
}

/// How calls reach an API and show who sends them.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    provider: Provider,
    key_header: HeaderName,
    /// What stands before the key, with the blank between them.
    key_prefix: String,
    headers: HeaderMap,
    /// Certificates of authorities, in PEM, that are trusted beside the system's. Default: none.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate and its key, in PEM. Default: none.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The header that tells the API that two calls are one request. Default: the provider's, where it documents one.
    pub idempotency_header: Option<HeaderName>,
    /// What follows from a call of which nothing tells whether it was done. Default: what the call says.
    pub unknown_outcome: Option<UnknownOutcome>,
    /// The way out. Default: as the environment says.
    pub proxy: Proxy,
}

/// The way out.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Proxy {
    /// `HTTPS_PROXY` and its kin decide; none is asked for this machine's own addresses.
    #[default]
    Environment,
    /// There is none, whatever the environment says.
    None,
    /// This one, for every address. It may hold a name and a password.
    At(String),
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("Environment"),
            Self::None => f.write_str("None"),
            Self::At(address) => write!(f, "At({})", hidden(address)),
        }
    }
}

impl Access {
    /// The headers that every call carries: the provider's, the configured ones over them, and the key. What is secret is
    /// marked sensitive. Under the scheme `Basic` a key with a `:` is a name and a password, and is encoded.
    ///
    /// # Errors
    /// The key holds a line break, or a character beyond ASCII: a server that repeats it may spell that in its own way. Or it
    /// stands in quotes, or begins with the scheme of the header.
    pub fn headers(&self, key: Option<&str>) -> Result<HeaderMap, InvalidKey> {
        let mut headers: HeaderMap = self.provider.headers().collect();
        headers.extend(self.headers.clone());
        if let Some(key) = key {
            let is_quoted = |quote| key.len() > 1 && key.starts_with(quote) && key.ends_with(quote);
            if ['"', '\''].into_iter().any(is_quoted) {
                return Err(InvalidKey::Quoted);
            }
            let is_twice = !self.key_prefix.is_empty()
                && key.get(..self.key_prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(&self.key_prefix));
            if is_twice {
                return Err(InvalidKey::WithScheme);
            }
            let encode = self.key_prefix.eq_ignore_ascii_case("basic ") && key.contains(':');
            let key = if encode { STANDARD.encode(key) } else { key.to_owned() };
            let value = Some(format!("{}{key}", self.key_prefix)).filter(|value| value.is_ascii());
            let mut value = value.and_then(|value| HeaderValue::from_str(&value).ok()).ok_or(InvalidKey::Characters)?;
            value.set_sensitive(true);
            headers.insert(self.key_header.clone(), value);
        }
        Ok(headers)
    }

    /// How calls carry the key, without the key: `Authorization: Bearer ...`.
    pub fn key_as_sent(&self) -> String {
        format!("{}: {}...", title_case(&self.key_header), self.key_prefix)
    }

    /// The configured headers that hold a secret.
    pub fn secret_headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.headers.iter().filter(|(_, value)| value.is_sensitive()).map(|(name, _)| name)
    }
}

/// A key that no header may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// A line break, or a character beyond ASCII.
    #[error("holds characters that no header may carry: a line break, or one beyond ASCII")]
    Characters,
    /// It stands in quotes, as in a file for a shell.
    #[error("stands in quotes: leave them out")]
    Quoted,
    /// It begins with the scheme that each call puts before it.
    #[error("begins with the scheme (such as `Bearer`), which each call puts before it: leave that word out")]
    WithScheme,
}

/// What is expected where a key and a header of the configuration would set the same header.
fn one_of_two(header: &HeaderName) -> String {
    format!("this or the header {} (--header, headers), and not both: each would set it", title_case(header))
}

/// A header as people write its name.
pub fn title_case(name: &HeaderName) -> String {
    let words = name.as_str().split('-').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    });
    words.collect::<Vec<_>>().join("-")
}

/// Whether a header belongs to one connection, and so does not go on to another (RFC 9110, 7.6.1).
pub fn is_hop_by_hop(header: &HeaderName) -> bool {
    let ends_here = ["connection", "keep-alive", "te", "transfer-encoding", "upgrade"];
    ends_here.contains(&header.as_str()) || header.as_str().starts_with("proxy-")
}

/// Whether the connection decides a header: the host, the framing, the encodings that can be read, what is between proxies.
pub fn is_of_connection(header: &HeaderName) -> bool {
    let ours = ["accept-encoding", "content-length", "expect", "host", "trailer"];
    ours.contains(&header.as_str()) || is_hop_by_hop(header)
}

/// Reads what a section says about it. A header that authenticates by itself needs no key.
pub(super) fn access(
    provider: Provider,
    section: &UpstreamSection,
    key: &mut KeySource,
    ledger: &mut Ledger,
) -> Result<Access, SettingError> {
    let api = &provider.table().api;
    let (mut key_header, mut key_prefix) = (api.key_header.clone(), api.key_prefix.clone());
    if let Some(setting) = &section.key_header {
        let name = header_name(&setting.text).filter(|_| !looks_secret(&setting.text));
        let name = name.ok_or_else(|| {
            let shown = Setting::new(hidden(&setting.text), setting.source().clone());
            shown.refuse(
                &ledger.name("key_header"),
                "the name of a header such as X-API-Key, but not one that the connection sets, such as Host, and no key",
            )
        })?;
        ledger.note("key_header", name.as_str(), setting.source().clone());
        if name != key_header {
            (key_header, key_prefix) = (name, String::new());
        }
    }
    if let Some(setting) = &section.key_scheme {
        let scheme = setting.text.trim();
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if scheme.is_empty() || !scheme.chars().all(is_word) || looks_secret(scheme) {
            return Err(setting.refuse(&ledger.name("key_scheme"), "a word such as Bearer or Basic, or none"));
        }
        ledger.note("key_scheme", scheme, setting.source().clone());
        key_prefix = if scheme == "none" { String::new() } else { format!("{scheme} ") };
    }
    let headers = headers(section, ledger)?;
    if headers.contains_key(&key_header) {
        if let Some(setting) = section.api_key_env.as_ref().or(section.api_key_file.as_ref()) {
            let name = if section.api_key_env.is_some() { "api_key_env" } else { "api_key_file" };
            return Err(setting.refuse(&ledger.name(name), one_of_two(&key_header)));
        }
        *key = KeySource::None;
    } else if *key == KeySource::None
        && let Some(setting) = section.key_header.as_ref().or(section.key_scheme.as_ref())
    {
        let name = if section.key_header.is_some() { "key_header" } else { "key_scheme" };
        return Err(setting.refuse(&ledger.name(name), format!("a key beside it: {KEY_PLACE}")));
    }
    let ca_file = file("ca_file", section.ca_file.as_ref(), ledger);
    let client = match (&section.client_cert, &section.client_key) {
        (None, None) => None,
        (Some(_), None) => return Err(missing(ledger, "client_key", "client_cert")),
        (None, Some(_)) => return Err(missing(ledger, "client_cert", "client_key")),
        (certificate, key) => {
            file("client_cert", certificate.as_ref(), ledger).zip(file("client_key", key.as_ref(), ledger))
        }
    };
    let proxy = section.proxy.as_ref().map_or(Ok(Proxy::Environment), |setting| proxy(setting, ledger))?;
    let idempotency_header = idempotency_header(provider, section, ledger)?;
    let unknown_outcome =
        section.unknown_outcome.as_ref().map(|setting| unknown_outcome(setting, ledger)).transpose()?;
    Ok(Access {
        provider,
        key_header,
        key_prefix,
        headers,
        ca_file,
        client,
        idempotency_header,
        unknown_outcome,
        proxy,
    })
}

fn idempotency_header(
    provider: Provider,
    section: &UpstreamSection,
    ledger: &mut Ledger,
) -> Result<Option<HeaderName>, SettingError> {
    let Some(setting) = &section.idempotency_header else { return Ok(provider.idempotency_header()) };
    let name = Some(setting.text.trim()).filter(|text| *text != "none").map(header_name);
    ledger.note("idempotency_header", setting.text.trim(), setting.source().clone());
    match name {
        None => Ok(None),
        Some(Some(name)) => Ok(Some(name)),
        Some(None) => Err(setting.refuse(
            &ledger.name("idempotency_header"),
            "the name of a header such as Idempotency-Key, but not one that the connection sets, such as Host; or none",
        )),
    }
}

fn unknown_outcome(setting: &Setting, ledger: &mut Ledger) -> Result<UnknownOutcome, SettingError> {
    let found = UnknownOutcome::ALL.into_iter().find(|known| known.as_str() == setting.text.trim());
    let found = found.ok_or_else(|| setting.refuse(&ledger.name("unknown_outcome"), "resend, fail or hold"))?;
    ledger.note("unknown_outcome", found.as_str(), setting.source().clone());
    Ok(found)
}

fn headers(section: &UpstreamSection, ledger: &mut Ledger) -> Result<HeaderMap, SettingError> {
    let mut headers = HeaderMap::new();
    for (name, setting) in section.headers.iter().flat_map(|headers| &headers.0) {
        let key = ledger.name(&format!("headers.{name}"));
        // A value is never repeated: it may be a key.
        let refuse = |expected: &str| Setting::new(SECRET, setting.source().clone()).refuse(&key, expected);
        let Some(header) = header_name(name) else {
            let expected = "the name of a header, then `:` and its value, such as 'X-Tenant: acme'; not one that the connection sets, \
                            such as Host";
            let shown = shown_of(name).unwrap_or_else(|| SECRET.to_owned());
            return Err(Setting::new(shown, setting.source().clone()).refuse(&key, expected));
        };
        let mut value = HeaderValue::from_str(setting.text.trim())
            .map_err(|_| refuse("a value without line breaks and other characters that no header may carry"))?;
        let secret = is_secret_header(name, &setting.text);
        value.set_sensitive(secret);
        let shown = if secret { SECRET } else { setting.text.trim() };
        ledger.note(format!("headers.{header}"), shown, setting.source().clone());
        headers.insert(header, value);
    }
    Ok(headers)
}

/// What may be shown of a text that should begin with the name of a header: that name, where no colon follows. What else
/// stands there may be a key.
fn shown_of(text: &str) -> Option<String> {
    let (name, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    let is_name = name.parse::<HeaderName>().is_ok() && !looks_secret(name);
    is_name.then(|| if rest.is_empty() { name.to_owned() } else { format!("{name} ...") })
}

fn header_name(text: &str) -> Option<HeaderName> {
    text.trim().parse().ok().filter(|name| !is_of_connection(name))
}

fn file(key: &str, setting: Option<&Setting>, ledger: &mut Ledger) -> Option<PathBuf> {
    let setting = setting?;
    ledger.note(key, &setting.text, setting.source().clone());
    Some(setting.path())
}

fn missing(ledger: &Ledger, key: &str, beside: &str) -> SettingError {
    SettingError::Missing {
        key: ledger.name(key),
        expected: format!("{beside} needs it: both are files in PEM, and may be one"),
    }
}

fn proxy(setting: &Setting, ledger: &mut Ledger) -> Result<Proxy, SettingError> {
    let text = setting.text.trim();
    let uri = text.parse::<Uri>().ok();
    let web = uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
    if !web && text != "none" {
        // Without its scheme it is no address, and a password in it is not seen as one.
        let shown = text.rsplit_once('@').map_or(text.to_owned(), |(_, host)| format!("{SECRET}@{host}"));
        let shown = Setting::new(shown, setting.source().clone());
        return Err(shown.refuse(&ledger.name("proxy"), "an address such as http://proxy.example.com:3128, or none"));
    }
    ledger.note("proxy", text, setting.source().clone());
    Ok(if web { Proxy::At(text.to_owned()) } else { Proxy::None })
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Environment, Overrides, Upstream};
    use super::*;

    fn upstream(file: &str, overrides: Overrides) -> Result<Upstream, SettingError> {
        Config::parse("paceline.toml".as_ref(), file, Environment::default(), overrides)?.upstream()
    }

    fn carried(file: &str, key: Option<&str>) -> Vec<(String, String, bool)> {
        let headers = upstream(file, Overrides::default()).expect(file).access.headers(key).expect("a key");
        let text = |value: &HeaderValue| value.to_str().expect("text").to_owned();
        headers.iter().map(|(name, value)| (name.to_string(), text(value), value.is_sensitive())).collect()
    }

    #[test]
    fn a_key_is_sent_as_the_configuration_says() {
        for (lines, name, value) in [
            ("", "authorization", "Bearer me:you"),
            ("key_header = 'X-API-Key'", "x-api-key", "me:you"),
            ("key_header = 'X-API-Key'\nkey_scheme = 'Token'", "x-api-key", "Token me:you"),
            ("key_scheme = 'none'", "authorization", "me:you"),
            ("key_scheme = 'Basic'", "authorization", "Basic bWU6eW91"),
        ] {
            let file = format!("[upstream.a]\nbase_url = 'https://a'\napi_key_env = 'KEY'\n{lines}");
            assert_eq!(carried(&file, Some("me:you")), [(name.to_owned(), value.to_owned(), true)]);
        }
        let encoded = "[upstream.a]\nbase_url = 'https://a'\napi_key_env = 'KEY'\nkey_scheme = 'Basic'";
        assert_eq!(carried(encoded, Some("bWU6eW91"))[0].1, "Basic bWU6eW91", "encoded already");
    }

    #[test]
    fn what_follows_from_an_unknown_outcome_has_one_of_three_values() {
        let read = |lines: &str| {
            let file = format!("[upstream.a]\nprovider = 'openai'\nbase_url = 'https://a'\n{lines}");
            upstream(&file, Overrides::default())
                .map(|found| (found.access.idempotency_header, found.access.unknown_outcome))
        };
        let usual = HeaderName::from_static("idempotency-key");
        for (lines, header, unknown) in [
            ("", Some(usual), None),
            ("idempotency_header = 'none'\nunknown_outcome = 'hold'", None, Some(UnknownOutcome::Hold)),
            ("idempotency_header = 'X-Once'", Some(HeaderName::from_static("x-once")), None),
        ] {
            assert_eq!(read(lines).expect(lines), (header, unknown), "{lines}");
        }
        for (lines, expected) in [
            ("unknown_outcome = 'never'", "resend, fail or hold"),
            (
                "idempotency_header = 'content-length'",
                "the name of a header such as Idempotency-Key, but not one that the connection sets, such as Host; or none",
            ),
        ] {
            let refused = read(lines).expect_err(lines).to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn headers_of_a_higher_layer_replace_those_of_a_lower_and_secret_ones_are_marked() {
        let file =
            "[upstream.anthropic]\nheaders = { Anthropic-Version = '2024-01-01', X-Tenant = 'acme', x-auth = 'abc' }";
        let variable = ("PACELINE_UPSTREAM__ANTHROPIC__HEADERS", "X-Tenant: other\nx-more: a, b");
        let flags = Overrides { headers: vec!["X-AUTH: def".to_owned()], ..Overrides::default() };
        let config = Config::parse("f".as_ref(), file, Environment::from_iter([variable]), flags).expect("all well");
        let found = config.upstream().expect("all well");
        let headers = found.access.headers(None).expect("no key");
        let text = |name: &str| (headers[name].to_str().expect("text"), headers[name].is_sensitive());
        assert_eq!(text("anthropic-version"), ("2024-01-01", false));
        assert_eq!((text("x-tenant"), text("x-more")), (("other", false), ("a, b", false)));
        assert_eq!(text("x-auth"), ("def", true));
        let shown: Vec<_> = found.effective.iter().filter(|row| row.key.starts_with("headers.")).collect();
        assert!(shown.iter().any(|row| row.key == "headers.x-auth" && row.value == SECRET), "{shown:?}");
    }

    #[test]
    fn a_header_that_authenticates_by_itself_needs_no_key() {
        let flags = |more: &str| Overrides {
            upstream: Some("openai".to_owned()),
            headers: vec!["Authorization: Basic abc".to_owned()],
            api_key_env: Some(more.to_owned()).filter(|more| !more.is_empty()),
            ..Overrides::default()
        };
        assert_eq!(upstream("", flags("")).expect("all well").key, KeySource::None);
        let message = upstream("", flags("OTHER")).expect_err("twice").to_string();
        assert!(message.contains("expected this or the header "), "{message}");
    }

    #[test]
    fn what_cannot_be_is_named_and_no_value_of_a_header_is() {
        for (lines, expected) in [
            ("key_header = 'a b'", "key_header"),
            ("key_header = 'Host'", "key_header"),
            ("key_scheme = 'two words'", "key_scheme"),
            ("key_header = 'x-key'", "--api-key-file"),
            ("headers = { Host = 'sesame' }", "headers.host"),
            ("headers = { 'a b' = 'sesame' }", "headers.a b"),
            ("headers = { a = \"two\\nsesame\" }", "headers.a"),
            ("headers = 'sesame'", "headers."),
            ("client_cert = 'a'", "client_key is missing"),
            ("client_key = 'a'", "client_cert is missing"),
            ("proxy = 'socks5://a'", "proxy"),
            ("proxy = 'off'", "proxy"),
        ] {
            let file = format!("[upstream.a]\nbase_url = 'https://a'\n{lines}");
            let message = upstream(&file, Overrides::default()).expect_err(lines).to_string();
            assert!(message.contains(expected) && !message.contains("sesame"), "{lines}: {message}");
        }
    }

    #[test]
    fn a_proxys_password_is_not_shown() {
        let file = "[upstream.a]\nbase_url = 'https://a'\nproxy = 'http://me:sesame@proxy:3128'";
        let found = upstream(file, Overrides::default()).expect("all well");
        assert_eq!(found.access.proxy, Proxy::At("http://me:sesame@proxy:3128".to_owned()));
        assert!(!format!("{found:?}").contains("sesame"));
    }
}
