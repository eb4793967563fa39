//! The names that exist in a configuration file, and nothing yet about whether their values make sense.
//!
//! The environment and the flags fill the same structs, so that every layer knows the same knobs. The JSON Schema that
//! editors use is generated from here; what a field's comment says is what the editor shows.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::json_schema::{
    BodyName, CachedInputName, ClassName, ConcurrencyChoice, Count, CountsName, FleetOnLossName, HeaderList,
    JitterChoice, Length, LimitList, LimitShape, NameList, PaceName, PriceTable, ProviderName, ReservesName,
    RestoresName, ScopeName, StatusRange, UnknownOutcomeName,
};
use super::setting::{Layered, Locator, Setting};
use super::shapes::{HeaderSettings, Priced, Settings, number_or_table};

/// A table of the file: a struct of optional fields, with both methods of [`Layered`] field by field.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Deserialize, JsonSchema, Default, Clone)]
        #[serde(deny_unknown_fields, expecting = "a table of settings")]
        pub(crate) struct $name { $($(#[$doc])* pub(crate) $field: Option<$type>,)* }

        impl Layered for $name {
            fn over(self, lower: Self) -> Self {
                Self { $($field: self.$field.over(lower.$field),)* }
            }

            fn locate(&mut self, locator: &Locator<'_>) {
                $(self.$field.locate(locator);)*
            }
        }
    };
}

/// A table that has limits of its own: their keys are the same for an upstream and for a tier.
macro_rules! section_with_limits {
    ($(#[$meta:meta])* $name:ident { $($rest:tt)* }) => {
        section! {
            $(#[$meta])*
            $name {
                $($rest)*
                /// Requests per second, more than 0.
                #[schemars(with = "Option<Count>")]
                rps: Setting,
                /// Requests per minute, more than 0.
                #[schemars(with = "Option<Count>")]
                rpm: Setting,
                /// Requests per hour, more than 0.
                #[schemars(with = "Option<Count>")]
                rph: Setting,
                /// Requests per day, more than 0.
                #[schemars(with = "Option<Count>")]
                rpd: Setting,
                /// Tokens, in and out together, per second, more than 0.
                #[schemars(with = "Option<Count>")]
                tps: Setting,
                /// Tokens, in and out together, per minute, more than 0.
                #[schemars(with = "Option<Count>")]
                tpm: Setting,
                /// Tokens, in and out together, per hour, more than 0.
                #[schemars(with = "Option<Count>")]
                tph: Setting,
                /// Tokens, in and out together, per day, more than 0.
                #[schemars(with = "Option<Count>")]
                tpd: Setting,
                /// Input tokens per minute, more than 0.
                #[schemars(with = "Option<Count>")]
                itpm: Setting,
                /// Output tokens per minute, more than 0.
                #[schemars(with = "Option<Count>")]
                otpm: Setting,
                /// Further limits, as people write them: `["90 per 10s", "1M tokens per 1h"]`.
                #[schemars(with = "Option<LimitList>")]
                limits: Settings,
                /// Requests that may leave at once after idling, at least 1. Default: the shortest request limit divided
                /// by its window in seconds, rounded up.
                #[schemars(with = "Option<Count>")]
                burst: Setting,
                /// How the limit that `burst` refines is kept: `sliding`, never more than the limit in any window, or
                /// `bucket`, refilled evenly with room for `burst`, so that a window may see both. Default: `sliding`.
                #[schemars(with = "Option<LimitShape>")]
                shape: Setting,
            }
        }

        impl $name {
            /// The rate keys that were given.
            pub(crate) fn rates(&self) -> impl Iterator<Item = (&'static str, &Setting)> {
                let keys = [
                    ("rps", &self.rps), ("rpm", &self.rpm), ("rph", &self.rph), ("rpd", &self.rpd),
                    ("tps", &self.tps), ("tpm", &self.tpm), ("tph", &self.tph), ("tpd", &self.tpd),
                    ("itpm", &self.itpm), ("otpm", &self.otpm),
                ];
                keys.into_iter().filter_map(|(key, setting)| Some((key, setting.as_ref()?)))
            }
        }
    };
}

/// Limits and habits of the APIs that Paceline calls.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
#[schemars(title = "paceline.toml")]
pub(crate) struct FileSection {
    /// One entry for each API account, by a name of your choice: letters, digits, `-` and `_`.
    #[serde(default)]
    pub(crate) upstream: BTreeMap<String, UpstreamSection>,
}

section_with_limits! {
    /// One API account: a host and a key.
    UpstreamSection {
        /// The dialect that the API speaks. Default: the entry's name if it is known, else `generic`.
        #[schemars(with = "Option<ProviderName>")]
        provider: Setting,
        /// Where the API is, `http://` or `https://`. Default: the provider's own address.
        #[schemars(with = "Option<String>")]
        base_url: Setting,
        /// The gateway that calls go through, which is `paceline serve` and knows this upstream by its name, or `none`. The
        /// limits, the pace and the key are the gateway's then. With a path the address is taken as it is. Default: none.
        #[schemars(with = "Option<String>")]
        via: Setting,
        /// The store with the ledger of a fleet, `redis://`, `rediss://` or `postgres://`, or `none`: the configured limits are
        /// those of all processes that name it with the same host and key. Default: none.
        #[schemars(with = "Option<String>")]
        fleet: Setting,
        /// What leaves once the store of the fleet has been away for a lease: nothing (`strict`), or what the last share allows
        /// (`keep`). Default: `strict`.
        #[schemars(with = "Option<FleetOnLossName>")]
        fleet_on_loss: Setting,
        /// How long a process of the fleet goes on without the store, the same in all of them, `3s` to `5m`; after it and a
        /// window the others have what a killed one held. Default: `30s`.
        #[schemars(with = "Option<Length>")]
        fleet_lease: Setting,
        /// How long a call may be in flight, the same in all processes of the fleet, `1s` to `24h`: where a limit on the calls in
        /// flight is shared (`"50 concurrent"`), the places of a process that was killed come back after a lease and so long.
        /// Default: `10m`.
        #[schemars(with = "Option<Length>")]
        fleet_longest_call: Setting,
        /// The part of this process in its fleet where all want more than there is, 1 to 16. Default: 1.
        #[schemars(with = "Option<Count>")]
        weight: Setting,
        /// What this process may use without the store of its fleet, of what is set aside of the limits for all processes:
        /// `["6 of 60rpm"]`. What is set aside is the same in all processes. Default: nothing.
        #[schemars(with = "Option<LimitList>")]
        alone_share: Settings,
        /// The environment variable that holds the key. Default: the provider's usual one.
        #[schemars(with = "Option<String>")]
        api_key_env: Setting,
        /// The file that holds the key. Default: none.
        #[schemars(with = "Option<String>")]
        api_key_file: Setting,
        /// The header that carries the key. Default: the provider's, `authorization` for `generic`.
        #[schemars(with = "Option<String>")]
        key_header: Setting,
        /// The word before the key: `Bearer`, `Basic`, `Token`, or `none`. Under `Basic` a key with a `:` is a name and a
        /// password, and is encoded. Default: the provider's, `Bearer` for `generic`; none for a `key_header` of your own.
        #[schemars(with = "Option<String>")]
        key_scheme: Setting,
        /// Headers that every call carries, by name.
        #[schemars(with = "Option<HeaderList>")]
        headers: HeaderSettings,
        /// Certificates of authorities, in PEM, that are trusted beside the system's. Default: none.
        #[schemars(with = "Option<String>")]
        ca_file: Setting,
        /// The client's certificate, with its chain, in PEM. Default: none.
        #[schemars(with = "Option<String>")]
        client_cert: Setting,
        /// The key of the client's certificate, in PEM. Default: none.
        #[schemars(with = "Option<String>")]
        client_key: Setting,
        /// The header by which the API knows that two calls are one request, or `none`. Default: the provider's, where it
        /// documents one.
        #[schemars(with = "Option<String>")]
        idempotency_header: Setting,
        /// What follows from a call of which nothing tells whether it was done: `resend`, `fail` or `hold`. Read of `POST`
        /// and `PATCH` without a key in the idempotency header; others are sent again. Default: `resend` for prompts of
        /// language models, else `hold`.
        #[schemars(with = "Option<UnknownOutcomeName>")]
        unknown_outcome: Setting,
        /// The proxy to go through, `http://` or `https://`, or `none`. Default: as `HTTPS_PROXY` and its kin say, and none for
        /// this machine's own addresses.
        #[schemars(with = "Option<String>")]
        proxy: Setting,
        /// Who decides how fast calls leave: `auto`, `fixed`, `aimd`, `responsive`, `linear`, `exponential`, `none`
        /// or a preset. Default: `auto`.
        #[schemars(with = "Option<PaceName>")]
        pace: Setting,
        /// The first rate under the pace `auto`, in calls a second, more than 0, at most 1,000,000. Default: 2, or twice the
        /// request limit where one is configured.
        #[schemars(with = "Option<f64>", range(min = 0.0, max = 1_000_000.0))]
        start: Setting,
        /// Calls in flight: a number, which is the maximum, or a table.
        #[serde(default, deserialize_with = "number_or_table")]
        #[schemars(with = "Option<ConcurrencyChoice>")]
        concurrency: ConcurrencySection,
        /// When and how often an item is sent again.
        retry: RetrySection,
        /// Times that an item is put off because of limits before it fails, 0 to 1,000,000. Default: no bound.
        #[schemars(with = "Option<Count>")]
        max_deferrals: Setting,
        /// How long an item may take from its first send, more than 0. Default: `24h`.
        #[schemars(with = "Option<Length>")]
        deadline: Setting,
        /// The command, with its arguments, that stands in for the API where it stays down: `--fallback` of `paceline run` and
        /// `tasks run`. It gets the item on standard input as JSON and writes its result. Default: none.
        #[schemars(with = "Option<String>")]
        fallback: Setting,
        /// Where `paceline serve` sends a request while the API stays down, step by step: another upstream of the same form
        /// (`NAME`), one with another model (`NAME:MODEL`), or an answer from a file (`static:FILE`, `static:STATUS:FILE`), which
        /// comes last. Default: nowhere.
        #[schemars(with = "Option<NameList>")]
        fallback_to: Settings,
        /// The share of the places in flight, and of each window, that requests of the priority `batch` leave to interactive ones
        /// in `paceline serve`, 0 to less than 1; 0 for none. Default: 0.05.
        #[schemars(with = "Option<f64>", range(min = 0.0, max = 1.0))]
        interactive_reserve: Setting,
        /// The share of the calls that are of the priority `batch` while interactive ones make them wait, in `paceline serve`,
        /// 0 to 0.5; 0 for none. Default: 0.05.
        #[schemars(with = "Option<f64>", range(min = 0.0, max = 0.5))]
        batch_share: Setting,
        /// The delay between calls under the pace `responsive`.
        responsive: ResponsiveSection,
        /// When a scope counts as down.
        breaker: BreakerSection,
        /// Parts of the account with limits of their own, inside the account's. The first that matches is taken.
        tier: Vec<TierSection>,
        /// Answers that mean something else here than they usually do. The first that matches is taken.
        rule: Vec<RuleSection>,
        /// Header fields that announce a limit. They replace those of the provider that read one of the same fields.
        header: Vec<HeaderSection>,
        /// Header fields that hold a wait, before the usual ones: seconds or a date, milliseconds where the name ends in
        /// `-ms`.
        #[schemars(with = "Option<NameList>")]
        wait_headers: Settings,
        /// A longer wait has used up a quota: the scope is held over restarts. More than 0. Default: `1h`.
        #[schemars(with = "Option<Length>")]
        longest_pause: Setting,
        /// What is slowed down together: the calls of one `model` and path, of one `endpoint`, to one `host` (items may name
        /// others than that of `base_url`, which get no key), of one `group` of items (those without: one first part of the
        /// path), of one `table` (DynamoDB's) or of the `key`, also called `all`. Default: the provider's.
        #[schemars(with = "Option<ScopeName>")]
        scope: Setting,
        /// What a call is charged. Default: the provider's.
        charge: ChargeSection,
        /// What a million tokens cost, by model, in whatever currency: `"in=2.50,out=10"`. `*` stands for every other model;
        /// without it those count with the dearest. One text is for all models. `cached=1.25` and `cached_write=3.125` beside
        /// them are for input that a provider's cache was read for, or written with. Default: not known.
        #[schemars(with = "Option<PriceTable>")]
        price: Priced,
    }
}

section! {
    /// How many calls may be under way at once. Under the pace `auto` only `max` acts.
    ConcurrencySection {
        /// `aimd` adapts between `floor` and `max`, `fixed` always allows `max`. Default: `aimd`; `fixed` under the paces
        /// `fixed`, `responsive`, `linear`, `exponential` and `none`.
        #[schemars(with = "Option<String>")]
        kind: Setting,
        /// Never less than this, 1 to `max`; not for `fixed`. Default: 5, or `max` if that is less.
        #[schemars(with = "Option<Count>")]
        floor: Setting,
        /// The first limit, `floor` to `max`; only for `aimd`. Default: 10, or `max` if that is less.
        #[schemars(with = "Option<Count>")]
        start: Setting,
        /// Never more than this, 1 to 100,000. Default: 512 under the pace `auto`, else 50.
        #[schemars(with = "Option<Count>")]
        max: Setting,
    }
}

section! {
    /// When and how often an item is sent again where the server does not say.
    RetrySection {
        /// Re-sends after transient failures and overload, 0 to 1,000,000; calls are one more. Default: 7.
        #[schemars(with = "Option<Count>")]
        max_retries: Setting,
        /// How the delay grows: `constant`, `linear` or `exponential`. Default: `exponential`; `linear` under the pace
        /// `linear`.
        #[schemars(with = "Option<String>")]
        kind: Setting,
        /// The first delay, more than 0 and at most `cap`; linear growth adds it each time. Default: `500ms`.
        #[schemars(with = "Option<Length>")]
        base: Setting,
        /// What each delay is multiplied by, 1 to 1000; only for `exponential`. Default: 2.
        #[schemars(with = "Option<f64>", range(min = 1.0, max = 1000.0))]
        multiplier: Setting,
        /// The longest delay, not for `constant`. Default: `60s`.
        #[schemars(with = "Option<Length>")]
        cap: Setting,
        /// `full` (0 to the delay), `equal` (half to the whole), `none`, or `[low, high]` with
        /// 0 <= low <= high <= 1. Default: `full`.
        #[schemars(with = "Option<JitterChoice>")]
        jitter: Setting,
    }
}

section! {
    /// The delay between the calls of a scope under the pace `responsive`: up after a throttled or overloaded answer, down
    /// after successes.
    ResponsiveSection {
        /// The delay after the first failure, more than 0 and at most `max`. Default: `500ms`.
        #[schemars(with = "Option<Length>")]
        initial: Setting,
        /// The longest delay. Default: `15m`.
        #[schemars(with = "Option<Length>")]
        max: Setting,
        /// Randomness never moves a delay by more than this, 0 for none. Default: `2m`.
        #[schemars(with = "Option<Length>")]
        max_randomization: Setting,
        /// A failure multiplies the delay by this, more than 1, at most 1000. Default: 1.5.
        #[schemars(with = "Option<f64>", range(min = 1.0, max = 1000.0))]
        up: Setting,
        /// A step down multiplies the delay by this, more than 0, less than 1. Default: 0.9.
        #[schemars(with = "Option<f64>", range(min = 0.0, max = 1.0))]
        down: Setting,
        /// Randomness moves a step by at most this share, 0 to less than 1. Default: 0.3.
        #[schemars(with = "Option<f64>", range(min = 0.0, max = 1.0))]
        randomization: Setting,
        /// Successes in a row before a step down, at least 1. Default: 10.
        #[schemars(with = "Option<Count>")]
        threshold: Setting,
        /// A delay that shrinks below this becomes 0; `initial` where that is less; not with `compat`. Default: `1ms`.
        #[schemars(with = "Option<Length>")]
        min_delay: Setting,
        /// The delay halves with each such time without a call, more than 0; not with `compat`. Default: none.
        #[schemars(with = "Option<Length>")]
        idle_half_life: Setting,
        /// The classic rule, to the nanosecond, defects included. Default: false.
        #[schemars(with = "Option<bool>")]
        compat: Setting,
    }
}

section! {
    /// When a scope counts as down: nothing but a probe at a time is sent then.
    BreakerSection {
        /// The share of failures that opens it, more than 0, at most 1. Default: 0.5.
        #[schemars(with = "Option<f64>", range(min = 0.0, max = 1.0))]
        share: Setting,
        /// How many outcomes are looked at, 1 to 10,000. Default: 50.
        #[schemars(with = "Option<Count>")]
        last: Setting,
        /// Fewer outcomes than this say nothing, 1 to `last`. Default: 20.
        #[schemars(with = "Option<Count>")]
        least: Setting,
        /// Older outcomes are forgotten. Default: `10s`.
        #[schemars(with = "Option<Length>")]
        within: Setting,
        /// Failures must come from so many items, 1 to `last`. Default: 5.
        #[schemars(with = "Option<Count>")]
        items: Setting,
        /// How long it stays open at first; doubles at each failed probe. Default: `1s`.
        #[schemars(with = "Option<Length>")]
        open: Setting,
        /// The longest it stays open, at least `open`. Default: `30s`.
        #[schemars(with = "Option<Length>")]
        open_max: Setting,
    }
}

section_with_limits! {
    /// A part of the account with limits of its own. Exactly one of `match`, `model`, `label` and `host` says which calls.
    TierSection {
        /// The calls whose path begins so.
        #[serde(rename = "match")]
        #[schemars(with = "Option<String>")]
        path: Setting,
        /// The calls that name this model.
        #[schemars(with = "Option<String>")]
        model: Setting,
        /// The items with this `metadata.label`.
        #[schemars(with = "Option<String>")]
        label: Setting,
        /// The calls to this host, such as `slow.example` or `slow.example:8080`.
        #[schemars(with = "Option<String>")]
        host: Setting,
    }
}

section! {
    /// Header fields that announce one limit. Needed is `used_of_limit`, or `limit` or `remaining`.
    HeaderSection {
        /// What is counted: `requests`, `tokens`, `input_tokens`, `output_tokens` or a name of its own. Default: `requests`.
        #[schemars(with = "Option<String>")]
        of: Setting,
        /// The field with the units of a window.
        #[schemars(with = "Option<String>")]
        limit: Setting,
        /// The field with the units left.
        #[schemars(with = "Option<String>")]
        remaining: Setting,
        /// The field that says when all of it is back: seconds, `6m0s`, a date or seconds since 1970.
        #[schemars(with = "Option<String>")]
        reset: Setting,
        /// A field such as `32/40` instead.
        #[schemars(with = "Option<String>")]
        used_of_limit: Setting,
        /// How the limit comes back: `gradually`, `at_once` (at the reset) or `unknown`, which only shows it. Default:
        /// `at_once`.
        #[schemars(with = "Option<RestoresName>")]
        restores: Setting,
        /// The period that the limit refers to. Default: what follows from the fields.
        #[schemars(with = "Option<Length>")]
        window: Setting,
    }
}

section! {
    /// What a call is charged.
    ChargeSection {
        /// Tokens that must have room before a call leaves: `input_and_output` (the longest answer), `larger` of the two, or
        /// `input`.
        #[schemars(with = "Option<ReservesName>")]
        reserves: Setting,
        /// Which tokens a limit on tokens counts: `all` or `input`.
        #[schemars(with = "Option<CountsName>")]
        counts: Setting,
        /// Whether tokens that were reserved and not used come back.
        #[schemars(with = "Option<bool>")]
        refunds: Setting,
        /// Whether input that the provider had in its cache `counts` or is `free`.
        #[schemars(with = "Option<CachedInputName>")]
        cached_input: Setting,
        /// How often a token of the answer counts, 1 to 100.
        #[schemars(with = "Option<Count>")]
        output_weight: Setting,
        /// Answers that cost nothing: statuses and classes.
        #[schemars(with = "Option<NameList>")]
        free: Settings,
    }
}

section! {
    /// An answer that means something else here than it usually does.
    RuleSection {
        /// Which answers; all that is given must hold.
        #[serde(rename = "match")]
        matches: MatchSection,
        /// What they mean: `throttled`, `overloaded`, `transient`, `quota_exhausted`, `account`, `invalid`, `filtered`
        /// or `success`.
        #[schemars(with = "Option<ClassName>")]
        class: Setting,
        /// What the answer is about: `item`, `model` or `host` (the scope), or `key` (the account). Default: `model`.
        #[schemars(with = "Option<String>")]
        scope: Setting,
        /// How long to wait. `0s` is at once. Default: what the answer says, else the backoff.
        #[schemars(with = "Option<Length>")]
        wait: Setting,
    }
}

section! {
    /// Which answers a rule is about; all that is given must hold, and something must be given.
    MatchSection {
        /// A status, or a range: `400`, `"500-599"`.
        #[schemars(with = "Option<StatusRange>")]
        status: Setting,
        /// The code or type of the error, wherever the answer carries it.
        #[schemars(with = "Option<String>")]
        code: Setting,
        /// A place in a JSON body (RFC 6901), such as `/error/code`.
        #[schemars(with = "Option<String>")]
        pointer: Setting,
        /// A header that the answer must have.
        #[schemars(with = "Option<String>")]
        header: Setting,
        /// `not_json`: a body that is no JSON, such as a page or half an object.
        #[schemars(with = "Option<BodyName>")]
        body: Setting,
        /// A text that stands in the first 64 KiB of the body, whatever that is; upper and lower case count.
        #[schemars(with = "Option<String>")]
        contains: Setting,
        /// What is found at the pointer or in the header. Default: anything.
        #[schemars(with = "Option<String>")]
        equals: Setting,
    }
}
