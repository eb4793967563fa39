//! The course of one request: it is held until it may leave, sent, sent again where that is useful, and answered.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::Either::{Left, Right};
use http::header::CONTENT_SECURITY_POLICY;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Either, Full};
use paceline::{Class, Cost, GiveUp, Limiter, NextAction, Permit};
use paceline_core::Instant;
use paceline_http::{NoAnswer, gateway};

use crate::answered::{broken, ended, passed_on, unreadable};
use crate::awaited::AwaitedAnswer;
use crate::backend::Backend;
use crate::bodies::{Bodies, BodiesOfClient, HeldBody, LEAST_LARGE};
use crate::bounds::{Bounds, Room};
use crate::clients::Client;
use crate::departed::Departed;
use crate::echo::{Begun, begun};
use crate::estimated::Estimated;
use crate::failure;
use crate::files::{Files, HeldFile};
use crate::headers::{self, Wishes};
use crate::metrics::Ending;
use crate::notes::ClientSpending;
use crate::own_routes::OwnBody;
use crate::payload::{Payload, too_much_is_held};
use crate::places::{Place, hold_a_place};
use crate::queue::{NotSent, place_in_queue, share_of_queue};
use crate::record::{BATCH, Record};
use crate::refusal::Refusal;
use crate::request_body::RequestBody;
use crate::server::Gateway;
use crate::spent::{SentTo, Spent};
use crate::steps::unless_down;
use crate::tap::Tap;

/// The heads of as many requests as may wait take little where they are no longer than that.
const USUAL_HEAD: usize = 8 << 10;

/// The body of an answer: the gateway's own, or as it comes from an upstream.
pub(crate) type AnswerBody = Either<OwnBody, Tap>;

/// A body that is there.
pub(crate) fn whole_body(bytes: impl Into<Bytes>) -> AnswerBody {
    Either::Left(Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync())
}

/// What the head of an answer tells beside what is recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerNotes {
    /// The retries that these calls spent: throttles spend none.
    pub(crate) retries: u32,
    /// What took the place of its upstream.
    pub(crate) fallback: Option<HeaderValue>,
    /// The steps at which calls were made of which it is unknown whether they were executed.
    pub(crate) unknown_at: Vec<HeaderValue>,
}

/// A request on its way: what is the same at each upstream that it is sent to.
pub(crate) struct Forwarding<'a> {
    /// Each limiter has a clock of its own: this one's counts at every upstream.
    pub(crate) clock: &'a Limiter,
    pub(crate) bounds: &'a Bounds,
    pub(crate) gateway: &'a Gateway,
    pub(crate) files: &'a Files,
    pub(crate) bodies: &'a Bodies,
    pub(crate) wishes: Wishes,
    /// With a key of the gateway's.
    pub(crate) known: Option<Arc<Client>>,
    /// What the request takes of the limits of that client.
    pub(crate) spent: Option<Arc<Spent>>,
    pub(crate) client: Arc<ClientSpending>,
    pub(crate) record: &'a mut Record,
    /// It waits no longer than until then.
    pub(crate) deadline: Instant,
    pub(crate) payload: Payload,
    /// Its connection, among the files that a client with a key holds.
    pub(crate) connection: HeldFile,
    pub(crate) told: AnswerNotes,
    /// Whether it waits no more once its upstream is known to stay down, and whether it waited less for that.
    pub(crate) gives_way: bool,
    pub(crate) gave_way: bool,
}

/// How a request ended at one upstream.
pub(crate) struct Ended {
    pub(crate) answer: Result<Response<AnswerBody>, Refusal>,
    /// It has no answer because the API stayed down, so that a fallback may take its place.
    pub(crate) stayed_down: bool,
    /// Retries so far.
    pub(crate) retries: u32,
}

/// Forwards a request to its upstream, as the client wishes and within the bounds; while that stays down, to its fallbacks
/// among the upstreams.
pub(crate) async fn forward(
    gateway: &Gateway,
    upstreams: &[Arc<Backend>],
    upstream: &Arc<Backend>,
    path: String,
    request: Request<RequestBody>,
) -> Response<AnswerBody> {
    let mut told = AnswerNotes::default();
    let mut record = Record::new(upstream, request.method(), &path);
    let answer = match Forwarding::begin(gateway, upstream, request, &mut record).await {
        Ok((mut course, parts, _room)) => {
            let answer = course.run(upstreams, upstream, path, parts).await;
            told = course.told;
            answer
        }
        Err(refusal) => Err(refusal),
    };
    let mut answer = answer.unwrap_or_else(|refusal| {
        // It may name what the request names.
        let refusal = gateway.clients().check_name(refusal.message()).err().unwrap_or(refusal);
        record.ending.get_or_insert(Ending::Refused(refusal.code()));
        let text = format!("refused: {}", refusal.message());
        upstream.notes().decisions.note(record.scope.as_ref(), refusal.code(), text);
        refusal.into_response().map(whole_body)
    });
    let fields = answer.headers_mut();
    let waited = record.waited.as_millis() as u64;
    fields.insert(const { HeaderName::from_static(gateway::WAITED) }, headers::number(waited));
    fields.insert(const { HeaderName::from_static(gateway::ATTEMPTS) }, headers::number(record.calls.into()));
    if record.unknown > 0 {
        fields.insert(gateway::UNKNOWN, record.unknown.into());
    }
    if let Some(fallback) = told.fallback {
        fields.insert(gateway::FALLBACK, fallback);
    }
    told.unknown_at.into_iter().for_each(|step| _ = fields.append(gateway::UNKNOWN_AT, step));
    // A browser that shows it as a page must not let it read this gateway's own, nor what stands beside it there.
    fields.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    record.status = Some(answer.status());
    match answer.body_mut() {
        Either::Left(whole) => record.bytes_out = whole.size_hint().exact().unwrap_or_default(),
        Either::Right(answer) => answer.tells(record),
    }
    answer
}

impl<'a> Forwarding<'a> {
    /// Reads what a client wishes, and the body of its request. The room is that of the queue.
    async fn begin(
        gateway: &'a Gateway,
        upstream: &'a Backend,
        request: Request<RequestBody>,
        record: &'a mut Record,
    ) -> Result<(Self, http::request::Parts, (Room, Room)), Refusal> {
        let Gateway { bounds, taken, .. } = gateway;
        let clock = upstream.limiter();
        let began = clock.now();
        let long = length_if_long(&request);
        let (parts, body) = request.into_parts();
        if headers::wants_websocket(&parts.headers) {
            let message = "the gateway passes on HTTP alone, and no WebSocket";
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "unsupported", message));
        }
        let wishes = Wishes::of(&parts.headers)?;
        let known = parts.extensions.get::<Arc<Client>>().map(Arc::clone);
        record.client = known.as_ref().map_or_else(|| headers::client(&parts.headers), |client| client.number());
        record.client_name = known.as_ref().map(|client| Arc::clone(client.name()));
        let client = upstream.notes().spending.comes(record.client, record.client_name.as_ref());
        let is_batch = wishes.is_batch || known.as_ref().is_some_and(|client| client.is_batch());
        record.priority = if is_batch { BATCH } else { 0 };
        let longest = wishes.deadline.unwrap_or(bounds.deadline);
        let places = (share_of_queue(upstream, &client, bounds)?, place_in_queue(upstream, bounds)?);
        let connection = taken.files.hold(known.as_deref(), body.files());
        if let Some(known) = known.as_ref().filter(|_| may_be_large(&body)) {
            known.may_wait(record.priority, longest)?;
        }
        let mut room = taken.bodies.begin(bodies_of(known.as_ref(), &client));
        room.grow(long, bounds.held_bytes).map_err(too_much_is_held)?;
        let payload = Payload::read(body, bounds, room, longest).await?;
        record.bytes_in = payload.bytes.len() as u64;
        let course = Self {
            clock,
            bounds,
            gateway,
            files: &taken.files,
            bodies: &taken.bodies,
            wishes,
            known,
            spent: None,
            client,
            record,
            deadline: began + longest,
            payload,
            connection,
            told: AnswerNotes::default(),
            gives_way: false,
            gave_way: false,
        };
        Ok((course, parts, places))
    }

    async fn run(
        &mut self,
        upstreams: &[Arc<Backend>],
        upstream: &Arc<Backend>,
        path: String,
        parts: http::request::Parts,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let again = (!upstream.fallbacks.is_empty()).then(|| parts.clone());
        let (known, own, unread) = (self.known.clone(), self.payload.bytes.clone(), self.payload.unread());
        let (backend, body) = (Arc::clone(upstream), own.clone());
        let clients = self.gateway.clients();
        let first = move || {
            let first = Estimated::of_request(&backend, known.as_deref(), parts, path, body, unread)?;
            clients.check_names(&backend, &first).map(|()| first)
        };
        let first = self.read(own.len(), first).await?;
        self.enter(upstream, &first).await?;
        let budget = upstream.most_retries(self.wishes.retries);
        match again.filter(|_| upstream.falls_back(&first.call, &first.asked)) {
            // Few requests take room for that.
            Some(parts) => Box::pin(self.with_fallbacks(upstreams, upstream, &first, (parts, own), budget)).await,
            None => self.at(upstream, &first, budget).await.answer,
        }
    }

    /// What `read` makes of a body of so many bytes.
    pub(crate) async fn read<T: Send + 'static>(&self, bytes: usize, read: impl FnOnce() -> T + Send + 'static) -> T {
        self.bodies.read(bodies_of(self.known.as_ref(), &self.client), bytes, read).await
    }

    /// All of an answer that does not go on as it comes.
    async fn whole(
        &mut self,
        departed: &mut Departed,
        sent: Result<Response<Begun>, NoAnswer>,
    ) -> Result<Response<Bytes>, NoAnswer> {
        let of_client = || bodies_of(self.known.as_ref(), &self.client);
        let rooms = [self.bodies.begin(of_client()), self.bodies.begin(of_client())];
        let received = failure::read(sent, self.bounds, rooms, (self.bodies, of_client())).await;
        let retried = received.as_ref().map_or(0, |answer| gateway::retried(answer.headers()));
        self.told.retries = self.told.retries.saturating_add(retried);
        match &received {
            Ok(_) => departed.is_answered(),
            Err(error) => departed.has_failed(error),
        }
        received
    }

    /// Waits for room under the limits of the client, if it has some of its own: each call takes of them what it takes.
    async fn enter(&mut self, upstream: &Backend, call: &Estimated) -> Result<(), Refusal> {
        // The last call counts with what it used from now on; one that has not left gives back what it took, and keeps its turn.
        let arrival = self.spent.take().and_then(|spent| spent.arrival());
        let Some(client) = &self.known else { return Ok(()) };
        let (cost, asked) = (call.of_client_now(upstream, client)?, self.clock.now());
        // What bounds a wait holds no copy of it: each would be twice as large as what it bounds.
        let room = pin!(client.room((&cost, call.untold), arrival, self.record.priority, self.deadline - asked));
        let waits = self.client.waits_for_its_key();
        let room = pin!(self.gateway.bounds_wait(upstream.name(), Some(client), room));
        let room = self.files.bounds(Some(client), &mut self.connection, room).await;
        drop(waits);
        self.record.waited += self.clock.now() - asked;
        self.spent = room?;
        Ok(())
    }

    /// The call that leaves now.
    fn departs(
        &self,
        upstream: &Arc<Backend>,
        (permit, place, file): (Permit, Option<Place>, HeldFile),
        scope: Arc<str>,
        reserved: Cost,
        call: &Estimated,
    ) -> Departed {
        let without_limits = || Arc::new(Spent::without_limits(call.of_client.clone(), call.untold));
        let spent = self.spent.clone().unwrap_or_else(without_limits);
        permit.departs();
        let of_call = || AwaitedAnswer::of_call(upstream.metrics(), &scope);
        spent.leaves(SentTo {
            upstream: Arc::clone(upstream),
            scope: Arc::clone(&scope),
            client: Arc::clone(&self.client),
            call: Arc::clone(&call.call),
            asked: Arc::clone(&call.asked),
            price: call.price(upstream, self.known.as_deref()).ok().flatten(),
        });
        Departed {
            upstream: Arc::clone(upstream),
            permit,
            place,
            left: upstream.stopwatch.now(),
            // The client's body may take as long as it likes.
            awaited: (!self.payload.is_stream).then(of_call).unwrap_or_default(),
            scope,
            reserved,
            client: Arc::clone(&self.client),
            known: self.known.clone(),
            call: Arc::clone(&call.call),
            key: upstream.key.now(),
            asked: Arc::clone(&call.asked),
            named: Arc::clone(&call.named),
            spent,
            room: HeldBody::default(),
            files: [HeldFile::default(), file],
            unread: 0,
        }
    }

    /// What the limiter of an upstream is asked for first.
    fn request(&mut self, upstream: &Backend, call: &Estimated, arrival: u64, retries: u32) -> paceline::Request {
        let first = paceline::Request::new(upstream.scope(&call.scope), call.cost.clone());
        self.record.scope = Some(Arc::clone(first.scope.name()));
        let first = paceline::Request {
            priority: self.record.priority,
            item: Some(upstream.next_item()),
            caller: self.known.as_ref().map(|client| client.number()),
            arrival: Some(arrival),
            max_retries: Some(retries),
            ..first
        };
        self.not_sooner(upstream, first)
    }

    /// That request, while its client is to stay away no sooner than that is over.
    fn not_sooner(&self, upstream: &Backend, request: paceline::Request) -> paceline::Request {
        let not_before = request.not_before.max(self.not_before(upstream, request.scope.name()));
        paceline::Request { not_before, ..request }
    }

    fn not_before(&self, upstream: &Backend, scope: &Arc<str>) -> Option<Instant> {
        upstream.trust.not_before(self.known.as_ref().map(|client| client.number()), scope)
    }

    /// What the client may do now holds for its request, too, though that came before. Returns whether it needs room under limits
    /// that its client has got since.
    fn follow_client(&mut self, upstream: &Backend, call: &Estimated) -> Result<bool, Refusal> {
        let Some(now) = self.known.as_ref().and_then(|known| self.gateway.clients().changed(known)) else {
            return Ok(false);
        };
        now.may_call(upstream.name(), &call.call, &upstream.sending.dialect, !self.payload.is_stream)?;
        let lacks_room = self.spent.is_none() && now.has_limits();
        self.known = Some(now);
        Ok(lacks_room)
    }

    /// Whether a call has too little room under its client's limits by now: it may take more, or others have left in its place.
    fn lacks_room(&self, upstream: &Backend, call: &Estimated) -> bool {
        let Some(spent) = &self.spent else { return false };
        let known = self.known.as_deref().filter(|client| client.counts_tokens());
        known.is_some_and(|client| call.of_client_now(upstream, client).map_or(true, |now| spent.is_outgrown_by(&now)))
            || !spent.may_leave()
    }

    /// Waits for the turn of a call. `last` is the class of the one before it, at the same upstream.
    async fn turn(
        &mut self,
        upstream: &Arc<Backend>,
        call: &Estimated,
        next: paceline::Request,
        last: Option<Class>,
    ) -> Result<(Permit, Option<Place>, HeldFile), NotSent> {
        if self.record.calls > 0 {
            self.enter(upstream, call).await?;
        }
        let (scope, mut next) = (Arc::clone(next.scope.name()), next);
        let (permit, place) = loop {
            let (since, waits) = (upstream.stopwatch.now(), self.client.waits());
            let left = || self.deadline - self.clock.now();
            let of_scope = next.scope.clone();
            let held = {
                let held = pin!(hold_a_place(upstream, next, left, last, (self.known.as_deref(), &self.client)));
                let held = pin!(match self.gives_way {
                    true => Left(unless_down(upstream, &of_scope, self.record.client, &mut self.gave_way, held)),
                    false => Right(held),
                });
                let held = pin!(self.gateway.bounds_wait(upstream.name(), self.known.as_deref(), held));
                self.files.bounds(self.known.as_deref(), &mut self.connection, held).await
            };
            drop(waits);
            self.record.waited += upstream.stopwatch.now() - since;
            let (permit, place) = held?;
            // It may have been told so while the request waited.
            let not_before = self.not_before(upstream, &scope).filter(|away| *away > upstream.limiter().now());
            if not_before.is_some() {
                next = paceline::Request { not_before, ..permit.request() };
                permit.withdraw();
                continue;
            }
            let lacks_room = match self.follow_client(upstream, call) {
                Ok(false) if !self.lacks_room(upstream, call) => break (permit, place),
                lacks_room => lacks_room,
            };
            next = permit.request();
            permit.withdraw();
            lacks_room?;
            self.enter(upstream, call).await?;
        };
        match self.files.of_call(self.known.as_deref()) {
            Ok(file) => Ok((permit, place, file)),
            Err(refusal) => {
                permit.withdraw();
                Err(refusal.into())
            }
        }
    }

    /// Sends the request to one upstream, and again where that is useful, with at most so many retries.
    pub(crate) async fn at(&mut self, upstream: &Arc<Backend>, call: &Estimated, retries: u32) -> Ended {
        let mut place = upstream.place_at(self.record.client, &call.cost);
        let mut next = self.request(upstream, call, place.number(), retries);
        // `last`: how the last call ended, and what it means.
        let (before, mut last) = (self.told.retries, None);
        loop {
            self.record.ending = None;
            let tries = next.attempts;
            let (scope, reserved) = (Arc::clone(next.scope.name()), next.cost.clone());
            let held = self.turn(upstream, call, next, last.as_ref().map(|(class, _)| *class)).await;
            let retries = tries.saturating_sub(1);
            let leaves = match (held, last.take()) {
                (Ok(leaves), _) => leaves,
                // What the upstream said is better than what is said of it.
                (Err(NotSent { stayed_down, .. }), Some((class, answer))) => {
                    self.record.ending = Some(Ending::Answered(class));
                    return Ended { answer: ended(class, answer, self.told.retries), stayed_down, retries };
                }
                (Err(NotSent { refusal, stayed_down }), None) => {
                    return Ended { answer: Err(refusal), stayed_down, retries };
                }
            };
            place.left();
            let Some(body) = self.payload.take_for_try() else {
                let refusal = broken("its body cannot be sent a second time");
                return Ended { answer: Err(refusal), stayed_down: false, retries };
            };
            let mut departed = self.departs(upstream, leaves, scope, reserved, call);
            (self.record.calls, self.told.retries) = (self.record.calls + 1, before.saturating_add(tries));
            let sent = upstream.send(&departed, body, self.deadline - self.clock.now()).await.and_then(begun);
            let packed = sent.as_ref().ok().and_then(|answer| failure::packed(answer, self.known.is_some()));
            let received = match sent {
                Ok(answer) if failure::is_none(answer.status()) && packed.is_none() => {
                    departed.room = self.payload.take_room();
                    departed.files[0] = std::mem::take(&mut self.connection);
                    return Ended { answer: Ok(passed_on(departed, answer, self.bounds)), stayed_down: false, retries };
                }
                sent => self.whole(&mut departed, sent).await,
            };
            // The permit is dropped: nothing was learnt about the server.
            if let (Err(_), Some(refusal)) = (&received, self.payload.failure()) {
                return Ended { answer: Err(refusal), stayed_down: false, retries };
            }
            if let (Some(head), Err(error @ NoAnswer::Undecodable(_))) = (packed, &received) {
                self.record.unknown += 1;
                let (class, refusal) = unreadable(departed, head, error);
                self.record.ending = Some(Ending::Answered(class));
                return Ended { answer: Err(refusal), stayed_down: false, retries };
            }
            let (backend, bytes) = (Arc::clone(upstream), received.as_ref().map_or(0, |answer| answer.body().len()));
            let ends = move || {
                (departed.ends(&received), received.map(|answer| failure::for_client(backend.without_secrets(answer))))
            };
            let ((class, action, is_unknown), answer) = self.read(bytes, ends).await;
            self.record.unknown += u32::from(is_unknown);
            self.record.ending = Some(Ending::Answered(class));
            let (stayed_down, tries) = match action {
                NextAction::Retry { next: again, .. } if !self.payload.is_stream => {
                    next = self.not_sooner(upstream, *again);
                    last = Some((class, answer));
                    continue;
                }
                NextAction::Retry { next, .. } => (GiveUp::Retries.stayed_down(class), next.attempts),
                NextAction::GiveUp { reason, request } => (reason.stayed_down(class), request.attempts),
                _ => (false, tries),
            };
            let answer = ended(class, answer, self.told.retries);
            return Ended { answer, stayed_down, retries: tries.saturating_sub(1) };
        }
    }
}

/// The bodies of a client: with a key it has them in common for all upstreams.
fn bodies_of<'a>(known: Option<&'a Arc<Client>>, client: &'a ClientSpending) -> &'a BodiesOfClient {
    known.map_or(&client.bodies, |known| &known.bodies)
}

/// The length of the head of a request, where that is more than a usual one.
fn length_if_long<Body>(request: &Request<Body>) -> u64 {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let length = fields.sum::<usize>() + target;
    if length > USUAL_HEAD { length as u64 } else { 0 }
}

fn may_be_large(body: &RequestBody) -> bool {
    !body.is_end_stream() && body.size_hint().upper().is_none_or(|bytes| bytes > LEAST_LARGE as u64)
}

#[cfg(test)]
mod tests;
