//! One call, paced and sent again where that may help.

use std::io;

use paceline::{Limiter, Quota};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::new(Quota::per_minute(500))?;
    let response = limiter.run(send).await?;

    println!("{}: {}", response.status(), response.body());
    Ok(())
}

/// Stands for a call with your HTTP client.
async fn send() -> io::Result<http::Response<String>> {
    Ok(http::Response::new("hello".to_owned()))
}
