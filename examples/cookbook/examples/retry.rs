//! A call that is made again where that helps.

use paceline::{Limiter, PacerConfig};
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    rustls::crypto::ring::default_provider().install_default().expect("no other was chosen");
    let url = std::env::args().nth(1).ok_or("usage: retry URL")?;
    let limiter = Limiter::new(PacerConfig::default())?;
    let fetch = async || reqwest::get(&url).await?.error_for_status()?.text().await;
    let text = limiter
        .run(fetch)
        .when(|error: &reqwest::Error| error.is_connect() || error.is_status())
        .notify(|again| eprintln!("again in {:?}", again.delay))
        .await?;
    println!("{text}");
    Ok(())
}
