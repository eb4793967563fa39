//! The sender of a worker, which follows the file of its key: after a refused key each call has what the file holds by then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use paceline_config::{KeySource, Upstream};
use paceline_core::Class;
use paceline_http::{Exchange, Sender, SenderConfig};

use crate::exit::Failure;
use crate::text;
use crate::upstream;

pub(super) struct CurrentSender {
    upstream: Upstream,
    sending: SenderConfig,
    sender: Mutex<Arc<Sender>>,
    /// The last call showed a key that was refused.
    is_refused: AtomicBool,
}

impl CurrentSender {
    /// # Errors
    /// Refuses an address and files of TLS that are none.
    pub(super) fn new(upstream: Upstream, sending: SenderConfig) -> Result<Self, Failure> {
        let sender = Sender::by(&upstream, sending.clone()).map_err(Failure::refused)?;
        let (sender, is_refused) = (Mutex::new(Arc::new(sender)), AtomicBool::new(false));
        Ok(Self { upstream, sending, sender, is_refused })
    }

    pub(super) fn get(&self) -> Arc<Sender> {
        Arc::clone(&self.lock())
    }

    /// For a call that is sent now. A key file that cannot be read leaves the key as it was: its refusal is told anyway.
    pub(super) fn for_call(&self) -> Arc<Sender> {
        if self.is_refused.load(Ordering::Relaxed)
            && let KeySource::File(path) = &self.upstream.key
            && let Ok(headers) = upstream::headers_of_batch(&self.upstream)
        {
            let mut sender = self.lock();
            let is_other = headers.iter().any(|(name, value)| sender.config().headers.get(name) != Some(value));
            let renewed = || Sender::by(&self.upstream, SenderConfig { headers, ..self.sending.clone() });
            if let Some(Ok(renewed)) = is_other.then(renewed) {
                let path = path.display().to_string();
                tracing::info!("the key in {} has changed: calls show the new one", text::printable(&path));
                *sender = Arc::new(renewed);
            }
        }
        self.get()
    }

    /// Takes in how a call to that address ended. What a host says to which no key goes, says nothing about the key.
    pub(super) fn heard(&self, exchange: &Exchange, url: &str) {
        let is_below = |base: &String| url.starts_with(base.trim_end_matches('/'));
        if !url.starts_with('/') && !self.upstream.base_url.as_ref().is_some_and(is_below) {
            return;
        }
        let is_refused =
            exchange.reading.class == Class::Account && exchange.status() == Some(StatusCode::UNAUTHORIZED.as_u16());
        if is_refused || exchange.answer.is_ok() {
            self.is_refused.store(is_refused, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Sender>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
