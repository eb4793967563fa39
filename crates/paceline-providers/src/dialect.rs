//! The dialect of an API: the table of its provider, as a configuration changes it.

use std::borrow::Cow;
use std::time::Duration;

use http::header::{CONTENT_TYPE, DATE};
use http::{HeaderMap, HeaderName, Method};
use paceline_core::{Class, LimitReport, LimitScope, Timestamp, UnknownOutcome};

use super::body::{Body, Wanted};
use super::case::{Case, Classification, Fault};
use super::decide;
use super::expected::Expected;
use super::header::Lengths;
use super::reading::Reading;
use super::rule::Rule;
use super::settlement::Settlement;
use super::table::{COMMON, Charge, LimitHeaders, Provider, Scope, Table};
use super::{Answer, cost, ending, header, limits, names, refusal, shape, wait};

/// A longer wait is a used-up quota, to be kept on disk, and not a pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// ACME's answers carry it; it is no request id, and a secret: its holder can use it.
pub(crate) const NONCE: &str = "replay-nonce";

/// The dialect of an API: a provider's table, and the changes of a configuration.
///
/// ```
/// use paceline_providers::table::{Fields, LimitHeaders};
/// use paceline_providers::{Answer, Dialect, Provider};
/// use paceline_core::{Dimension, RefillMode, Timestamp};
///
/// let fields = Fields { remaining: Some("x-calls-left".parse()?), ..Fields::default() };
/// let calls = LimitHeaders::new(Dimension::Requests, fields, RefillMode::AtOnce);
/// let dialect = Dialect::from(Provider::Generic).with_limit(calls);
/// let headers = http::HeaderMap::from_iter([("x-calls-left".parse()?, "7".parse()?)]);
/// let answer = Answer { status: 200, headers: &headers, body: b"{}", path: "/" };
/// assert_eq!(dialect.read(&answer, Timestamp::from_millis(0)).limits[0].remaining, Some(7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Dialect {
    provider: Provider,
    table: Cow<'static, Table>,
    rules: Vec<Rule>,
    rule_places: Vec<String>,
    wait_headers: Vec<HeaderName>,
    longest_pause: Duration,
    expected: Option<Expected>,
    keyless: bool,
}

impl From<Provider> for Dialect {
    /// The provider's table without changes.
    fn from(provider: Provider) -> Self {
        Self {
            provider,
            table: Cow::Borrowed(provider.table()),
            rules: Vec::new(),
            rule_places: Vec::new(),
            wait_headers: Vec::new(),
            longest_pause: LONGEST_PAUSE,
            expected: None,
            keyless: false,
        }
    }
}

impl Dialect {
    /// The provider of the table.
    pub const fn provider(&self) -> Provider {
        self.provider
    }

    /// The table with the changes.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The rules that are applied before the table.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The longest wait that is a pause; what asks for more has used up a quota. Default: 1 h.
    pub const fn longest_pause(&self) -> Duration {
        self.longest_pause
    }

    /// With rules that are applied before the table: the first that matches an answer decides about it.
    #[must_use]
    pub fn with_rules(mut self, rules: Vec<Rule>) -> Self {
        self.rules = rules;
        self
    }

    /// With the places where these rules are written, such as `paceline.toml, line 6`, for people.
    #[must_use]
    pub fn with_rule_places(mut self, places: Vec<String>) -> Self {
        self.rule_places = places;
        self
    }

    /// With a limit that headers announce. It replaces those of the provider that read one of the same fields.
    #[must_use]
    pub fn with_limit(mut self, limit: LimitHeaders) -> Self {
        let table = self.table.to_mut();
        table.limits.retain(|known| !known.shares_a_field(&limit));
        table.usual_limits.retain(|known| !known.shares_a_field(&limit));
        table.limits.push(limit);
        self
    }

    /// With another charge.
    #[must_use]
    pub fn with_charge(mut self, charge: Charge) -> Self {
        if self.table.charge != charge {
            self.table.to_mut().charge = charge;
        }
        self
    }

    /// With something else limited together; paths that the provider limits apart no longer are.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope) -> Self {
        let table = self.table.to_mut();
        table.api.scope = scope;
        table.api.paths.clear();
        self
    }

    /// With further fields that hold a wait, as `Retry-After` does, or in milliseconds where their name ends in `-ms`. They
    /// come before the usual ones.
    #[must_use]
    pub fn with_wait_headers(mut self, names: Vec<HeaderName>) -> Self {
        self.wait_headers = names;
        self
    }

    /// What is limited together.
    pub fn scope(&self) -> Scope {
        self.table.api.scope
    }

    /// Whether all calls with one key are in one scope.
    pub fn is_one_scope(&self) -> bool {
        self.scope() == Scope::Key && self.table.api.paths.is_empty()
    }

    /// With another [`Dialect::longest_pause`].
    #[must_use]
    pub const fn with_longest_pause(mut self, longest: Duration) -> Self {
        self.longest_pause = longest;
        self
    }

    /// With JSON, or what matches a schema, as the only success. Any other 2xx is a transient failure: with the code `not_json`,
    /// such as the page of a proxy or half an object, `empty_answer` or `schema_mismatch`. Where nothing else refuses it, its
    /// reading is [`unexpected`](Reading::unexpected). A 204 has no body, nor has the answer to a `HEAD`. A stream of events
    /// is JSON; a schema is that of the object that [its events add up to](super::collect).
    #[must_use]
    pub fn expecting(mut self, expected: Expected) -> Self {
        self.expected = Some(expected);
        self
    }

    /// Reads an answer. `now` is the local wall time, used where the answer carries no `Date` of its own: a wrong local
    /// clock changes no wait that the server gave as a date.
    pub fn read(&self, answer: &Answer<'_>, now: Timestamp) -> Reading {
        self.read_of(&Method::GET, answer, now)
    }

    /// Reads the answer to a request of that method: to a `HEAD` none has a body.
    pub fn read_of(&self, method: &Method, answer: &Answer<'_>, now: Timestamp) -> Reading {
        let server_time = server_time(answer.headers);
        let content_type = header::first(answer.headers, CONTENT_TYPE).unwrap_or_default();
        let table = self.table();
        let body = if (200..300).contains(&answer.status) {
            let wanted = Wanted { keys: table.api.success.as_deref(), arrays: table.is_strict() };
            Body::of_success(answer.body, content_type, wanted)
        } else {
            Body::of_refusal(answer.body, content_type)
        };
        let now = server_time.unwrap_or(now);
        let limits = limits::announced(table, answer.headers, &body, now);
        let case = Case {
            provider: self.provider,
            table,
            status: answer.status,
            headers: answer.headers,
            body: &body,
            limits: &limits,
            now,
            must_be_json: self.provider.must_be_json(answer.path, content_type),
            bodiless: *method == Method::HEAD,
            expected: self.expected.as_ref(),
            wait_headers: &self.wait_headers,
            longest_pause: self.longest_pause,
        };
        let decision = match self.rules.iter().position(|rule| rule.matches(answer.status, answer.headers, &body)) {
            Some(at) => refusal::by_user(&case, &self.rules[at], at + 1, self.rule_places.get(at).map(String::as_str)),
            None => self.without_account(answer.status, decide::decide(&case), &body),
        };
        let settlement = Settlement::of(&table.charge, answer.path, answer.status, decision.class);
        let may_lack_tokens = decision.class == Class::Success && self.is_prompt(answer.path);
        // No prompt has no tokens: a usage that tells none is none.
        let usage =
            cost::of(&body, answer.headers, &table.charge).filter(|usage| !may_lack_tokens || !usage.is_nothing());
        let settlement = match usage {
            None if may_lack_tokens => settlement.with_unreported(answer),
            Some(usage) if self.is_prompt(answer.path) && (usage.lacks_output() || usage.unread_output) => {
                settlement.with_texts(answer)
            }
            _ => settlement,
        };
        let long_period = decision.class == Class::Throttled && refusal::is_of_a_long_period(&case);
        Reading {
            steps: steps(&case, &decision, server_time.is_some(), long_period),
            code: code(&case, &decision),
            error_type: body.error_type(),
            message: message(&body, &decision),
            request_id: request_id(table, answer.headers).map(str::to_owned),
            usage,
            settlement,
            at_token_limit: decision.class == Class::Success && ending::is_at_limit(&body),
            long_period,
            limits,
            ..self.within_reach(Reading::from(decision))
        }
    }

    /// For calls without a key: a server that refuses one speaks for no other group of calls, and where each host is limited by
    /// itself, or the answer names no code, for no other page of its host. That item fails alone, unless a
    /// [rule](Dialect::with_rules) says otherwise.
    #[must_use]
    pub const fn without_key(mut self) -> Self {
        self.keyless = true;
        self
    }

    /// What an answer means where each host is limited by itself: none of it reaches further than its host. Nor does a refused
    /// key reach further than its group, where no key is sent.
    #[must_use]
    pub fn within_reach(&self, reading: Reading) -> Reading {
        let alone = match self.scope() {
            Scope::Host => true,
            Scope::Group => self.keyless && reading.class == Class::Account,
            _ => false,
        };
        let reach = if alone && reading.reach == LimitScope::Account { LimitScope::Scope } else { reading.reach };
        Reading { reach, ..reading }
    }

    /// A page that wants a key where none is sent: it has no account that could be stopped. One that wants money names no key.
    fn without_account(&self, status: u16, decision: Classification, body: &Body<'_>) -> Classification {
        // An API says by a code what is wrong; a page does not.
        let is_page = self.provider == Provider::Generic && body.codes().next().is_none();
        let of_pages = self.scope() == Scope::Host || (is_page && self.scope() != Scope::Group);
        let is_unpaid = body.code_of(&COMMON.account).is_some();
        if !self.keyless || !of_pages || is_unpaid || decision.class != Class::Account {
            return decision;
        }
        let step = decision.step + "; no key was sent, so it concerns the item alone";
        Classification { fault: Some(Fault::without_key(status, body)), ..Classification::new(Class::Invalid, step) }
    }

    /// The limits that the head of an answer announces, before its body is there. `now` as for [`read`](Self::read).
    pub fn announced(&self, headers: &HeaderMap, now: Timestamp) -> Vec<LimitReport> {
        limits::announced(self.table(), headers, &Body::of_refusal(b"", ""), server_time(headers).unwrap_or(now))
    }

    /// Whether what was configured, an expectation or a rule, reads the bodies of successes.
    pub fn reads_successes(&self) -> bool {
        self.expected.is_some() || self.rules.iter().any(|rule| rule.reads_bodies() && rule.may_match_success())
    }

    /// Whether a success has to match a schema, see [`expecting`](Self::expecting).
    pub fn expects_schema(&self) -> bool {
        self.expected.as_ref().is_some_and(Expected::is_schema)
    }

    /// Whether a call of that path is a prompt for a model, of which a second one has no effect but its cost: at an API of
    /// language models every call, elsewhere those of paths that end with `/completions` or `/embeddings`.
    pub fn is_prompt(&self, path: &str) -> bool {
        self.provider.is_prompt(path)
    }

    /// What follows if it is unknown whether a call was executed. One whose method is idempotent, or that carries a key by
    /// which the server recognises a repetition (`is_keyed`), is sent again in any case; else what is `configured` decides.
    /// Its default is [`UnknownOutcome::Resend`] for prompts of language models, which have no effect but their cost, and
    /// [`UnknownOutcome::Hold`] for everything else.
    pub fn unknown_outcome(
        &self,
        method: &Method,
        path: &str,
        is_keyed: bool,
        configured: Option<UnknownOutcome>,
    ) -> UnknownOutcome {
        if method.is_idempotent() || is_keyed {
            return UnknownOutcome::Resend;
        }
        configured.unwrap_or(if self.is_prompt(path) { UnknownOutcome::Resend } else { UnknownOutcome::Hold })
    }

    /// The name of the scope that a call belongs to: its path and model for an LLM API, the tables that its body names for
    /// DynamoDB, its path, the host of a whole address or always the same one otherwise. A query string does not count.
    pub fn scope_name(&self, path: &str, model: Option<&str>, body: &[u8]) -> String {
        self.table.api.scope_name(path, model, body)
    }
}

/// When the server sent the answer, by its own clock.
fn server_time(headers: &HeaderMap) -> Option<Timestamp> {
    header::first(headers, DATE).and_then(shape::date)
}

/// How the decision came about: the clock, the body, the rule that decided, and the wait with its source.
fn steps(case: &Case<'_>, decision: &Classification, dated: bool, long_period: bool) -> Vec<Cow<'static, str>> {
    let clock = if dated { "clock: Date of the answer" } else { "clock: local" };
    let mut steps = vec![clock.into(), case.body.step().into(), decision.step.clone()];
    match &decision.hint {
        Some(hint) => {
            steps.push(format!("wait: {:?}, from {}", hint.wait, hint.from).into());
            if decision.class == Class::QuotaExhausted && hint.wait > case.longest_pause {
                let means =
                    if decision.unnamed { "held as for a used-up quota" } else { "no pause, the quota is used up" };
                steps.push(format!("longer than {:?}: {means}", case.longest_pause).into());
            }
        }
        None if decision.waits() => {
            steps.extend(wait::passed_over(case).map(Cow::Borrowed));
            steps.push(match decision.class {
                Class::QuotaExhausted => "wait: none that is usable, one call tests it after 5 minutes".into(),
                _ => "wait: none that is usable, the backoff decides".into(),
            });
        }
        None => {}
    }
    if long_period {
        steps.push("a limit of a day or longer: used up if it refuses again right after this wait".into());
    }
    steps
}

fn code(case: &Case<'_>, decision: &Classification) -> Option<String> {
    match &decision.fault {
        Some(fault) => Some(fault.code.to_owned()),
        None if decision.class == Class::Success => case.body.code(),
        None => case.body.code().or_else(|| names::special(case.headers, case.body)),
    }
}

fn message(body: &Body<'_>, decision: &Classification) -> Option<String> {
    match &decision.fault {
        None if decision.class == Class::Success => None,
        // What stops a key is quoted, a page too: that of a ban says what a status does not.
        None if decision.class == Class::Account => body.shown_message().or_else(|| body.shown_page()),
        None => body.shown_message(),
        Some(fault) => Some(fault.message.to_string()),
    }
}

/// The server's request id: in the provider's own field, else in one that another API has for it.
fn request_id<'a>(table: &Table, headers: &'a HeaderMap) -> Option<&'a str> {
    let own = Some(&table.errors.request_id).filter(|name| *name != NONCE);
    let lengths = Lengths::of(headers);
    let mut names = own.into_iter().chain(&COMMON.request_ids).filter(|name| lengths.may_have(name));
    names.find_map(|name| header::first(headers, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_call_has_the_name_that_its_server_gives_it() {
        let field = |provider: Provider, fields: &[(&'static str, &'static str)]| {
            let headers =
                fields.iter().map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)));
            request_id(provider.table(), &headers.collect()).map(str::to_owned)
        };
        let both = [("x-request-id", "x"), ("apim-request-id", "a")];
        for (provider, fields, name) in [
            (Provider::Azure, &both[..], Some("a")),
            (Provider::OpenAi, &both, Some("x")),
            (Provider::Generic, &[("x-github-request-id", "g")], Some("g")),
            (Provider::Generic, &[("x-amzn-requestid", "w")], Some("w")),
            (Provider::Acme, &[("replay-nonce", "n")], None),
        ] {
            assert_eq!(field(provider, fields).as_deref(), name, "{provider} {fields:?}");
        }
    }

    #[test]
    fn the_head_of_an_answer_announces_what_the_whole_answer_does() {
        let fields = [("remaining-requests", "7"), ("limit-requests", "500"), ("reset-requests", "6s")];
        let field = |(name, value): (&str, &'static str)| {
            (format!("x-ratelimit-{name}").parse().expect("a name"), HeaderValue::from_static(value))
        };
        let (headers, now) = (fields.into_iter().map(field).collect(), Timestamp::from_millis(0));
        let answer = Answer { status: 200, headers: &headers, body: b"data: {}", path: "/v1/chat/completions" };
        for provider in [Provider::OpenAi, Provider::Generic] {
            let dialect = Dialect::from(provider);
            let announced = dialect.announced(&headers, now);
            assert_eq!(
                (announced[0].remaining, &announced),
                (Some(7), &dialect.read(&answer, now).limits),
                "{provider}"
            );
        }
    }

    #[test]
    fn a_prompt_is_known_by_its_api_or_its_path() {
        for (provider, path, prompt) in [
            (Provider::OpenAi, "/v1/images/generations", true),
            (Provider::Generic, "/v1/chat/completions?x=1", true),
            (Provider::Generic, "/v1/embeddings/", true),
            (Provider::Generic, "/v1/charges", false),
            (Provider::Generic, "/v1/messages", false),
            (Provider::Discord, "/channels/7/messages", false),
            (Provider::Stripe, "/v1/charges", false),
        ] {
            assert_eq!(Dialect::from(provider).is_prompt(path), prompt, "{provider} {path}");
        }
    }

    /// The scopes of each provider's limits, as far as a request shows them.
    #[test]
    fn calls_are_slowed_down_together_as_their_limits_belong_together() {
        let (chat, table) = ("/v1/chat/completions", &br#"{"TableName":"orders"}"#[..]);
        for (provider, path, model, body, scope) in [
            (Provider::OpenAi, chat, Some("m"), &b"{}"[..], "/v1/chat/completions m"),
            (
                Provider::Azure,
                "/openai/deployments/d/chat/completions?api-version=1",
                None,
                b"{}",
                "/openai/deployments/d/chat/completions",
            ),
            (Provider::Anthropic, "/v1/messages", Some("m"), b"{}", "/v1/messages m"),
            (Provider::Gemini, "/v1beta/models/m:generateContent", None, b"{}", "/v1beta/models/m:generateContent"),
            (Provider::Bedrock, "/model/m/converse", None, b"{}", "/model/m/converse"),
            (Provider::Mistral, chat, Some("m"), b"{}", "/v1/chat/completions m"),
            (Provider::Groq, chat, Some("m"), b"{}", "/v1/chat/completions m"),
            (Provider::Together, chat, Some("m"), b"{}", "/v1/chat/completions m"),
            (Provider::OpenRouter, chat, Some("m"), b"{}", "/v1/chat/completions m"),
            (Provider::DynamoDb, "/", None, table, "table orders"),
            (Provider::DynamoDb, "/", None, b"{}", "all"),
            (Provider::GitHub, "/repos/a/b", None, b"", "all"),
            (Provider::GitHub, "/search/code?q=x", None, b"", "code_search"),
            (Provider::GitHub, "/graphql", None, b"{}", "graphql"),
            (Provider::Slack, "/api/chat.postMessage", None, b"{}", "/api/chat.postMessage"),
            (Provider::Stripe, "/v1/charges", None, b"", "/v1/charges"),
            (Provider::Shopify, "/admin/api/graphql.json", None, b"{}", "all"),
            (Provider::Notion, "/v1/pages", None, b"{}", "all"),
            (Provider::Discord, "/channels/7/messages", None, b"{}", "/channels/7/messages"),
            (Provider::X, "/2/tweets", None, b"", "/2/tweets"),
            (Provider::Acme, "/acme/new-order", None, b"{}", "all"),
            (Provider::Cloudflare, "/client/v4/zones", None, b"", "all"),
        ] {
            assert_eq!(Dialect::from(provider).scope_name(path, model, body), scope, "{provider}");
        }
        let by_path = Dialect::from(Provider::GitHub).with_scope(Scope::Endpoint);
        assert_eq!(by_path.scope_name("/search/code?q=x", None, b""), "/search/code", "a user's scope knows no other");
        let by_host = Dialect::from(Provider::Generic).with_scope(Scope::Host);
        for (path, scope) in [("https://A.example/x?y", "a.example"), ("http://b.example:81/x", "b.example:81")] {
            assert_eq!(by_host.scope_name(path, None, b""), scope);
        }
        let answer = Answer { status: 401, headers: &HeaderMap::new(), body: b"", path: "" };
        let reading = by_host.read(&answer, Timestamp::from_millis(0));
        assert_eq!((reading.class, reading.reach), (Class::Account, LimitScope::Scope), "other hosts know no such key");
        let keyless = by_host.clone().without_key();
        let reading = keyless.read(&answer, Timestamp::from_millis(0));
        assert_eq!(
            (reading.class, reading.code.as_deref()),
            (Class::Invalid, Some("no_key_sent")),
            "no key, no account"
        );
        assert_eq!(reading.rule(), "401: the key is refused; no key was sent, so it concerns the item alone");
        let (equals, class) = (Vec::new(), Class::Account);
        let rules =
            vec![Rule { status: None, place: None, equals, phrase: None, class, reach: LimitScope::Scope, wait: None }];
        assert_eq!(
            keyless.with_rules(rules).read(&answer, Timestamp::from_millis(0)).class,
            Class::Account,
            "a user's word"
        );
        let by_group = Dialect::from(Provider::Generic).with_scope(Scope::Group);
        let reach = |dialect: &Dialect| dialect.read(&answer, Timestamp::from_millis(0)).reach;
        assert_eq!(reach(&by_group), LimitScope::Account, "one key for all groups");
        assert_eq!(reach(&by_group.clone().without_key()), LimitScope::Scope);
        for (path, scope) in [("/shop/7/items?q=/x", "/shop"), ("/shop", "/shop"), ("/", "/"), ("", "")] {
            assert_eq!(by_group.scope_name(path, None, b""), scope, "{path}");
        }
    }
}
