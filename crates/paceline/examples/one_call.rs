//! One call, paced and sent again where that may help.

use std::io;

use paceline::{Cost, Limiter, Limits, PacerConfig, Quota, Request};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits { quotas: vec![Quota::requests_per_minute(500)], burst: Some(10) };
    let limiter = Limiter::new(PacerConfig { limits, ..PacerConfig::default() })?;

    let request = Request::new(limiter.scope("chat"), Cost::request());
    // The first `?` is for Paceline's own refusals, the second for the operation's error, just as it was made.
    let response = limiter.run(request, send).await??;

    println!("{}: {}", response.status(), response.body());
    Ok(())
}

/// Stands for a call with your HTTP client.
async fn send() -> io::Result<http::Response<String>> {
    Ok(http::Response::new("hello".to_owned()))
}
