//! The rules of a file about what answers mean.

use std::ops::RangeInclusive;

use http::HeaderName;
use paceline_core::{Class, LimitScope};
use paceline_providers::{Place, Rule};

use super::effective::Ledger;
use super::error::SettingError;
use super::names::class_names;
use super::schema::{MatchSection, RuleSection};
use super::setting::Setting;
use super::units::show_duration;

/// The longest text that a rule looks for.
const LONGEST_TEXT: usize = 1_000;

/// The rules, and where each of them is written.
pub(crate) fn rules(sections: &[RuleSection], ledger: &mut Ledger) -> Result<(Vec<Rule>, Vec<String>), SettingError> {
    let (mut rules, mut places) = (Vec::with_capacity(sections.len()), Vec::with_capacity(sections.len()));
    for (number, section) in (1..).zip(sections) {
        let place = format!("rule {number}");
        let (rule, class) = rule(section, &Ledger::new(ledger.name(&place)))?;
        let wait = rule.wait.map_or_else(String::new, |wait| format!(" after {}", show_duration(wait)));
        let matches = section.matches.as_ref().map(shown).unwrap_or_default();
        ledger.note(place, format!("{matches} -> {}{wait}", rule.class), class.source().clone());
        rules.push(rule);
        places.push(class.source().to_string());
    }
    Ok((rules, places))
}

/// What an answer has to be, as in `status 200, body not_json`.
fn shown(matches: &MatchSection) -> String {
    let MatchSection { status, code, pointer, header, body, contains, equals, .. } = matches;
    let given = [
        ("status", status),
        ("code", code),
        ("pointer", pointer),
        ("header", header),
        ("body", body),
        ("contains", contains),
        ("equals", equals),
    ];
    let given = given.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value.as_ref()?.text)));
    given.collect::<Vec<_>>().join(", ")
}

fn rule<'a>(section: &'a RuleSection, ledger: &Ledger) -> Result<(Rule, &'a Setting), SettingError> {
    let missing =
        |key: &str, expected: &str| SettingError::Missing { key: ledger.name(key), expected: expected.to_owned() };
    let class_setting = section.class.as_ref().ok_or_else(|| {
        missing("class", &format!("say what such an answer means, by one of {}", class_names().join(", ")))
    })?;
    let class = read_class(class_setting, &ledger.name("class"))?;
    let reach = match section.scope.as_ref() {
        None => LimitScope::Scope,
        Some(scope) => match scope.text.as_str() {
            "item" => LimitScope::Item,
            "model" | "host" => LimitScope::Scope,
            "key" => LimitScope::Account,
            _ => return Err(scope.refuse(&ledger.name("scope"), "item, model, host or key")),
        },
    };
    let wait = section.wait.as_ref().map(|wait| wait.duration(&ledger.name("wait"))).transpose()?;
    let matches = section.matches.as_ref();
    let places = |m: &&MatchSection| {
        [&m.status, &m.code, &m.pointer, &m.header, &m.body, &m.contains].into_iter().any(Option::is_some)
    };
    let given = matches.filter(places);
    let matches =
        given.ok_or_else(|| missing("match", "at least one of status, code, pointer, header, body and contains"))?;
    let status = matches.status.as_ref().map(|status| read_status(status, &ledger.name("match.status"))).transpose()?;
    let place = read_place(matches, ledger)?;
    if let (None | Some(Place::Code | Place::NotJson | Place::Text(_)), Some(equals)) = (&place, &matches.equals) {
        return Err(equals.refuse(&ledger.name("match.equals"), "a pointer or a header beside it"));
    }
    let values = matches.equals.as_ref().or(matches.code.as_ref());
    let equals = values.map(|value| value.text.clone()).into_iter().collect();
    Ok((Rule { status, place, equals, phrase: None, class, reach, wait }, class_setting))
}

fn read_class(setting: &Setting, key: &str) -> Result<Class, SettingError> {
    let names = class_names();
    let known = names.contains(&setting.text.as_str()).then(|| Class::from_name(&setting.text)).flatten();
    known.ok_or_else(|| setting.refuse(key, format!("one of {}", names.join(", "))))
}

fn read_status(setting: &Setting, key: &str) -> Result<RangeInclusive<u16>, SettingError> {
    let (first, last) = setting.text.split_once('-').unwrap_or((&setting.text, &setting.text));
    let status = |text: &str| text.trim().parse().ok().filter(|status| (100..=599).contains(status));
    match (status(first), status(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(setting.refuse(key, "a status from 100 to 599, or a range such as 500-599")),
    }
}

fn read_place(matches: &MatchSection, ledger: &Ledger) -> Result<Option<Place>, SettingError> {
    let one = "one of code, pointer, header, body and contains";
    let others = [&matches.code, &matches.pointer, &matches.header];
    let has_others = others.into_iter().any(Option::is_some);
    match (&matches.body, &matches.contains) {
        (None, None) => {}
        (Some(body), _) if body.text != "not_json" => {
            return Err(
                body.refuse(&ledger.name("match.body"), "not_json; for a text that stands in the body, contains")
            );
        }
        (Some(body), None) if has_others => return Err(body.refuse(&ledger.name("match.body"), one)),
        (Some(_), None) => return Ok(Some(Place::NotJson)),
        (None, Some(text)) if !has_others => {
            let fits = !text.text.trim().is_empty() && text.text.len() <= LONGEST_TEXT;
            let expected = "a text of at most 1,000 bytes that is more than blanks";
            return fits
                .then(|| Some(Place::Text(text.text.clone())))
                .ok_or_else(|| text.refuse(&ledger.name("match.contains"), expected));
        }
        (_, Some(text)) => return Err(text.refuse(&ledger.name("match.contains"), one)),
    }
    match (&matches.code, &matches.pointer, &matches.header) {
        (None, None, None) => Ok(None),
        (Some(_), None, None) => Ok(Some(Place::Code)),
        (None, Some(pointer), None) if pointer.text.starts_with('/') => Ok(Some(Place::Pointer(pointer.text.clone()))),
        (None, Some(pointer), None) => {
            Err(pointer.refuse(&ledger.name("match.pointer"), "a JSON pointer such as /error/code"))
        }
        (None, None, Some(header)) => {
            let name: HeaderName =
                header.text.parse().map_err(|_| header.refuse(&ledger.name("match.header"), "the name of a header"))?;
            Ok(Some(Place::Header(name)))
        }
        (Some(code), _, _) => Err(code.refuse(&ledger.name("match.code"), one)),
        (None, Some(pointer), Some(_)) => Err(pointer.refuse(&ledger.name("match.pointer"), one)),
    }
}
