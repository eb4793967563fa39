//! The AWS SDK for Rust under a limiter of Paceline.
//!
//! Switch the retries of the SDK off, and run each call of a client under the limiter. [`Aws`] reads its result:
//!
//! ```
//! # use aws_smithy_runtime_api::client::result::SdkError;
//! # use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
//! # async fn put_item() -> Result<(), SdkError<std::fmt::Error, HttpResponse>> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use paceline::{Limiter, PacerConfig};
//! use paceline_aws::Aws;
//!
//! // let config = aws_config::from_env().retry_config(RetryConfig::disabled()).load().await;
//! let limiter = Limiter::new(PacerConfig::default())?;
//! // || client.put_item().table_name("orders").set_item(item.clone()).send()
//! limiter.run(|| put_item()).read_by(Aws).scope("orders").await?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Batch`] sends what an answer left undone, until nothing is left.
//!
//! # Why it is no part of the client
//!
//! An interceptor and a retry classifier of the SDK cannot wait, and its HTTP client sends what was signed before: after a wait
//! of five minutes the signature has expired. Around the whole call the permit comes first, and each try is signed anew.

mod batch;
mod reader;

pub use batch::{Batch, BatchError};
pub use reader::Aws;
