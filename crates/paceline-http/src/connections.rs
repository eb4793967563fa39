//! The connections of a sender: kept for the next call to the same host, until descriptors are short.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};
use reqwest::{Body, Client, ClientBuilder, Method, Response, redirect};

#[cfg(feature = "config")]
use crate::connecting::Hosts;
use crate::no_answer::{HasAnswered, LARGEST_HEAD};
use crate::sender_config::SenderConfig;

/// The clients that calls go through, and the one that takes their place.
pub(crate) struct Connections {
    now: Mutex<Clients>,
    /// It keeps no idle connections.
    spare: Option<Client>,
    /// Where calls take turns to open connections.
    #[cfg(feature = "config")]
    hosts: Option<Hosts>,
    /// The server at the address of the configuration.
    pub(crate) server: HasAnswered,
}

/// Each has connections of its own.
struct Clients {
    all: Client,
    /// For calls that must not be made twice: it keeps idle connections for a moment only. None where `all` is for them, too.
    once: Option<Client>,
}

impl Connections {
    pub(crate) fn of(client: Client) -> Self {
        Self {
            now: Mutex::new(Clients { all: client, once: None }),
            spare: None,
            #[cfg(feature = "config")]
            hosts: None,
            server: HasAnswered::default(),
        }
    }

    /// With a client for calls that must not be made twice.
    #[cfg(feature = "config")]
    pub(crate) fn with_once(self, once: Option<ClientBuilder>, config: &SenderConfig) -> Result<Self, reqwest::Error> {
        self.lock().once = once.map(|once| built(once, config)).transpose()?;
        Ok(self)
    }

    /// With a client that keeps no idle connections: those of many hosts could take all descriptors.
    #[cfg(feature = "config")]
    pub(crate) fn with_spare(self, spare: ClientBuilder, config: &SenderConfig) -> Result<Self, reqwest::Error> {
        Ok(Self { spare: Some(built(spare.pool_max_idle_per_host(0), config)?), ..self })
    }

    /// Calls to one host take turns to open connections, which the client's connector waits for.
    #[cfg(feature = "config")]
    pub(crate) fn in_turn(self) -> Self {
        Self { hosts: Some(Hosts::default()), ..self }
    }

    /// Sends a call; only clients of a configuration take turns. `is_kept` becomes true where many hosts are called, and the call
    /// went on a connection that was kept from an earlier one.
    pub(crate) async fn send(
        &self,
        client: Client,
        method: &Method,
        address: &str,
        headers: HeaderMap,
        body: Body,
        is_kept: &AtomicBool,
    ) -> Result<Response, reqwest::Error> {
        let mut request = client.request(method.clone(), address).body(body).build()?;
        let of_address = std::mem::replace(request.headers_mut(), headers);
        for (name, value) in &of_address {
            request.headers_mut().entry(name).or_insert_with(|| value.clone());
        }
        #[cfg(feature = "config")]
        if let Some(hosts) = &self.hosts {
            let origin = request.url().origin().ascii_serialization();
            return hosts.send(origin, is_kept, client.execute(request)).await;
        }
        is_kept.store(false, Ordering::Relaxed);
        client.execute(request).await
    }

    /// Descriptors are short. Idle connections are closed once no call waits for its answer through the client that kept them.
    pub(crate) fn spare(&self) {
        if let Some(spare) = &self.spare {
            *self.lock() = Clients { all: spare.clone(), once: None };
        }
    }

    /// The client of a call; `once`: which must not be made twice.
    pub(crate) fn client(&self, once: bool) -> Client {
        let clients = self.lock();
        clients.once.as_ref().filter(|_| once).unwrap_or(&clients.all).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client of a sender.
pub(crate) fn built(client: ClientBuilder, config: &SenderConfig) -> Result<Client, reqwest::Error> {
    let packed = HeaderValue::from_static("gzip, br");
    client
        // Of gzip it would read the first member alone.
        .no_gzip()
        .default_headers(HeaderMap::from_iter([(ACCEPT_ENCODING, packed)]))
        .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(config.connect_timeout.min(config.timeout * 9 / 10))
        .tcp_nodelay(true)
        .http2_max_header_list_size(LARGEST_HEAD)
        // Old servers send them, and the client makes one line of such a field.
        .http1_allow_obsolete_multiline_headers_in_responses(true)
        // The pacer decides and counts every call: the client may make none by itself.
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .build()
        .map_err(reqwest::Error::without_url)
}
