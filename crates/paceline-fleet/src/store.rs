//! A store with a ledger, and a connection to it.

use std::sync::Arc;

use paceline_core::fleet::{FleetLimit, MemberRequest, Quiet};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::answer::{LedgerAnswer, Notice};
use crate::error::FleetError;
use crate::ledger_name::LedgerName;
use crate::postgres::{PostgresLedger, PostgresLink};
use crate::redis::{RedisLedger, RedisLink};

/// Where the ledger is.
#[derive(Clone)]
pub(crate) enum Store {
    Redis(RedisLedger),
    Postgres(PostgresLedger),
}

/// A connection to a store.
#[expect(missing_debug_implementations, reason = "for tests alone")]
pub enum Link {
    /// To Redis or Valkey.
    Redis(Box<RedisLink>),
    /// To Postgres.
    Postgres(Box<PostgresLink>),
}

/// What a store said when it was reached, and what it says by itself.
pub(crate) struct Linked {
    pub(crate) link: Arc<Link>,
    pub(crate) run: u64,
    pub(crate) quiet: Option<Quiet>,
    pub(crate) notices: UnboundedReceiver<Notice>,
}

impl Store {
    pub(crate) fn open(url: &str, name: LedgerName) -> Result<Self, FleetError> {
        match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel") => {
                RedisLedger::open(url, name).map(Self::Redis)
            }
            Some("postgres" | "postgresql") => PostgresLedger::open(url, name).map(Self::Postgres),
            // Its words may hold a password.
            _ => Err(FleetError::Address("that is no address of a fleet's store".to_owned())),
        }
    }

    /// The store for people, without a password.
    pub(crate) fn server(&self) -> &str {
        match self {
            Self::Redis(store) => store.server(),
            Self::Postgres(store) => store.server(),
        }
    }

    pub(crate) fn limits(&self) -> &[FleetLimit] {
        match self {
            Self::Redis(store) => store.limits(),
            Self::Postgres(store) => store.limits(),
        }
    }

    pub(crate) async fn connect(&self) -> Result<Linked, FleetError> {
        match self {
            Self::Redis(store) => store.connect().await,
            Self::Postgres(store) => store.connect().await,
        }
    }
}

impl Link {
    /// Asks the ledger.
    ///
    /// # Errors
    /// The connection is of no use any more, or the ledger refuses.
    pub async fn ask(&self, request: &MemberRequest) -> Result<LedgerAnswer, FleetError> {
        match self {
            Self::Redis(link) => link.ask(request).await,
            Self::Postgres(link) => link.ask(request).await,
        }
    }
}
