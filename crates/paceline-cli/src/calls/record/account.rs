//! Why the provider refuses the account, and what to do about it.

use paceline_core::{LimitScope, Timestamp};
use paceline_http::{GATEWAY_BY_TLS, NoAnswer};
use paceline_store::{CallTotals, ClaimedItem, Tally, Unanswered};

use super::{Recorded, Recorder};
use crate::calls::entry;
use crate::calls::item::Sent;
use crate::stops::stop::{AGAIN, StopReason};
use crate::upstream::KEY_AT_GATEWAY;

/// What to do about the key that calls carry, or that they carry none.
pub(crate) struct KeyAdvice {
    /// Where it is refused: 401.
    pub(crate) refused: String,
    /// Where it may not do what it is asked for: 403.
    pub(crate) forbidden: String,
}

const BY_PROVIDER: &str = "the provider refuses this account";

/// What follows where another user of the limiter met with what stops a scope, or the account.
pub(super) fn stopped_elsewhere(reach: LimitScope, reason: &str) -> Recorded {
    let fix = format!("the gateway's log says which call met with that; mend it, {AGAIN}");
    let stop = StopReason::Account { by: BY_PROVIDER.into(), message: reason.to_owned(), fix };
    Recorded { scopes_changed: Some(reach), account: Some(stop), ..Recorded::default() }
}

impl Recorder {
    /// What the client of this job alone was refused or told, among others that use the limiter, fails no item.
    pub(super) fn refused_alone(&self, item: &ClaimedItem, sent: Sent, adds: CallTotals) -> Recorded {
        let Tally { attempts, deferrals, .. } = item.tally;
        // As of a stop: it counts against no bound of retries, and the item's time begins anew when it is sent again.
        let tally = Tally { attempts, deferrals: deferrals + 1, deadline: None, ..entry::tally(item, &sent, None) };
        let back = Unanswered { tally, adds, usage: sent.usage };
        self.journal.release(item.ordinal, Some(back), self.acknowledge.reply());
        Recorded { due: Some(Timestamp::from_millis(0)), ..Recorded::default() }
    }

    pub(super) fn account_stop(&self, sent: &Sent, scope: &str) -> StopReason {
        let status = sent.exchange.status();
        let message = entry::error_message(sent);
        if let Err(NoAnswer::Tls(message)) = &sent.exchange.answer {
            return StopReason::Tls { address: self.address.of(scope), message: message.clone() };
        }
        if let Err(NoAnswer::Proxy(message)) = &sent.exchange.answer {
            return StopReason::Proxy { address: self.address.of(scope), message: message.clone() };
        }
        let reading = &sent.exchange.reading;
        let (item, by_rule) = (&sent.echo.custom_id, format!("by the rule \"{}\"", reading.rule()));
        // The title of a page is often its status.
        let says = |status: &u16| message.starts_with(&status.to_string());
        let message = match status.filter(|status| reading.message.is_some() && !says(status)) {
            Some(status) => format!("{status} {message}"),
            None => message,
        };
        let answer = match (&reading.message, status) {
            (None, Some(status)) => status.to_string(),
            _ => message.clone(),
        };
        let message = match message.ends_with(&by_rule) {
            true => format!("{message} (item {item})"),
            false => format!("{message} (item {item}, {by_rule})"),
        };
        if reading.is_of_gateway() {
            let fix = match reading.code.as_deref() {
                Some("unknown_route") => "name another upstream with --upstream, or serve this one there",
                Some("scope_stopped") => "restart `paceline serve` once that is mended",
                Some("client_key") => KEY_AT_GATEWAY,
                Some("tls_needed") => GATEWAY_BY_TLS,
                _ => "look at what the gateway says",
            };
            let fix = format!("{fix}, {AGAIN}");
            return StopReason::Account { by: "the gateway refuses these calls".into(), message, fix };
        }
        let fix = match status {
            Some(401) => self.key.refused.clone(),
            Some(403) => self.key.forbidden.clone(),
            Some(200..300) => "fix the cause".to_owned(),
            _ => "check the account's credit and limits at the provider".to_owned(),
        };
        let fix = format!("{fix}, {AGAIN}");
        if reading.is_by_user() {
            let by = format!("{} stops these calls", reading.rule()).into();
            return StopReason::Account { by, message: format!("{answer} (item {item} of {scope})"), fix };
        }
        StopReason::Account { by: BY_PROVIDER.into(), message, fix }
    }
}
