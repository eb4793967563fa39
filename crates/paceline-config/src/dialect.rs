//! The configured dialect of an API beside its rules: header fields, the charge, scopes.

use std::time::Duration;

use http::HeaderName;
use paceline_core::{Dimension, RefillMode};
use paceline_providers::table::{Charge, Fields, Free, LimitHeaders};
use paceline_providers::{Dialect, Provider};

use super::effective::Ledger;
use super::error::{SettingError, Source};
use super::names::{CACHED_INPUT, COUNTS, Names, RESERVES, RESTORES, SCOPES, names};
use super::rules;
use super::schema::{ChargeSection, HeaderSection, UpstreamSection};
use super::setting::Setting;
use super::shapes::Settings;
use super::units::show_duration;

const REFUNDS: Names<bool, 2> = [("true", true), ("false", false)];

/// More than any provider multiplies an output token by.
const LARGEST_WEIGHT: u32 = 100;

/// The dialect of a provider with everything that an upstream's section changes about it. `has_key`: whether calls carry one.
pub(crate) fn dialect(
    provider: Provider,
    section: &UpstreamSection,
    has_key: bool,
    ledger: &mut Ledger,
) -> Result<Dialect, SettingError> {
    let known = Dialect::from(provider);
    let usual = Usual { provider, known: &known };
    let (rules, rule_places) = rules::rules(section.rule.as_deref().unwrap_or_default(), ledger)?;
    let limits = limits(section.header.as_deref().unwrap_or_default(), ledger)?;
    let wait_headers = wait_headers(section.wait_headers.as_ref(), ledger)?;
    let read = |setting: &Setting, key: &str| setting.period(key);
    let pause = section.longest_pause.as_ref();
    let longest = ledger.settle("longest_pause", pause, known.longest_pause(), read, |d| show_duration(*d))?;
    let scope = usual.named("scope", section.scope.as_ref(), &SCOPES, known.table().api.scope, ledger)?;
    let charge = charge(&usual, section.charge.as_ref(), ledger)?;
    let mut dialect = limits.into_iter().fold(known.clone(), Dialect::with_limit).with_charge(charge);
    if section.scope.is_some() {
        dialect = dialect.with_scope(scope);
    }
    let dialect = dialect.with_rules(rules).with_rule_places(rule_places);
    let dialect = dialect.with_wait_headers(wait_headers).with_longest_pause(longest);
    Ok(if has_key { dialect } else { dialect.without_key() })
}

fn named<T: Copy, const N: usize>(setting: &Setting, key: &str, all: &Names<T, N>) -> Result<T, SettingError> {
    let known = all.iter().find(|(name, _)| *name == setting.text);
    known.map(|(_, value)| *value).ok_or_else(|| setting.refuse(key, format!("one of {}", names(all).join(", "))))
}

/// The defaults.
struct Usual<'a> {
    provider: Provider,
    known: &'a Dialect,
}

impl Usual<'_> {
    /// Settles a value that has a name, by default the provider's.
    fn named<T: Copy + PartialEq, const N: usize>(
        &self,
        key: &str,
        setting: Option<&Setting>,
        all: &Names<T, N>,
        usual: T,
        ledger: &mut Ledger,
    ) -> Result<T, SettingError> {
        let value = setting.map_or(Ok(usual), |setting| named(setting, &ledger.name(key), all))?;
        let name = all.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| *name);
        ledger.note(key, name, self.source(setting));
        Ok(value)
    }

    fn source(&self, setting: Option<&Setting>) -> Source {
        setting.map_or(Source::Preset(self.provider.as_str()), |setting| setting.source().clone())
    }
}

fn limits(sections: &[HeaderSection], ledger: &mut Ledger) -> Result<Vec<LimitHeaders>, SettingError> {
    let mut limits: Vec<LimitHeaders> = Vec::with_capacity(sections.len());
    for (index, section) in sections.iter().enumerate() {
        let place = format!("header.{index}");
        let (limit, setting) = limit(section, &Ledger::new(ledger.name(&place)))?;
        if limits.iter().any(|earlier| earlier.shares_a_field(&limit)) {
            return Err(setting.refuse(&ledger.name(&place), "fields that no earlier entry reads"));
        }
        let fields: Vec<&str> = limit.fields().map(HeaderName::as_str).collect();
        ledger.note(place, format!("{}: {}", limit.dimension, fields.join(", ")), setting.source().clone());
        limits.push(limit);
    }
    Ok(limits)
}

fn limit<'a>(section: &'a HeaderSection, ledger: &Ledger) -> Result<(LimitHeaders, &'a Setting), SettingError> {
    let field = |key: &str, setting: &Option<Setting>| {
        setting.as_ref().map(|setting| header_name(setting, &ledger.name(key))).transpose()
    };
    let resets = field("reset", &section.reset)?.into_iter().collect();
    let headers =
        Fields { limit: field("limit", &section.limit)?, remaining: field("remaining", &section.remaining)?, resets };
    let used_of_limit = field("used_of_limit", &section.used_of_limit)?;
    let counted = section.limit.as_ref().or(section.remaining.as_ref());
    let setting = match (&section.used_of_limit, counted) {
        (Some(both), None) => both,
        (None, Some(counted)) => counted,
        (Some(both), Some(_)) => {
            return Err(both.refuse(&ledger.name("used_of_limit"), "no limit and no remaining beside it"));
        }
        (None, None) => {
            let expected = "the field with the units of a window, or remaining, or used_of_limit".to_owned();
            return Err(SettingError::Missing { key: ledger.name("limit"), expected });
        }
    };
    let restores = section.restores.as_ref();
    let restores = restores.map(|setting| named(setting, &ledger.name("restores"), &RESTORES)).transpose()?;
    let window: Option<Duration> =
        section.window.as_ref().map(|window| window.period(&ledger.name("window"))).transpose()?;
    let dimension = section.of.as_ref().map_or(Ok(Dimension::Requests), |of| {
        let text = of.text.trim();
        if text.is_empty() { Err(of.refuse(&ledger.name("of"), "a name")) } else { Ok(Dimension::from_name(text)) }
    })?;
    let limit = LimitHeaders::new(dimension, headers, restores.unwrap_or(RefillMode::AtOnce));
    Ok((LimitHeaders { used_of_limit, window, ..limit }, setting))
}

fn wait_headers(settings: Option<&Settings>, ledger: &mut Ledger) -> Result<Vec<HeaderName>, SettingError> {
    let all = settings.map_or(&[][..], |settings| &settings.0);
    let names = all.iter().map(|setting| header_name(setting, &ledger.name("wait_headers")));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    if let Some(first) = all.first() {
        let shown = names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ");
        ledger.note("wait_headers", shown, first.source().clone());
    }
    Ok(names)
}

fn header_name(setting: &Setting, key: &str) -> Result<HeaderName, SettingError> {
    setting.text.trim().parse().map_err(|_| setting.refuse(key, "the name of a header"))
}

fn charge(usual: &Usual<'_>, section: Option<&ChargeSection>, ledger: &mut Ledger) -> Result<Charge, SettingError> {
    let none = ChargeSection::default();
    let (section, known) = (section.unwrap_or(&none), usual.known.table().charge.clone());
    let reserves = usual.named("charge.reserves", section.reserves.as_ref(), &RESERVES, known.reserves, ledger)?;
    let counts = usual.named("charge.counts", section.counts.as_ref(), &COUNTS, known.counts, ledger)?;
    let refunds = usual.named("charge.refunds", section.refunds.as_ref(), &REFUNDS, known.refunds, ledger)?;
    let cached = section.cached_input.as_ref();
    let cached_input = usual.named("charge.cached_input", cached, &CACHED_INPUT, known.cached_input, ledger)?;
    let mut charge = Charge { reserves, counts, refunds, cached_input, ..known };
    if let Some(setting) = &section.output_weight {
        let weight = setting.count(&ledger.name("charge.output_weight"), 1, LARGEST_WEIGHT)?;
        ledger.note("charge.output_weight", weight.to_string(), setting.source().clone());
        // Every path holds the empty text.
        charge.output_weights = [(String::new(), weight)].into();
    }
    if let Some(settings) = &section.free {
        let expected = "a status from 100 to 599, or a class such as throttled";
        let read = |setting: &Setting| {
            setting.text.trim().parse().map_err(|_| setting.refuse(&ledger.name("charge.free"), expected))
        };
        charge.free = settings.0.iter().map(read).collect::<Result<Vec<Free>, _>>()?;
        if let Some(first) = settings.0.first() {
            let shown = charge.free.iter().map(Free::to_string).collect::<Vec<_>>().join(", ");
            ledger.note("charge.free", shown, first.source().clone());
        }
    }
    Ok(charge)
}

#[cfg(test)]
mod tests {
    use paceline_core::{Class, Timestamp};

    use super::super::{Config, Overrides, Upstream};
    use super::*;
    use paceline_providers::{Answer, TokenRatio};

    fn upstream(file: &str) -> Result<Upstream, SettingError> {
        let openai = Overrides { upstream: Some("openai".to_owned()), ..Overrides::default() };
        Config::parse("paceline.toml".as_ref(), file, Default::default(), openai)?.upstream()
    }

    #[test]
    fn an_upstream_may_know_better_than_its_table() {
        let file = "[upstream.openai]\nscope = 'key'\nwait_headers = ['X-Come-Back-In', 'x-pause-ms']\nlongest_pause = '10m'\n\
            charge = { reserves = 'input', counts = 'input', refunds = true, output_weight = 5, free = [304, 'throttled'] }\n\
            [[upstream.openai.header]]\nof = 'points'\nlimit = 'X-Points'\nremaining = 'X-Points-Left'\nwindow = '1h'\n\
            [[upstream.openai.header]]\nremaining = 'x-ratelimit-remaining-requests'\nrestores = 'unknown'";
        let found = upstream(file).expect("all well");
        assert_eq!(found.dialect.scope_name("/v1/chat/completions", Some("m"), b"{}"), "all");
        let body = br#"{"max_tokens":1000}"#;
        let cost = found.dialect.charge("/v1/chat/completions", body, &TokenRatio::default());
        assert_eq!((cost.get(&Dimension::Tokens), cost.get(&Dimension::OutputTokens)), (5, 0));
        let headers = |fields: &[(&'static str, &'static str)]| -> http::HeaderMap {
            let field = |(name, value): &(&'static str, &'static str)| {
                (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
            };
            fields.iter().map(field).collect()
        };
        let read = |status, fields: &[(&'static str, &'static str)], body: &[u8]| {
            let headers = headers(fields);
            found.dialect.read(&Answer { status, headers: &headers, body, path: "/" }, Timestamp::from_millis(0))
        };
        for (fields, class, wait) in [
            (&[("x-come-back-in", "30"), ("retry-after", "5")][..], Class::Throttled, Some(Duration::from_secs(30))),
            (&[("x-pause-ms", "1500")], Class::Throttled, Some(Duration::from_millis(1_500))),
            (&[("x-come-back-in", "never"), ("retry-after", "5")], Class::Throttled, Some(Duration::from_secs(5))),
            (&[("retry-after", "601")], Class::QuotaExhausted, Some(Duration::from_secs(601))),
            (&[], Class::Throttled, None),
        ] {
            let reading = read(429, fields, b"");
            assert_eq!((reading.class, reading.wait), (class, wait), "{fields:?}");
        }
        let reading = read(
            200,
            &[
                ("x-points", "100"),
                ("x-points-left", "40"),
                ("x-ratelimit-limit-requests", "500"),
                ("x-ratelimit-remaining-requests", "0"),
                ("x-ratelimit-limit-tokens", "9"),
            ],
            br#"{"usage":{"prompt_tokens":90,"completion_tokens":10}}"#,
        );
        let limits = reading.limits.iter().map(|limit| (limit.dimension.as_str(), limit.limit, limit.restores));
        assert_eq!(
            limits.collect::<Vec<_>>(),
            [
                ("tokens", Some(9), RefillMode::Gradually),
                ("points", Some(100), RefillMode::AtOnce),
                ("requests", None, RefillMode::Unknown),
            ]
        );
        assert_eq!(reading.outcome_of(&cost).usage.expect("settled").get(&Dimension::Tokens), 90, "input alone");
        let shown = |key: &str| found.effective.iter().find(|row| row.key == key).map(|row| row.value.as_str());
        for (key, value) in [
            ("header.0", "points: x-points, x-points-left"),
            ("wait_headers", "x-come-back-in, x-pause-ms"),
            ("longest_pause", "10m"),
            ("scope", "key"),
            ("charge.reserves", "input"),
            ("charge.output_weight", "5"),
            ("charge.free", "304, throttled"),
        ] {
            assert_eq!(shown(key), Some(value), "{key}");
        }
    }

    #[test]
    fn a_file_of_any_size_is_refused_with_a_message() {
        let open = "m = { h = \"X\" }\nc = {\"e]\n";
        for (bytes, expected) in [(1_000, "line"), (1 << 20, "at most 64 KiB")] {
            let message = upstream(&open.repeat(bytes / open.len())).expect_err("no TOML").to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn what_an_upstream_knows_better_must_make_sense() {
        for (text, key) in [
            ("scope = 'hosts'", "scope"),
            ("longest_pause = 0", "longest_pause"),
            ("wait_headers = ['a b']", "wait_headers"),
            ("charge = { reserves = 'all' }", "charge.reserves"),
            ("charge = { counts = 'output' }", "charge.counts"),
            ("charge = { refunds = 'often' }", "charge.refunds"),
            ("charge = { cached_input = 'half' }", "charge.cached_input"),
            ("charge = { output_weight = 0 }", "charge.output_weight"),
            ("charge = { free = ['everything'] }", "charge.free"),
            ("charge = { free = [99] }", "charge.free"),
            ("[[upstream.openai.header]]\nof = 'requests'", "header.0.limit"),
            ("[[upstream.openai.header]]\nlimit = 'a b'", "header.0.limit"),
            ("[[upstream.openai.header]]\nlimit = 'a'\nused_of_limit = 'b'", "header.0.used_of_limit"),
            ("[[upstream.openai.header]]\nlimit = 'a'\nrestores = 'slowly'", "header.0.restores"),
            ("[[upstream.openai.header]]\nlimit = 'a'\nwindow = 0", "header.0.window"),
            ("[[upstream.openai.header]]\nlimit = 'a'\nof = ' '", "header.0.of"),
            ("[[upstream.openai.header]]\nlimit = 'a'\n[[upstream.openai.header]]\nremaining = 'A'", "header.1"),
        ] {
            let message = upstream(&format!("[upstream.openai]\n{text}")).expect_err(text).to_string();
            assert!(message.contains(&format!("upstream.openai.{key} ")), "{text}: {message}");
        }
        let message = upstream("[[upstream.openai.header]]\nname = 'x'").expect_err("no such key").to_string();
        assert!(message.contains("name"), "{message}");
    }
}
