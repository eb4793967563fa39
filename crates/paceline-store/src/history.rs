//! What happened when: one row for each minute in which something did.

use std::time::Duration;

use paceline_core::Timestamp;
use rusqlite::{Connection, Row, params};

use crate::error::JournalError;
use crate::query::{count, int};

/// One minute of a job, over all its scopes and runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Minute {
    /// Minutes since 1970, UTC.
    pub number: i64,
    /// Calls that were answered or given up.
    pub sends: u64,
    /// Usable answers.
    pub successes: u64,
    /// Answers of class throttled.
    pub throttled: u64,
    /// Of the calls, those after an item's first.
    pub resends: u64,
    /// Of those, the ones with a usable answer.
    pub resends_succeeded: u64,
    /// Delays chosen before items go again.
    pub delays: u64,
    /// Their sum, in milliseconds.
    pub delay_sum_ms: u64,
    /// The longest of them, in milliseconds.
    pub delay_max_ms: u64,
    /// Tokens of prompts, as the provider counted them.
    pub tokens_in: u64,
    /// Tokens of answers, as the provider counted them.
    pub tokens_out: u64,
    /// The limit in force at the end of the minute, and what it limits in a word or two; none when it is not known.
    pub limit: Option<(u64, String)>,
}

impl Minute {
    /// A minute in which nothing has happened yet: the one of `now`.
    pub fn of(now: Timestamp) -> Self {
        Self { number: now.as_millis().div_euclid(60_000), ..Self::default() }
    }

    /// When it began.
    pub const fn start(&self) -> Timestamp {
        Timestamp::from_millis(self.number.saturating_mul(60_000))
    }

    /// Counts a delay.
    pub fn delayed(&mut self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.delays += 1;
        self.delay_sum_ms = self.delay_sum_ms.saturating_add(millis);
        self.delay_max_ms = self.delay_max_ms.max(millis);
    }
}

/// The table, in a journal of version 2 and above.
pub(crate) const TABLE: &str = "
    CREATE TABLE history (
        minute INTEGER PRIMARY KEY,
        sends INTEGER NOT NULL,
        successes INTEGER NOT NULL,
        throttled INTEGER NOT NULL,
        resends INTEGER NOT NULL,
        resends_succeeded INTEGER NOT NULL,
        delays INTEGER NOT NULL,
        delay_sum_ms INTEGER NOT NULL,
        delay_max_ms INTEGER NOT NULL,
        tokens_in INTEGER NOT NULL,
        tokens_out INTEGER NOT NULL,
        limit_value INTEGER,
        limit_of TEXT
    ) STRICT;
";

/// Adds to a minute what has happened in it since the last time.
pub(crate) fn add(conn: &Connection, minute: &Minute) -> Result<(), JournalError> {
    let (limit, limit_of) =
        minute.limit.as_ref().map_or((None, None), |(limit, of)| (Some(int(*limit)), Some(of.as_str())));
    conn.prepare_cached(
        "INSERT INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT (minute) DO UPDATE SET
             sends = sends + excluded.sends,
             successes = successes + excluded.successes,
             throttled = throttled + excluded.throttled,
             resends = resends + excluded.resends,
             resends_succeeded = resends_succeeded + excluded.resends_succeeded,
             delays = delays + excluded.delays,
             delay_sum_ms = delay_sum_ms + excluded.delay_sum_ms,
             delay_max_ms = max(delay_max_ms, excluded.delay_max_ms),
             tokens_in = tokens_in + excluded.tokens_in,
             tokens_out = tokens_out + excluded.tokens_out,
             limit_value = coalesce(excluded.limit_value, limit_value),
             limit_of = coalesce(excluded.limit_of, limit_of)",
    )
    .and_then(|mut insert| {
        insert.execute(params![
            minute.number,
            int(minute.sends),
            int(minute.successes),
            int(minute.throttled),
            int(minute.resends),
            int(minute.resends_succeeded),
            int(minute.delays),
            int(minute.delay_sum_ms),
            int(minute.delay_max_ms),
            int(minute.tokens_in),
            int(minute.tokens_out),
            limit,
            limit_of,
        ])
    })
    .map_err(JournalError::sqlite("write"))?;
    Ok(())
}

/// All minutes, in order.
pub(crate) fn all(conn: &Connection) -> Result<Vec<Minute>, JournalError> {
    let read = || {
        let mut select = conn.prepare("SELECT * FROM history ORDER BY minute")?;
        select.query_map([], minute)?.collect::<rusqlite::Result<Vec<_>>>()
    };
    read().map_err(JournalError::sqlite("read"))
}

fn minute(row: &Row<'_>) -> rusqlite::Result<Minute> {
    let number = |column| row.get::<_, i64>(column).map(count);
    let limit: Option<i64> = row.get("limit_value")?;
    let limit_of: Option<String> = row.get("limit_of")?;
    Ok(Minute {
        number: row.get("minute")?,
        sends: number("sends")?,
        successes: number("successes")?,
        throttled: number("throttled")?,
        resends: number("resends")?,
        resends_succeeded: number("resends_succeeded")?,
        delays: number("delays")?,
        delay_sum_ms: number("delay_sum_ms")?,
        delay_max_ms: number("delay_max_ms")?,
        tokens_in: number("tokens_in")?,
        tokens_out: number("tokens_out")?,
        limit: limit.map(count).zip(limit_of),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_grows_and_keeps_its_place() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(TABLE).unwrap();
        let now = Timestamp::from_millis(1_700_000_039_999);
        let mut first = Minute { sends: 3, successes: 1, limit: Some((10, "concurrency".into())), ..Minute::of(now) };
        first.delayed(Duration::from_millis(500));
        first.delayed(Duration::from_millis(100));
        let more =
            Minute { sends: 1, tokens_out: 7, delays: 1, delay_sum_ms: 200, delay_max_ms: 200, ..Minute::of(now) };
        let later = Minute { throttled: 1, ..Minute::of(now + Duration::from_millis(1)) };
        for minute in [&later, &first, &more] {
            add(&conn, minute).unwrap();
        }
        let sum = Minute { sends: 4, tokens_out: 7, delays: 3, delay_sum_ms: 800, ..first };
        assert_eq!(sum.delay_max_ms, 500);
        assert_eq!(all(&conn).unwrap(), [sum, later]);
    }
}
