//! Describes the acting pace and its source.

use paceline_core::{Concurrency, Growth, Pace, PacerConfig};

use super::error::Source;
use super::preset::Preset;
use super::schema::UpstreamSection;
use super::units::show_duration;
use super::via::Via;

/// The pace in force, what it does, and its source.
pub(crate) fn acting(via: Option<&Via>, section: &UpstreamSection, pacer: &PacerConfig) -> String {
    if let Some(via) = via {
        return at_gateway(via, section, pacer);
    }
    let (name, does) = match pacer.pace {
        Pace::Auto => ("auto", learning(pacer)),
        Pace::Fixed => ("fixed", format!("the configured limits and {}", in_flight(pacer.concurrency))),
        Pace::Aimd => ("aimd", format!("the configured limits and {}", in_flight(pacer.concurrency))),
        Pace::Responsive => ("responsive", responsive(pacer)),
        Pace::Linear => ("linear", growing(pacer)),
        Pace::Exponential => ("exponential", growing(pacer)),
        Pace::None => ("none", "every call leaves at once".to_owned()),
    };
    format!("{name}: {does} ({})", reason(section, pacer))
}

/// The pace of calls through a gateway.
fn at_gateway(via: &Via, section: &UpstreamSection, pacer: &PacerConfig) -> String {
    let source = section.via.as_ref().map_or(Source::Default, |via| via.source().clone());
    let (gateway, ceiling) = (&via.gateway, in_flight(pacer.concurrency));
    format!("that of the gateway {gateway}, which keeps the limits; {ceiling} ({source})")
}

fn learning(pacer: &PacerConfig) -> String {
    let start = pacer.start.map(|rate| format!(" from {rate}/s on")).unwrap_or_default();
    let ceiling = in_flight(pacer.concurrency);
    format!("learns the limit{start}, below what is configured and announced, {ceiling}")
}

fn in_flight(concurrency: Concurrency) -> String {
    match concurrency {
        Concurrency::Fixed { max } => format!("at most {max} calls in flight"),
        Concurrency::Aimd { floor, start, max } => format!("{floor} to {max} calls in flight, {start} at first"),
    }
}

fn responsive(pacer: &PacerConfig) -> String {
    let (initial, max) = (show_duration(pacer.responsive.initial), show_duration(pacer.responsive.max));
    let rule = if pacer.responsive.compat { " by the classic rule" } else { "" };
    format!("one delay between calls{rule}, {initial} after the first refusal, at most {max}")
}

fn growing(pacer: &PacerConfig) -> String {
    let backoff = &pacer.retry.backoff;
    let (first, cap) = (show_duration(backoff.capped(0)), show_duration(backoff.cap()));
    let grows = match backoff.growth {
        _ if pacer.pace == Pace::Linear => format!("{first} more with each refusal"),
        Growth::Exponential { multiplier, .. } => format!("{first}, times {multiplier} with each further refusal"),
        Growth::Constant { .. } | Growth::Linear { .. } => format!("{first}, twice that with each further refusal"),
    };
    format!("one delay between calls, {grows}, at most {cap}")
}

fn reason(section: &UpstreamSection, pacer: &PacerConfig) -> String {
    let Some(pace) = &section.pace else { return Source::Default.to_string() };
    let said = pace.source();
    match Preset::from_name(&pace.text) {
        Some(preset) if preset != Preset::None => format!("preset {}, named in {said}", preset.as_str()),
        _ if pace.text == "fixed" && pacer.pace == Pace::Aimd => format!("{said}; concurrency.kind is aimd"),
        _ => said.to_string(),
    }
}
