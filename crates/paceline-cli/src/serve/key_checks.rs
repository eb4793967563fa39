//! What is asked of the flags of a client's key before it is made or changed.

use paceline_config::{Config, Limit, Overrides, upstream_names};
use paceline_gateway::OWN_ROUTES;

use crate::args::Everywhere;
use crate::exit::Failure;
use crate::upstream;

/// Each has a name.
pub(super) fn check_models(models: &[String]) -> Result<(), Failure> {
    let Some(model) = models.iter().find(|model| model.trim().is_empty()) else { return Ok(()) };
    Err(Failure::refused(format!("--models: {model:?} is no model; expected names with commas between them")))
}

/// As in a configuration: of two for one limit, one alone can be meant. What is no limit is refused with its key.
pub(super) fn check_limits(limits: &[String]) -> Result<(), Failure> {
    let counted = |text: &str| match text.parse().ok()? {
        Limit::Rate { dimension, window, .. } => Some(Some((dimension, window))),
        Limit::Concurrent(_) => Some(None),
        _ => None,
    };
    let counted: Vec<_> = limits.iter().map(|text| counted(text)).collect();
    let is_first = |at: usize| counted[at].is_none() || !counted[..at].contains(&counted[at]);
    let Some(at) = (0..limits.len()).find(|at| !is_first(*at)) else { return Ok(()) };
    let before = counted.iter().position(|other| *other == counted[at]).unwrap_or_default();
    let (limit, before) = (&limits[at], &limits[before]);
    Err(Failure::refused(format!(
        "--limit {limit:?}: expected this limit to be set once, and it is {before:?} already"
    )))
}

/// A client may call nothing by such a path, as long as no upstream has that name. Which are served, the flags of `serve` decide.
pub(super) fn warn_of_unknown_upstreams(paths: &[String], everywhere: &Everywhere) {
    let config = upstream::loaded(Overrides::default(), everywhere).ok();
    let configured = config.as_ref().map(Config::names).filter(|names| !names.is_empty());
    let (names, whose) = match configured {
        Some(names) => (names, "of paceline.toml"),
        None => (upstream_names(), "that are known"),
    };
    for path in paths {
        let name = path.split('/').nth(1).unwrap_or_default();
        if path.starts_with('/') && !OWN_ROUTES.contains(&name) && !names.contains(&name) {
            tracing::warn!("--paths {path}: no upstream has the name {name}; those {whose} are {}", names.join(", "));
        }
    }
}

/// As they stand behind the address of the gateway, without a query.
pub(super) fn check_paths(paths: &[String]) -> Result<(), Failure> {
    let is_path = |path: &String| {
        path.len() > 1 && path.starts_with('/') && !path.contains(['?', '#', '%', '*', ' ']) && !path.contains("//")
    };
    let Some(path) = paths.iter().find(|path| !is_path(path)) else { return Ok(()) };
    Err(Failure::refused(format!(
        "--paths: {path:?} is not the beginning of a path: expected / and the name of an upstream, such as \
         /openai/v1/chat/completions, or /openai for all of its paths"
    )))
}
