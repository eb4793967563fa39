//! Calls that go through a gateway: what acts here then, and what the gateway has.

use http::Uri;
use paceline_core::Concurrency;
use paceline_providers::Dialect;
use paceline_providers::secrets::is_secret_header;
use paceline_providers::table::Scope;

use super::effective::Ledger;
use super::error::{SettingError, Source};
use super::schema::{ConcurrencySection, UpstreamSection};
use super::setting::Setting;
use super::shapes::HeaderSettings;

/// A gateway between us and an API.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Via {
    /// Its address as it was configured, without a slash at the end.
    pub gateway: String,
    /// The address of the API behind it, if it is known: whole addresses below it mean the same calls.
    pub api: Option<String>,
}

/// What acts of a section whose calls go through a gateway.
pub(crate) struct Through {
    gateway: String,
    pub(crate) section: UpstreamSection,
    address: String,
    setting: Setting,
}

/// How to call an API directly where a lower layer names a gateway.
const NONE: &str = "none";

/// The upstream that an address of a gateway names: its path, where that is one name.
pub(crate) fn named(address: &str) -> Option<&str> {
    let (_, rest) = address.split_once("://")?;
    let (_, path) = rest.trim_end_matches('/').split_once('/')?;
    Some(path).filter(|path| !path.contains('/'))
}

/// What acts, if calls go through a gateway: as of the highest layer that names it or an address.
pub(crate) fn through(
    name: &str,
    section: &UpstreamSection,
    ledger: &mut Ledger,
) -> Result<Option<Through>, SettingError> {
    let Some(setting) = &section.via else { return Ok(None) };
    let rank = setting.source().rank();
    if setting.text.trim() == NONE {
        ledger.note("via", NONE, setting.source().clone());
        return Ok(None);
    }
    let gateway = setting.web_address(&ledger.name("via"), "http://127.0.0.1:4747")?;
    match &section.base_url {
        Some(base_url) if base_url.source().rank() > rank => {
            ledger.idle("via", &gateway, setting.source().clone());
            return Ok(None);
        }
        Some(Setting { text, .. }) if section.base_url.as_ref().is_some_and(is_flag) && is_flag(setting) => {
            let expected = format!("no gateway beside --base-url {text}: calls go to one of the two");
            return Err(setting.refuse(&ledger.name("via"), expected));
        }
        _ => {}
    }
    let has_path = gateway.parse::<Uri>().is_ok_and(|uri| uri.path() != "/");
    let address = if has_path { gateway.clone() } else { format!("{gateway}/{name}") };
    for (key, given) in of_gateway(section) {
        if is_flag(given) {
            let expected = format!(
                "nothing beside the gateway {gateway} (from {}), which keeps the limits and has the key; set this for `paceline \
                 serve` there",
                setting.source()
            );
            return Err(given.refuse(&ledger.name(key), expected));
        }
        if !matches!(given.source(), Source::Default | Source::Preset(_)) {
            ledger.idle(key, &given.text, given.source().clone());
        }
    }
    let section = remaining(section.clone(), setting);
    Ok(Some(Through { gateway, section, address, setting: setting.clone() }))
}

impl Through {
    /// Writes down where calls go, and returns it.
    pub(crate) fn note(&self, ledger: &mut Ledger) -> String {
        let source = self.setting.source();
        ledger.note("via", &self.gateway, source.clone());
        ledger.note("base_url", &self.address, source.clone());
        ledger.note("api_key_env", "none: the gateway has the key", source.clone());
        self.address.clone()
    }

    /// The gateway, and the address of the API behind it. A gateway may know the address of what has no public one.
    pub(crate) fn via(&self, api: Result<Option<String>, SettingError>) -> Result<Via, SettingError> {
        let api = if matches!(api, Err(SettingError::Missing { .. })) { None } else { api? };
        Ok(Via { gateway: self.gateway.clone(), api })
    }

    /// Refuses calls to hosts that the lines of an input name.
    pub(crate) fn refuse_hosts(&self, dialect: &Dialect, ledger: &Ledger) -> Result<(), SettingError> {
        if dialect.scope() != Scope::Host {
            return Ok(());
        }
        let expected = "no gateway, or another scope than host: a gateway calls no hosts that lines name";
        Err(self.setting.refuse(&ledger.name("via"), expected))
    }
}

fn is_flag(setting: &Setting) -> bool {
    matches!(setting.source(), Source::Flag(_))
}

/// The settings that are the gateway's. What a flag sets of them would not happen.
fn of_gateway(section: &UpstreamSection) -> Vec<(&'static str, &Setting)> {
    let keys = [
        ("api_key_env", &section.api_key_env),
        ("api_key_file", &section.api_key_file),
        ("key_header", &section.key_header),
        ("key_scheme", &section.key_scheme),
        ("start", &section.start),
        ("burst", &section.burst),
        ("shape", &section.shape),
    ];
    let paces = section.pace.iter().filter(|pace| pace.text != NONE).map(|pace| ("pace", pace));
    let listed = section.limits.iter().flat_map(|limits| &limits.0).map(|limit| ("limits", limit));
    let keyed = keys.into_iter().filter_map(|(key, setting)| Some((key, setting.as_ref()?)));
    let in_flight = section.concurrency.iter().flat_map(|ConcurrencySection { kind, floor, start, max }| {
        let max = max.as_ref().filter(|max| !is_flag(max));
        let all = [
            ("concurrency.kind", kind.as_ref()),
            ("concurrency.floor", floor.as_ref()),
            ("concurrency.start", start.as_ref()),
            ("concurrency.max", max),
        ];
        all.into_iter().filter_map(|(key, setting)| Some((key, setting?)))
    });
    keyed.chain(paces).chain(section.rates()).chain(listed).chain(in_flight).collect()
}

/// Secrets of a file are for the API, but for those that name the gateway. A flag is meant for the way that calls go.
fn is_for_the_api(name: &str, setting: &Setting) -> bool {
    !is_flag(setting) && !name.starts_with("x-paceline-") && is_secret_header(name, &setting.text)
}

/// Everything else of the section, at no pace of its own.
fn remaining(section: UpstreamSection, via: &Setting) -> UpstreamSection {
    let here = |text: String| Some(Setting::new(text, via.source().clone()));
    let max = section.concurrency.and_then(|given| given.max).filter(is_flag);
    // As many as under a pace of its own: more would only wait there.
    let max = max.or_else(|| here(Concurrency::default().max().to_string()));
    let headers = section.headers.map(|HeaderSettings(mut headers)| {
        headers.retain(|name, setting| !is_for_the_api(name, setting));
        HeaderSettings(headers)
    });
    UpstreamSection {
        api_key_env: None,
        api_key_file: None,
        key_header: None,
        key_scheme: None,
        headers,
        proxy: section.proxy.filter(is_flag),
        pace: here(NONE.to_owned()),
        concurrency: Some(ConcurrencySection { max, ..ConcurrencySection::default() }),
        start: None,
        rps: None,
        rpm: None,
        rph: None,
        rpd: None,
        tps: None,
        tpm: None,
        tph: None,
        tpd: None,
        itpm: None,
        otpm: None,
        limits: None,
        burst: None,
        shape: None,
        responsive: None,
        ..section
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Environment, KeySource, Overrides, Proxy, Upstream};
    use super::*;
    use paceline_core::Pace;
    use paceline_providers::Provider;

    fn upstream(file: &str, variables: &[(&str, &str)], overrides: Overrides) -> Result<Upstream, SettingError> {
        let environment = variables.iter().copied().collect::<Environment>();
        Config::parse("paceline.toml".as_ref(), file, environment, overrides)?.upstream()
    }

    fn via(address: &str) -> Overrides {
        Overrides { via: Some(address.to_owned()), ..Overrides::default() }
    }

    fn refusal(file: &str, overrides: Overrides) -> String {
        upstream(file, &[], overrides).expect_err(file).to_string()
    }

    const SHARED: &str = "[upstream.api]\nbase_url = 'https://api.example/v1'\nprovider = 'openai'\nrpm = 5\nconcurrency = 3\n\
                          pace = 'fixed'\napi_key_env = 'KEY'\nproxy = 'http://proxy.example'\nretry.max_retries = 2\n\
                          headers = { x-auth = 'secret', x-team = 'me', x-paceline-key = 'pl-key' }\n\
                          [[upstream.api.tier]]\nmodel = 'big'\nrpm = 1\n";

    #[test]
    fn calls_go_to_the_upstream_of_the_gateway_and_its_limits_and_key_stay_there() {
        let found = upstream(SHARED, &[], via("http://127.0.0.1:4747/")).expect("all well");
        assert_eq!(found.base_url.as_deref(), Some("http://127.0.0.1:4747/api"));
        let api = Some("https://api.example/v1".to_owned());
        assert_eq!(found.via, Some(Via { gateway: "http://127.0.0.1:4747".to_owned(), api }));
        assert_eq!(
            (found.provider, &found.key, &found.access.proxy),
            (Provider::OpenAi, &KeySource::None, &Proxy::Environment)
        );
        let headers = found.access.headers(None).expect("no key");
        assert_eq!((headers.get("x-auth"), headers["x-team"].as_bytes()), (None, &b"me"[..]));
        assert!(headers["x-paceline-key"].is_sensitive(), "it is for the gateway");
        assert_eq!((found.pacer.pace, found.pacer.limits.quotas.len(), found.pacer.tiers.len()), (Pace::None, 0, 0));
        assert_eq!((found.pacer.concurrency.max(), found.pacer.retry.max_retries), (512, 2));
        assert_eq!(found.tiers.len(), 1, "a tier is a scope all the same");
        let idle: Vec<&str> = found.idle.iter().map(|row| row.key.as_str()).collect();
        assert_eq!(idle, ["api_key_env", "pace", "rpm", "concurrency.max", "tier model=big: rpm"]);
        assert!(
            found.acting.contains("that of the gateway http://127.0.0.1:4747, which keeps the limits"),
            "{}",
            found.acting
        );
    }

    #[test]
    fn an_address_with_a_path_is_taken_as_it_is_and_names_its_upstream() {
        for (address, file, name, base_url) in [
            ("http://h:1/openai", "", "openai", "http://h:1/openai"),
            ("http://h:1/openai/", SHARED, "openai", "http://h:1/openai"),
            ("https://h/team/openai", SHARED, "api", "https://h/team/openai"),
            ("http://h:1", SHARED, "api", "http://h:1/api"),
        ] {
            let found = upstream(file, &[], via(address)).expect(address);
            assert_eq!((found.name.as_str(), found.base_url.as_deref()), (name, Some(base_url)), "{address}");
        }
        let generic = Overrides { upstream: Some("generic".to_owned()), ..via("http://h:1") };
        let found = upstream("", &[], generic).expect("the gateway knows its address");
        assert_eq!((found.base_url.as_deref(), found.via.and_then(|via| via.api)), (Some("http://h:1/generic"), None));
    }

    #[test]
    fn the_highest_layer_says_where_calls_go() {
        let file = "[upstream.openai]\nvia = 'http://file:1'\nbase_url = 'https://api.example'\n";
        let direct = Overrides { base_url: Some("https://other.example".to_owned()), ..Overrides::default() };
        let direct = Overrides { upstream: Some("openai".to_owned()), ..direct };
        let variable = ("PACELINE_UPSTREAM__OPENAI__VIA", "http://variable:1");
        for (variables, overrides, base_url) in [
            (&[][..], Overrides::default(), "http://file:1/openai"),
            (&[variable], Overrides::default(), "http://variable:1/openai"),
            (&[variable], via("http://flag:1"), "http://flag:1/openai"),
            (&[variable], via("none"), "https://api.example"),
            (&[], direct, "https://other.example"),
        ] {
            let found = upstream(file, variables, overrides).expect(base_url);
            assert_eq!(found.base_url.as_deref(), Some(base_url));
        }
        let config = Config::parse("f".as_ref(), file, Environment::from_iter([variable]), Overrides::default());
        let found = config.expect("all well").direct().upstream().expect("all well");
        assert_eq!(
            (found.base_url.as_deref(), found.via),
            (Some("https://api.example"), None),
            "as the gateway itself calls"
        );
    }

    #[test]
    fn what_a_flag_asks_of_the_gateway_is_refused() {
        let flags = via("http://127.0.0.1:4747");
        let text = |text: &str| Some(text.to_owned());
        for (overrides, key) in [
            (Overrides { rpm: text("5"), ..flags.clone() }, "--rpm"),
            (Overrides { limits: vec!["5 per 1h".to_owned()], ..flags.clone() }, "--limit"),
            (Overrides { burst: text("2"), ..flags.clone() }, "--burst"),
            (Overrides { pace: text("auto"), ..flags.clone() }, "--pace"),
            (Overrides { api_key_env: text("KEY"), ..flags.clone() }, "--api-key-env"),
        ] {
            let refused = refusal(SHARED, overrides);
            let words = "nothing beside the gateway http://127.0.0.1:4747 (from flag --via), which keeps the limits";
            assert!(refused.contains(words) && refused.starts_with(key), "{key}: {refused}");
        }
        let both = Overrides { base_url: text("http://h"), upstream: text("api"), ..flags.clone() };
        assert!(refusal(SHARED, both).contains("no gateway beside --base-url http://h"));
        let acts = Overrides {
            concurrency: text("7"),
            pace: text("none"),
            headers: vec!["X-Auth: mine".to_owned()],
            ..flags.clone()
        };
        let found = upstream(SHARED, &[], acts).expect("these are the run's own");
        assert_eq!(found.pacer.concurrency.max(), 7);
        assert!(found.access.headers(None).expect("no key")["x-auth"].is_sensitive());
        for (address, expected) in [
            ("127.0.0.1:4747", "an address such as http://127.0.0.1:4747"),
            ("http://me:pw@h", "an address without a user name and a password"),
            ("http://h/?x", "an address without query"),
        ] {
            assert!(refusal(SHARED, via(address)).contains(expected), "{address}");
        }
        let hosts = Overrides { scope: text("host"), ..flags };
        assert!(refusal(SHARED, hosts).contains("or another scope than host"));
    }
}
