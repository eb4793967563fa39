//! Which calls of an upstream wait together, and under which configured limits.

use paceline_config::Upstream;
use paceline_core::Limits;
use paceline_providers::Dialect;
use paceline_providers::table::Scope;

/// What is limited together with a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Together {
    scope: Scope,
    /// The gateway that keeps the limits, where calls go through one.
    gateway: Option<String>,
    /// The limits over all scopes.
    account: Vec<String>,
    /// Tiers with limits of their own.
    tiers: Vec<(String, Vec<String>)>,
}

impl Together {
    /// Of a provider, as an upstream of the configuration has it, if there is one.
    pub(super) fn of(dialect: &Dialect, upstream: Option<&Upstream>) -> Self {
        let tiers = upstream.map(|upstream| &upstream.pacer.tiers).into_iter().flatten();
        Self {
            scope: dialect.scope(),
            gateway: upstream.and_then(|upstream| Some(upstream.via.as_ref()?.gateway.to_string())),
            account: upstream.map(|upstream| describe(&upstream.pacer.limits)).unwrap_or_default(),
            tiers: tiers.map(|(name, limits)| (name.to_string(), describe(limits))).collect(),
        }
    }

    /// The name that `scope` has in the configuration.
    pub(super) const fn name(&self) -> &'static str {
        match self.scope {
            Scope::Model => "model",
            Scope::Endpoint => "endpoint",
            Scope::Host => "host",
            Scope::Table => "table",
            Scope::Group => "group",
            _ => "key",
        }
    }

    /// The calls of one scope.
    pub(super) const fn calls(&self) -> &'static str {
        match self.scope {
            Scope::Model => "the calls of one path and one model",
            Scope::Endpoint => "the calls of one path",
            Scope::Host => "the calls to one host",
            Scope::Table => "the calls that name one table",
            Scope::Group => "the calls of one group, and without a group those whose paths begin alike",
            _ => "all calls with one key",
        }
    }

    /// The configured limits, in the words of a run.
    pub(super) fn limits(&self) -> Vec<String> {
        let mut limits = Vec::new();
        limits.extend(self.gateway.as_ref().map(|gateway| format!("the gateway {gateway} keeps the limits")));
        limits.extend(self.account.iter().map(|limit| format!("the limit of {limit} over all scopes")));
        for (tier, own) in &self.tiers {
            limits.extend(own.iter().map(|limit| format!("the limit of {limit} in the tier {tier}")));
        }
        limits
    }
}

fn describe(limits: &Limits) -> Vec<String> {
    limits.quotas.iter().map(|quota| quota.dimension.per(quota.limit, quota.window)).collect()
}
