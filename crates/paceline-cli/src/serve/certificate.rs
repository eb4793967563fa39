//! The certificate that clients are shown: that it ends soon is told once a day, and once that it has ended.

use std::path::Path;
use std::time::Duration;

use paceline::clock;
use paceline_core::Timestamp;
use paceline_gateway::{Gateway, Validity};

const EVERY: Duration = Duration::from_secs(10);

const DAY_MS: i64 = 86_400_000;

/// What to do about it.
const RENEW: &str = "put one that is valid in its place, with its key";

/// What was told of one certificate, at the start or since.
#[derive(Debug, Default)]
struct LastNotice {
    /// How it stood then, and when that was.
    last: Option<(Validity, Timestamp)>,
}

impl LastNotice {
    /// Whether that is to be told now.
    fn is_news(&mut self, validity: Validity, now: Timestamp) -> bool {
        let is_known = self.last.is_some_and(|(last, at)| {
            last == validity && (last == Validity::Long || now.as_millis() - at.as_millis() < DAY_MS)
        });
        if !is_known {
            self.last = Some((validity, now));
        }
        !is_known && validity != Validity::Long
    }
}

/// What is wrong with how long it is valid.
pub(super) fn amiss(validity: Validity) -> Option<String> {
    match validity {
        Validity::Long => None,
        Validity::EndsSoon(until) => Some(format!("this certificate is valid until {until} and no longer: {RENEW}")),
        Validity::Ended(until) => {
            Some(format!("this certificate was valid until {until}, and clients that look at it refuse it: {RENEW}"))
        }
    }
}

/// Tells of the certificate in that file for as long as it is polled. What a start has told is not told again that day.
pub(super) async fn watch(gateway: &Gateway, file: Option<&Path>) {
    let Some(file) = file.map(|file| file.display().to_string()) else { return std::future::pending().await };
    let mut told = LastNotice::default();
    let now = clock::wall();
    told.is_news(gateway.certificate_validity(now), now);
    loop {
        tokio::time::sleep(EVERY).await;
        let now = clock::wall();
        let validity = gateway.certificate_validity(now);
        if let Some(what) = amiss(validity).filter(|_| told.is_news(validity, now)) {
            match validity {
                Validity::Ended(_) => tracing::error!("{file}: {what}"),
                _ => tracing::warn!("{file}: {what}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_ends_is_told_once_a_day_and_its_end_at_once() {
        let (mut told, at) = (LastNotice::default(), |hours: i64| Timestamp::from_millis(hours * DAY_MS / 24));
        let (soon, ended) = (Validity::EndsSoon(at(60)), Validity::Ended(at(60)));
        let hours = [(Validity::Long, 0), (soon, 1), (soon, 24), (soon, 25), (soon, 48), (soon, 49)];
        let news = hours.map(|(validity, hour)| told.is_news(validity, at(hour)));
        assert_eq!(news, [false, true, false, true, false, true]);
        assert_eq!([60, 61, 84].map(|hour| told.is_news(ended, at(hour))), [true, false, true]);
        let next = Validity::EndsSoon(at(99));
        assert_eq!([Validity::Long, next].map(|validity| told.is_news(validity, at(85))), [false, true]);
    }

    #[test]
    fn a_certificate_ends_soon_in_its_last_third_and_in_two_weeks_at_the_most() {
        let of = |years: i32, month: u8, day: u8| {
            let folder = tempfile::tempdir().expect("a folder");
            let [certificate, key] = ["tls.pem", "tls.key"].map(|name| folder.path().join(name));
            let mut params = rcgen::CertificateParams::new(["host".to_owned()]).expect("a name");
            params.not_before = rcgen::date_time_ymd(2026, 1, 1);
            params.not_after = rcgen::date_time_ymd(years, month, day);
            let made = rcgen::KeyPair::generate().expect("a key");
            std::fs::write(&certificate, params.self_signed(&made).expect("a certificate").pem()).expect("writable");
            std::fs::write(&key, made.serialize_pem()).expect("writable");
            paceline_gateway::ClientTls::read(&certificate, &key).expect("a pair")
        };
        let at = |time: &str| Timestamp::from_millis(time.parse::<jiff::Timestamp>().expect("a time").as_millisecond());
        let (month, year) = (of(2026, 1, 31), of(2027, 1, 1));
        let [month_ends, year_ends] = [at("2026-01-31T00:00:00Z"), at("2027-01-01T00:00:00Z")];
        for (tls, now, expected) in [
            (&month, "2026-01-20T00:00:00Z", Validity::Long),
            (&month, "2026-01-21T00:00:01Z", Validity::EndsSoon(month_ends)),
            (&month, "2026-01-31T00:00:01Z", Validity::Ended(month_ends)),
            (&year, "2026-12-17T00:00:00Z", Validity::Long),
            (&year, "2026-12-18T00:00:01Z", Validity::EndsSoon(year_ends)),
        ] {
            assert_eq!(tls.validity(at(now)), expected, "{now}");
        }
    }
}
