//! The same with `backon`.

use backon::{ExponentialBuilder, Retryable as _};
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    rustls::crypto::ring::default_provider().install_default().expect("no other was chosen");
    let url = std::env::args().nth(1).ok_or("usage: retry_backon URL")?;
    let fetch = async || reqwest::get(&url).await?.error_for_status()?.text().await;
    let text = fetch
        .retry(ExponentialBuilder::default())
        .when(|error: &reqwest::Error| error.is_connect() || error.is_status())
        .notify(|_, delay| eprintln!("again in {delay:?}"))
        .await?;
    println!("{text}");
    Ok(())
}
