//! Why the provider refuses the account, and what to do about it.

use paceline_http::NoAnswer;

use super::Recorder;
use crate::run::calls::entry;
use crate::run::calls::item::Sent;
use crate::run::calls::stop::StopReason;

impl Recorder {
    pub(super) fn account_stop(&self, sent: &Sent) -> StopReason {
        let status = sent.exchange.status();
        let message = entry::error_message(sent);
        if let Err(NoAnswer::Tls(message)) = &sent.exchange.answer {
            let address = self.address.to_string();
            return StopReason::Tls { address, message: message.clone() };
        }
        if let Err(NoAnswer::Proxy(message)) = &sent.exchange.answer {
            return StopReason::Proxy { address: self.address.to_string(), message: message.clone() };
        }
        let status_text = status.map(|status| format!("{status} ")).unwrap_or_default();
        let (item, rule) = (&sent.echo.custom_id, sent.exchange.reading.rule());
        let message = format!("{status_text}{message} (item {item}, by the rule \"{rule}\")");
        let key = self.key.as_deref().unwrap_or_default();
        let fix = match status {
            Some(401 | 403) if self.key.is_none() => {
                "no key was sent: name one with --api-key-env or --api-key-file".to_owned()
            }
            Some(401) => format!("check the key in {key}"),
            Some(403) => format!("check what the key in {key} is permitted to use"),
            _ => "check the account's credit and limits at the provider".to_owned(),
        };
        StopReason::Account { message, fix: format!("{fix}, then run the same command again") }
    }
}
