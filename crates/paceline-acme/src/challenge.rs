//! The HTTP-01 server: shows the CA that the program which asks for a certificate answers under its name.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

/// What is answered at present: the key authorization of each token. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Challenges(Arc<Mutex<BTreeMap<String, Arc<str>>>>);

/// An answer that is given until this is dropped, or replaced by another for the same token.
#[derive(Debug)]
pub(crate) struct Shown {
    challenges: Challenges,
    token: String,
    authorization: Arc<str>,
}

impl Challenges {
    /// Serves them at that address until the process ends.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub(crate) async fn serve(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let challenges = Self::default();
        let app =
            Router::new().route("/.well-known/acme-challenge/{token}", get(answer)).with_state(challenges.clone());
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "the HTTP-01 server ended; no domain can be validated");
            }
        });
        Ok(challenges)
    }

    /// Answers that token with that key authorization.
    pub(crate) fn show(&self, token: &str, authorization: &str) -> Shown {
        let authorization: Arc<str> = authorization.into();
        self.lock().insert(token.to_owned(), authorization.clone());
        Shown { challenges: self.clone(), token: token.to_owned(), authorization }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let mut all = self.challenges.lock();
        if all.get(&self.token).is_some_and(|given| Arc::ptr_eq(given, &self.authorization)) {
            all.remove(&self.token);
        }
    }
}

async fn answer(State(challenges): State<Challenges>, Path(token): Path<String>) -> Result<String, StatusCode> {
    challenges.lock().get(&token).map(|given| given.to_string()).ok_or(StatusCode::NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_answered_as_long_as_it_is_shown() {
        let challenges = Challenges::default();
        let ask = |token: &str| answer(State(challenges.clone()), Path(token.to_owned()));
        let shown = challenges.show("t1", "t1.thumb");
        assert_eq!(ask("t1").await, Ok("t1.thumb".to_owned()));
        assert_eq!(ask("t2").await, Err(StatusCode::NOT_FOUND));
        let again = challenges.show("t1", "t1.thumb");
        drop(shown);
        assert_eq!(ask("t1").await, Ok("t1.thumb".to_owned()), "another order shows it still");
        drop(again);
        assert_eq!(ask("t1").await, Err(StatusCode::NOT_FOUND));
    }
}
