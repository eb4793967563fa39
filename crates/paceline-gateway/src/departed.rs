//! A call that left: how it ended, what follows, and what is told of it.

use std::sync::Arc;

use http::response::Parts;
use http::{Method, Response};
use paceline::{Class, Instant, NextAction, Permit, Timestamp, UnknownOutcome, clock};
use paceline_config::Money;
use paceline_core::{Cost, Dimension, LimitReport, Outcome, format_duration};
use paceline_http::{Call, NoAnswer, gateway};
use paceline_providers::{Answer, Asked, Reading, SoFar, Usage, billed_model, reference_to};

use crate::awaited::AwaitedAnswer;
use crate::backend::Backend;
use crate::bodies::HeldBody;
use crate::clients::Client;
use crate::files::HeldFile;
use crate::headers;
use crate::models::decoded_path;
use crate::notes::{self, ClientSpending, Kind, OutageNews, Sign, Why, in_tens};
use crate::places::Place;
use crate::spent::Spent;
use crate::trust::Asker;
use crate::upstream_key::Key;

/// A call that left, until its outcome is reported.
pub(crate) struct Departed {
    pub(crate) upstream: Arc<Backend>,
    pub(crate) permit: Permit,
    /// Among the calls in flight.
    pub(crate) place: Option<Place>,
    pub(crate) scope: Arc<str>,
    /// By the stopwatch.
    pub(crate) left: Instant,
    pub(crate) awaited: AwaitedAnswer,
    pub(crate) reserved: Cost,
    pub(crate) client: Arc<ClientSpending>,
    /// With a key.
    pub(crate) known: Option<Arc<Client>>,
    pub(crate) call: Arc<Call>,
    /// The key of the upstream that it shows.
    pub(crate) key: Arc<Key>,
    /// What its body asks for.
    pub(crate) asked: Arc<Asked>,
    /// Prints of what its body names that its server adds to the prompt.
    pub(crate) named: Arc<[u64]>,
    /// What it takes of the limits of its client, and counts with.
    pub(crate) spent: Arc<Spent>,
    /// Of its body, which is read once more when the answer ends.
    pub(crate) room: HeldBody,
    /// The connection of its client, once its answer comes, and its own.
    pub(crate) files: [HeldFile; 2],
    /// The bytes of an answer that was too long to be kept and read.
    pub(crate) unread: u64,
}

impl Departed {
    /// Its answer begins.
    pub(crate) fn is_answered(&mut self) {
        self.awaited.begins(&self.upstream);
    }

    /// It has no answer.
    pub(crate) fn has_failed(&mut self, error: &NoAnswer) {
        self.awaited.fails(error);
    }

    /// Its client hung up, and the rest of its answer is read here.
    pub(crate) fn leaves_its_client(&mut self) {
        self.files[0] = HeldFile::default();
    }

    /// The answer was given up by its client, or broke off, after so many bytes: it counts with those, and as one that tells no
    /// usage at the least.
    pub(crate) fn cut_off(&self, head: &Parts, kept: &[u8], came: u64) {
        let used = self.spent.was_cut_off(self.used_so_far(&self.spent.made(), head, kept, came));
        note_answer(self.known.as_deref(), kept, used.get(&Dimension::Tokens));
    }

    /// Leaves out of what the head of its answer announces what is no limit of all.
    pub(crate) fn leave_out_announced(&self, limits: &mut Vec<LimitReport>) {
        let path = &decoded_path(&self.call);
        let (client, name) = (self.known.as_deref(), self.client.name());
        let asker = Asker { client, name, scope: &self.scope, path, left: self.left, status: None };
        self.upstream.trust.leave_out_announced(&self.upstream, limits, asker, true);
    }

    /// So many bytes of the answer came.
    pub(crate) fn goes_on(&self, head: &Parts, kept: &[u8], came: u64) {
        if self.spent.is_limited() {
            self.spent.goes_on(&self.used_so_far(self.spent.reserved(), head, kept, came).used);
        }
    }

    fn used_so_far(&self, reserved: &Cost, head: &Parts, kept: &[u8], came: u64) -> SoFar {
        let path = &decoded_path(&self.call);
        let answer = Answer { status: head.status.as_u16(), headers: &head.headers, body: kept, path };
        self.upstream.sending.dialect.used_so_far(reserved, &answer, came)
    }

    /// Reports how the call ended. Returns the class, what follows, and whether it is unknown if the call was executed.
    pub(crate) fn ends(self, answer: &Result<Response<bytes::Bytes>, NoAnswer>) -> (Class, NextAction, bool) {
        let Self {
            upstream,
            permit,
            place: _place,
            scope,
            left,
            awaited: _awaited,
            reserved,
            client,
            known,
            call,
            key,
            asked,
            named,
            spent,
            room: _room,
            files: _files,
            unread,
        } = self;
        let mut reading = upstream.read(&call, answer, unread);
        let class = reading.class;
        upstream.leave_out_former_key(&mut reading, key.fields());
        let path = &decoded_path(&call);
        let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        let asker = Asker { client: known.as_deref(), name: client.name(), scope: &scope, path, left, status };
        upstream.trust.weigh(&upstream, &mut reading, asker);
        let is_unknown = paceline_http::is_unknown(answer, &reading);
        let unknown = if is_unknown { upstream.sending.unknown_outcome_of(&call) } else { UnknownOutcome::Resend };
        tracing::debug!(
            upstream = upstream.name(),
            scope = &*scope,
            status,
            class = reading.class.as_str(),
            reason = (reading.class != Class::Success).then(|| reading.reason().into_owned()),
            "answered"
        );
        let words = notes::words_for_all(&reading, status.filter(|_| known.is_some()));
        let retried = answer.as_ref().map_or(0, |answer| gateway::retried(answer.headers()));
        let mut outcome = Outcome { unknown, retried, ..reading.outcome_of(&reserved) };
        outcome.reason = outcome.reason.map(|_| (&*words).into());
        match outcome.unsent {
            true => spent.was_not_sent(),
            false if is_unknown => spent.was_lost(),
            false => spent.answered(reading.used_of(&reserved, &spent.untold()), reading.class == Class::Success),
        }
        if let Some(usage) = &reading.usage {
            upstream.metrics().used(&scope, usage);
            spent.told(usage);
            client.used(usage, upstream.cost_of(&call.url, &asked, usage));
            if let (Some(known), Ok(answer)) = (&known, answer) {
                let prompt = usage.prompt_tokens();
                known.contexts.were_read(&named, prompt);
                note_answer(Some(known), answer.body(), prompt.saturating_add(usage.output_tokens));
            }
            upstream.ratios.settle_as_asked(Arc::clone(&scope), &call.body, &asked, usage);
        }
        drop(spent);
        // The call that leaves in its place knows all that its answer told.
        let action = permit.complete(outcome);
        if reading.class == class {
            upstream.note_outage(&scope, (client.name(), known.as_deref()), &reading, &words);
        }
        upstream.note_ignored_wait(&reading);
        if reading.class != Class::Success {
            let text = notes::decision(&reading, &words, &upstream.config().pacer.retry, &action);
            upstream.notes().decisions.note(Some(&scope), reading.class.as_str(), text);
        }
        (class, action, is_unknown)
    }
}

/// A later request of that client may name the answer, and then its server adds so many tokens to the prompt.
fn note_answer(known: Option<&Client>, answer: &[u8], tokens: u64) {
    let counts = known.filter(|known| known.counts_tokens());
    if let Some((known, answer)) = counts.zip(reference_to(answer)) {
        known.contexts.was_made(answer, tokens);
    }
}

/// The scope of a place that may be of one client alone.
fn of_all(place: &str) -> &str {
    place.split('\n').next().unwrap_or_default()
}

impl Backend {
    /// Logs that the upstream is down, or answers again. `words`: why, for all that read of it.
    pub(crate) fn note_outage(
        &self,
        scope: &Arc<str>,
        (client, known): (&str, Option<&Client>),
        reading: &Reading,
        words: &str,
    ) {
        let Some(sign) = self.sign_of(scope, reading) else { return };
        let upstream = self.name();
        let now = || self.limiter().now();
        // What fails for one client alone is an outage of its own.
        let (mut fails_for, mut is_failing) = (Vec::new(), false);
        if matches!(sign, Sign::Fails { .. })
            && let Some(seen) = self.limiter().scope_snapshot(&self.scope(scope))
        {
            (fails_for, is_failing) = (seen.fails_for, seen.failing_since.is_some());
        }
        let is_alone = known.is_some_and(|known| fails_for.contains(&known.number()));
        let outages = &self.notes().outages;
        let (own, why) = (|| Arc::from(format!("{scope}\n{client}")), || Why::of(reading, words));
        let told = match sign {
            Sign::Fails { .. } if is_alone && !is_failing => outages.note(&own(), sign, why, now, || true),
            Sign::Answers if known.is_some() && outages.some() => {
                outages.note(scope, sign, why, now, || false).or_else(|| outages.note(&own(), sign, why, now, || false))
            }
            _ => outages.note(scope, sign, why, now, || is_failing),
        };
        let client = (is_alone || matches!(sign, Sign::Stops { .. })).then_some(client);
        let kind = |told: &OutageNews| if let OutageNews::Back { .. } = told { Kind::Back } else { Kind::Down };
        match told.filter(|told| self.may_tell(kind(told))) {
            None => {}
            // An error: `--quiet` does not hide what waits for a person.
            Some(OutageNews::Down { scope, is_stopped: true, .. }) => tracing::error!(
                upstream,
                scope = scope.as_deref(),
                client,
                "nothing leaves until a person acts: {}; mend the cause, then reload the gateway (SIGHUP) or restart it",
                reading.reason()
            ),
            Some(OutageNews::Down { scope, since, .. }) => {
                let lasts = self.limiter().now().saturating_since(since);
                let since = Timestamp::from_millis(clock::wall().as_millis() - lasts.as_millis() as i64);
                let what = match scope {
                    Some(_) if is_alone && !is_failing => "fails for one client alone, which alone is paused",
                    Some(_) if matches!(sign, Sign::Refuses { .. }) => "refuses every call",
                    Some(_) => "fails",
                    None => "is down",
                };
                let (scope, reason) = (scope.as_deref().map(of_all), reading.reason());
                tracing::warn!(upstream, scope, client, since = %since, "the upstream {what}: {reason}");
            }
            Some(OutageNews::Back { scope, after }) => tracing::info!(
                upstream,
                scope = scope.as_deref().map(of_all),
                client = scope.as_deref().and_then(|place| place.split_once('\n')).map(|(_, client)| client),
                "the upstream answers again, after {}{}",
                format_duration(after),
                if reading.class == Class::Success {
                    String::new()
                } else {
                    format!(", with a refusal: {}", reading.reason())
                }
            ),
        }
    }

    /// What a call says of the upstream. A refusal is an answer, unless each call is refused for longer than a limit would.
    fn sign_of(&self, scope: &Arc<str>, reading: &Reading) -> Option<Sign> {
        let sign = Sign::of(reading)?;
        if reading.class != Class::Throttled {
            return Some(sign);
        }
        let seen = self.limiter().scope_snapshot(&self.scope(scope));
        Some(seen.and_then(|seen| seen.refuses_all_since).map_or(sign, |since| Sign::Refuses { since }))
    }

    /// What fails for all of its clients at present, in a sentence. Names of scopes are not for all who may read it.
    pub(crate) fn outage(&self) -> Option<String> {
        let now = self.limiter().now();
        let down = self.notes().outages.down(now);
        let (first, scopes) = (down.first()?, down.iter().filter(|down| down.scope.is_some()).count());
        let (lasts, reason) = (in_tens(now.saturating_since(first.since)), &first.reason);
        Some(match first.scope {
            Some(_) if scopes == 1 && first.refuses => {
                format!("the upstream has refused every call of one scope for {lasts}: {reason}")
            }
            None => first.describe(now),
            Some(_) if scopes == 1 => format!("one scope has failed for {lasts}: {reason}"),
            Some(_) => format!("{scopes} scopes fail, one of them for {lasts}: {reason}"),
        })
    }

    /// Logs once that answers ask for a wait in a form that cannot be followed.
    fn note_ignored_wait(&self, reading: &Reading) {
        let Some(why) = reading.ignored_wait() else { return };
        self.ignored_wait.call_once(|| {
            tracing::warn!(
                upstream = self.name(),
                "answers ask for a wait that cannot be followed, so the gateway chooses it: {why}; told once"
            );
        });
    }

    pub(crate) fn cost_of(&self, url: &str, asked: &Asked, usage: &Usage) -> Money {
        let prices = &self.config().prices;
        if prices.is_empty() {
            return Money::default();
        }
        prices.of(&billed_model(asked.model(), url).unwrap_or_default()).of_usage(usage)
    }

    /// `unread`: the bytes of a body that was too long to be kept; the answer has none then.
    fn read(&self, call: &Call, answer: &Result<Response<bytes::Bytes>, NoAnswer>, unread: u64) -> Reading {
        let (dialect, now, path) = (&self.sending.dialect, clock::wall(), &*decoded_path(call));
        let mut reading = match answer {
            Ok(answer) if unread > 0 => {
                let (status, headers) = (answer.status().as_u16(), answer.headers());
                let answer = Answer { status, headers, body: b"", path };
                dialect.read_of(&Method::HEAD, &answer, now).of_length(path, unread)
            }
            Ok(answer) => {
                let (status, headers) = (answer.status().as_u16(), answer.headers());
                let answer = Answer { status, headers, body: answer.body(), path };
                dialect.read_of(&call.method, &answer, now)
            }
            Err(error) => {
                let reading = dialect.within_reach(error.reading(dialect.provider(), now));
                // In words, for people.
                Reading { message: reading.message.or_else(|| Some(error.to_string())), ..reading }
            }
        };
        // The log, the state and other clients get to know why: the upstream's key, or the client's that went on, must not.
        if reading.class != Class::Success {
            reading.remove_secrets(&self.secrets());
            reading.remove_secrets(&headers::secrets_of(call));
        }
        reading
    }
}
