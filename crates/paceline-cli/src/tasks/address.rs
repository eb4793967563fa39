//! Where items go, as far as that tells which of them are refused alike.

use http::{HeaderValue, Method};
use paceline_providers::secrets::{Secrets, is_secret_name};

use crate::stops::alike::ITS_KEY;

/// Whether a call only reads what is there.
pub(crate) const fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Where an item goes, as far as it is like the others of its host: what is sent to an address with the key of the item in its
/// path or query goes where they go. A page that is read has its own. Of values whose
/// names say that they are secret a few letters of a digest take the place: they may tell customers apart.
pub(crate) fn address_of(method: &Method, url: &str, key: &str) -> String {
    const ENDS: [char; 5] = ['/', '?', '&', '=', '#'];
    let shown = secrets_of(url).removed_from_text(url.to_owned());
    let url = &if shown == url { shown } else { format!("{shown}#{}", &blake3::hash(url.as_bytes()).to_hex()[..8]) };
    if is_read(method) {
        return url.clone();
    }
    let of_all = |part| {
        let text = str::trim_end_matches(part, ENDS);
        if text == key { ITS_KEY.to_owned() + &part[text.len()..] } else { part.to_owned() }
    };
    url.split_inclusive(ENDS).map(of_all).collect()
}

/// The values in the query of an address whose names say that they are secret: its host may repeat them.
pub(crate) fn secrets_of(url: &str) -> Secrets {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split(['&', '#']).filter_map(|pair| pair.split_once('='));
    let values: Vec<HeaderValue> =
        pairs.filter(|(name, _)| is_secret_name(name)).filter_map(|(_, value)| value.parse().ok()).collect();
    Secrets::of(&values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_no_secret_and_no_key_of_an_item() {
        let of = |url: &str| address_of(&Method::POST, url, "evt_1");
        assert_eq!(of("https://a.example/in/evt_1?x=1"), "https://a.example/in/{key}?x=1");
        let [one, other] = ["s3cret-one-of-them", "s3cret-the-other"]
            .map(|secret| of(&format!("https://a.example/in?token={secret}")));
        assert!(one != other && !one.contains("s3cret"), "{one} {other}");
    }
}
