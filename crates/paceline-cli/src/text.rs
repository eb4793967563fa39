//! Formatting of numbers, times and untrusted texts for people.

mod columns;

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use jiff::tz::TimeZone;
use paceline_core::Timestamp;
use paceline_store::{CallTotals, JobCounts};
use serde_json::Value;

pub(crate) use columns::{WIDTH, cell, cut, in_lines, padded, width, wrapped};
pub(crate) use paceline_core::format_duration as duration;
pub(crate) use paceline_providers::escape::{markdown, printable, printable_lines};

/// A number with its thousands apart: `12,345`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration in milliseconds to the microsecond, without zeros at its end: `7,546.067 ms`.
pub(crate) fn millis(duration: Duration) -> String {
    let micros = u64::try_from((duration.as_nanos() + 500) / 1_000).unwrap_or(u64::MAX);
    let (whole, part) = (count(micros / 1_000), format!("{:03}", micros % 1_000));
    match part.trim_end_matches('0') {
        "" => format!("{whole} ms"),
        part => format!("{whole}.{part} ms"),
    }
}

/// A duration without rounding that would matter: `1.386s`, `17.28s`, `2m 5s`, `10d 12h`.
pub(crate) fn exact(duration: Duration) -> String {
    if duration < Duration::from_secs(60) {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        return match (millis / 1_000, millis % 1_000) {
            (0, millis) => format!("{millis}ms"),
            (seconds, 0) => format!("{seconds}s"),
            (seconds, millis) => format!("{seconds}.{millis:03}").trim_end_matches('0').to_owned() + "s",
        };
    }
    let seconds = duration.as_nanos().div_ceil(1_000_000_000) as u64;
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut left = seconds;
    let parts = units.into_iter().filter_map(|(size, unit)| {
        let number = left / size;
        left %= size;
        (number > 0).then(|| format!("{number}{unit}"))
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// A longer time, 31 years, is not shown in seconds.
const IN_SECONDS: u64 = 1_000_000_000;

/// As in `2,520 s (42m 00s)`.
pub(crate) fn spans(span: Duration) -> String {
    let whole = count(span.as_secs());
    match span.subsec_millis() {
        _ if !(60..IN_SECONDS).contains(&span.as_secs()) => duration(span),
        0 => format!("{whole} s ({})", duration(span)),
        millis => format!("{whole}.{millis:03} s ({})", duration(span)),
    }
}

/// A word as a shell takes it. Only one with a NUL byte cannot be quoted.
pub(crate) fn shell_word(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| printable(word).into_owned(), Cow::into_owned)
}

/// A noun with its number: `1 item`, `2 items`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// What a person has to decide about failed items that may have been done; `again` sends them again, and so many `others` that
/// failed.
pub(crate) fn held(items: u64, again: &str, others: u64) -> Option<String> {
    (items > 0).then(|| {
        let items = counted(items, "failed item");
        let others = match others {
            0 => String::new(),
            others => format!(", which sends {} too", counted(others, "other failed item")),
        };
        format!(
            "held: {items}, because the call may have been executed; check the server, then send again with {again}{others}"
        )
    })
}

/// Where the answers of a job are that `--expect` refused, if there are any.
pub(crate) fn refused_answers(answers: u64, path: &Path) -> Option<String> {
    let are = if answers == 1 { "is" } else { "are" };
    let answers = (answers > 0).then(|| counted(answers, "answer"))?;
    Some(format!("{answers} that --expect refused {are} in {} (and may be billed)", path.display()))
}

/// What may be wrong with what `--expect` asks for, where it refused all answers for that reason, and what becomes of those kept.
pub(crate) fn about_expect(reason: &str, answers: u64, kept: &Path) -> Vec<String> {
    let whole = "--expect checks the whole body of an HTTP answer, and not the text that a model wrote in it";
    // A schema that names the place of that text is of a user who knows.
    let whole = (!reason.contains("/content")).then(|| whole.to_owned());
    let kept = (answers > 0).then(|| {
        let kept = shell_word(&kept.display().to_string());
        format!(
            "once --expect is right, the same command with --done {kept} takes over the answers that match, and makes again the calls of the \
             others alone"
        )
    });
    whole.into_iter().chain(kept).collect()
}

/// The results of a fallback among the counts of a job, where there are any.
pub(crate) fn fell_back(items: u64) -> String {
    if items > 0 { format!("{} by the fallback, ", count(items)) } else { String::new() }
}

/// The calls of a job. Calls that were noted as they left when a run was killed, or ended on a full
/// disk, may not have left, and others may have left without their notes. `of_run`: how many are of this run, where others came
/// before.
pub(crate) fn calls(counts: &JobCounts, of_run: Option<u64>) -> String {
    let (sure, unsure) = (counts.totals.calls.saturating_sub(counts.calls_unsure), counts.calls_unsure);
    let (at_least, bound) = if counts.calls_lost { ("at least ", "about") } else { ("", "up to") };
    let of_run = of_run.map(|calls| format!(", {} of them in this run", count(calls))).unwrap_or_default();
    let known = format!("{at_least}{}{of_run}", counted(sure, "call"));
    match (sure, unsure) {
        (_, 0) => known,
        (0, _) => format!("{bound} {} that a kill or a full disk cut off", counted(unsure, "call")),
        _ => format!("{known}, and {bound} {} more that a kill or a full disk cut off", count(unsure)),
    }
}

/// Calls that a run cut off as it ended, or was killed; of `unsure` of them it is not known whether they had left, and where
/// notes are `lost` there may have been more. `by_gateway`: how many times a gateway may have sent each of them again, which only
/// its answer would have told, as which it had sent.
pub(crate) fn cut_off(calls: u64, unsure: u64, lost: bool, by_gateway: Option<u32>) -> String {
    let bound = match (unsure, lost) {
        (0, false) => "",
        (0, true) => "at least ",
        (_, false) => "up to ",
        (_, true) => "about ",
    };
    let (words, them) = match calls {
        1 => (format!("{bound}1 call was cut off before its answer; the provider may bill it"), "it"),
        calls => {
            let calls = count(calls);
            (format!("{bound}{calls} calls were cut off before their answers; the provider may bill them"), "them")
        }
    };
    let Some(again) = by_gateway else { return words };
    let words = match calls.saturating_mul(again.into()) {
        0 => words,
        more => format!("{words}, and up to {} more that the gateway may have made for {them}", count(more)),
    };
    let unsent = match calls {
        1 => "if it only waited at the gateway it cost nothing",
        _ => "those that only waited at the gateway cost nothing",
    };
    format!("{words}; {unsent}, which this run cannot tell")
}

/// A setting that is another than before.
pub(crate) fn changed(key: &str, was: Option<&str>, is: Option<&str>) -> String {
    let [was, is] = [was, is].map(|value| value.unwrap_or("not set"));
    format!("{key} was {was}, and is {is}")
}

/// What went wrong with the calls of a job, empty if nothing did. `for_long`: answers that a quota is used up, or that
/// asked for so long a wait, of the one run that the words before it name.
pub(crate) fn call_details(totals: &CallTotals, for_long: u64, of_run: &str) -> String {
    let after_errors = match totals.retries {
        0 => String::new(),
        retries if retries == totals.resends => " after an error".to_owned(),
        retries => format!(", {} of them after an error", count(retries)),
    };
    let repeated = match totals.resends {
        0 => None,
        1 => Some(format!("1 was a repeat{after_errors}")),
        resends => Some(format!("{} were repeats{after_errors}", count(resends))),
    };
    let ends = [(totals.throttled, "rate-limited"), (totals.abandoned, "cut off")];
    let ends: Vec<_> =
        ends.iter().filter(|(calls, _)| *calls > 0).map(|(calls, end)| format!("{} {end}", count(*calls))).collect();
    let of_all = if repeated.is_some() { "of all calls " } else { "" };
    let ends = (!ends.is_empty()).then(|| of_all.to_owned() + &ends.join(", "));
    let put_off = (for_long > 0).then(|| format!("{of_run}{} put off until much later", count(for_long)));
    [repeated, ends, put_off].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// The same where calls go through a gateway, whose own refusals are no calls. `is_first`: no run was before.
pub(crate) fn call_details_at_gateway(totals: &CallTotals, for_long: u64, is_first: bool) -> String {
    let details = call_details(&CallTotals { throttled: 0, ..*totals }, 0, "");
    let turned_away = match totals.throttled + for_long {
        0 => return details,
        // Those of earlier runs that asked for a long wait are not counted.
        answers if is_first => counted(answers, "request"),
        answers => format!("at least {}", counted(answers, "request")),
    };
    let begin = if details.is_empty() { details } else { details + "; " };
    format!("{begin}the gateway turned away {turned_away} for now, by a limit of its own or of the provider")
}

/// Reads an instant as RFC 3339 has it, with any offset from UTC.
pub(crate) fn instant(text: &str) -> Option<Timestamp> {
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_millis(at.as_millisecond()))
}

/// An instant, or how long ago it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    At(Timestamp),
    Ago(Duration),
}

impl Past {
    /// The instant.
    pub(crate) fn before(self, now: Timestamp) -> Timestamp {
        let millis = |ago: Duration| i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => Timestamp::from_millis(now.as_millis().saturating_sub(millis(ago))),
        }
    }
}

/// Where a process stands in its fleet, as its document has it: with what is left of its lease.
pub(crate) fn fleet(fleet: &Value, now: Timestamp) -> Option<String> {
    let until = fleet["lease_until"].as_str().and_then(instant).filter(|until| *until > now);
    let lease = until.map(|until| format!("; lease for {}", duration(until.saturating_since(now))));
    Some(printable(fleet["text"].as_str()?).into_owned() + &lease.unwrap_or_default())
}

/// Reads an instant, a day of the user's zone, or how long ago it was, as in `3d`.
pub(crate) fn past(text: &str) -> Result<Past, String> {
    let day = || {
        let midnight = text.parse::<jiff::civil::Date>().ok()?.to_zoned(TimeZone::system()).ok()?;
        Some(Timestamp::from_millis(midnight.timestamp().as_millisecond()))
    };
    let ago = || paceline_config::parse_duration(text).ok().map(Past::Ago);
    instant(text).or_else(day).map(Past::At).or_else(ago).ok_or_else(|| {
        "expected an instant (2027-01-31T06:00:00Z), a day (2027-01-31), or how long ago it was (3d)".to_owned()
    })
}

/// An instant for people: in their zone, and in UTC where that differs. The day is named unless it is today.
pub(crate) fn moment(at: Timestamp) -> String {
    moment_in(at, paceline::clock::wall(), &TimeZone::system())
}

/// The time of day of an instant, in the zone of the user.
pub(crate) fn clock(at: Timestamp) -> String {
    let zoned = jiff::Timestamp::from_millisecond(at.as_millis()).map(|at| at.to_zoned(TimeZone::system()));
    zoned.map(|at| at.strftime("%H:%M:%S").to_string()).unwrap_or_default()
}

/// The end of a wait, for people: as in `14:00:00 UTC, in 1h 59m`.
pub(crate) fn end(at: Timestamp) -> String {
    end_at(at, paceline::clock::wall(), &TimeZone::system())
}

/// By whole seconds, upwards: none has passed that is not over.
fn end_at(at: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let wait = Duration::from_secs(at.saturating_since(now).as_millis().div_ceil(1_000) as u64);
    let whole = Timestamp::from_millis((at.as_millis().saturating_add(999)).div_euclid(1_000) * 1_000);
    let when = moment_in(whole, now, zone);
    if wait.is_zero() { when } else { format!("{when}, in {}", duration(wait)) }
}

fn moment_in(at: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let zoned = |at: Timestamp, zone: &TimeZone| {
        jiff::Timestamp::from_millisecond(at.as_millis()).map(|at| at.to_zoned(zone.clone()))
    };
    let show = |zone: &TimeZone| -> Result<String, jiff::Error> {
        let (at, now) = (zoned(at, zone)?, zoned(now, zone)?);
        let form = if at.date() == now.date() { "%H:%M:%S" } else { "%F %H:%M:%S" };
        Ok(at.strftime(form).to_string())
    };
    let (Ok(local), Ok(utc)) = (show(zone), show(&TimeZone::UTC)) else { return at.to_string() };
    if local == utc { format!("{utc} UTC") } else { format!("{local} ({utc} UTC)") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_to_the_millisecond_or_the_second() {
        let texts = [0, 634, 1_386, 17_280, 60_000, 125_500, 907_200_000].map(Duration::from_millis).map(exact);
        assert_eq!(texts, ["0ms", "634ms", "1.386s", "17.28s", "1m", "2m 6s", "10d 12h"]);
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!([1, 999, 1_000, 12_345_678].map(count), ["1", "999", "1,000", "12,345,678"]);
        assert_eq!([counted(1, "item"), counted(1_000, "item")], ["1 item", "1,000 items"]);
    }

    #[test]
    fn a_number_of_calls_that_were_cut_off_is_a_bound_only_where_each_was_noted() {
        let began = [(0, false), (0, true), (3, false), (3, true)].map(|(unsure, lost)| {
            let words = cut_off(15, unsure, lost, None);
            words.split_once("15 calls").map(|(bound, _)| bound.to_owned()).expect("a number")
        });
        assert_eq!(began, ["", "at least ", "up to ", "about "]);
        assert!(cut_off(1, 1, true, Some(2)).contains("up to 2 more that the gateway may have made for it"));
    }

    #[test]
    fn what_a_schema_is_of_is_told_unless_it_names_the_place_of_a_models_text() {
        let told = |reason| about_expect(reason, 3, Path::new("out.refused.jsonl"));
        assert_eq!(told("/choices/0: missing properties 'rates'").len(), 2);
        let kept = "once --expect is right, the same command with --done out.refused.jsonl takes over the answers that match, and makes \
                    again the calls of the others alone";
        assert_eq!(told("/choices/0/message/content: want object, but got string"), [kept]);
    }

    #[test]
    fn only_what_went_wrong_with_calls_is_told() {
        assert_eq!(call_details(&CallTotals { calls: 60, ..CallTotals::default() }, 0, ""), "");
        let totals = CallTotals { calls: 2_000, resends: 1_500, retries: 3, throttled: 1_497, abandoned: 1 };
        assert_eq!(
            call_details(&totals, 2, ""),
            "1,500 were repeats, 3 of them after an error; of all calls 1,497 rate-limited, 1 cut off; 2 put off until much later"
        );
        let repeat = CallTotals { calls: 2, resends: 1, retries: 1, ..CallTotals::default() };
        assert_eq!(call_details(&repeat, 0, ""), "1 was a repeat after an error");
        let counts = |calls_lost, calls_unsure| {
            let totals = CallTotals { calls: 1_081, ..CallTotals::default() };
            JobCounts { totals, calls_lost, calls_unsure, ..JobCounts::default() }
        };
        for (counts, told) in [
            (counts(false, 0), "1,081 calls, 56 of them in this run"),
            (counts(true, 0), "at least 1,081 calls, 56 of them in this run"),
            (
                counts(false, 1),
                "1,080 calls, 56 of them in this run, and up to 1 more that a kill or a full disk cut off",
            ),
            (
                counts(true, 2),
                "at least 1,079 calls, 56 of them in this run, and about 2 more that a kill or a full disk cut off",
            ),
            (counts(false, 1_081), "up to 1,081 calls that a kill or a full disk cut off"),
        ] {
            assert_eq!(calls(&counts, Some(56)), told);
        }
    }

    #[test]
    fn refusals_of_a_gateway_are_no_calls() {
        let totals = CallTotals { calls: 20, throttled: 3, ..CallTotals::default() };
        assert_eq!(
            call_details_at_gateway(&totals, 17, true),
            "the gateway turned away 20 requests for now, by a limit of its own or of the provider"
        );
        let totals = CallTotals { abandoned: 1, ..totals };
        assert!(
            call_details_at_gateway(&totals, 0, false).starts_with("1 cut off; the gateway turned away at least 3")
        );
        assert_eq!(call_details_at_gateway(&CallTotals { calls: 60, ..CallTotals::default() }, 0, true), "");
    }

    #[test]
    fn moments_are_local_and_utc_and_name_another_day() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        let noon = Timestamp::from_millis(1_795_176_000_000);
        let later = |hours: u64| moment_in(noon + Duration::from_secs(hours * 3_600 + 245), noon, &zone);
        assert_eq!(later(0), "13:04:05 (12:04:05 UTC)");
        assert_eq!(later(11), "2026-11-21 00:04:05 (23:04:05 UTC)");
        assert_eq!(later(12), "2026-11-21 01:04:05 (2026-11-21 00:04:05 UTC)");
        assert_eq!(moment_in(noon, noon, &TimeZone::UTC), "12:00:00 UTC");
    }

    #[test]
    fn the_end_of_a_wait_is_no_time_that_has_passed() {
        let noon = Timestamp::from_millis(1_795_176_000_000);
        let after = |millis| noon + Duration::from_millis(millis);
        let ends = [(5_700, 5_200), (5_000, 4_000), (5_000, 6_000)]
            .map(|(end, now)| end_at(after(end), after(now), &TimeZone::UTC));
        assert_eq!(ends, ["12:00:06 UTC, in 1s", "12:00:05 UTC, in 1s", "12:00:05 UTC"]);
    }

    /// Compared with a library, from the year 0 to 9999.
    #[test]
    fn a_time_that_has_passed_is_an_instant_a_day_or_how_long_ago() {
        assert_eq!(past("2023-11-14T22:13:20Z"), Ok(Past::At(Timestamp::from_millis(1_700_000_000_000))));
        let now = Timestamp::from_millis(1_700_000_000_000);
        let before = |text| past(text).expect("a time").before(now);
        assert_eq!(before("2023-11-15").saturating_since(before("2023-11-14")), Duration::from_secs(86_400));
        assert_eq!(now.saturating_since(before("3d")), Duration::from_secs(3 * 86_400));
        assert!(past("monday").is_err_and(|error| error.contains("a day (2027-01-31)")));
    }

    #[test]
    fn instants_are_written_as_they_are_read() {
        let mut rng = paceline_core::Rng::new(7);
        let (first, last) = (-62_167_219_200_000_i64, 253_402_207_200_000_i64);
        for _ in 0..20_000 {
            let millis = first + (rng.next_u64() % (last - first) as u64) as i64;
            let at = Timestamp::from_millis(millis);
            let theirs = jiff::Timestamp::from_millisecond(millis).unwrap();
            assert_eq!(at.to_string(), format!("{theirs:.3}"));
            assert_eq!(instant(&at.to_string()), Some(at));
        }
        assert_eq!(instant("2026-11-20T13:00:00+01:00"), Some(Timestamp::from_millis(1_795_176_000_000)));
    }
}
