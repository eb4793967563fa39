//! Redirects, which no call follows: where they lead, and what to do.

use http::header::LOCATION;
use paceline_providers::secrets::hidden;
use reqwest::Url;

/// Why a redirect was not followed, and what to do; `secret`: which went with the call; `whole`: a whole address may be
/// called. What looks like a secret in the target is hidden, and then there is nothing to copy.
pub(crate) fn not_followed(
    response: &reqwest::Response,
    secret: impl FnOnce() -> Option<String>,
    whole: bool,
) -> Option<String> {
    let location = response.headers().get(LOCATION).filter(|_| response.status().is_redirection())?;
    // Some servers send UTF-8 as it is; the address is then percent-encoded.
    let location = String::from_utf8_lossy(location.as_bytes());
    let Some(target) = response.url().join(&location).ok().filter(Url::has_host) else {
        return Some(NO_ADDRESS.to_owned());
    };
    let (origin, moved) = (target.origin().ascii_serialization(), target.origin() != response.url().origin());
    // The fragment goes with no call.
    let path = target.query().map_or_else(|| target.path().to_owned(), |query| format!("{}?{query}", target.path()));
    let shown: String = hidden(&path).chars().take(LONGEST_TARGET).collect();
    let why = moved.then(secret).flatten().map(|secret| format!(", for {secret} would go there")).unwrap_or_default();
    let (place, advice) = match (whole, moved) {
        (false, true) => (origin, "if this is the right place, name it with --base-url"),
        (false, false) if shown == path => {
            (shown, "if this is the right path, put it in place of the old one, in the line or item")
        }
        (true, _) if shown == path => {
            (origin + &shown, "if this is the right address, put it in place of the old one, in the line or item")
        }
        (false, false) => (shown, NOT_WHOLE),
        (true, _) => (origin + &shown, NOT_WHOLE),
    };
    Some(format!("answered with a redirect to {place}; redirects are not followed{why}; {advice}"))
}

/// The longest target of a redirect that is shown, in characters.
const LONGEST_TARGET: usize = 1_000;

/// What there is to say of a target that cannot be copied.
const NOT_WHOLE: &str = "its address is not shown whole, for it is too long or holds what looks like a secret: see the Location of the answer \
                         (curl -i), and if it is the right one put it in place of the old one, in the line or item";

/// What there is to say where there is no target.
const NO_ADDRESS: &str = "answered with a redirect to something that is no web address; its server has to be put right, or another address named";
