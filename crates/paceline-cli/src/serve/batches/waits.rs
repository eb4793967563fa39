//! Why a batch that runs does not go on, for the client that asks.

use std::sync::atomic::Ordering;

use paceline::{Class, clock};
use paceline_store::{Journal, JournalError, Rows};

use crate::calls::holds;
use crate::calls::item::Context;

/// What keeps its requests from being sent, or what the last of them met with where none is in flight.
pub(super) fn waits_for(journal: &Journal, context: &Context) -> Result<Option<String>, JournalError> {
    if let Some(held) = holds::keeps_back(context, &journal.scopes()?) {
        return Ok(Some(held));
    }
    if context.in_flight.load(Ordering::Relaxed) > 0 {
        return Ok(None);
    }
    let mut failure = None;
    let looked = journal.report(clock::wall(), Rows::NotSimplySucceeded, |row| {
        failure = row.item.tally.last.filter(|_| row.deferred.is_some());
        if failure.is_some() { Err(Looked::Found) } else { Ok(()) }
    });
    match looked {
        Err(Looked::Failed(error)) => Err(error),
        Ok(()) | Err(Looked::Found) => Ok(failure.map(|last| {
            // What a provider says of a call of one client is not for the others, which see this. What it refused is told in our
            // own words.
            let is_for_all = context.guest.as_ref().and_then(|guest| guest.caller()).is_none();
            let is_ours = is_for_all || matches!(last.class, Class::Account | Class::Invalid);
            let what = last.message.filter(|_| is_ours).unwrap_or_else(|| last.class.description().to_owned());
            format!("another try, after: {what}")
        })),
    }
}

/// Why a look at the items ends early.
enum Looked {
    Found,
    Failed(JournalError),
}

impl From<JournalError> for Looked {
    fn from(error: JournalError) -> Self {
        Self::Failed(error)
    }
}
