//! The database's clock, by which everything goes, and what is done when it was set back.

use paceline_core::Timestamp;
use tokio_postgres::Error;

use super::connection::Tx;

/// The time by which everything in the store goes.
pub(super) async fn now(tx: &Tx<'_>) -> Result<Timestamp, Error> {
    let rows = tx.query("SELECT now_ms()", &[]).await?;
    Ok(Timestamp::from_millis(rows.first().map_or(0, |row| row.get(0))))
}

/// Below this a clock is being corrected: worth no look at everything that waits.
const STEP_MS: i64 = 1_000;

/// The same. When the clock was set back since it was last noted, no wait goes on for longer than was chosen.
pub(super) async fn now_or_repair(tx: &Tx<'_>) -> Result<Timestamp, Error> {
    let rows = tx.query("SELECT now_ms(), (SELECT last_ms FROM clock)", &[]).await?;
    let (now, last) = rows.first().map_or((0, None), |row| (row.get(0), row.get::<_, Option<i64>>(1)));
    if last.is_some_and(|last| now + STEP_MS < last) {
        tracing::warn!(
            now,
            last,
            "the clock of the store's server was set back; no wait goes on for longer than was chosen"
        );
        repair(tx, now).await?;
    }
    Ok(Timestamp::from_millis(now))
}

/// Notes the present time, as often as leases are renewed.
pub(super) async fn note(tx: &Tx<'_>) -> Result<Timestamp, Error> {
    let now = now_or_repair(tx).await?;
    tx.execute("UPDATE clock SET last_ms = $1 WHERE last_ms < $1", &[&now.as_millis()]).await?;
    Ok(now)
}

/// Waits, holds and leases that began in what is the future now begin at present.
async fn repair(tx: &Tx<'_>, now: i64) -> Result<(), Error> {
    for sql in [
        "UPDATE clock SET last_ms = $1",
        "UPDATE item SET not_before_ms = $1 + delay_ms
         WHERE state = 0 AND delay_ms > 0 AND not_before_ms - delay_ms > $1",
        "UPDATE scope SET until_ms = $1 + (until_ms - since_ms), since_ms = $1 WHERE since_ms > $1",
        "UPDATE worker SET lease_until_ms = $1 + lease_ms WHERE lease_until_ms - lease_ms > $1",
    ] {
        tx.execute(sql, &[&now]).await?;
    }
    Ok(())
}
