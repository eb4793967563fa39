//! What is read of a request before it waits: whether its client may send it, what its body asks for, and what it costs.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::request::Parts;
use paceline::{Cost, Dimension, PacerConfig};
use paceline_config::Price;
use paceline_http::Call;
use paceline_providers::{Asked, Untold};

use crate::backend::Backend;
use crate::bodies::LEAST_LARGE;
use crate::clients::Client;
use crate::fallback::with_model;
use crate::models::{self, decoded_path};
use crate::refusal::Refusal;
use crate::server::Gateway;

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
    /// Its body is not read.
    is_unread: bool,
    /// Found where a limit of its client is in money.
    price: OnceLock<Result<Price, Refusal>>,
}

impl Gateway {
    /// Why calls of keys with a limit in money are refused: no upstream has prices, if so.
    pub fn lacks_prices(&self) -> Option<&'static str> {
        let has_none = self.upstreams().iter().all(|upstream| upstream.config().prices.is_empty());
        let clients = self.clients();
        let mut limits = clients.with_limits().flat_map(|(_, quotas)| quotas);
        (has_none && limits.any(|quota| quota.dimension == Dimension::Money)).then_some(
            "a key of a client has a limit in money, and no upstream has prices: its calls are refused until they have (the table \
             [upstream.NAME.price] of the configuration)",
        )
    }
}

/// A request of so many tokens more counts as one more where clients take turns: small ones are one.
const TOKENS_OF_A_TURN: u64 = 1_000;

/// For how many small requests one of that cost counts.
pub(crate) fn turns(cost: &Cost) -> u64 {
    let [all, input, output] =
        [Dimension::Tokens, Dimension::InputTokens, Dimension::OutputTokens].map(|dimension| cost.get(&dimension));
    1 + all.max(input.saturating_add(output)) / TOKENS_OF_A_TURN
}

/// Whether a limit on tokens is configured.
pub(crate) fn limits_tokens(config: &PacerConfig) -> bool {
    let tiers = config.tiers.iter().map(|(_, limits)| limits);
    let mut quotas = tiers.chain([&config.limits]).flat_map(|limits| &limits.quotas);
    quotas.any(|quota| quota.dimension.is_of_tokens())
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
        estimated.price(upstream, client)?;
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
        let estimated = client.is_none_or(may).then(|| Self::of_call(upstream, call, None))?;
        estimated.price(upstream, client).ok().map(|_| estimated)
    }

    fn of_call(upstream: &Backend, call: Call, unread: Option<u64>) -> Self {
        let asked = Asked::of(&call.body);
        if call.body.len() > LEAST_LARGE {
            // Its answer is compared with the prompt, whatever its path.
            asked.read_prompt(&call.body);
        }
        let (scope, cost, ratio) = upstream.scope_and_cost(&call, &asked, unread);
        let (of_client, untold) = upstream.cost_elsewhere(&call, &asked, &cost, &ratio);
        let (call, asked, named) = (Arc::new(call), Arc::new(asked), Arc::default());
        let (is_unread, price) = (unread.is_some(), OnceLock::new());
        Self { call, asked, scope, cost, of_client, untold, named, is_unread, price }
    }

    /// What it takes of the limits of its client, by the answers so far.
    ///
    /// # Errors
    /// One of them is in money, and what the call costs cannot be told.
    pub(crate) fn of_client_now(&self, upstream: &Backend, client: &Client) -> Result<Cost, Refusal> {
        let (dialect, ratio) = (&upstream.sending.dialect, upstream.ratios.of(&self.scope));
        let cost = dialect.charge_anew(&self.of_client, &self.call.body, &self.asked, &ratio);
        let Some(price) = self.price(upstream, Some(client))? else { return Ok(cost) };
        Ok(cost.priced(price.of_tokens(dialect.dearest_input(&self.call.body))))
    }

    /// What its tokens cost there, where a limit of its client is in money.
    ///
    /// # Errors
    /// That cannot be told.
    pub(crate) fn price(&self, upstream: &Backend, client: Option<&Client>) -> Result<Option<Price>, Refusal> {
        let Some(client) = client.filter(|client| client.counts_money()) else { return Ok(None) };
        self.price.get_or_init(|| self.price_for(upstream, client)).clone().map(Some)
    }

    fn price_for(&self, upstream: &Backend, client: &Client) -> Result<Price, Refusal> {
        let path = decoded_path(&self.call);
        let body = if self.is_unread { b"it is there" } else { &*self.call.body };
        if upstream.sending.dialect.tells_no_tokens(&path, body) {
            return Err(client.may_not(&format!(
                "has a limit in money, and nothing tells before a call of {path} what it costs, for it has no tokens: use another key"
            )));
        }
        // What has no tokens, such as a list of models, costs nothing.
        if [Dimension::InputTokens, Dimension::OutputTokens].iter().all(|part| self.of_client.get(part) == 0) {
            return Ok(Price::default());
        }
        let (named, name) = (models::billed(&self.call), upstream.name());
        upstream.config().prices.dearest_of(named.iter().map(String::as_str)).map_err(|model| {
            let (what, key) = match model {
                "" => ("a request that names no model".to_owned(), "\"*\"".to_owned()),
                model => (format!("the model {model:?}"), format!("{model:?}")),
            };
            client.may_not(&format!(
                "has a limit in money, and {what} has no price at the upstream {name}: set `{key} = \"in=...,out=...\"` in the table \
                 [upstream.{name}.price] of the gateway's configuration (\"*\" is every model without a price of its own)"
            ))
        })
    }
}
