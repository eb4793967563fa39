//! Where requests go while the API of an upstream stays down: the steps of `fallback_to`.

use std::fmt;
use std::path::PathBuf;

use http::StatusCode;
use paceline_providers::Provider;

use super::effective::Ledger;
use super::error::SettingError;
use super::setting::Setting;
use super::shapes::Settings;

const EXPECTED: &str = "an upstream (NAME), an upstream with another model (NAME:MODEL), or a file with an answer (static:FILE, or \
                        static:STATUS:FILE with a status from 200 to 599)";

/// The word before the file of an answer.
const STATIC: &str = "static";

/// One step of `fallback_to`. Its text ([`Display`](fmt::Display)) is what the configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackStep {
    /// Another upstream, or this one with another model.
    Upstream {
        /// Its name.
        name: String,
        /// The model in place of the one that the request names. Default: that one.
        model: Option<String>,
    },
    /// An answer from a file.
    Static {
        /// Its status.
        status: StatusCode,
        /// The file with its body.
        file: PathBuf,
    },
}

impl fmt::Display for FallbackStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upstream { name, model: None } => f.write_str(name),
            Self::Upstream { name, model: Some(model) } => write!(f, "{name}:{model}"),
            Self::Static { status: StatusCode::OK, file } => write!(f, "{STATIC}:{}", file.display()),
            Self::Static { status, file } => write!(f, "{STATIC}:{}:{}", status.as_u16(), file.display()),
        }
    }
}

/// The command that stands in for an API that stayed down.
pub(crate) fn command(setting: Option<&Setting>, ledger: &mut Ledger) -> Option<String> {
    let setting = setting?;
    ledger.note("fallback", &setting.text, setting.source().clone());
    Some(setting.text.clone())
}

/// The steps of the highest layer that names some: an order means something as a whole.
pub(crate) fn steps(
    name: &str,
    provider: Provider,
    settings: Option<&Settings>,
    ledger: &mut Ledger,
) -> Result<Vec<FallbackStep>, SettingError> {
    let all = settings.map_or(&[][..], |settings| &settings.0);
    let Some(first) = all.first() else { return Ok(Vec::new()) };
    let key = ledger.name("fallback_to");
    let mut steps: Vec<FallbackStep> = Vec::new();
    for setting in all.iter().filter(|setting| setting.source().rank() == first.source().rank()) {
        let step = step(setting).ok_or_else(|| setting.refuse(&key, EXPECTED))?;
        if let FallbackStep::Upstream { name: to, model } = &step {
            if to == name && model.is_none() {
                return Err(setting.refuse(&key, "another upstream, or this one with another model (NAME:MODEL)"));
            }
            if model.is_some() && provider.is_language_model() && provider.endpoint().is_none() {
                let expected = "an upstream without a model: at this API the path names the model, and not the body";
                return Err(setting.refuse(&key, expected));
            }
        }
        if steps.contains(&step) {
            return Err(setting.refuse(&key, "each step once"));
        }
        if steps.last().is_some_and(|last| matches!(last, FallbackStep::Static { .. })) {
            return Err(setting.refuse(&key, "no step behind a file, which always answers"));
        }
        steps.push(step);
    }
    let shown: Vec<_> = steps.iter().map(FallbackStep::to_string).collect();
    ledger.note("fallback_to", shown.join(", "), first.source().clone());
    Ok(steps)
}

fn step(setting: &Setting) -> Option<FallbackStep> {
    let text = setting.text.trim();
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    if name.is_empty() || rest.is_some_and(str::is_empty) {
        return None;
    }
    let Some(rest) = rest.filter(|_| name == STATIC) else {
        return Some(FallbackStep::Upstream { name: name.to_owned(), model: rest.map(ToOwned::to_owned) });
    };
    let numbered = rest.split_once(':').filter(|(status, _)| status.bytes().all(|byte| byte.is_ascii_digit()));
    let (status, file) = match numbered {
        Some((status, file)) => (status.parse().ok()?, file),
        None => (StatusCode::OK, rest),
    };
    let is_final = (200..600).contains(&status.as_u16());
    (is_final && !file.is_empty()).then(|| FallbackStep::Static { status, file: setting.beside(file) })
}
