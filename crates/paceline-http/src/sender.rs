//! One call under a permit: sends it, receives the whole answer, and reports its outcome to the pacer.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use http::{Response, StatusCode};
#[cfg(feature = "config")]
use paceline::Limiter;
use paceline::{Class, Clock, Cost, LimitReport, Outcome, Permit, UnknownOutcome, clock};
use paceline_providers::secrets::{Secrets, is_secret_name};
use paceline_providers::table::Scope;
use paceline_providers::{Dialect, Reading, TokenRatio, collect, comes_in_parts, join_url, path_of};
use reqwest::{ClientBuilder, Url};

use crate::call_log::log;
use crate::connections::{Connections, built};
use crate::cut::{Cut, as_read};
#[cfg(feature = "config")]
use crate::exchange::Ended;
use crate::exchange::{Call, Exchange, is_unknown};
use crate::gateway::{self, Link, Passed};
use crate::leaving::Leaving;
use crate::memory::{AnswerMemory, Memory};
use crate::no_answer::NoAnswer;
use crate::partial::Partials;
use crate::ratios::TokenRatios;
use crate::reached::install_tls;
use crate::receive::{Received, receive_until, until};
use crate::redirect::not_followed;
use crate::sender_config::SenderConfig;
use crate::shortage::Shortage;

/// Sends calls to one API, each under a permit. Connections are kept and shared.
///
/// Nothing happens without a permit: no redirect is followed and nothing is retried. Secrets are removed from answers before
/// anything else reads them. A call that finds no file descriptor or port on this machine waits up to 90 s for one, and costs
/// nothing.
///
/// The sender keeps what it learns from answers: the tokens per character of a scope, and the rests of partially accepted
/// batches.
pub struct Sender {
    connections: Connections,
    config: SenderConfig,
    /// The dialect of calls that carry no key.
    keyless: Dialect,
    secrets: Secrets,
    clock: Clock,
    shortage: Shortage,
    ratios: Arc<TokenRatios>,
    partials: Partials,
    memory: Memory,
    link: Link,
    /// Whether a proxy may stand on the way. Where none does, a 407 is the server's own answer.
    proxied: bool,
}

impl Sender {
    /// A sender with its own pool of connections, from the builder of [`client_to`](crate::client_to) or, with the feature
    /// `config`, of `client`.
    ///
    /// # Errors
    /// An address that is no http(s) URL, or an error of the TLS library. The address is not named: it may hold a password.
    pub fn new(client: ClientBuilder, mut config: SenderConfig) -> Result<Self, reqwest::Error> {
        install_tls();
        for (name, value) in &mut config.headers {
            value.set_sensitive(value.is_sensitive() || is_secret_name(name.as_str()));
        }
        let secrets = secrets_of(&config, std::iter::empty());
        config.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        let client = built(client, &config)?;
        if !config.base_url.is_empty() {
            client.get(&config.base_url).build().map_err(reqwest::Error::without_url)?;
        }
        let (clock, shortage) = (Clock::new(), Shortage::default());
        let keyless = config.dialect.clone().without_key();
        let (memory, link) = (Memory::of(config.most_of_answers), Link::default());
        let connections = Connections::of(client);
        Ok(Self {
            connections,
            config,
            keyless,
            secrets,
            clock,
            shortage,
            ratios: Arc::default(),
            partials: Partials::default(),
            memory,
            link,
            proxied: true,
        })
    }

    /// The same sender, with a proxy on its way or none, with a client for calls that must not be made twice, and with what takes
    /// the place of its clients once descriptors are short.
    #[cfg(feature = "config")]
    pub(crate) fn with_way(
        self,
        proxied: bool,
        once: Option<ClientBuilder>,
        spare: Option<ClientBuilder>,
    ) -> Result<Self, reqwest::Error> {
        let mut connections = self.connections.with_once(once, &self.config)?;
        if let Some(spare) = spare {
            connections = connections.with_spare(spare, &self.config)?.in_turn();
        }
        Ok(Self { proxied, connections, ..self })
    }

    /// The same sender, which learns tokens per character together with all that have these ratios.
    #[must_use]
    pub fn with_ratios(self, ratios: Arc<TokenRatios>) -> Self {
        Self { ratios, ..self }
    }

    /// The configuration.
    pub const fn config(&self) -> &SenderConfig {
        &self.config
    }

    /// The estimated cost of a call of a scope.
    pub fn charge(&self, scope: &str, call: &Call) -> Cost {
        self.config.dialect.charge(&call.url, &call.body, &self.ratio(scope))
    }

    /// The tokens per character of a scope, as answers have shown so far.
    pub fn ratio(&self, scope: &str) -> TokenRatio {
        self.ratios.of(scope)
    }

    /// The body to send for a partially accepted item: its rest, and nothing else.
    pub fn rest_of(&self, item: u64) -> Option<Bytes> {
        self.partials.rest_of(item)
    }

    /// What follows if it is unknown whether a call was executed, such as one in flight when its process was killed.
    pub fn unknown_outcome(&self, call: &Call) -> UnknownOutcome {
        self.config.unknown_outcome_of(call)
    }

    /// Sends a call under its permit, reads the whole answer, and reports its outcome to the pacer. Once `given_up` is ready the
    /// call is abandoned; pass [`std::future::pending`] to wait until the timeout.
    ///
    /// The scope and the item are those of the permit's request.
    pub async fn send(&self, permit: Permit, call: &Call, given_up: impl Future<Output = ()>) -> Exchange {
        self.send_judged(permit, call, given_up, |_, reading| reading).await
    }

    /// Like [`send`](Self::send), for a caller that knows more: `judged` may change the reading of the answer before it is
    /// reported to the pacer.
    pub async fn send_judged(
        &self,
        permit: Permit,
        call: &Call,
        given_up: impl Future<Output = ()>,
        judged: impl FnOnce(&Result<Response<Bytes>, NoAnswer>, Reading) -> Reading,
    ) -> Exchange {
        self.send_weighed(permit, call, given_up, |_| (), judged).await
    }

    /// Like [`send_judged`](Self::send_judged), for a caller whose calls share the account with those of others: `announced` may
    /// leave out limits that the head of the answer announces, and that are not those of all.
    pub async fn send_weighed(
        &self,
        permit: Permit,
        call: &Call,
        given_up: impl Future<Output = ()>,
        announced: impl Fn(&mut Vec<LimitReport>),
        judged: impl FnOnce(&Result<Response<Bytes>, NoAnswer>, Reading) -> Reading,
    ) -> Exchange {
        permit.departs();
        let retries = || permit.retries_left();
        let cut = Cut::default();
        let observe = |mut limits: Vec<LimitReport>| {
            announced(&mut limits);
            permit.observe_limits(&limits);
        };
        let (received, passed, latency) = self.transmit(call, retries, given_up, observe, &cut).await;
        let (probe, request) = (permit.is_probe(), permit.request());
        let reading = self.read(call, request.scope.name(), &received);
        let told = cut.told(&self.config.dialect, call, received.as_ref().ok().map(|it| (&it.response, &reading)));
        let (answer, memory) = match received {
            Ok(Received { response, memory, .. }) => (Ok(response), memory),
            Err(error) => (Err(error), AnswerMemory::default()),
        };
        let reading = judged(&answer, reading);
        let (scope, item) = (Arc::clone(request.scope.name()), request.item);
        let unknown = self.unknown_after(call, &answer, &reading);
        let unknown_before = passed.unknown_before(&answer, &reading);
        log(&scope, item, &answer, &reading, latency);
        // From here on the place is free for another call.
        let Passed { calls, retried, steps, waited: held, .. } = passed;
        let action = permit.complete(Outcome { unknown, retried, ..reading.outcome_of(&request.cost) });
        let answer = self.take_in(&scope, item, call, answer, &reading);
        Exchange {
            answer,
            reading,
            told,
            action,
            unknown,
            probe,
            latency,
            held,
            calls,
            retried,
            unknown_before,
            steps,
            memory,
        }
    }

    /// One send of a call as the operation of [`Limiter::run`], which takes the permit and reports the outcome.
    #[cfg(feature = "config")]
    pub(crate) async fn send_within(&self, limiter: &Limiter, scope: &Arc<str>, item: u64, call: &Call) -> Ended {
        let observe = |limits: Vec<LimitReport>| limiter.observe_limits(&limits);
        let retries = || limiter.retries_left().unwrap_or_default();
        let (received, passed, latency) =
            self.transmit(call, retries, std::future::pending(), observe, &Cut::default()).await;
        let reading = self.read(call, scope, &received);
        // Its bytes count until here; then they are the program's.
        let answer = received.map(|received| received.response);
        let unknown = self.unknown_after(call, &answer, &reading);
        log(scope, Some(item), &answer, &reading, latency);
        let answer = self.take_in(scope, Some(item), call, answer, &reading);
        Ended { answer, reading, unknown, latency, retried: passed.retried }
    }

    /// Keeps no rest of that item any longer.
    #[cfg(feature = "config")]
    pub(crate) fn forget(&self, item: u64) {
        self.partials.forget(item);
    }

    /// Sends a call and receives its answer; tells what its head announces as soon as that is there.
    async fn transmit(
        &self,
        call: &Call,
        retries: impl FnOnce() -> u32,
        given_up: impl Future<Output = ()>,
        observe: impl Fn(Vec<LimitReport>),
        cut: &Cut,
    ) -> (Result<Received, NoAnswer>, Passed, Duration) {
        let sent = self.clock.now();
        let mut headers = self.headers_of(call);
        let through = self.gateway(call).is_some();
        if through {
            self.link.tell(&mut headers, call.retries.unwrap_or_else(retries), call.within);
        } else if self.link.is_met() && self.own_address(call).is_some() {
            gateway::tell_retries(&mut headers, call.retries.unwrap_or_else(retries));
        }
        let leaving = Leaving::of(self.unknown_outcome(call) != UnknownOutcome::Resend);
        let received = tokio::select! {
            received = self.exchange(call, headers, &leaving, observe, cut) => received,
            () = given_up => Err(if leaving.may_have_left() { NoAnswer::GivenUp } else { NoAnswer::NeverSent }),
        };
        let is_unsent = received.as_ref().is_err_and(NoAnswer::is_unsent);
        let passed = if through && is_unsent { Passed::NONE } else { cut.passed().unwrap_or(Passed::STRAIGHT) };
        let latency = (self.clock.now() - sent).saturating_sub(passed.waited);
        (received, passed, latency)
    }

    /// The gateway that the call goes through.
    fn gateway(&self, call: &Call) -> Option<&str> {
        self.config.gateway.as_deref().filter(|_| self.is_trusted(call))
    }

    /// What follows if the call may have been executed and must not be executed twice.
    fn unknown_after(
        &self,
        call: &Call,
        answer: &Result<Response<Bytes>, NoAnswer>,
        reading: &Reading,
    ) -> UnknownOutcome {
        if is_unknown(answer, reading) { self.unknown_outcome(call) } else { UnknownOutcome::Resend }
    }

    /// Learns from an answer, and makes it whole: of the parts of a batch and of the events of a stream.
    fn take_in(
        &self,
        scope: &Arc<str>,
        item: Option<u64>,
        call: &Call,
        answer: Result<Response<Bytes>, NoAnswer>,
        reading: &Reading,
    ) -> Result<Response<Bytes>, NoAnswer> {
        if let Some(usage) = &reading.usage {
            self.ratios.settle(Arc::clone(scope), &call.body, usage);
        }
        let answer = answer?;
        let answer = match item {
            Some(item) => answer.map(|body| self.partials.answered(item, &call.body, body, reading)),
            None => answer,
        };
        Ok(match collect(&as_read(&answer, "")) {
            Some(object) => answer.map(|_| self.secrets_of(call).removed_from(object.to_string().into())),
            None => answer,
        })
    }

    async fn exchange(
        &self,
        call: &Call,
        headers: HeaderMap,
        leaving: &Leaving,
        observe: impl Fn(Vec<LimitReport>),
        cut: &Cut,
    ) -> Result<Received, NoAnswer> {
        // A future is as large as all that it waits for, and is copied as a whole at each level above: this one is not.
        let receiving = Box::pin(self.receive(call, headers, leaving, observe, cut));
        match call.within {
            Some(longest) => {
                let received = until(&self.clock, self.clock.now() + longest, receiving).await;
                received.unwrap_or(Err(NoAnswer::Timeout(Some(longest))))
            }
            None => receiving.await,
        }
    }

    async fn receive(
        &self,
        call: &Call,
        headers: HeaderMap,
        leaving: &Leaving,
        observe: impl Fn(Vec<LimitReport>),
        cut: &Cut,
    ) -> Result<Received, NoAnswer> {
        let (timeout, gateway, is_own) = (self.config.timeout, self.gateway(call), call.url.starts_with('/'));
        let is_kept = AtomicBool::default();
        let client = || self.connections.client(self.unknown_outcome(call) != UnknownOutcome::Resend);
        let send = async || {
            let address = self.address_of(call);
            let deadline = self.clock.now() + timeout;
            let body = leaving.body(call.body.clone());
            let sending = self.connections.send(client(), &call.method, &address, headers.clone(), body, &is_kept);
            let sent = until(&self.clock, deadline, sending).await.transpose();
            if sent.as_ref().is_err_and(|error| Shortage::is_why(error)) {
                self.connections.spare();
            }
            Ok(sent?.map(|response| (response, deadline)))
        };
        let sent = self.shortage.sit_out(send).await.map_err(|error| {
            let error =
                if is_own { self.connections.server.explain(NoAnswer::of(&error)) } else { NoAnswer::of(&error) };
            match gateway {
                Some(address) => error.of_gateway(address),
                None if is_kept.load(Ordering::Relaxed) => error.of_kept(),
                None => error,
            }
        })?;
        let late = || NoAnswer::Timeout(Some(timeout));
        let (mut response, deadline) = sent.ok_or_else(late)?;
        is_own.then(|| self.connections.server.came());
        if self.proxied && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            return Err(NoAnswer::proxy());
        }
        let secrets = self.secrets_of(call);
        secrets.remove_from_headers(response.headers_mut());
        cut.came(self.link.passed(response.headers(), gateway.is_some(), || self.own_address(call)));
        if gateway.is_none() && response.status().is_success() {
            observe(self.config.dialect.announced(response.headers(), clock::wall()));
        }
        let redirect = not_followed(&response, || self.secret_of(call), self.may_name_hosts(call));
        let coming = receive_until(&self.clock, deadline, response, &self.config, &self.memory, cut);
        let (response, memory) = coming.await?;
        // A key may come in parts, each in an event of its own. They go first: the last one may be taken for the end of a key.
        let in_parts = comes_in_parts(&as_read(&response, ""));
        let response = response.map(|body| if in_parts { secrets.removed_from_parts(body) } else { body });
        Ok(Received { response: response.map(|body| secrets.removed_from(body)), memory, redirect })
    }

    fn address_of(&self, call: &Call) -> String {
        if call.url.starts_with('/') { join_url(&self.config.base_url, &call.url) } else { call.url.clone() }
    }

    /// What nothing that comes back may repeat: the secrets of the sender, and those of the call itself.
    fn secrets_of(&self, call: &Call) -> Cow<'_, Secrets> {
        let mut own = sensitive(&call.headers).peekable();
        match own.peek() {
            None => Cow::Borrowed(&self.secrets),
            Some(_) => Cow::Owned(secrets_of(&self.config, own)),
        }
    }

    /// The secret that goes with the call, for people: the key, or else a header of the call's own, such as a signature. What
    /// tells calls apart is none, whatever its name.
    fn secret_of(&self, call: &Call) -> Option<String> {
        let is_secret = |name: &HeaderName, value: &HeaderValue| value.is_sensitive() || is_secret_name(name.as_str());
        let is_id = |name: &HeaderName| self.config.idempotency_header.as_ref() == Some(name);
        let headers = self.headers_of(call);
        let secrets = headers.iter().filter(|(name, value)| is_secret(name, value) && !is_id(name));
        let (keys, own): (Vec<_>, Vec<_>) = secrets.partition(|(name, _)| !call.headers.contains_key(*name));
        match (keys.as_slice(), own.as_slice()) {
            ([], []) => None,
            ([], [(name, _), ..]) => Some(format!("its header {name}")),
            _ => Some("the key".to_owned()),
        }
    }

    /// Whether whole addresses may stand where the call's own stood: it is one, or each host is paced by itself.
    fn may_name_hosts(&self, call: &Call) -> bool {
        !call.url.starts_with('/') || self.config.dialect.scope() == Scope::Host
    }

    /// Whether a call may carry the secrets: it goes to where they are meant for.
    fn is_trusted(&self, call: &Call) -> bool {
        self.config.base_url.is_empty() || self.own_address(call).is_some()
    }

    /// The sender's address, if the call goes there.
    fn own_address(&self, call: &Call) -> Option<&str> {
        let origin = |url: &str| Url::parse(url).ok().map(|url| url.origin());
        let own = &*self.config.base_url;
        (call.url.starts_with('/') || origin(&call.url) == origin(own)).then_some(own)
    }

    fn headers_of(&self, call: &Call) -> HeaderMap {
        let mut headers = self.config.headers.clone();
        let secrets: Vec<_> = sensitive(&self.config.headers).collect();
        secrets.iter().for_each(|(name, _)| drop(headers.remove(*name)));
        if call.body.is_empty() {
            headers.remove(CONTENT_TYPE);
        }
        if let Some((name, key)) = self.config.idempotency_header.clone().zip(call.idempotency_key.clone()) {
            headers.insert(name, key);
        }
        // A call's headers replace configured ones, except secrets.
        headers.extend(call.headers.clone());
        if self.is_trusted(call) {
            secrets.into_iter().for_each(|(name, key)| drop(headers.insert(name, key.clone())));
        }
        headers
    }

    fn read(&self, call: &Call, scope: &str, received: &Result<Received, NoAnswer>) -> Reading {
        let dialect = if self.is_trusted(call) { &self.config.dialect } else { &self.keyless };
        let now = clock::wall();
        match received {
            Ok(Received { response, redirect, .. }) => {
                let mut reading = dialect.read_of(&call.method, &as_read(response, path_of(&call.url)), now);
                if let Some(usage) = reading.usage.as_mut().filter(|usage| usage.undivided) {
                    let longest = dialect.longest_answer(&call.url, &call.body);
                    *usage = usage.divided(&self.ratio(scope), longest, &call.body, response.body());
                }
                reading.usage = reading.usage.map(|usage| dialect.with_writes_as_asked(usage, &call.body));
                if self.gateway(call).is_some() {
                    reading.limits.clear();
                }
                // What it quotes of a stream is put together from several events.
                reading.remove_secrets(&self.secrets_of(call));
                if reading.class != Class::Success && redirect.is_some() {
                    reading.code.get_or_insert_with(|| "redirect".to_owned());
                    reading.message.clone_from(redirect);
                }
                reading
            }
            // One proxy stands before all hosts.
            Err(error @ NoAnswer::Proxy(_)) => error.reading(dialect.provider(), now),
            Err(error) => dialect.within_reach(error.reading(dialect.provider(), now)),
        }
    }
}

/// What nothing that comes back may repeat of calls that have these fields of their own.
fn secrets_of<'a>(config: &'a SenderConfig, own: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>) -> Secrets {
    let elsewhere = config.secrets.iter().map(|value| (&PROXY_AUTHORIZATION, value));
    Secrets::of_fields(sensitive(&config.headers).chain(own).chain(elsewhere))
}

/// The fields that are marked as secret.
fn sensitive(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    headers.iter().filter(|(_, value)| value.is_sensitive())
}

/// Without keys and bodies.
impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("config", &self.config).finish_non_exhaustive()
    }
}
