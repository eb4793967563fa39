//! Statements on a connection, prepared once: together in a transaction, or each by itself.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, GenericClient, Row, Statement, Transaction};

/// A live connection and its prepared statements.
pub(super) struct Session {
    pub(super) client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
}

/// The body of a transaction; it may run again when the connection breaks.
pub(crate) type Operation<'t, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 't>>;

impl Session {
    pub(super) fn of(client: Client) -> Self {
        Self { client, statements: Mutex::default() }
    }

    /// The rows of a statement by itself.
    pub(super) async fn query(&self, sql: &'static str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let statement = prepared(&self.client, &self.statements, sql).await?;
        self.client.query(&statement, values).await
    }

    pub(super) async fn run_once<T>(
        &mut self,
        together: bool,
        (changes, visits): (&AtomicU64, bool),
        operation: &impl for<'t> Fn(&'t Tx<'t>, bool) -> Operation<'t, T>,
        retried: bool,
    ) -> Result<T, Error> {
        let inner = match together {
            true => Statements::Together(self.client.transaction().await?),
            false => Statements::Alone(&self.client),
        };
        let tx = Tx { inner, statements: &self.statements, changes, visits };
        let done = operation(&tx, retried).await?;
        if let Statements::Together(inner) = tx.inner {
            inner.commit().await?;
        }
        Ok(done)
    }
}

/// Statements, together in a transaction or not.
enum Statements<'t> {
    Together(Transaction<'t>),
    Alone(&'t Client),
}

/// A transaction, with the prepared statements of its connection.
pub(crate) struct Tx<'t> {
    inner: Statements<'t>,
    statements: &'t Mutex<HashMap<&'static str, Statement>>,
    changes: &'t AtomicU64,
    visits: bool,
}

impl Tx<'_> {
    /// Whether nothing is written but what a person asks for.
    pub(crate) const fn visits(&self) -> bool {
        self.visits
    }

    /// How many changes there were that may have made items wait.
    pub(crate) fn notified(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Counts a change: this transaction makes items wait.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// The rows of a statement, which is prepared once per connection.
    pub(crate) async fn query(&self, sql: &'static str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let statements = self.statements;
        match &self.inner {
            Statements::Together(inner) => inner.query(&prepared(inner, statements, sql).await?, values).await,
            Statements::Alone(inner) => inner.query(&prepared(*inner, statements, sql).await?, values).await,
        }
    }

    /// The rows of statements that are on their way together, and that the server does one after the other.
    pub(crate) async fn query_all<const N: usize>(
        &self,
        asked: [(&'static str, &[&(dyn ToSql + Sync)]); N],
    ) -> Result<[Vec<Row>; N], Error> {
        // First: a statement that has to be prepared would let those behind it go ahead.
        let mut ready = Vec::with_capacity(N);
        for (sql, values) in asked {
            let statement = match &self.inner {
                Statements::Together(inner) => prepared(inner, self.statements, sql).await?,
                Statements::Alone(inner) => prepared(*inner, self.statements, sql).await?,
            };
            ready.push((statement, values));
        }
        let mut answers = ready.iter().map(|(statement, values)| -> Operation<'_, Vec<Row>> {
            match &self.inner {
                Statements::Together(inner) => Box::pin(inner.query(statement, values)),
                Statements::Alone(inner) => Box::pin(inner.query(statement, values)),
            }
        });
        let mut waiting: [_; N] = std::array::from_fn(|_| answers.next().expect("one for each"));
        let mut rows: [_; N] = std::array::from_fn(|_| None);
        poll_fn(|context| {
            // Each is sent as it is polled for the first time.
            for (waiting, rows) in waiting.iter_mut().zip(&mut rows).filter(|(_, rows)| rows.is_none()) {
                if let Poll::Ready(answer) = waiting.as_mut().poll(context) {
                    *rows = Some(answer);
                }
            }
            if rows.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let mut all: [Vec<Row>; N] = std::array::from_fn(|_| Vec::new());
        for (all, rows) in all.iter_mut().zip(rows) {
            *all = rows.expect("all are there")?;
        }
        Ok(all)
    }

    /// How many rows a statement changed.
    pub(crate) async fn execute(&self, sql: &'static str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        let statements = self.statements;
        match &self.inner {
            Statements::Together(inner) => inner.execute(&prepared(inner, statements, sql).await?, values).await,
            Statements::Alone(inner) => inner.execute(&prepared(*inner, statements, sql).await?, values).await,
        }
    }
}

async fn prepared(
    client: &impl GenericClient,
    statements: &Mutex<HashMap<&'static str, Statement>>,
    sql: &'static str,
) -> Result<Statement, Error> {
    let known = statements.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(sql).cloned();
    if let Some(statement) = known {
        return Ok(statement);
    }
    let statement = client.prepare(sql).await?;
    statements.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(sql, statement.clone());
    Ok(statement)
}
