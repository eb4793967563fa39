//! Which header fields go on, in both directions, and what a client wishes in those that are for the gateway.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use paceline_config::{is_hop_by_hop, is_of_connection, parse_duration};
use paceline_http::Call;
use paceline_http::gateway::{CLIENT, DEADLINE, PRIORITY, RETRIES};
use paceline_providers::secrets::{Secrets, is_secret_name};
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};

use crate::refusal::Refusal;

/// Fields that carry a client's key. Where the gateway has a key of its own, the client's does not go on.
pub(crate) const OF_CLIENTS: [HeaderName; 4] = [
    header::AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
];

/// Which account of a key a call is for. Under the upstream's own key no client says that: a wrong one would stop the key.
const OF_ACCOUNTS: [HeaderName; 2] =
    [HeaderName::from_static("openai-organization"), HeaderName::from_static("openai-project")];

/// What proxies tell the servers behind them of a request: its path, its host, its client. Under the upstream's own key a client
/// with a key of the gateway's says none of it: a server that heeds it would take the call for another than the one that was let
/// through.
fn is_of_a_proxy(name: &HeaderName) -> bool {
    const BEGIN: [&str; 6] = ["xforwarded", "xoriginal", "xrewrite", "xoverride", "xenvoy", "xproxy"];
    const WHOLE: [&str; 5] = ["forwarded", "xhost", "xrequesturi", "xrequesturl", "xaccelredirect"];
    let name = letters_of(name);
    WHOLE.contains(&&*name) || BEGIN.iter().any(|begin| name.starts_with(begin))
}

/// Whether a field of that name asks a server to take a request for one of another method.
pub(crate) fn names_another_method(name: &HeaderName) -> bool {
    let name = letters_of(name);
    name.contains("methodoverride")
        || matches!(&*name, "httpmethod" | "xhttpmethod" | "xmethod" | "xoverridemethod" | "xrequestmethod")
}

/// A name without what stands between its words: servers take `_`, and some of them anything, for `-`.
pub(crate) fn letters_of(name: &HeaderName) -> String {
    name.as_str().chars().filter(char::is_ascii_alphanumeric).collect()
}

/// The name that servers take for that of a field: with `-` for `_`, as programs behind CGI and WSGI do, or for another sign.
/// None for one that they take as it is.
fn taken_for(name: &HeaderName) -> Option<HeaderName> {
    let is_plain = name.as_str().bytes().all(|byte| dashed(byte) == byte);
    let dashed = || HeaderName::from_bytes(&name.as_str().bytes().map(dashed).collect::<Vec<_>>()).ok();
    if is_plain { None } else { dashed() }
}

/// Whether such a server takes one name for the other.
fn are_mixed_up(one: &HeaderName, other: &HeaderName) -> bool {
    one != other && one.as_str().bytes().map(dashed).eq(other.as_str().bytes().map(dashed))
}

const fn dashed(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte } else { b'-' }
}

/// A client's key for the gateway, where the fields above carry one for the upstream. It goes no further.
pub(crate) const KEY: HeaderName = HeaderName::from_static("x-paceline-key");

/// Whether a field of that name is one between a gateway and its clients, whatever it says, or means nothing yet. None goes on:
/// to an upstream, or from one.
pub(crate) fn is_of_the_gateway(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-paceline-")
}

/// A request that may wait for longer is a job for `paceline run`.
const LONGEST_DEADLINE: Duration = Duration::from_secs(86_400);

/// What a client asks of the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// How long its request may wait here; none where it says nothing.
    pub(crate) deadline: Option<Duration>,
    /// `batch` waits behind `interactive`, which is the default.
    pub(crate) is_batch: bool,
    /// The most retries.
    pub(crate) retries: Option<u32>,
}

impl Wishes {
    /// Reads them.
    ///
    /// # Errors
    /// A value that is none, with what was expected.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let wrong = |name: &str, value: &str, expected: &str| {
            Refusal::bad_request(format!("{name}: {value:?}: expected {expected}"))
        };
        let mut wishes = Self::default();
        if let Some(value) = text(headers, const { HeaderName::from_static(DEADLINE) }) {
            let read = parse_duration(value).ok().filter(|deadline| *deadline <= LONGEST_DEADLINE);
            let expected = "a duration of at most a day, such as 30s or 2m";
            wishes.deadline = Some(read.ok_or_else(|| wrong(DEADLINE, value, expected))?);
        }
        wishes.is_batch = match text(headers, const { HeaderName::from_static(PRIORITY) }) {
            None | Some("interactive") => false,
            Some("batch") => true,
            Some(other) => return Err(wrong(PRIORITY, other, "interactive or batch")),
        };
        if let Some(value) = text(headers, const { HeaderName::from_static(RETRIES) }) {
            wishes.retries = Some(value.parse().map_err(|_| wrong(RETRIES, value, "a number of retries"))?);
        }
        Ok(wishes)
    }
}

/// By a name that is no text: that would be read anew for each request.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?").trim())
}

/// A number as the value of a field. The usual ones take no memory.
pub(crate) fn number(number: u64) -> HeaderValue {
    match number {
        0 => HeaderValue::from_static("0"),
        1 => HeaderValue::from_static("1"),
        _ => number.into(),
    }
}

/// A number for the client that sends these: programs that show different keys or names are different clients, whatever these
/// are worth. It means nothing outside this process: the log has it, and must not help to find a key.
pub(crate) fn client(headers: &HeaderMap) -> u64 {
    static OF_PROCESS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let mut hasher = OF_PROCESS.build_hasher();
    for name in OF_CLIENTS.into_iter().chain([const { HeaderName::from_static(CLIENT) }]) {
        headers.get(name).map(HeaderValue::as_bytes).hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether the client wants a WebSocket. An offer of HTTP/2, as some clients make with each request, is ignored (RFC 9110, 7.8).
pub(crate) fn wants_websocket(headers: &HeaderMap) -> bool {
    let named = headers.get_all(header::UPGRADE).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).any(|name| name.trim().eq_ignore_ascii_case("websocket"))
}

/// Whether a field of that name, in an answer of an upstream, is for the gateway or speaks of it: of all that a browser finds
/// under its name, which is where the answer came from.
pub(crate) fn is_of_the_origin(name: &HeaderName) -> bool {
    const OF_ORIGIN: [&str; 14] = [
        "accept-ch",
        "alt-svc",
        "clear-site-data",
        "critical-ch",
        "nel",
        "report-to",
        "reporting-endpoints",
        "sec-session-registration",
        "secure-session-registration",
        "service-worker-allowed",
        "set-login",
        "speculation-rules",
        "strict-transport-security",
        "use-as-dictionary",
    ];
    is_of_the_gateway(name) || OF_ORIGIN.contains(&name.as_str())
}

/// Leaves out of an answer what has a browser ask for a name and a password, which it then sends to the whole gateway by itself.
/// A challenge for a token, which programs follow, goes on.
pub(crate) fn leave_out_logins(headers: &mut HeaderMap) {
    const LOGINS: [&str; 4] = ["basic", "digest", "negotiate", "ntlm"];
    let is_login = |value: &&HeaderValue| {
        let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        text.split([' ', '\t', ',', '=', '"']).any(|word| LOGINS.contains(&word))
    };
    let challenges = headers.get_all(header::WWW_AUTHENTICATE).iter();
    let kept: Vec<_> = challenges.filter(|value| !is_login(value)).cloned().collect();
    headers.remove(header::WWW_AUTHENTICATE);
    kept.into_iter().for_each(|value| _ = headers.append(header::WWW_AUTHENTICATE, value));
}

/// What is secret in a call, by its names: the values of header fields, of cookies and of the query.
pub(crate) fn secrets_of(call: &Call) -> Secrets {
    let fields = call.headers.iter().filter(|(name, _)| is_secret_name(name.as_str())).map(|(_, value)| value.clone());
    let cookies = call.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let cookies = cookies.flat_map(|value| value.split(';')).filter_map(|pair| Some(pair.split_once('=')?.1.trim()));
    let query =
        call.url.split_once('?').map_or("", |(_, query)| query).split('&').filter_map(|pair| pair.split_once('='));
    let query = query.filter(|(name, _)| is_secret_name(name)).map(|(_, value)| value);
    let decoded = |value: &str| HeaderValue::from_bytes(&percent_decode_str(value).collect::<Vec<_>>()).ok();
    Secrets::of(&fields.chain(cookies.chain(query).filter_map(decoded)).collect::<Vec<_>>())
}

/// A client's header fields as the upstream gets them, under those of the upstream: its key replaces the client's. `is_known`:
/// the client has a key of the gateway's.
pub(crate) fn to_upstream(mut headers: HeaderMap, own: &HeaderMap, is_known: bool) -> HeaderMap {
    let takes_trailers = text(&headers, header::TE).is_some_and(|kinds| kinds.contains("trailers"));
    leave_out(&mut headers, own.values().any(HeaderValue::is_sensitive), is_known);
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // What is compressed cannot be read on its way.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let of_own = |name: &&HeaderName| own.keys().any(|own| are_mixed_up(own, name));
    let others: Vec<_> = headers.keys().filter(of_own).cloned().collect();
    others.iter().for_each(|name| drop(headers.remove(name)));
    for (name, value) in own {
        if value.is_sensitive() || !headers.contains_key(name) {
            headers.insert(name, value.clone());
        }
    }
    headers
}

/// Leaves out what does not go on of a client's header fields, in a request as in the line of a batch. `has_key`: the upstream
/// has one of its own.
pub(crate) fn leave_out(headers: &mut HeaderMap, has_key: bool, is_known: bool) {
    // The gateway's own connection to the upstream has others.
    let stays_here = |name: &HeaderName| {
        matches!(*name, header::HOST | header::EXPECT)
            || is_of_the_gateway(name)
            || (has_key && (OF_CLIENTS.contains(name) || OF_ACCOUNTS.contains(name)))
            || (has_key && is_known && (is_of_a_proxy(name) || names_another_method(name)))
    };
    // It would reach the upstream beside that one, or in its place.
    let is_taken_for_one =
        |name: &HeaderName| taken_for(name).is_some_and(|name| is_of_connection(&name) || stays_here(&name));
    remove_those_of_connection(headers, |name| stays_here(name) || is_taken_for_one(name));
}

/// By a field whose name ends so a server takes two requests for one, where it looks at no other field.
const SAME_REQUEST: &str = "idempotencykey";

/// Sets apart what clients call their requests by, in fields of that name and in the upstream's `own`: under the one key of the
/// upstream the same name of two clients would be one request, and one of them would get the other's answer. What stands there is
/// made of both names, as a UUID, which the servers take that bound it. There is no secret in it: a client that makes the UUID of
/// another one has it set apart once more.
pub(crate) fn set_apart(headers: &mut HeaderMap, own: Option<&HeaderName>, client: &str) {
    let own = own.map(letters_of);
    for (name, value) in headers.iter_mut() {
        let letters = letters_of(name);
        if letters.ends_with(SAME_REQUEST) || own.as_ref() == Some(&letters) {
            *value = of_client(client, value);
        }
    }
}

fn of_client(client: &str, name: &HeaderValue) -> HeaderValue {
    let hash = Sha256::new().chain_update(client).chain_update([0]).chain_update(name).finalize();
    let half = hash.first_chunk().copied().unwrap_or_default();
    let text = uuid::Builder::from_custom_bytes(half).into_uuid().to_string();
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("-"))
}

/// Removes a client's keys.
pub(crate) fn remove_keys(headers: &mut HeaderMap) {
    OF_CLIENTS.iter().for_each(|name| drop(headers.remove(name)));
}

/// Removes the fields that belong to the connection that they came on, and `others`. A length beside chunks is one that was not
/// read.
pub(crate) fn remove_those_of_connection(headers: &mut HeaderMap, others: impl Fn(&HeaderName) -> bool) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let ends_here: Vec<HeaderName> =
        headers.keys().filter(|name| is_hop_by_hop(name) || others(name)).cloned().collect();
    named.iter().chain(&ends_here).for_each(|name| drop(headers.remove(name)));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(field).collect()
    }

    #[test]
    fn the_upstreams_key_replaces_that_of_the_client() {
        let mut own = map(&[("authorization", "Bearer real"), ("anthropic-version", "2023-06-01")]);
        own.get_mut("authorization").expect("it is there").set_sensitive(true);
        let client = map(&[
            ("authorization", "Bearer dummy"),
            ("x-api-key", "dummy"),
            ("openai-organization", "org-other"),
            ("anthropic-version", "2024-01-01"),
            ("connection", "keep-alive, X-Private"),
            ("x-private", "1"),
            ("x-paceline-priority", "batch"),
            ("x-paceline-client", "nightly"),
            ("x-paceline-attempts", "1"),
            ("x-paceline-upstream", "other"),
            ("accept-encoding", "gzip"),
            ("host", "127.0.0.1:4747"),
            ("x-kept", "1"),
            ("x-forwarded-for", "10.0.0.1"),
        ]);
        let expected = map(&[
            ("authorization", "Bearer real"),
            ("anthropic-version", "2024-01-01"),
            ("accept-encoding", "identity"),
            ("x-kept", "1"),
            ("x-forwarded-for", "10.0.0.1"),
        ]);
        assert_eq!(to_upstream(client.clone(), &own, false), expected);
        let keyless = to_upstream(client, &HeaderMap::new(), true);
        assert_eq!(keyless["authorization"], "Bearer dummy", "without a key of ours the client's goes on");
        let of_proxies = map(&[
            ("forwarded", "host=a"),
            ("x-forwarded-host", "a"),
            ("x-original-url", "/admin"),
            ("x-rewrite-url", "/admin"),
            ("x-kept", "1"),
        ]);
        let names = |headers: HeaderMap| headers.keys().map(|name| name.as_str().to_owned()).collect::<Vec<_>>();
        let kept = names(to_upstream(of_proxies, &own, true));
        assert_eq!(kept, ["x-kept", "accept-encoding", "authorization", "anthropic-version"]);
    }

    #[test]
    fn a_name_that_servers_take_for_one_of_ours_does_not_go_on() {
        let mut own = map(&[("x-own-key", "real"), ("anthropic-version", "2023-06-01")]);
        own.get_mut("x-own-key").expect("it is there").set_sensitive(true);
        let respelt = [
            "x_api_key",
            "x_api-key",
            "api_key",
            "x_goog_api_key",
            "x.api.key",
            "openai_organization",
            "content_length",
            "transfer_encoding",
            "proxy_authorization",
            "keep_alive",
            "accept_encoding",
            "x_forwarded_for",
            "x_forwarded-host",
            "x_original_url",
            "x_paceline_client",
            "x-paceline_key",
            "x_own_key",
            "x_own-key",
            "anthropic_version",
        ];
        let kept = ["x_team", "my_key", "content_kind", "x-api-key-id", "x_api_key_id", "_"];
        for is_known in [false, true] {
            let client = map(&respelt.map(|name| (name, "1")));
            let of_proxies = if is_known { 0 } else { 3 };
            let sent = to_upstream(client, &own, is_known);
            assert_eq!(sent.len(), 3 + of_proxies, "the two of the upstream, and accept-encoding: {sent:?}");
            let sent = to_upstream(map(&kept.map(|name| (name, "1"))), &own, is_known);
            assert!(kept.iter().all(|name| sent.contains_key(*name)), "{sent:?}");
        }
        let mut line = map(&[("x_api_key", "1"), ("x_team", "1"), ("x_paceline_key", "1")]);
        leave_out(&mut line, false, false);
        assert_eq!(line, map(&[("x_api_key", "1"), ("x_team", "1")]), "the upstream has no key of its own");
        leave_out(&mut line, true, false);
        assert_eq!(line, map(&[("x_team", "1")]), "in the line of a batch, too");
    }

    #[test]
    fn a_challenge_that_a_browser_answers_by_itself_stays_here_and_one_for_a_token_goes_on() {
        for (challenges, kept) in [
            (&["Basic realm=\"x\""][..], &[][..]),
            (
                &["Bearer resource_metadata=\"https://x/basic\"", "NTLM"],
                &["Bearer resource_metadata=\"https://x/basic\""],
            ),
            (&["Bearer realm=\"x\", basic realm=y"], &[]),
            (&["DPoP algs=\"ES256\""], &["DPoP algs=\"ES256\""]),
        ] {
            let mut headers = HeaderMap::new();
            let value = |text: &&str| text.parse::<HeaderValue>().expect("a value");
            challenges.iter().map(value).for_each(|value| _ = headers.append("www-authenticate", value));
            leave_out_logins(&mut headers);
            let found: Vec<_> = headers.get_all("www-authenticate").iter().cloned().collect();
            assert_eq!(found, kept.iter().map(value).collect::<Vec<_>>(), "{challenges:?}");
        }
    }

    #[test]
    fn what_clients_call_their_requests_by_is_their_own() {
        let named = |name: &'static str, value: &str, client: &str| {
            let mut headers = map(&[(name, ""), ("x-kept", "LIVE")]);
            headers.append(name, value.parse().expect("a value"));
            set_apart(&mut headers, Some(&HeaderName::from_static("x-once")), client);
            assert_eq!(headers["x-kept"], "LIVE");
            let last = headers.get_all(name).iter().next_back();
            last.expect("it stays").to_str().expect("a text").to_owned()
        };
        let of_a = named("idempotency-key", "LIVE", "a");
        assert_eq!(of_a, named("idempotency-key", "LIVE", "a"), "the same at each try, and in each process");
        assert_eq!((of_a.len(), of_a.contains("LIVE")), (36, false), "{of_a}");
        for (name, value, client) in
            [("idempotency-key", "LIVE", "b"), ("idempotency-key", "live", "a"), ("idempotency-key", "IVE", "aL")]
        {
            assert_ne!(of_a, named(name, value, client), "{value} of {client}");
        }
        for name in ["x-once", "x_once", "idempotency_key", "idempotency.key", "x-idempotency-key"] {
            assert_eq!(of_a, named(name, "LIVE", "a"), "{name}, as some servers read it");
        }
        assert_ne!(of_a, named("idempotency-key", &of_a, "b"), "made by another client");
    }

    #[test]
    fn a_websocket_is_told_from_an_offer_of_http_2() {
        for (upgrade, expected) in [("h2c", false), ("websocket", true), ("h2c, WebSocket", true)] {
            assert_eq!(wants_websocket(&map(&[("upgrade", upgrade)])), expected);
        }
    }

    #[test]
    fn wishes_are_read_and_refused() {
        let read = |pairs: &[(&'static str, &'static str)]| Wishes::of(&map(pairs));
        let all = [(DEADLINE, "90s"), (PRIORITY, "batch"), (RETRIES, "2")];
        let expected = Wishes { deadline: Some(Duration::from_secs(90)), is_batch: true, retries: Some(2) };
        assert_eq!(read(&all), Ok(expected));
        assert_eq!(read(&[]), Ok(Wishes::default()));
        for wrong in [(DEADLINE, "soon"), (DEADLINE, "400d"), (PRIORITY, "high"), (RETRIES, "-1")] {
            assert!(read(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
