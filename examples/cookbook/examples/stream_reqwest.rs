//! The same with `reqwest` alone: without a limit, and a refusal ends it.

use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    rustls::crypto::ring::default_provider().install_default().expect("no other was chosen");
    let url = std::env::args().nth(1).ok_or("usage: stream_reqwest URL")?;
    let client = reqwest::Client::new();
    let prompt = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"Is this spam?"}]}"#;
    let mut answer = client.post(&url).body(prompt).send().await?.error_for_status()?;
    while let Some(part) = answer.chunk().await? {
        print!("{}", String::from_utf8_lossy(&part));
    }
    Ok(())
}
