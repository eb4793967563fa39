//! `--no-check`: calls leave while the input is still being read.

use std::sync::Arc;

use paceline_config::Upstream;
use paceline_store::{Appended, InputCursor, Journal};
use tokio::sync::mpsc;

use crate::calls::item::Context;
use crate::job::acknowledge::Acknowledge;
use crate::job::background_load::{BackgroundLoad, LoadError};
use crate::job::refused;
use crate::stops::stop::StopReason;

/// What a dispatcher hears while items come.
#[derive(Debug)]
pub(crate) enum Fed {
    /// Lines came.
    Lines(Appended),
    /// So many items that waited are another host's now.
    Gone(u64),
    /// No more come, and nothing can go on.
    Stop(StopReason),
}

/// Loads in a thread of its own and sends what was appended. It ends when the receiver is dropped; the next run continues from
/// there.
pub(crate) fn start(
    journal: Journal,
    context: Arc<Context>,
    upstream: Upstream,
    acknowledge: Acknowledge,
    from: InputCursor,
) -> mpsc::Receiver<Result<Fed, LoadError>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::task::spawn_blocking(move || {
        let Context { input, format, .. } = &*context;
        let rest = BackgroundLoad { journal: &journal, input, format, upstream: &upstream, from };
        let end = rest.read(|taken| {
            if taken.refused > 0 {
                refused::settle(&journal, input, format.results(), &acknowledge)?;
            }
            Ok(sender.blocking_send(Ok(Fed::Lines(taken))).is_ok())
        });
        if let Err(error) = end {
            // A run that is over has dropped the receiver.
            let _ = sender.blocking_send(Err(error));
        }
    });
    receiver
}
