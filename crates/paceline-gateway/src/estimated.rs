//! What is read of a request before it waits: whether its client may send it, what its body asks for, and what it costs.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use paceline::Cost;
use paceline_http::Call;
use paceline_providers::{Asked, Untold};

use crate::backend::Backend;
use crate::bodies::LEAST_LARGE;
use crate::clients::Client;
use crate::fallback::with_model;
use crate::refusal::Refusal;

/// A call to one upstream, and what is known of it before it leaves.
pub(crate) struct Estimated {
    pub(crate) call: Arc<Call>,
    /// What its body asks for.
    pub(crate) asked: Arc<Asked>,
    pub(crate) scope: String,
    pub(crate) cost: Cost,
    /// What it takes of the limits of its client, and counts with in what is shown of that.
    pub(crate) of_client: Cost,
    /// What counts of it there where nothing tells its tokens.
    pub(crate) untold: Untold,
    /// Prints of what its body names that its server adds to the prompt.
    pub(crate) named: Arc<[u64]>,
}

impl Estimated {
    /// The call of a client's request with that body; `unread` is the length of one that is not read.
    ///
    /// # Errors
    /// The client may not make it.
    pub(crate) fn of_request(
        upstream: &Backend,
        client: Option<&Client>,
        parts: Parts,
        path: String,
        body: Bytes,
        unread: Option<u64>,
    ) -> Result<Self, Refusal> {
        let call = upstream.call(parts, path, body);
        if let Some(client) = client {
            client.may_call(upstream.name(), &call, &upstream.sending.dialect, unread.is_none())?;
        }
        let named = client.map(|client| client.named(&call, &upstream.sending.dialect)).unwrap_or_default();
        let estimated = Self::of_call(upstream, call, unread);
        let untold = match client {
            Some(client) if !named.is_empty() => {
                estimated.untold.with_context(&estimated.call.body, client.contexts.of(&named))
            }
            _ => estimated.untold,
        };
        Ok(Self { untold, named: named.into(), ..estimated })
    }

    /// The same call to another upstream in the place of its own, perhaps with another model; none where it names no model that
    /// could be another, or its client may not make it.
    pub(crate) fn of_fallback(
        upstream: &Backend,
        client: Option<&Client>,
        parts: Parts,
        path: String,
        body: Bytes,
        model: Option<&str>,
    ) -> Option<Self> {
        let body = model.map_or(Some(body.clone()), |model| with_model(&body, model))?;
        let call = upstream.call(parts, path, body);
        let may = |client: &Client| client.may_call(upstream.name(), &call, &upstream.sending.dialect, true).is_ok();
        client.is_none_or(may).then(|| Self::of_call(upstream, call, None))
    }

    fn of_call(upstream: &Backend, call: Call, unread: Option<u64>) -> Self {
        let asked = Asked::of(&call.body);
        if call.body.len() > LEAST_LARGE {
            // Its answer is compared with the prompt, whatever its path.
            asked.read_prompt(&call.body);
        }
        let (scope, cost, ratio) = upstream.scope_and_cost(&call, &asked, unread);
        let (of_client, untold) = upstream.cost_elsewhere(&call, &asked, &cost, &ratio);
        Self { call: Arc::new(call), asked: Arc::new(asked), scope, cost, of_client, untold, named: Arc::default() }
    }

    /// What it takes of the limits of its client, by the answers so far.
    pub(crate) fn of_client_now(&self, upstream: &Backend) -> Cost {
        let ratio = upstream.ratios.of(&self.scope);
        upstream.sending.dialect.charge_anew(&self.of_client, &self.call.body, &self.asked, &ratio)
    }
}
