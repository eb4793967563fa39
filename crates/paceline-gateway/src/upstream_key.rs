//! The key of an upstream: each call shows the one that is in force as it leaves, and answers show neither that nor those
//! before it.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use paceline::Class;
use paceline_config::account_host;
use paceline_core::LimitScope;
use paceline_providers::Reading;
use paceline_providers::secrets::Secrets;

use crate::backend::Backend;

/// A key, as header fields show it.
pub(crate) struct Key {
    fields: HeaderMap,
    /// What calls carry elsewhere, such as the login of a proxy.
    elsewhere: Vec<HeaderValue>,
    /// Its own, those of the keys before it, and what is carried elsewhere.
    secrets: Arc<Secrets>,
    former: Vec<Weak<Key>>,
}

/// The key that calls show from now on.
pub(crate) struct KeyInForce(RwLock<Arc<Key>>);

impl Key {
    /// The header fields that show it.
    pub(crate) const fn fields(&self) -> &HeaderMap {
        &self.fields
    }

    /// The header fields of a call that shows it.
    pub(crate) fn put_into(&self, headers: &mut HeaderMap) {
        self.fields.iter().for_each(|(name, value)| drop(headers.insert(name, value.clone())));
    }

    /// That of the header fields takes the place of `before`, which answers hide, too, and those that calls under way still show.
    fn after(before: &Arc<Self>, fields: HeaderMap) -> Self {
        let known = before.former.iter().filter_map(Weak::upgrade).chain([Arc::clone(before)]);
        let known: Vec<_> = known.filter(|key| key.fields != fields).collect();
        let hidden = known.iter().flat_map(|key| key.fields.values()).chain(fields.values());
        let hidden = hidden.chain(&before.elsewhere);
        let (secrets, former) = (Arc::new(Secrets::of(hidden)), known.iter().map(Arc::downgrade).collect());
        Self { fields, elsewhere: before.elsewhere.clone(), secrets, former }
    }
}

impl KeyInForce {
    /// The one among the header fields of calls, which carry more secrets elsewhere.
    pub(crate) fn of(headers: &HeaderMap, elsewhere: &[HeaderValue]) -> Self {
        let (fields, elsewhere) = (secret_fields(headers), elsewhere.to_vec());
        let secrets = Arc::new(Secrets::of(fields.values().chain(&elsewhere)));
        Self(RwLock::new(Arc::new(Key { fields, elsewhere, secrets, former: Vec::new() })))
    }

    pub(crate) fn now(&self) -> Arc<Key> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, fields: HeaderMap) {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if now.fields != fields {
            *now = Arc::new(Key::after(&now, fields));
        }
    }
}

impl Backend {
    /// Requests that wait show its key from now on, too, where they go to the same server in the same way.
    pub(crate) fn shows_its_key(&self) {
        self.key.replace(self.own_key());
    }

    /// Whether its requests may show the key of that upstream: it goes to no other server, by no other way, and beside no other
    /// header fields.
    pub(crate) fn may_show_key_of(&self, other: &Self) -> bool {
        let server = |of: &Self| account_host(&of.sending.base_url);
        let way = |of: &Self| {
            let access = &of.config().access;
            (access.ca_file.clone(), access.client.clone(), access.proxy.clone())
        };
        let form = |of: &Self| {
            let mut headers = of.sending.headers.clone();
            let keys = headers.values_mut().filter(|value| value.is_sensitive());
            keys.for_each(|value| *value = HeaderValue::from_static(""));
            headers
        };
        server(self) == server(other) && way(self) == way(other) && form(self) == form(other)
    }

    /// The key of its own configuration, as header fields show it: another may have taken its place.
    pub(crate) fn own_key(&self) -> HeaderMap {
        secret_fields(&self.sending.headers)
    }

    /// A refusal of a key that is in force no more says nothing of the one that is: it is a matter of the call that showed these
    /// fields, and of no other. Returns whether it is such a refusal.
    pub(crate) fn leave_out_former_key(&self, reading: &mut Reading, shown: &HeaderMap) -> bool {
        let is_of_former = reading.class == Class::Account && self.key.now().fields != *shown;
        if is_of_former {
            (reading.class, reading.reach) = (Class::Invalid, LimitScope::Item);
        }
        is_of_former
    }

    /// Its keys, as they must not go to clients.
    pub(crate) fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.key.now().secrets)
    }

    /// Removes the upstream's keys from an answer that is read here.
    pub(crate) fn without_secrets(&self, mut answer: Response<Bytes>) -> Response<Bytes> {
        let secrets = self.secrets();
        secrets.remove_from_headers(answer.headers_mut());
        let before = answer.body().len();
        let mut answer = answer.map(|body| secrets.removed_from(body));
        if answer.body().len() != before {
            answer.headers_mut().remove(CONTENT_LENGTH);
        }
        answer
    }
}

fn secret_fields(headers: &HeaderMap) -> HeaderMap {
    headers
        .iter()
        .filter(|(_, value)| value.is_sensitive())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(key: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-kept", HeaderValue::from_static("1"));
        headers.insert("authorization", format!("Bearer {key}").parse().expect("a value"));
        headers.get_mut("authorization").expect("it is there").set_sensitive(true);
        headers
    }

    #[test]
    fn answers_show_no_key_before_the_one_in_force_while_a_call_shows_it() {
        let key = KeyInForce::of(&headers("sk-first-key"), &[]);
        let of_call = key.now();
        let hides = |hidden: &str| key.now().secrets.removed_from(Bytes::from(hidden.to_owned())) != hidden;
        for next in ["sk-second-key", "sk-third-key", "sk-fourth-key"] {
            key.replace(secret_fields(&headers(next)));
        }
        let shown = ["sk-first-key", "sk-second-key", "sk-third-key", "sk-fourth-key"];
        assert_eq!(shown.map(hides), [true, false, true, true], "the first one is that of a call");
        drop(of_call);
        key.replace(secret_fields(&headers("sk-fifth-key")));
        assert_eq!(shown.map(hides), [false, false, false, true]);
        let mut call = headers("sk-first-key");
        key.now().put_into(&mut call);
        assert_eq!(call, headers("sk-fifth-key"));
    }
}
