//! Where a line's call goes: to a host that the line chose only where the user says that hosts are paced one by one. The sender
//! takes no key there.

use std::borrow::Cow;

use http::Uri;
use paceline_config::Upstream;
use paceline_providers::secrets::{SECRET, hidden, is_secret_name, looks_random};
use paceline_providers::table::Scope;
use paceline_providers::{below, join_url, origin, path_of};

/// What only those can do about a line who begin the program.
pub(crate) const OTHER_HOSTS: &str = "; add --scope host to call several hosts (the others get no key)";
pub(crate) const ENDPOINT_OF_BODIES: &str = ", or --endpoint PATH for lines that are bodies";
pub(crate) const ADDRESS_IS_SET: &str = "; the address itself is set with --base-url or in paceline.toml";

/// Where lines may lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// The upstream's address, which paths stand below.
    pub(crate) base: String,
    /// That of the API, where a gateway stands between: whole addresses of lines begin with it.
    pub(crate) api: Option<String>,
    /// To any host, by a whole address.
    pub(crate) hosts: bool,
}

impl Addresses {
    /// Those of an upstream.
    pub(crate) fn of(upstream: &Upstream) -> Self {
        let base = upstream.base_url.clone().unwrap_or_default();
        let api = upstream.via.as_ref().and_then(|via| via.api.clone());
        Self { base, api, hosts: upstream.dialect.scope() == Scope::Host }
    }

    /// The address of a line: a path, or a whole address of another host.
    ///
    /// # Errors
    /// As for [`relative`].
    pub(crate) fn of_line<'a>(&self, url: Cow<'a, str>) -> Result<Cow<'a, str>, String> {
        // A password in an address is neither shown nor stored. Of its query the rest is shown: a user looks for the line.
        self.checked(url.clone()).map_err(|error| {
            let around: Vec<_> = error.split(&*url).map(hidden).collect();
            if url.is_empty() { hidden(&error).into_owned() } else { around.join(&shown(&url)) }
        })
    }

    /// The whole address of what [`of_line`](Self::of_line) has made a path, as a line may name it.
    pub(crate) fn whole<'a>(&self, url: &'a str) -> Cow<'a, str> {
        match url.starts_with('/') {
            true => join_url(self.api.as_ref().unwrap_or(&self.base), url).into(),
            false => url.into(),
        }
    }

    /// Whether an address is of a host that is only called where hosts are paced one by one.
    pub(crate) fn needs_scope_of_hosts(&self, url: &str) -> bool {
        let of_base = origin_of(&self.base);
        !self.hosts
            && self.api.is_none()
            && is_whole(url)
            && origin_of(url).is_some_and(|of| of_base.is_some_and(|base| base != of))
    }

    fn checked<'a>(&self, url: Cow<'a, str>) -> Result<Cow<'a, str>, String> {
        if self.hosts && url.is_empty() {
            return Err(
                "missing or empty: expected a web address such as https://one.example/page, or a path".to_owned()
            );
        }
        without_blank(&url)?;
        let url = match self.api.as_deref().and_then(|api| below(&url, api)) {
            Some(path) => {
                without_fragment(&url)?;
                Cow::Owned(path)
            }
            None => url,
        };
        if self.hosts && !is_whole(&url) && url.starts_with(char::is_alphanumeric) {
            return Err(format!("`{url}` is neither a whole address nor a path: write https:// or / before it"));
        }
        if !is_whole(&url) || below(&url, &self.base).is_some() {
            return relative(url, &self.base);
        }
        without_fragment(&url)?;
        if !self.hosts {
            return match origin_of(&url) {
                // Without the line's own address: the error is the same for all these lines, and they count as one.
                Some(of_line) if origin_of(&self.base).is_some_and(|base| base != of_line) => Err(match &self.api {
                    Some(api) => format!("this url is of another host than the API behind the gateway ({api})"),
                    None => {
                        format!("this url is of another host than the upstream's address {}{OTHER_HOSTS}", self.base)
                    }
                }),
                _ => relative(url, &self.base),
            };
        }
        let uri = url.parse::<Uri>().ok().filter(|uri| origin(uri).is_some());
        match uri.as_ref().and_then(Uri::authority).filter(|authority| !authority.as_str().contains('@')) {
            Some(_) => {
                // Also a port and a host that no call could reach.
                reqwest::Url::parse(&url).map_err(|error| format!("`{url}` is not a web address: {error}"))?;
                check(path_of(&url)).map(|()| url)
            }
            None => Err(wrong_character(&url).or_else(|| other_letters(&url)).unwrap_or_else(|| {
                let what = wrong_form(&url)
                    .unwrap_or("is not a web address: expected one such as https://api.example/v1/items");
                format!("`{url}` {what}")
            })),
        }
    }
}

/// An address without what is secret in it: a name and a password, and values of its query that are named so or look so.
fn shown(url: &str) -> String {
    let Some((front, query)) = url.split_once('?') else { return hidden(url).into_owned() };
    let pair = |pair: &str| match pair.split_once('=') {
        Some((name, value)) if is_secret_name(name) || looks_random(value) => format!("{name}={SECRET}"),
        _ => hidden(pair).into_owned(),
    };
    let query: Vec<_> = query.split('&').map(pair).collect();
    format!("{}?{}", hidden(front), query.join("&"))
}

fn origin_of(url: &str) -> Option<(String, String, u16)> {
    url.parse::<Uri>().ok().as_ref().and_then(origin)
}

/// The path of a call relative to the upstream's address `base`. An absolute address is accepted below that.
///
/// # Errors
/// What is wrong with the address, and the accepted form.
pub(crate) fn relative<'a>(url: Cow<'a, str>, base: &str) -> Result<Cow<'a, str>, String> {
    if url.is_empty() {
        return Err(format!("missing: expected a path such as /v1/chat/completions{ENDPOINT_OF_BODIES}"));
    }
    without_blank(&url)?;
    without_fragment(&url)?;
    let path = if is_whole(&url) {
        below(&url, base).map(Cow::Owned)
    } else {
        Some(url.clone()).filter(|url| url.starts_with('/') && !url.starts_with("//") && !url.contains('\\'))
    };
    let Some(path) = path else {
        return Err(match wrong_form(&url) {
            Some(what) => format!("`{url}` {what}"),
            None => format!(
                "`{url}` is not below the upstream's address {base}: expected a path that begins with /{ADDRESS_IS_SET}"
            ),
        });
    };
    check(&path).map(|()| path)
}

/// Refuses an address with a name and a password, whatever else is wrong with it.
///
/// # Errors
/// The address without them, and what to do.
pub(crate) fn refuse_password(url: &str) -> Result<(), String> {
    match wrong_form(url) {
        Some(what) if what == NAMED => Err(hidden(&format!("`{url}` {what}")).into_owned()),
        _ => Ok(()),
    }
}

macro_rules! run_of_its_own {
    () => {
        " (a run of its own sends them to that host: --base-url http://HOST, --key-scheme Basic, and NAME:PASSWORD as the key)"
    };
}

/// What only those can do about such an address who begin the program.
pub(crate) const RUN_OF_ITS_OWN: &str = run_of_its_own!();
const NAMED: &str = concat!("has a name and a password, which no line may have: remove them", run_of_its_own!());

/// What is wrong with an address wherever it leads, and what to do.
fn wrong_form(url: &str) -> Option<&'static str> {
    let authority = url.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?']).next().unwrap_or_default());
    if is_whole(url) && authority.contains('@') {
        Some(NAMED)
    } else if url.starts_with("//") {
        Some("begins with //: write http: or https: before it, or one / for a path")
    } else if url.starts_with('?') {
        Some("is a query without a path: write / before it")
    } else if url.contains('\\') {
        Some("has a \\: write / for a separator, and %5C for the character")
    } else {
        None
    }
}

fn is_whole(url: &str) -> bool {
    url.contains("://") && !url.starts_with('/')
}

fn without_blank(url: &str) -> Result<(), String> {
    match url.contains(char::is_whitespace) {
        true if begins_with_method(url) => {
            Err(format!("`{url}` begins with a method: remove that word, so that the address alone is left"))
        }
        true => Err(format!("`{url}` has a blank: write it as %20")),
        false => Ok(()),
    }
}

/// As in a log or a request: `GET https://one.example/page`.
fn begins_with_method(url: &str) -> bool {
    let parts = url.split_once(char::is_whitespace);
    parts.is_some_and(|(method, rest)| {
        let is_word = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
        is_word && (is_whole(rest.trim()) || rest.trim().starts_with('/'))
    })
}

fn without_fragment(url: &str) -> Result<(), String> {
    match url.contains('#') {
        true => Err(format!("`{url}` has a fragment (#...), which is never sent: remove it, or write # as %23")),
        false => Ok(()),
    }
}

fn check(url: &str) -> Result<(), String> {
    let path = url.split('?').next().unwrap_or(url);
    if path.split('/').any(is_dots) {
        return Err(format!("`{url}` has . or .. as a segment: expected a plain path"));
    }
    match url.parse::<http::uri::PathAndQuery>() {
        Ok(_) => Ok(()),
        Err(error) => Err(wrong_character(url).unwrap_or_else(|| format!("`{url}` is not a path: {error}"))),
    }
}

/// Of an address that cannot be sent, the character for it, which is nowhere in one as it is.
fn wrong_character(url: &str) -> Option<String> {
    let (character, written) =
        [('"', "%22"), ('<', "%3C"), ('>', "%3E")].into_iter().find(|(it, _)| url.contains(*it))?;
    Some(format!("the address has a {character}, which is to be written as {written}: `{url}`"))
}

/// The host of an address in letters that no host has on the wire.
fn other_letters(url: &str) -> Option<String> {
    let authority = url.split_once("://")?.1.split(['/', '?', '#']).next()?;
    let written = reqwest::Url::parse(url).ok()?;
    let written = written.host_str().filter(|_| !authority.is_ascii())?;
    Some(format!("`{url}` has a host in letters beyond ASCII: write it as {written}"))
}

/// `.` or `..`, also written with `%2e`.
fn is_dots(part: &str) -> bool {
    // Nearly every part begins otherwise, and there are millions of them.
    part.starts_with(['.', '%']) && matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "https://api.example/v1";

    fn path(url: &str, base: &str) -> Option<String> {
        relative(url.into(), base).map(Cow::into_owned).ok()
    }

    #[test]
    fn of_an_address_that_is_refused_what_is_secret_alone_is_hidden() {
        let hosts = Addresses { base: BASE.to_owned(), api: None, hosts: true };
        let error = hosts.of_line("http://a.example/x?a=b|c\"<>&token=hunter2".into()).expect_err("a quote");
        assert!(error.ends_with("`http://a.example/x?a=b|c\"<>&token=[key]`"), "{error}");
        let error = hosts.of_line("http://me:pass@a.example/x?n=1".into()).expect_err("a password");
        assert!(error.contains("?n=1`") && !error.contains("pass@"), "{error}");
    }

    #[test]
    fn behind_a_gateway_lines_may_name_the_api_itself() {
        let (base, api) = ("http://127.0.0.1:4747/api".to_owned(), Some(BASE.to_owned()));
        let through = Addresses { base, api, hosts: false };
        let of = |url: &str| through.of_line(url.into()).map(Cow::into_owned);
        assert_eq!(of("https://api.example/v1/things?x=1").as_deref(), Ok("/v1/things?x=1"));
        assert_eq!(of("http://127.0.0.1:4747/api/things").as_deref(), Ok("/things"));
        assert_eq!(of("/things").as_deref(), Ok("/things"));
        assert!(of("https://api.example/v1/../admin").is_err() && of("https://api.example/v1/things#a").is_err());
        let foreign = of("https://evil.example/things").expect_err("another host");
        assert!(foreign.contains("than the API behind the gateway (https://api.example/v1)"), "{foreign}");
    }

    #[test]
    fn no_line_can_send_the_key_to_another_place() {
        for url in [
            "https://evil.example/v1/x",
            "//evil.example/v1",
            "evil",
            "/\\\\evil",
            "/v1/../../x",
            "/a/%2e%2E/b",
            "http://api.example/v1/x",
            "https://api.example:444/v1/x",
            "https://api.example@evil.example/v1/x",
            "https://user@api.example/v1/x",
            "https://api.example.evil.example/v1/x",
            "https://api.example/v2/x",
            "https://api.example/v10/x",
            "https://api.example/v1/../x",
            "https://api.example\\@evil.example/v1/x",
            "ftp://api.example/v1/x",
            "https://api.example/v1",
            "https://api.example/v1/x#part",
            "/v1/x#part",
            "/v1/x?y=#",
            "",
        ] {
            assert_eq!(path(url, BASE), None, "{url}");
        }
        assert_eq!(path("/v1/a..b/@x?redirect=https://y", BASE).as_deref(), Some("/v1/a..b/@x?redirect=https://y"));
    }

    #[test]
    fn an_address_in_a_wrong_form_is_told_as_that() {
        for (url, expected) in [
            ("https://user@api.example/v1/x", "has a name and a password"),
            ("//api.example/v1", "begins with //"),
            ("?page=1", "is a query without a path"),
            ("/a\\b", "has a \\"),
            ("https://other.example/v1/x", "is not below the upstream's address https://api.example/v1"),
            ("x@y", "is not below the upstream's address"),
        ] {
            let told = relative(url.into(), BASE).expect_err("it is refused");
            assert!(told.contains(expected), "{told}");
        }
    }

    #[test]
    fn a_host_in_other_letters_is_named_as_it_is_to_be_written() {
        let hosts = Addresses { base: BASE.to_owned(), api: None, hosts: true };
        let told = hosts.of_line("http://b\u{fc}cher.example/p/11".into()).unwrap_err();
        assert!(told.ends_with("write it as xn--bcher-kva.example"), "{told}");
    }

    #[test]
    fn a_line_may_lead_to_another_host_where_hosts_are_paced_one_by_one() {
        let of_line = |url: &str, hosts| {
            Addresses { base: BASE.to_owned(), api: None, hosts }.of_line(url.into()).map(Cow::into_owned)
        };
        for (url, expected) in [
            ("https://other.example/a?b=1", "https://other.example/a?b=1"),
            ("http://127.0.0.1:9", "http://127.0.0.1:9"),
            ("https://api.example/v1/x", "/v1/x"),
            ("/v1/x", "/v1/x"),
            ("https://api.example/v2/x", "https://api.example/v2/x"),
        ] {
            assert_eq!(of_line(url, true).as_deref(), Ok(expected), "{url}");
        }
        for url in [
            "https://user@other.example/",
            "ftp://other.example/",
            "https:///a",
            "http://other.example:99999/a",
            "http://other.example:0x50/a",
            "https://other.example/a#b",
            "https://other.example/../a",
            "https://other.example\\@api.example/",
            "//other.example/a",
            "other",
        ] {
            assert!(of_line(url, true).is_err(), "{url}");
        }
        for (url, expected) in [
            ("https://other.example/a b/\u{e9}?q=\u{fc}", "has a blank: write it as %20"),
            ("/a b", "has a blank: write it as %20"),
            ("", "missing or empty: expected a web address such as"),
            ("GET https://other.example/a", "begins with a method: remove that word"),
            ("https://other.example/s?q=a\"b", "the address has a \", which is to be written as %22"),
            ("https://api.example/v1/s?q=<b>", "the address has a <, which is to be written as %3C"),
            ("/s?q=a>b", "the address has a >, which is to be written as %3E"),
            ("https://user@other.example/", "has a name and a password"),
            ("www.example.com/x", "write https:// or / before it"),
        ] {
            assert!(of_line(url, true).is_err_and(|error| error.contains(expected)), "{url}");
        }
        assert!(of_line("http://user:sesame@other.example/", true).is_err_and(|error| !error.contains("sesame")));
        assert!(
            of_line("https://other.example/a", false)
                .is_err_and(|error| error.contains("add --scope host to call several hosts"))
        );
    }

    #[test]
    fn an_absolute_address_below_the_upstreams_is_its_path() {
        for (url, base, expected) in [
            ("https://api.example/v1/chat/completions", BASE, "/v1/chat/completions"),
            ("HTTPS://API.example:443/v1/x?y=1", BASE, "/v1/x?y=1"),
            ("https://h/openai/v1/x", "https://h/openai/v1/", "/v1/x"),
            ("https://h/v1/x", "https://h", "/v1/x"),
            ("http://127.0.0.1:9/a/x", "http://127.0.0.1:9/a", "/x"),
            ("http://[::1]:9/x", "http://[::1]:9", "/x"),
        ] {
            assert_eq!(path(url, base).as_deref(), Some(expected), "{url} below {base}");
            let (joined, url) = (join_url(base, expected), url.to_ascii_lowercase().replace(":443", ""));
            assert_eq!(joined, url, "it leads back to where it came from");
        }
    }
}
