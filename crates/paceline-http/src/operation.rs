//! A request of `reqwest` as an operation for `Limiter::run`.

use std::pin::Pin;

use bytes::Bytes;
use http::Response;
use reqwest::RequestBuilder;

use crate::no_answer::NoAnswer;
use crate::receive::{LARGEST_ANSWER, receive};

/// A call that [`operation`] makes.
pub type Sending = Pin<Box<dyn Future<Output = Result<Response<Bytes>, NoAnswer>> + Send>>;

/// The request as an operation for [`Limiter::run`](paceline::Limiter::run): each call sends it and reads the whole answer, of at
/// most [`LARGEST_ANSWER`] bytes.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use paceline::{Limiter, Quota};
/// use paceline_http::{client_to, operation};
///
/// let limiter = Limiter::new(Quota::per_second(50))?;
/// let url = "https://api.example.com/things";
/// let client = client_to(url).build()?;
/// let answer = limiter.run(operation(client.get(url))).await?;
/// println!("{}: {} bytes", answer.status(), answer.body().len());
/// # Ok(())
/// # }
/// ```
///
/// [`client_to`](crate::client_to) brings TLS. `reqwest::Client::new()` panics where reqwest is built without its default
/// features, unless the program has installed a provider of `rustls`.
///
/// A body that is a stream cannot be sent a second time: such a request fails with [`NoAnswer::Streamed`] before it is sent.
/// [`Limiter::acquire`](paceline::Limiter::acquire) gives a permit for one call of it.
pub fn operation(request: RequestBuilder) -> impl FnMut() -> Sending {
    move || {
        let copy = request.try_clone();
        Box::pin(async move {
            let request = copy.ok_or(NoAnswer::Streamed)?;
            receive(request.send().await?, LARGEST_ANSWER).await
        })
    }
}
