//! Where items go, as far as that tells which of them are refused alike.

use http::Method;
use paceline_http::Call;

use crate::run::calls::alike::ITS_KEY;

/// Whether a call only reads what is there.
pub(in crate::tasks::run) const fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Where an item goes, as far as it is like the others of its host: what is sent to an address with the key of the item in its
/// path or query goes where they go. A page that is read has its own.
pub(in crate::tasks::run) fn address_of(call: &Call, key: &str) -> String {
    const ENDS: [char; 5] = ['/', '?', '&', '=', '#'];
    if is_read(&call.method) {
        return call.url.clone();
    }
    let of_all = |part| {
        let text = str::trim_end_matches(part, ENDS);
        if text == key { ITS_KEY.to_owned() + &part[text.len()..] } else { part.to_owned() }
    };
    call.url.split_inclusive(ENDS).map(of_all).collect()
}
