//! Items that are requests: read like the lines of `paceline run`, sent and classified like them.

mod failures;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use paceline::{Clock, Limiter, Permit};
use paceline_config::{CallNames, Upstream};
use paceline_core::{Class, Cost, LimitScope, UnknownOutcome};
use paceline_http::{Call, Exchange, NoAnswer, SenderConfig};
use paceline_providers::Reading;
use paceline_store::work::{DEFAULT_GROUP, Failure, Said, StartDecision, Task, WorkClock, WorkError, WorkStore};
use paceline_store::{End, ResultBody};
use serde::Deserialize;

use self::failures::{failure, held_as_killed, of_item};
use super::Trying;
use super::answers::Answers;
use super::current_sender::CurrentSender;
use super::fail_fast::FailFast;
use super::known_answers::KnownAnswers;
use super::permits::Permits;
use super::same_failure::is_shut_to_caller;
use super::shutdown::Shutdown;
use super::stopped_scopes::{StoppedScopes, TestCall, Why};
use crate::account::Account;
use crate::calls::entry;
use crate::calls::reachability::Reachability;
use crate::exit;
use crate::fallback::{Question, Request, WhyDown, json_or_text};
use crate::lines::address::Addresses;
use crate::lines::format::Format;
use crate::lines::line::Echo;
use crate::mock::{self, MockServer};
use crate::stops::stop::StopReason;
use crate::tasks::address::{address_of, is_read, secrets_of};
use crate::tasks::same_at_each_try::{note_header, same_at_each_try};
use crate::text;
use crate::upstream;

/// Sends items to one upstream.
pub(super) struct Requests {
    upstream: Upstream,
    /// A limit counts answers.
    limits_answers: bool,
    /// Where payloads may lead.
    addresses: Addresses,
    /// The account that pays; of the mock, which begins anew each time, nothing is kept.
    account: Option<Account>,
    /// Where bare bodies go.
    endpoint: Option<String>,
    sender: CurrentSender,
    /// How often an item may be sent again after failures.
    max_retries: u32,
    /// For how long no server may be there before a run ends; none where it waits for whatever may come.
    max_wait: Option<Duration>,
    /// Whether one is there in this run; where each host is a scope, by host.
    reachability: Mutex<BTreeMap<Arc<str>, Reachability>>,
    /// Scopes of which nothing begins any more in this run.
    stopped: StoppedScopes,
    /// Which hosts have answered.
    known: KnownAnswers,
    clock: Clock,
    /// Where answers go; they are dropped without a place.
    answers: Option<Answers>,
    /// Where calls that must not be made twice are noted.
    store: Arc<dyn WorkStore>,
    /// Runs for as long as it is asked.
    _mock: Option<MockServer>,
}

/// An item that could be sent.
struct Ready {
    call: Call,
    echo: Echo,
    scope: String,
    /// Whether all items of its group are in that scope.
    with_group: bool,
    /// What stops the scope lets the group go on: the group is none that a person made, or the scope is a host.
    spares_group: bool,
    cost: Cost,
}

impl Requests {
    /// # Errors
    /// Refuses a key that is missing, an address or an endpoint that is none, and what the mock cannot do.
    pub(super) async fn to(
        mut upstream: Upstream,
        endpoint: Option<String>,
        timeout: Duration,
        max_retries: u32,
        max_wait: Option<Duration>,
        answers: Option<Answers>,
        store: Arc<dyn WorkStore>,
    ) -> Result<Self, exit::Failure> {
        paceline_http::warn_of_idle(&upstream);
        upstream.limits_groups();
        let headers = upstream::headers_of_batch(&upstream)?;
        let mock = mock::start_for(&mut upstream, None).await?;
        let account = upstream::is_own_account(&upstream, mock.as_ref()).then(|| Account::of(&upstream, &headers));
        let addresses = Addresses::of(&upstream);
        if endpoint.is_some() {
            Format::of_one(b"{}", "", endpoint.as_deref(), upstream.provider, &addresses)
                .map_err(exit::Failure::refused)?;
        }
        // What was delivered is done, whatever is said about it.
        let needs_answers = answers.is_some() || upstream.dialect.reads_successes();
        let sending = SenderConfig { needs_answers, ..upstream::sending(&upstream, headers, timeout) };
        let sender = CurrentSender::new(upstream.clone(), sending)?;
        Ok(Self {
            limits_answers: upstream::limits_answers(&upstream),
            upstream,
            addresses,
            account,
            endpoint,
            sender,
            max_retries,
            max_wait,
            reachability: Mutex::default(),
            stopped: StoppedScopes::new(max_wait.is_none()),
            known: KnownAnswers::default(),
            clock: Clock::new(),
            answers,
            store,
            _mock: mock,
        })
    }

    /// The upstream in force.
    pub(super) const fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// The account that pays; none for the mock.
    pub(super) const fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// What the run before found out about servers is forgotten. Which hosts the items of the store go to is not known.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn begin_run(&self, limiter: &Limiter) -> Result<(), WorkError> {
        self.reachability().clear();
        let sender = self.sender.get();
        let header = sender.config().idempotency_header.as_ref();
        note_header(&*self.store, header.map(HeaderName::as_str)).await?;
        if self.addresses.hosts {
            limiter.expect_scopes();
            self.known.begin_run(&*self.store).await?;
        }
        Ok(())
    }

    /// Keeps in the store which hosts answer, for as long as the future is polled.
    pub(super) async fn keep_answers(&self, clock: &WorkClock, limiter: &Limiter) {
        match self.addresses.hosts {
            true => self.known.keep(&*self.store, clock, limiter).await,
            false => std::future::pending().await,
        }
    }

    /// The scopes that are stopped without their groups.
    pub(super) const fn stopped(&self) -> &StoppedScopes {
        &self.stopped
    }

    /// Sends an item, if it can be sent and may be sent now.
    pub(super) fn start(
        self: &Arc<Self>,
        task: Task,
        permits: &Permits,
        shutdown: &Shutdown,
        fail_fast: &FailFast,
    ) -> StartDecision<Trying> {
        let ready = match self.prepare(&task) {
            Ok(ready) => ready,
            // What is left to the next run is taken for not done there.
            Err(failure) if failure.spares_group && task.item().may_be_done => {
                return StartDecision::Never(held_as_killed(UnknownOutcome::Hold, &task));
            }
            Err(failure) => return StartDecision::Never(failure),
        };
        if self.is_answered(&task, &ready) {
            tracing::info!("{} has its answer: a run that was cut off had kept it", text::printable(task.key()));
            return StartDecision::Now(Box::pin(std::future::ready(Ok(()))));
        }
        upstream::warn_of_withheld(&self.upstream, || self.addresses.hosts && !ready.call.url.starts_with('/'));
        let unknown = self.sender.get().unknown_outcome(&ready.call);
        if task.item().may_be_done && unknown != UnknownOutcome::Resend {
            return StartDecision::Never(held_as_killed(unknown, &task));
        }
        let scope = permits.scope(&ready.scope);
        let address = address_of(&ready.call.method, &self.addresses.whole(&ready.call.url), task.key());
        let reopen = || {
            permits.test_again(&scope);
            fail_fast.reopen_scope(&ready.scope);
        };
        let (item, handed_out) = (task.item(), task.claimed_at());
        let reopen_address = || fail_fast.reopen_address(&ready.scope, &address);
        let of_scope = self.stopped.keeps_back(item, handed_out, &ready.scope, reopen);
        if let Some(why) = of_scope.or_else(|| self.stopped.keeps_back(item, handed_out, &address, reopen_address)) {
            return why.left();
        }
        if self.addresses.hosts {
            self.known.tell(permits.limiter(), &scope);
        }
        let test = |name: &str| self.stopped.test(name, task.item(), &address);
        let tests = match test(&ready.scope).and_then(|of_scope| Ok([of_scope, test(&address)?])) {
            Ok(tests) => tests,
            Err(later) => return StartDecision::Later(later),
        };
        // Of a host several customers may be receivers, each at an address.
        let receiver = self.addresses.hosts.then_some(&*address);
        let permit = match permits.take(&task, scope, ready.cost.clone(), receiver, ready.spares_group) {
            Ok(permit) => permit,
            Err(later) => return later,
        };
        if ready.spares_group {
            fail_fast.begins(task.item(), &ready.scope, &address);
        }
        let (requests, shutdown, permits) = (Arc::clone(self), shutdown.clone(), permits.clone());
        StartDecision::Now(Box::pin(async move {
            tests.iter().flatten().for_each(TestCall::leaves);
            let sent = requests.send(&task, ready, &address, permit, &permits, &shutdown).await;
            drop(tests);
            sent
        }))
    }

    /// Whether a call that was cut off had been answered, and the answer kept.
    fn is_answered(&self, task: &Task, ready: &Ready) -> bool {
        let item = task.item();
        let was_cut_off = item.may_be_done || item.crashes > 0 || item.abandoned > 0;
        // A person has sent for the item since: it is to be sent again.
        let before = item.forgiven.attempts.saturating_add(item.forgiven.deferrals);
        let has = |answers: &Answers| answers.has(item.id, &ready.echo.custom_id, before);
        was_cut_off && self.answers.as_ref().is_some_and(has)
    }

    /// A run has ended, and the store knows all of its answers.
    pub(super) async fn settle(&self, limiter: &Limiter) -> Result<(), WorkError> {
        if self.addresses.hosts {
            self.known.save(&*self.store, limiter).await?;
        }
        match &self.answers {
            Some(answers) => answers.settle(&*self.store).await,
            None => Ok(()),
        }
    }

    /// The first answer that could not be kept.
    pub(super) fn broken(&self) -> Option<String> {
        self.answers.as_ref().and_then(Answers::broken)
    }

    fn prepare(&self, task: &Task) -> Result<Ready, Failure> {
        let invalid = |code: &str, message: String| Failure {
            code: Some(code.to_owned()),
            ..Failure::new(Class::Invalid, message)
        };
        let payload = task.payload().as_bytes();
        let format =
            Format::of_one(payload, task.key(), self.endpoint.as_deref(), self.upstream.provider, &self.addresses)
                .map_err(|message| invalid("format_mismatch", message))?;
        let line = format.read(payload, 1).map_err(|error| match error.param {
            Some("url") if self.needs_scope_of_hosts(task) => self.stopped.lacks(error.reason()),
            _ => invalid(error.code, error.reason()),
        })?;
        let group = Some(&*task.item().group).filter(|group| *group != DEFAULT_GROUP);
        let scope = self.upstream.scope_name(&CallNames { group, ..line.names() });
        let with_group = group == Some(&*scope) || self.upstream.dialect.is_one_scope();
        let spares_group = !with_group && (group.is_none() || self.addresses.hosts);
        let echo =
            Echo { custom_id: line.custom_id, metadata: line.metadata.map(ToOwned::to_owned), form: format.results() };
        let sender = self.sender.get();
        let counted = task.item().attempts.saturating_sub(task.item().forgiven.attempts);
        let call = Call {
            method: line.method,
            url: line.url.into_owned(),
            headers: line.headers,
            body: sender.rest_of(task.item().id).unwrap_or_else(|| Bytes::from(line.body.into_owned())),
            idempotency_key: sender.config().idempotency_header.as_ref().map(|_| value_of(task)),
            within: None,
            retries: Some(self.max_retries.saturating_sub(counted)),
        };
        let cost = sender.charge(&scope, &call);
        if self.limits_answers {
            let is_unbounded = || self.upstream.dialect.longest_answer(&call.url, &call.body).is_none();
            upstream::warn_of_unbounded("a configured limit", is_unbounded);
        }
        Ok(Ready { call, echo, scope, with_group, spares_group, cost })
    }

    /// Whether the flag is missing that lets an item go to its host, which is no fault of the item.
    fn needs_scope_of_hosts(&self, task: &Task) -> bool {
        #[derive(Deserialize)]
        struct Request {
            url: String,
        }
        let request = serde_json::from_str::<Request>(task.payload());
        request.is_ok_and(|request| self.addresses.needs_scope_of_hosts(&request.url))
    }

    async fn send(
        &self,
        task: &Task,
        ready: Ready,
        address: &str,
        permit: Permit,
        permits: &Permits,
        shutdown: &Shutdown,
    ) -> Result<(), Failure> {
        let Ready { call, echo, scope, with_group, spares_group, .. } = ready;
        let sender = self.sender.for_call();
        if sender.unknown_outcome(&call) != UnknownOutcome::Resend {
            self.note_sent(task).await?;
        }
        // No key went there. A page that is read may be shut to every caller.
        let is_elsewhere = self.addresses.hosts && !call.url.starts_with('/') && !is_read(&call.method);
        let mut stops_again = false;
        let sent = sender.send_judged(permit, &call, shutdown.aborting(), |answer, reading| {
            // Before the permit is given back, and others of the scope begin.
            let heard = |name: &str| self.stopped.heard(name, reading.class, reading.unexpected);
            stops_again = heard(&scope) | heard(address);
            if self.addresses.hosts {
                let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
                self.stopped.ended_at(&scope, address, reading.class, status);
            }
            if self.addresses.hosts && reading.class == Class::Throttled && reading.wait.is_none() {
                self.stopped.throttled(&scope, task.claimed_at());
            }
            match answer {
                Ok(answer) if reading.class == Class::Account => {
                    of_item(task, answer.status(), reading, &self.upstream)
                }
                Err(NoAnswer::Tls(message)) => {
                    let message = format!("cannot call {}: {message}", self.destination(&scope));
                    Reading { message: Some(message), ..reading }
                }
                _ => reading,
            }
        });
        let exchange = sent.await;
        self.sender.heard(&exchange, &call.url);
        self.watch(&scope, &exchange, shutdown);
        match &exchange.answer {
            Ok(answer) if exchange.reading.class == Class::Success => {
                let said = secrets_of(&call.url).removed_from(answer.body().clone());
                task.answered(Said::of(answer.status().as_u16(), &said));
                let headers = entry::kept_headers(answer);
                let result = entry::recorded(answer, &exchange.reading, headers.as_deref());
                self.keep(task, &echo, &result, shutdown).await
            }
            _ => {
                let sits_out = permits.sits_out(&scope, &exchange.action, exchange.probe);
                let is_of_scope = exchange.reading.reach != LimitScope::Account;
                let server = permits.server_of(&scope);
                let failure = failure(exchange, &server, &secrets_of(&call.url)).of_probe(sits_out);
                let is_of_account = spares_group && is_of_scope && failure.class == Class::Account;
                if is_of_account {
                    self.stopped.stop(&scope, Why::Account, &failure.message);
                }
                let is_shut = is_elsewhere && self.stopped.restops() && is_shut_to_caller(failure.status);
                let waits = is_shut && failure.class == Class::Invalid;
                let spares_group = is_of_account || stops_again || waits;
                if spares_group {
                    self.stopped.leaves(task.key(), &scope);
                }
                Err(Failure { is_for_group: failure.is_for_group && with_group, spares_group, ..failure })
            }
        }
    }

    /// Where the calls of a scope go, for people.
    fn destination(&self, scope: &str) -> String {
        match self.addresses.hosts {
            true => scope.to_owned(),
            false => upstream::destination(&self.upstream).to_string(),
        }
    }

    /// Records that a call is sent which must not be made twice, before it is.
    async fn note_sent(&self, task: &Task) -> Result<(), Failure> {
        let why = match self.store.note_sent(task.item().id, task.fence()).await {
            Ok(true) => return Ok(()),
            Ok(false) => "the item was removed or sent for anew, or another worker has taken it".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(Failure::new(Class::Abandoned, why))
    }

    /// Ends a run whose server is unreachable: calls that it did not receive count against no item. Where each host is a scope,
    /// only that host gets no more calls.
    fn watch(&self, scope: &str, exchange: &Exchange, shutdown: &Shutdown) {
        let Some(max_wait) = self.max_wait else { return };
        let hosts = self.addresses.hosts;
        let watched: Arc<str> = if hosts { scope } else { "" }.into();
        let mut reachability = self.reachability();
        let known = reachability.entry(watched).or_insert_with(|| Reachability::new(max_wait));
        let address = upstream::destination(&self.upstream);
        if known.gone(&exchange.answer, self.clock.now())
            && let Err(why) = &exchange.answer
            && let Some(stop) = StopReason::unreached(why, &self.upstream.dialect, scope, &address)
        {
            match hosts {
                true => self.stopped.stop(scope, Why::Unreachable, &stop.to_string()),
                // Once: what is in flight finds out the same.
                false => shutdown.stop(stop),
            }
        }
    }

    fn reachability(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Reachability>> {
        self.reachability.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a fallback is told of an item.
    ///
    /// # Errors
    /// A payload that cannot be read.
    pub(super) fn question(&self, task: &Task, error: WhyDown<'_>) -> Result<Vec<u8>, String> {
        let Ready { call, echo, .. } = self.prepare(task).map_err(|failure| failure.message)?;
        let request = Request { method: call.method.as_str(), url: &call.url, body: json_or_text(&call.body)? };
        let (key, group, metadata) = (task.key(), Some(task.group()), echo.metadata.as_deref());
        Question { key, group, request: Some(request), payload: None, metadata, error }.line()
    }

    /// The result of a fallback, in place of the answer.
    ///
    /// # Errors
    /// A result that is empty or cannot be kept.
    pub(super) async fn keep_fallback(
        &self,
        task: &Task,
        code: &str,
        message: &str,
        output: &[u8],
    ) -> Result<(), String> {
        let Some(answers) = &self.answers else { return Ok(()) };
        let echo = self.prepare(task).map_err(|failure| failure.message)?.echo;
        let result = ResultBody::Fallback { code, message, output };
        answers.append(echo.line(task.item().id, task.attempt(), End::FellBack, &result)).await
    }

    /// An answer is on the disk before its item counts as done.
    async fn keep(
        &self,
        task: &Task,
        echo: &Echo,
        answer: &ResultBody<'_>,
        shutdown: &Shutdown,
    ) -> Result<(), Failure> {
        let Some(answers) = &self.answers else { return Ok(()) };
        let line = echo.line(task.item().id, task.attempt(), End::Succeeded, answer);
        answers.append(line).await.map_err(|message| {
            // It would be sent again and again, and paid for each time.
            shutdown.begin_drain();
            Failure::new(Class::Abandoned, message)
        })
    }
}

/// The idempotency key of an item's calls.
fn value_of(task: &Task) -> HeaderValue {
    let text = same_at_each_try(task.item(), task.payload());
    HeaderValue::from_str(&text).expect("letters, digits and a dash")
}
