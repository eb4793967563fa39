#![doc = include_str!("../README.md")]
//!
//! A [`Gateway`] serves one or several [`Backend`]s, each under its name: `/openai/v1/chat/completions` goes to the upstream
//! `openai`, with the path `/v1/chat/completions`.

mod answered;
mod awaited;
mod backend;
mod bodies;
mod bounds;
mod browsers;
mod clients;
mod closing;
mod conditions;
mod connection;
mod connector;
mod departed;
mod documents;
mod echo;
mod estimated;
mod events;
mod failure;
mod fallback;
mod files;
mod form;
mod forward;
mod guest;
mod head;
mod headers;
mod informational;
mod jobs;
mod metrics;
mod models;
mod notes;
mod own_routes;
mod pages;
mod payload;
mod places;
mod query;
mod queue;
mod record;
mod refusal;
mod request_body;
mod route;
mod server;
mod spelling;
mod spent;
mod state;
mod stays_down;
mod steps;
mod tap;
mod tls;
mod trust;
mod unread;
mod uses;
mod watched;
pub mod web;

pub use backend::{Backend, BackendError, QueuePlace};
pub use bounds::Bounds;
pub use clients::{Client, ClientConfig, Clients, KeyHash};
pub use conditions::Conditions;
pub use guest::{Guest, GuestCall};
pub use own_routes::{BodyInTime, NoBody, OwnBody, OwnRequest, OwnRoutes};
pub use query::decoded_often;
pub use route::OWN_ROUTES;
pub use server::{Gateway, listen};
pub use state::limit_json;
pub use tls::{ClientTls, TlsError, Validity};
