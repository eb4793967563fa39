//! The pages of docs/providers are printed from the tables, so that they cannot say anything else.

use std::fmt::Write as _;
use std::path::PathBuf;

use http::HeaderName;
use paceline_core::{LimitScope, RefillMode};

use super::Provider;
use super::rule::{Phrase, Place, Rule};
use super::table::{CachePercent, CachedInput, Charge, Counts, LimitHeaders, Reserves, Scope, Table, TableRule};

/// Set to write the pages instead of comparing them.
const UPDATE: &str = "UPDATE_PROVIDER_PAGES";

#[test]
fn every_provider_has_its_page() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/providers");
    let index = std::fs::read_to_string(folder.join("README.md")).expect("the index");
    for provider in Provider::ALL {
        let (path, page) = (folder.join(format!("{provider}.md")), page(provider));
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(&path, &page).expect("writable");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == page, "docs/providers/{provider}.md differs from its table: run this test with {UPDATE}=1");
        assert!(index.contains(&format!("[`{provider}`]({provider}.md)")), "{provider} is missing in the index");
    }
}

fn page(provider: Provider) -> String {
    let table = provider.table();
    let mut page = format!("# `{provider}`: {}\n\n| | |\n|---|---|\n", table.about);
    for (name, value) in facts(table) {
        let _ = writeln!(page, "| {name} | {value} |");
    }
    if !table.notes.is_empty() {
        page.push('\n');
        table.notes.iter().for_each(|note| page += &format!("- {note}\n"));
    }
    if !table.limits.is_empty() {
        page += "\n## Limits in its headers\n\n| of | fields | comes back | window |\n|---|---|---|---|\n";
        table.limits.iter().for_each(|row| page += &limit(row));
    }
    if !table.rules.is_empty() {
        page += "\n## Codes that decide\n\n| answer | class | scope | wait | |\n|---|---|---|---|---|\n";
        table.rules.iter().for_each(|known| page += &rule(known));
    }
    page += "\n## Answers\n\n| status | code or type | class | message |\n|---|---|---|---|\n";
    for known in &table.answers {
        let names = [&known.code, &known.error_type].into_iter().flatten().map(|name| code(name));
        let names = names.collect::<Vec<_>>().join(", ");
        let note = known.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
        let message = known.message.as_deref().unwrap_or_default();
        let _ = writeln!(page, "| {} | {names} | {} | {message}{note} |", known.status, code(known.class.as_str()));
    }
    page
}

fn facts(table: &Table) -> Vec<(&'static str, String)> {
    let api = &table.api;
    let mut facts = vec![("limits belong to", table.limits_belong_to.clone())];
    let together = match api.scope {
        Scope::Model => "calls of one path and model",
        Scope::Endpoint => "calls of one path",
        Scope::Host => "calls to one host",
        Scope::Table => "calls that name the same table in their body",
        Scope::Key => "all calls with one key",
        Scope::Group => "calls of one group",
    };
    let apart = api.paths.iter().rev().map(|(prefix, _)| format!(", {} apart", code(prefix))).collect::<String>();
    facts.push(("slowed down together", format!("{together}{apart}")));
    let variables = api.base_url_variables.iter().map(|name| code(name)).collect::<Vec<_>>();
    let fact = |name, value: &Option<String>| value.as_ref().map(|value| (name, code(value)));
    facts.extend(fact("address", &api.base_url));
    facts.extend((!variables.is_empty()).then(|| ("another address", variables.join(", else "))));
    facts.extend(fact("key", &api.key_variable));
    facts.extend(fact("bare bodies go to", &api.endpoint));
    if let Some(name) = &api.idempotency_header {
        facts.push(("repetitions are known by", code(name.as_str())));
    }
    if table.is_strict() {
        facts.push(("a call reserves", reserves(&table.charge)));
    }
    let charge = &table.charge;
    let CachePercent { read, write, write_for_an_hour } = charge.cache_percent;
    if charge.cache_percent != CachePercent::default() {
        let costs =
            format!("read {read} %, written {write} %, for an hour {write_for_an_hour} % of the price of input");
        facts.push(("a token of the cache costs", costs));
    }
    if !charge.output_weights.is_empty() {
        let weight = |(model, times): (&String, &u32)| format!("{} {times} times", code(model));
        facts.push((
            "a token of the answer counts",
            charge.output_weights.iter().map(weight).collect::<Vec<_>>().join(", "),
        ));
    }
    if let Some(units) = charge.units {
        facts.push(("its own unit", code(units.dimension().as_str())));
    }
    if !charge.free.is_empty() {
        let free = charge.free.iter().map(|free| code(&free.to_string())).collect::<Vec<_>>().join(", ");
        facts.push(("answers that cost nothing", free));
    }
    facts
}

fn reserves(charge: &Charge) -> String {
    let reserves = match charge.reserves {
        Reserves::InputAndOutput => "its input and its bound of output",
        Reserves::Larger => "its input or its bound of output, whichever is more",
        Reserves::Input => "its input",
    };
    let settled = match (charge.refunds, charge.counts) {
        (true, Counts::All) => "then settled by its usage",
        (true, Counts::Input) => "then settled by the input that was used",
        (false, _) => "of which nothing comes back",
    };
    let cached =
        if charge.cached_input == CachedInput::Free { "; input that its cache had does not count" } else { "" };
    format!("{reserves}, {settled}{cached}")
}

fn limit(row: &LimitHeaders) -> String {
    let fields: Vec<_> = row.fields().map(HeaderName::as_str).map(code).collect();
    let back = match row.restores {
        RefillMode::Gradually => "bit by bit",
        RefillMode::AtOnce => "at the reset",
        RefillMode::Unknown => "unknown",
    };
    let window = row.window.map_or_else(String::new, |window| format!("{} s", window.as_secs()));
    format!("| {} | {} | {back} | {window} |\n", row.dimension, fields.join(", "))
}

fn rule(TableRule { rule, note }: &TableRule) -> String {
    let Rule { status, place, equals, phrase, class, reach, wait } = rule;
    let values = equals.iter().map(|value| code(value)).collect::<Vec<_>>().join(", ");
    let status = status.as_ref().map(|range| match range.start() == range.end() {
        true => range.start().to_string(),
        false => format!("{}-{}", range.start(), range.end()),
    });
    let place = place.as_ref().map(|place| match place {
        Place::Code => values.clone(),
        Place::NotJson => "a body that is no JSON".to_owned(),
        Place::Text(text) => format!("a body with {}", code(text)),
        Place::Header(name) if values.is_empty() => code(name.as_str()),
        Place::Header(name) => format!("{}: {values}", code(name.as_str())),
        Place::Pointer(pointer) => format!("{} = {values}", code(pointer)),
    });
    let phrase = phrase.as_ref().map(|phrase| match phrase {
        Phrase::Contains(text) => format!("\"... {text} ...\""),
        Phrase::Starts(text) => format!("\"{text} ...\""),
    });
    let answer = [status, place, phrase].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let scope = match reach {
        LimitScope::Item => "item",
        LimitScope::Scope => "model",
        LimitScope::Account => "key",
    };
    let wait = wait.map_or_else(String::new, |wait| format!("{} s", wait.as_secs_f64()));
    let note = note.as_deref().unwrap_or_default();
    format!("| {answer} | {} | {scope} | {wait} | {note} |\n", code(class.as_str()))
}

fn code(text: &str) -> String {
    format!("`{text}`")
}
