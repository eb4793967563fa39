#![doc = include_str!("../README.md")]
//!
//! [`operation`] makes a request what [`Limiter::run`](paceline::Limiter::run) sends, and reads. Where more happens in a call,
//! [`receive`] reads an answer to its end, and [`NoAnswer`] is made from every [`reqwest::Error`].
//!
//! # A sender
//!
//! A [`Sender`] sends one [`Call`] under one permit, reads the whole answer within bounds, removes secrets from it, reports
//! its outcome to the pacer, and returns an [`Exchange`]: the answer, its reading, and what follows for the item.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use paceline::{Limiter, PacerConfig, Request};
//! use paceline_http::{Call, Sender, SenderConfig, client_to};
//! use paceline_providers::Provider;
//!
//! let address = "https://api.openai.com/v1";
//! let limiter = Limiter::new(PacerConfig::default())?;
//! let sender = Sender::new(client_to(address), SenderConfig::new(address, Provider::OpenAi))?;
//!
//! let call = Call { method: http::Method::POST, url: "/v1/embeddings".into(), body: "{}".into(), ..Call::default() };
//! let permit = limiter.acquire(Request::new(limiter.scope("embeddings"), sender.charge("embeddings", &call))).await?;
//! let exchange = sender.send(permit, &call, std::future::pending()).await;
//! println!("{:?}: {}", exchange.status(), exchange.reading.class);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! None is on by default.
//!
//! - `config`: `Profiles`, the upstreams of a configuration file as limiters and clients, and what they are made of: `headers`,
//!   `client`, `Sender::to`.
//! - `fleet`: `Profiles::join`, for those that name a fleet; it brings `config`.
//! - `middleware`: `PaceMiddleware`, for clients of `reqwest-middleware`.

mod call_log;
mod coding;
#[cfg(feature = "config")]
mod connecting;
mod connections;
mod cut;
mod exchange;
pub mod gateway;
mod leaving;
mod memory;
#[cfg(feature = "middleware")]
mod middleware;
mod no_answer;
mod operation;
mod partial;
#[cfg(feature = "config")]
mod profiles;
mod ratios;
mod reached;
mod receive;
mod redirect;
mod sender;
mod sender_config;
mod shortage;

pub use coding::{codings, is_gzip, transfer_codings, without_coding};
pub use exchange::{Call, Exchange, is_unknown};
pub use memory::AnswerMemory;
#[cfg(feature = "middleware")]
pub use middleware::PaceMiddleware;
pub use no_answer::{GATEWAY_BY_TLS, HasAnswered, NOT_TAKEN, NoAnswer, SERVERS_OWN};
pub use operation::{Sending, operation};
#[cfg(feature = "fleet")]
pub use profiles::fleet_config;
#[cfg(feature = "config")]
pub use profiles::{
    AccessError, Answered, ByItself, CallFailure, KeyError, ProfileClient, ProfileError, Profiles, check_proxy, client,
    client_trusting, headers, login_of_proxy, proxy_of_environment, proxy_to, tls, warn_if_exposed, warn_of_idle,
};
pub use ratios::TokenRatios;
pub use reached::client_to;
pub use receive::{LARGEST_ANSWER, receive};
pub use sender::Sender;
pub use sender_config::SenderConfig;
pub use shortage::Shortage;

/// The samples of docs/profiles.md compile.
#[cfg(all(doctest, feature = "fleet"))]
#[doc = include_str!("../../../docs/profiles.md")]
mod guide {}
