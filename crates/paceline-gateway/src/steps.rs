//! A request whose upstream has fallbacks: it waits less for one that is known to stay down, and takes the steps then.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use paceline::{Class, GiveUp, ScopeId};

use crate::backend::Backend;
use crate::estimated::Estimated;
use crate::fallback::{Step, Target};
use crate::forward::{AnswerBody, Ended, Forwarding, whole_body};
use crate::headers;
use crate::metrics::Ending;
use crate::queue::{NotSent, place_in_queue};
use crate::refusal::{LEAST, Refusal};
use crate::stays_down::Standing;

impl Forwarding<'_> {
    /// Sends the request to its upstream, and while that stays down to the steps that may take its place. Where all stay down, it
    /// waits for its own as without them.
    pub(crate) async fn with_fallbacks(
        &mut self,
        upstreams: &[Arc<Backend>],
        upstream: &Arc<Backend>,
        first: &Estimated,
        (parts, own): (Parts, Bytes),
        retries: u32,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let ended = self.at_unless_down(upstream, first, retries).await;
        upstream.note_fallbacks(ended.stayed_down);
        if !ended.stayed_down {
            return ended.answer;
        }
        let gave_way = std::mem::take(&mut self.gave_way);
        let mut left = retries.saturating_sub(ended.retries);
        for Step { marker, target } in &upstream.fallbacks {
            let (name, model) = match target {
                Target::Static(answer) => {
                    self.record.ending = Some(Ending::Answered(Class::Success));
                    self.told.fallback = Some(marker.clone());
                    return Ok(answer.clone().map(whole_body));
                }
                Target::Upstream { name, model } => (name, model.as_deref()),
            };
            // A reload may have removed it since.
            let Some(other) = upstreams.iter().find(|other| other.name() == name) else { continue };
            let (false, Ok(_room)) = (self.payload.is_stream, place_in_queue(other, self.bounds)) else { continue };
            let Some(call) = self.step_to(other, (upstream, first), &parts, &own, model).await else { continue };
            self.payload.bytes = call.call.body.clone();
            let unknown = self.record.unknown;
            let tried = self.at_unless_down(other, &call, left).await;
            if self.record.unknown > unknown {
                self.told.unknown_at.push(marker.clone());
            }
            left = left.saturating_sub(tried.retries);
            if let (false, Ok(answer)) = (tried.stayed_down, tried.answer) {
                self.told.fallback = Some(marker.clone());
                return Ok(answer);
            }
        }
        if !gave_way || self.payload.is_stream && self.record.calls > 0 {
            return ended.answer;
        }
        self.payload.bytes = own;
        match (self.at(upstream, first, left).await.answer, ended.answer) {
            // What the upstream said is better than what is said of it.
            (Err(_), Ok(answer)) => Ok(answer),
            (answer, _) => answer,
        }
    }

    /// The call of a step; none where its client may not make it, or its body has no room.
    async fn step_to(
        &mut self,
        other: &Arc<Backend>,
        (upstream, first): (&Arc<Backend>, &Estimated),
        parts: &Parts,
        own: &Bytes,
        model: Option<&str>,
    ) -> Option<Estimated> {
        let (mut parts, mut path) = (parts.clone(), first.call.url.clone());
        if !Arc::ptr_eq(other, upstream) {
            headers::remove_keys(&mut parts.headers);
            path = upstream.without_keys(path);
        }
        parts.headers.remove(CONTENT_LENGTH);
        let (backend, known, body, named) =
            (Arc::clone(other), self.known.clone(), own.clone(), model.map(str::to_owned));
        let call = move || Estimated::of_fallback(&backend, known.as_deref(), parts, path, body, named.as_deref());
        let call = self.read(own.len(), call).await?;
        (model.is_none() || self.payload.has_room(call.call.body.len(), self.bounds)).then_some(call)
    }

    /// Sends the request to one upstream of several, for which it does not wait where that is known to stay down: then one
    /// request in a while makes one call, which tests it.
    async fn at_unless_down(&mut self, upstream: &Arc<Backend>, call: &Estimated, retries: u32) -> Ended {
        let (scope, client, calls) = (upstream.scope(&call.scope), self.record.client, self.record.calls);
        let now = upstream.limiter().now();
        let down = &upstream.stays_down;
        let ended = match down.standing(scope.name(), client, now, || upstream.is_failing(&scope)) {
            Standing::Waits => {
                self.gives_way = true;
                let ended = self.at(upstream, call, retries).await;
                self.gives_way = false;
                ended
            }
            Standing::Tests(test) => {
                let deadline = std::mem::replace(&mut self.deadline, self.clock.now());
                let ended = self.at(upstream, call, 0).await;
                (self.deadline, self.gave_way) = (deadline, true);
                if self.record.calls == calls {
                    test.was_not_made();
                    return gives_way(upstream).into();
                }
                ended
            }
            Standing::FallsBack => {
                self.gave_way = true;
                return gives_way(upstream).into();
            }
        };
        match self.record.calls - calls {
            made if ended.stayed_down => down.fell_back(scope.name(), client, made, upstream.limiter().now()),
            0 => {}
            _ if matches!(self.record.ending, Some(Ending::Answered(class)) if GiveUp::Deadline.stayed_down(class)) => {
            }
            _ => down.answers(scope.name()),
        }
        ended
    }
}

impl From<NotSent> for Ended {
    fn from(NotSent { refusal, stayed_down }: NotSent) -> Self {
        Self { answer: Err(refusal), stayed_down, retries: 0 }
    }
}

/// What `held` is ready with, unless the upstream turns out to stay down meanwhile, for which a request that gives way does not
/// wait.
pub(crate) async fn unless_down<T>(
    upstream: &Backend,
    scope: &ScopeId,
    client: u64,
    gave_way: &mut bool,
    held: impl Future<Output = Result<T, NotSent>>,
) -> Result<T, NotSent> {
    let (now, is_failing) = (|| upstream.limiter().now(), || upstream.is_failing(scope));
    let known = upstream.stays_down.is_known_of(scope.name(), client, now, is_failing);
    tokio::select! {
        biased;
        held = held => held,
        () = known => {
            *gave_way = true;
            Err(gives_way(upstream))
        }
    }
}

/// Another upstream takes the request.
fn gives_way(upstream: &Backend) -> NotSent {
    let message = format!("upstream {} stays down, and its fallbacks do, too; send it later", upstream.name());
    let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "wait_too_long", message).after(LEAST);
    NotSent { refusal, stayed_down: true }
}
