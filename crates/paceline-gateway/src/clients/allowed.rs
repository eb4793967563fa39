//! Which calls a client may make.

use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};
use paceline_http::Call;
use paceline_providers::{Dialect, answers_later, kept_named, path_before, references_of};

use super::shown::{has_a_key, has_a_key_in_body, misplaced, remove_fields};
use super::{Client, Clients};
use crate::backend::Backend;
use crate::estimated::Estimated;
use crate::refusal::Refusal;
use crate::{models, query, spelling, unread};

impl Clients {
    /// Whether one of their keys stands in a text that others see, whatever stands beside it.
    pub fn have_key_in(&self, text: &str) -> bool {
        matches!(self, Self::WithKeys(clients) if has_a_key(clients, text))
    }

    /// Removes the header fields that have one.
    pub(crate) fn remove_keys(&self, headers: &mut HeaderMap) {
        if let Self::WithKeys(clients) = self {
            remove_fields(clients, headers);
        }
    }

    /// Whether one of their keys stands in what is named for all to see: a model, or the scope of a call.
    ///
    /// # Errors
    /// One does.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), Refusal> {
        if self.have_key_in(name) { Err(misplaced("model")) } else { Ok(()) }
    }

    /// The same in all that a call names: its scope, and its models, wherever a server could read them; and in a form.
    ///
    /// # Errors
    /// One does.
    pub(crate) fn check_names(&self, upstream: &Backend, call: &Estimated) -> Result<(), Refusal> {
        self.check_name(&call.scope)?;
        call.asked.model().map_or(Ok(()), |model| self.check_name(model))?;
        let is_searched = upstream.config().provider.is_language_model() || unread::is_form(&call.call);
        if self.have_key_in_body(&call.call.body, is_searched) { Err(misplaced("model or the form")) } else { Ok(()) }
    }

    /// Whether one of their keys is a model that a body names, wherever a server could read it; where it is no object of JSON,
    /// and `is_searched`, whether one stands anywhere in it.
    pub fn have_key_in_body(&self, body: &[u8], is_searched: bool) -> bool {
        matches!(self, Self::WithKeys(clients) if has_a_key_in_body(clients, body, is_searched))
    }

    /// Whether work goes on that the client of that name had asked for, to be done later, with the key of that
    /// [id](Client::key_id): what a new request for it would be told now. Without an id any key of that name counts.
    ///
    /// # Errors
    /// Why it does not, for people.
    pub fn let_go_on(&self, name: &str, key: Option<&str>) -> Result<(), String> {
        let Self::WithKeys(clients) = self else { return Ok(()) };
        let asked = |client: &&Arc<Client>| {
            *client.name == *name && !client.is_over() && key.is_none_or(|key| client.key_id() == key)
        };
        match clients.values().find(asked) {
            Some(client) => client.may_have_work_done_later().map_err(|refusal| refusal.message().to_owned()),
            None if self.have(name) => {
                Err(format!("the key of {name} that asked for it has ended, and another took its place"))
            }
            None => Err(format!("the key of {name} is revoked")),
        }
    }
}

impl Client {
    /// Whether it may make the call: it asks for nothing that none of its limits sees, and all models that it names are its own,
    /// or it names none and only reads. `is_read`: the body of the call is there, whole.
    /// `upstream` is the name of the one that gets it.
    pub(crate) fn may_call(
        &self,
        upstream: &str,
        call: &Call,
        dialect: &Dialect,
        is_read: bool,
    ) -> Result<(), Refusal> {
        if !self.paths.is_empty() {
            spelling::check(path_before(&call.url, b"?")).map_err(|what| {
                Refusal::bad_request(format!(
                    "the path has {what}: the key {} is for some paths alone, which must read alike everywhere",
                    self.name
                ))
            })?;
        }
        if !self.paths.is_empty() && !self.is_of_own_paths(&format!("/{upstream}{}", models::decoded_path(call))) {
            let (name, paths) = (&self.name, self.paths.join(", "));
            let message = format!("the key {name} is for {paths} and what is below: use another for other paths");
            return Err(Refusal::new(StatusCode::FORBIDDEN, "client_key", message));
        }
        match models::only_reads(call) {
            _ if !self.is_bounded() => {}
            true => self.may_read(upstream, call, dialect)?,
            false => self.may_ask(upstream, call, dialect, is_read)?,
        }
        if self.models.is_empty() {
            return Ok(());
        }
        let Err(named) = models::check(&self.models, call, is_read) else { return Ok(()) };
        let (name, models) = (&self.name, self.models.join(", "));
        let message = format!(
            "{named}: the key {name} is for {models}; name one of those, or ask who runs the gateway for another key"
        );
        Err(Refusal::new(StatusCode::FORBIDDEN, "client_key", message))
    }

    /// Whether a client with limits, models or paths of its own may make a call that reads.
    fn may_read(&self, upstream: &str, call: &Call, dialect: &Dialect) -> Result<(), Refusal> {
        let path = models::decoded_path(call);
        let is_of_others = dialect.provider().is_language_model() && !dialect.shows_nothing_of_others(&path);
        if !is_of_others || self.names_path(upstream, &path) {
            return Ok(());
        }
        Err(self.may_not(&format!(
            "has limits, models or paths of its own: it may read models, single answers by their ids, and what its --paths name, for \
             files, lists and what else the provider keeps is that of all clients; {path} is none of them"
        )))
    }

    /// Whether a client with limits, models or paths of its own may make a call that does more than read.
    fn may_ask(&self, upstream: &str, call: &Call, dialect: &Dialect, is_read: bool) -> Result<(), Refusal> {
        let path = models::decoded_path(call);
        if dialect.works_later(&path) {
            self.may_have_work_done_later()?;
        }
        let is_prompt =
            call.method == Method::POST && (dialect.answers_prompt(&path) || self.names_path(upstream, &path));
        if dialect.provider().is_language_model() && !is_prompt {
            return Err(self.may_not(&format!(
                "has limits, models or paths of its own: beside what it may read it may POST to paths that are known to answer a prompt, \
                 and to those that its --paths name, for what the provider keeps is that of all clients; {} {path} is none of them",
                call.method
            )));
        }
        if dialect.provider().is_language_model() {
            self.may_name(upstream, call)?;
        }
        let takes_model = dialect.takes_model(&path);
        let read = match () {
            () if self.counts_tokens && takes_model => {
                unread::check_coding(call).and_then(|()| unread::check_json(call, &path, dialect, is_read))
            }
            () if !self.models.is_empty() => unread::check_coding(call),
            () => Ok(()),
        };
        read.map_err(|why| {
            let message = format!(
                "{why}; the key {} has a limit on tokens, money or models, which count what is read here",
                self.name
            );
            Refusal::new(StatusCode::FORBIDDEN, "client_key", message)
        })?;
        if self.counts_tokens && takes_model && (answers_later(&call.body) || query::asks_later(&call.url)) {
            return Err(self.may_not(
                "has a limit on tokens or in money, which an answer that another call fetches later does not tell: send the request without \
                 `background` and `deferred`, or use another key",
            ));
        }
        Ok(())
    }

    /// Whether the body of a call names nothing that the provider keeps for others, but for what the paths of the key name.
    fn may_name(&self, upstream: &str, call: &Call) -> Result<(), Refusal> {
        let is_own = |folder: &str| {
            let of_upstream = |own: &&String| is_below(&format!("/{upstream}"), own);
            self.paths.iter().filter(of_upstream).any(|own| own.rsplit('/').next() == Some(folder))
        };
        let Some(folder) = kept_named(&call.body).into_iter().find(|folder| !is_own(folder)) else { return Ok(()) };
        let what = if folder == "mcp" { "a server that the provider is to call (mcp)" } else { folder };
        Err(self.may_not(&format!(
            "has limits, models or paths of its own, and the request names {what}, for what the provider keeps is that of all clients: \
             leave that out, or have --paths name /{upstream}/v1/{folder}, too"
        )))
    }

    /// Whether it may tell of jobs: a key whose paths are those of no upstream makes no call, and has none.
    pub(crate) fn may_have_jobs<'a>(&self, mut upstreams: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
        let makes_calls = |upstream: &str| self.paths.iter().any(|own| is_below(&format!("/{upstream}"), own));
        if self.paths.is_empty() || upstreams.any(makes_calls) {
            return Ok(());
        }
        Err(self.may_not("is for no path of an upstream, and so has no jobs"))
    }

    fn is_of_own_paths(&self, path: &str) -> bool {
        self.paths.iter().any(|own| is_below(own, path))
    }

    /// Whether one of its paths names that one, or what it is below, and not just an upstream and a version of its API.
    fn names_path(&self, upstream: &str, path: &str) -> bool {
        let path = format!("/{upstream}{path}");
        let says_more = |own: &str| own.split('/').skip(2).any(|part| !part.is_empty() && !is_of_base(part));
        self.paths.iter().any(|own| says_more(own) && is_below(own, &path))
    }

    /// Whether it has limits, models or paths of its own.
    fn is_bounded(&self) -> bool {
        self.limiter.is_some() || !self.models.is_empty() || !self.paths.is_empty()
    }

    /// What the body of a call to a model names that its server adds to the prompt, where one of its limits counts tokens.
    pub(crate) fn named(&self, call: &Call, dialect: &Dialect) -> Vec<u64> {
        let counts = self.counts_tokens && dialect.takes_model(&models::decoded_path(call));
        if counts { references_of(&call.body) } else { Vec::new() }
    }

    /// Whether it may have work done later, here or at the provider: that makes calls that no limit of a client counts.
    pub(crate) fn may_have_work_done_later(&self) -> Result<(), Refusal> {
        if !self.is_bounded() {
            return Ok(());
        }
        Err(self.may_not(
            "has limits, models or paths of its own, which batches, other work that is done later, and its files do not keep to: use \
             another",
        ))
    }

    pub(crate) fn may_not(&self, why: &str) -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, "client_key", format!("the key {} {why}", self.name))
    }
}

fn is_below(own: &str, path: &str) -> bool {
    path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a part of a path is one that stands before all paths of an API.
fn is_of_base(part: &str) -> bool {
    let is_version = part.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    is_version || ["api", "beta", "inference", "openai", "paas"].contains(&part)
}
