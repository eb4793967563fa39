//! An answer of a language model, as it comes. The call is complete at its head, so its estimate stays what it costs:
//! docs/library.md has the lines for a permit, which takes what the stream really used.

use paceline::{ByHead, Cost, Dimension, Limiter, PacerConfig, Quota};
use paceline_http::NoAnswer;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    rustls::crypto::ring::default_provider().install_default().expect("no other was chosen");
    let url = std::env::args().nth(1).ok_or("usage: stream URL")?;
    let client = reqwest::Client::new();
    let prompt = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"Is this spam?"}]}"#;
    let limits = [Quota::per_minute(500), Quota::per_minute(200_000).of(Dimension::Tokens)];
    let limiter = Limiter::new(PacerConfig::default().with_limits(limits))?;
    let send = async || Ok::<_, NoAnswer>(http::Response::from(client.post(&url).body(prompt).send().await?));
    let cost = Cost::request().with(Dimension::Tokens, 1_200);
    let mut answer = reqwest::Response::from(limiter.run(send).read_by(ByHead).cost(cost).await?);
    while let Some(part) = answer.chunk().await? {
        print!("{}", String::from_utf8_lossy(&part));
    }
    Ok(())
}
