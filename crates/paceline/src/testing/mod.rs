//! An API in memory and a recorder of calls, for tests of programs that pace their calls. No test waits: [`block_on`] runs in
//! virtual time, where an hour of waiting is over at once.
//!
//! ```
//! use std::time::Duration;
//! use paceline::testing::{MockAnswer, MockApi, block_on};
//! use paceline::{Limiter, Quota};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let api = MockApi::new(Quota::per_minute(50))?;
//! api.answer_next([MockAnswer::status(503), MockAnswer::status(429).header("retry-after", "7")]);
//!
//! block_on(async {
//!     let limiter = Limiter::new(Quota::per_minute(50))?;
//!     for _ in 0..200 {
//!         let response = limiter.run(|| api.call()).await?;
//!         assert_eq!(response.status(), 200);
//!     }
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//!
//! assert_eq!(api.calls().count(), 202);
//! api.calls().assert_at_most(50, Duration::from_secs(60));
//! # Ok(())
//! # }
//! ```
//!
//! So a test shows that each call of an application passes through the limiter, that an item survives the failures of the API,
//! and what the application does when the API stays down.

mod api;
mod recorder;

pub use api::{MockAnswer, MockApi};
pub use paceline_model::{Chance, Hints, Latency, ModelLimit, ProviderConfig, ProviderError};
pub use recorder::Recorder;

/// Runs a future in virtual time, on this thread: whenever everything waits, the clock jumps to the end of the next wait. It
/// does what `#[tokio::test(start_paused = true)]` does, and needs no feature of Tokio in the program. Use a [`MockApi`] and a
/// [`Recorder`] in one such run: the next run begins at the present of the system again.
///
/// Code that blocks, as [`Limiter::blocking`](crate::Limiter::blocking) does, hangs in it where it has to wait: the thread that
/// would move the clock on is the one that waits.
///
/// # Panics
/// Where it is called inside a runtime, as [`tokio::runtime::Runtime::block_on`] does.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without IO asks the system for nothing").block_on(future)
}
