//! The limits of an upstream that are shared with processes on other hosts.

use std::path::PathBuf;
use std::time::Duration;

use paceline_core::fleet::{LEASE, LONGEST_CALL, OnLoss};
use paceline_core::{AloneShare, ConfigError, DividedLimit, Instant, Pacer, PacerConfig};
use paceline_providers::secrets::{SECRET, hidden, looks_secret};
use url::Url;

use super::alone_share;
use super::effective::Ledger;
use super::error::{SettingError, Source};
use super::schema::UpstreamSection;
use super::setting::Setting;
use super::units::show_duration;

/// Where the fleet of an upstream has its ledger, and the part of this process in it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetSettings {
    /// The address of the store: it may have a password.
    pub url: String,
    /// What this process does once the store has been away for a lease. Default: nothing leaves.
    pub on_loss: OnLoss,
    /// How long that is, the same in all processes: 3 s to 5 minutes. Default 30 s.
    pub lease: Duration,
    /// Its part where all want more than there is, 1 to 16. Default 1.
    pub weight: u64,
    /// What it may use while it has no lease, for each limit of the account; empty: nothing. It is set aside: the limits of the
    /// pacer are what the fleet divides.
    pub alone_share: Vec<AloneShare>,
    /// The configuration file, where the address stands there and has a password.
    pub password_file: Option<PathBuf>,
}

impl std::fmt::Debug for FleetSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url, on_loss, lease, weight, .. } = self;
        write!(f, "fleet on {}, {on_loss:?}, under a lease of {lease:?}, of weight {weight}", hidden(url))
    }
}

const NONE: &str = "none";

const SCHEMES: [&str; 7] =
    ["redis", "rediss", "redis+unix", "redis+sentinel", "rediss+sentinel", "postgres", "postgresql"];

/// What is expected where that is no address of a store.
fn no_address(url: &str) -> Option<&'static str> {
    let Some((scheme, rest)) =
        url.split_once("://").filter(|(scheme, rest)| SCHEMES.contains(scheme) && !rest.is_empty())
    else {
        return Some("redis://, rediss:// or postgres:// with a host, or none");
    };
    let is_named = |rest: &str| rest.split_once('/').is_some_and(|(hosts, name)| !hosts.is_empty() && !name.is_empty());
    // What follows the host is the number of a database.
    let is_number = |path: &str| path.is_empty() || path.parse::<u32>().is_ok();
    let is_right = |url: Url| url.has_host() && is_number(url.path().trim_start_matches('/'));
    match scheme {
        "redis+sentinel" | "rediss+sentinel" if !is_named(rest) => {
            Some("redis+sentinel://HOST:PORT,HOST:PORT/NAME, with the name that the Sentinels know")
        }
        "redis" | "rediss" if !Url::parse(url).is_ok_and(is_right) => {
            Some("redis://HOST:PORT, with the number of a database behind a slash at most")
        }
        _ => None,
    }
}

/// How long a call may be in flight where calls in flight are shared.
fn longest_call(
    section: &UpstreamSection,
    pacer: &PacerConfig,
    ledger: &mut Ledger,
) -> Result<Option<Duration>, SettingError> {
    let read = |setting: &Setting, key: &str| {
        let within = |longest: &Duration| (Duration::from_secs(1)..=Duration::from_hours(24)).contains(longest);
        setting.duration(key).ok().filter(within).ok_or_else(|| setting.refuse(key, "a duration from 1s to 24h"))
    };
    let given = section.fleet_longest_call.as_ref();
    let is_shared = pacer.places.is_some() || !pacer.tier_places.is_empty();
    let show = |longest: &Duration| show_duration(*longest);
    let longest = ledger.settle("fleet_longest_call", given, LONGEST_CALL, read, show)?;
    Ok((is_shared || given.is_some()).then_some(longest))
}

/// The limits that a fleet divides.
fn divided(pacer: &PacerConfig) -> Result<Vec<DividedLimit>, ConfigError> {
    let mut pacer = Pacer::new(pacer.clone(), 0, Instant::ZERO)?;
    pacer.divide(Instant::ZERO)?;
    Ok(pacer.divided_limits())
}

/// The fleet of an upstream; none without one, and where a gateway keeps the limits.
pub(crate) fn fleet(
    section: &UpstreamSection,
    pacer: &mut PacerConfig,
    has_gateway: bool,
    ledger: &mut Ledger,
) -> Result<Option<FleetSettings>, SettingError> {
    let read = |setting: &Setting, key: &str| match setting.text.as_str() {
        "strict" => Ok(OnLoss::Strict),
        "keep" => Ok(OnLoss::Keep),
        _ => Err(setting.refuse(key, "strict or keep")),
    };
    let show = |on_loss: &OnLoss| on_loss.as_str().to_owned();
    let lease = |setting: &Setting, key: &str| {
        let within = |lease: &Duration| (Duration::from_secs(3)..=Duration::from_mins(5)).contains(lease);
        setting.duration(key).ok().filter(within).ok_or_else(|| setting.refuse(key, "a duration from 3s to 5m"))
    };
    let weight = |setting: &Setting, key: &str| setting.whole(key, 1, 16);
    let aside = section.alone_share.as_ref().map_or(&[][..], |listed| &listed.0);
    let given = section.fleet.as_ref().filter(|setting| setting.text != NONE);
    let Some(setting) = given.filter(|_| !has_gateway) else {
        // Read all the same: a value that cannot be is refused whether it acts or not.
        let mut own = ledger.beside();
        own.settle("fleet_on_loss", section.fleet_on_loss.as_ref(), OnLoss::Strict, read, show)?;
        own.settle("fleet_lease", section.fleet_lease.as_ref(), LEASE, lease, |lease| show_duration(*lease))?;
        own.settle("weight", section.weight.as_ref(), 1, weight, u64::to_string)?;
        longest_call(section, pacer, &mut own)?;
        alone_share::check(aside, &own)?;
        let unused = [
            ("fleet", given),
            ("fleet_on_loss", section.fleet_on_loss.as_ref()),
            ("fleet_lease", section.fleet_lease.as_ref()),
            ("weight", section.weight.as_ref()),
            ("fleet_longest_call", section.fleet_longest_call.as_ref()),
        ];
        let unused = unused.into_iter().filter_map(|(key, setting)| Some((key, setting?)));
        for (key, setting) in unused.chain(aside.iter().map(|setting| (alone_share::KEY, setting))) {
            ledger.idle(key, &setting.text, setting.source().clone());
        }
        return Ok(None);
    };
    let url = setting.text.clone();
    let key = ledger.name("fleet");
    let refuse = |expected: String| {
        // What has no scheme may be a password all the same.
        let shown = if url.contains("://") { hidden(&url).into_owned() } else { SECRET.to_owned() };
        Setting::new(shown, setting.source().clone()).refuse(&key, expected)
    };
    if let Some(expected) = no_address(&url) {
        return Err(refuse(expected.to_owned()));
    }
    ledger.note("fleet", url.as_str(), setting.source().clone());
    let alone_share = alone_share::set_aside(aside, pacer, ledger)?;
    // The limits themselves were refused before.
    let limits = divided(pacer).map_err(|error| refuse(format!("{}, but there is {}", error.expected, error.value)))?;
    alone_share::covers(&alone_share, aside, &limits, ledger)?;
    let on_loss = ledger.settle("fleet_on_loss", section.fleet_on_loss.as_ref(), OnLoss::Strict, read, show)?;
    let lease =
        ledger.settle("fleet_lease", section.fleet_lease.as_ref(), LEASE, lease, |lease| show_duration(*lease))?;
    let weight = ledger.settle("weight", section.weight.as_ref(), 1, weight, u64::to_string)?;
    pacer.longest_call = longest_call(section, pacer, ledger)?;
    let password_file = match setting.source() {
        Source::File { path, .. } if looks_secret(&url) => Some(path.clone()),
        _ => None,
    };
    Ok(Some(FleetSettings { url, on_loss, lease, weight, alone_share, password_file }))
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Environment, Overrides, Upstream};
    use super::*;

    fn upstream(keys: &str, fleet: Option<&str>) -> Result<Upstream, SettingError> {
        let file = format!("[upstream.a]\nbase_url = 'http://a'\n{keys}\n");
        let overrides = Overrides { fleet: fleet.map(str::to_owned), ..Overrides::default() };
        Config::parse("paceline.toml".as_ref(), &file, Environment::default(), overrides)?.upstream()
    }

    fn shown(upstream: &Upstream, key: &str) -> String {
        let row = upstream.effective.iter().find(|row| row.key == key);
        row.map_or_else(String::new, |row| row.value.clone())
    }

    #[test]
    fn a_fleet_has_defaults_and_its_password_is_not_shown() {
        let found = upstream("rpm = 60\nfleet = 'redis://me:sesame@h'", None).expect("all well");
        let fleet = found.fleet.as_ref().expect("it is set");
        assert_eq!((fleet.on_loss, fleet.lease, fleet.weight), (OnLoss::Strict, LEASE, 1));
        assert_eq!(fleet.url, "redis://me:sesame@h");
        assert!(fleet.password_file.is_some());
        let files = |keys, url| upstream(keys, url).expect("all well").fleet.expect("it is set").password_file;
        assert_eq!(files("rpm = 60\nfleet = 'redis://h:6379/1'", None), None);
        assert_eq!(files("rpm = 60\nfleet = 'redis://h'", Some("redis://me:sesame@h")), None, "from a flag");
        assert!(!shown(&found, "fleet").contains("sesame") && !format!("{found:?}").contains("sesame"), "{found:?}");
        let keys = "rpm = 60\nfleet = 'redis://h'\nfleet_on_loss = 'keep'\nfleet_lease = '5s'\nweight = 4";
        let found = upstream(keys, Some("postgres://db/x")).expect("all well").fleet.expect("it is set");
        let words = (found.url.as_str(), found.on_loss, found.lease.as_secs(), found.weight);
        assert_eq!(words, ("postgres://db/x", OnLoss::Keep, 5, 4));
        let sentinels = "redis+sentinel://me:sesame@a:1,b:2/mymaster";
        let found = upstream("rpm = 60", Some(sentinels)).expect("Sentinels are spoken to");
        assert!(!shown(&found, "fleet").contains("sesame"), "{}", shown(&found, "fleet"));
        assert_eq!(upstream(keys, Some("none")).expect("all well").fleet, None);
    }

    #[test]
    fn what_is_set_aside_is_not_divided_and_this_process_may_use_its_part_of_it_without_the_store() {
        let keys = "rpm = 60\nlimits = ['9k tpm', '8 concurrent']\nfleet = 'redis://h'\n\
                    alone_share = ['6 of 18rpm', '500 of 1k tpm', '1 of 3 concurrent']";
        let found = upstream(keys, None).expect("all well");
        let divided: Vec<_> = found.pacer.limits.quotas.iter().map(|quota| quota.limit).collect();
        assert_eq!((divided, found.pacer.places), (vec![42, 8_000], Some(5)));
        let alone: Vec<_> =
            found.fleet.as_ref().expect("it is set").alone_share.iter().map(AloneShare::to_string).collect();
        assert_eq!(alone, ["6 requests per 60s", "500 tokens per 60s", "1 concurrent"]);
        assert_eq!(shown(&found, "alone_share"), "6 of 18rpm (the fleet divides 42)");
        let of_others = "rpm = 60\nfleet = 'redis://h'\nalone_share = '0 of 18rpm'";
        let found = upstream(of_others, None).expect("another process has all of it");
        assert_eq!((found.pacer.limits.quotas[0].limit, found.fleet.expect("it is set").alone_share), (42, Vec::new()));
        let found = upstream(of_others, Some("none")).expect("all well");
        assert_eq!(
            (found.pacer.limits.quotas[0].limit, &*found.idle[0].key),
            (60, "alone_share"),
            "nothing is divided"
        );
    }

    #[test]
    fn calls_in_flight_are_shared_where_a_limit_names_them_and_no_flag_lets_more_be() {
        let keys = "fleet = 'redis://h'\npace = 'fixed'\nlimits = ['8 concurrent']";
        let found = upstream(keys, None).expect("places can be divided");
        assert_eq!((found.pacer.places, found.pacer.longest_call), (Some(8), Some(LONGEST_CALL)));
        let found = upstream(&format!("{keys}\nfleet_longest_call = '20s'"), None).expect("all well");
        assert_eq!(found.pacer.longest_call, Some(Duration::from_secs(20)));
        let found = upstream("fleet = 'redis://h'\nconcurrency = 8", None).expect("all well");
        assert_eq!((found.pacer.places, found.pacer.longest_call), (None, None), "each process has its own");
        let file = format!("[upstream.a]\nbase_url = 'http://a'\n{keys}\n");
        for (flag, places) in [("5", Some(8)), ("64", None)] {
            let overrides = Overrides { concurrency: Some(flag.to_owned()), ..Overrides::default() };
            let config = Config::parse("paceline.toml".as_ref(), &file, Environment::default(), overrides);
            let found = config.expect("TOML").upstream();
            assert_eq!(found.ok().map(|found| found.pacer.places), places.map(Some), "--concurrency {flag}");
        }
    }

    #[test]
    fn where_the_pace_is_learnt_a_fleet_needs_no_limit() {
        let found = upstream("fleet = 'redis://h'", None).expect("all well");
        assert!(found.fleet.is_some());
    }

    #[test]
    fn a_fleet_that_cannot_be_is_refused_and_one_that_does_not_act_is_told() {
        for (keys, expected) in [
            ("rpm = 60\nfleet = 'h:6379'", "redis://"),
            ("rpm = 60\nfleet = 'redis://'", "redis://"),
            ("rpm = 60\nfleet = 'redis://h/abc'", "the number of a database"),
            ("rpm = 60\nfleet = 'rediss://h:99999'", "redis://HOST:PORT"),
            ("rpm = 60\nfleet = 'redis+sentinel://a,b'", "HOST:PORT/NAME"),
            ("pace = 'none'\nfleet = 'redis://h'", "there is no limit"),
            ("rpm = 60\nshape = 'bucket'\nfleet = 'redis://h'", "sliding windows"),
            ("rpm = 60\nfleet = 'redis://h'\nweight = 17", "from 1 to 16"),
            ("rpm = 60\nfleet = 'redis://h'\nfleet_lease = '1s'", "from 3s to 5m"),
            ("rpm = 60\nalone_share = '6rpm'", "6 of 60rpm"),
            ("rpm = 60\nfleet = 'redis://h'\nalone_share = '7 of 6rpm'", "6 of 60rpm"),
            ("rpm = 60\nfleet = 'redis://h'\nalone_share = '1 of 6rps'", "a limit of the upstream"),
            ("rpm = 60\nfleet = 'redis://h'\nalone_share = '1 of 6 concurrent'", "a limit of the upstream"),
            ("rpm = 60\nfleet = 'redis://h'\nalone_share = '1 of 60rpm'", "less than the limit, 60"),
            ("rpm = 60\nfleet = 'redis://h'\nalone_share = ['1 of 6rpm', '1 of 3rpm']", "each limit once"),
            ("rpm = 60\ntpm = 99\nfleet = 'redis://h'\nalone_share = '1 of 6rpm'", "nothing of 99 tokens per 60s"),
            ("rpm = 60\nfleet_on_loss = 'open'", "strict or keep"),
            ("rpm = 60\nfleet_longest_call = '0s'", "from 1s to 24h"),
        ] {
            let refused = upstream(keys, None).expect_err(keys).to_string();
            assert!(refused.contains(expected), "{keys}: {refused}");
        }
        let found = upstream("rpm = 60\nweight = 4\nfleet = 'redis://h'\nvia = 'http://g'", None).expect("all well");
        assert_eq!(found.fleet, None);
        let idle: Vec<_> = found.idle.iter().map(|row| &*row.key).filter(|key| *key != "rpm").collect();
        assert_eq!(idle, ["fleet", "weight"]);
    }
}
