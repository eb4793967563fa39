//! Tokens that the calls of a job used, by model, over all its runs; calls that failed count too.

use rusqlite::{Connection, Row, params};

use crate::error::JournalError;
use crate::item::ModelUsage;
use crate::query::{count, int};
use crate::schema::{add_column, has_column, has_table};

/// The table. A journal of an older version gets it when its job goes on, filled from its items.
pub(crate) const TABLE: &str = "
    CREATE TABLE spent (
        model TEXT PRIMARY KEY,
        calls INTEGER NOT NULL,
        tokens_in INTEGER NOT NULL,
        tokens_out INTEGER NOT NULL,
        cache_price INTEGER NOT NULL DEFAULT 0, -- tokens of input more that the prompts cost
        cached INTEGER NOT NULL DEFAULT 0, -- tokens of them that a cache was read for
        cached_price INTEGER NOT NULL DEFAULT 0, -- tokens of input more, or fewer, that these cost
        older INTEGER NOT NULL DEFAULT 0, -- calls of a version that did not keep these apart
        unpriced INTEGER NOT NULL DEFAULT 0, -- calls that another model answered, of which no price was known
        in_place INTEGER NOT NULL DEFAULT 0, -- calls that this model answered in place of another
        divided INTEGER NOT NULL DEFAULT 0, -- of tokens_out, those that only a total told with the prompt
        written INTEGER NOT NULL DEFAULT 0, -- tokens of the prompts that were written into a cache
        written_price INTEGER NOT NULL DEFAULT 0, -- of cache_price, what is theirs
        cache_rest INTEGER NOT NULL DEFAULT 0, -- hundredths of a token beside cache_price, and so on
        cached_rest INTEGER NOT NULL DEFAULT 0,
        written_rest INTEGER NOT NULL DEFAULT 0,
        beyond INTEGER NOT NULL DEFAULT 0 -- tokens of the longest answer that exceeded the bound of its request
    ) STRICT, WITHOUT ROWID;
";

/// The columns that the tables of older versions have not.
const LATER: [&str; 13] = [
    "cache_price",
    "cached",
    "cached_price",
    "older",
    "unpriced",
    "in_place",
    "divided",
    "written",
    "written_price",
    "cache_rest",
    "cached_rest",
    "written_rest",
    "beyond",
];

/// Makes the table in a journal that has none, within the caller's transaction.
pub(crate) fn begin(conn: &Connection) -> rusqlite::Result<()> {
    if has_table(conn, "spent")? {
        let is_older = !has_column(conn, "spent", "older")?;
        for column in LATER {
            add_column(conn, "spent", column, "INTEGER NOT NULL DEFAULT 0")?;
        }
        return if is_older { conn.execute_batch("UPDATE spent SET older = calls") } else { Ok(()) };
    }
    conn.execute_batch(TABLE)?;
    conn.execute_batch(
        "INSERT INTO spent (model, calls, tokens_in, tokens_out, older)
         SELECT '', count(*), sum(tokens_in), sum(tokens_out), count(*) FROM item WHERE tokens_in + tokens_out > 0 HAVING count(*) > 0",
    )
}

/// Adds usage to that of its model; sums of calls have few models.
pub(crate) fn add_to(sums: &mut Vec<ModelUsage>, usage: ModelUsage) {
    match sums.iter_mut().find(|sum| sum.model == usage.model) {
        Some(sum) => *sum += &usage,
        None => sums.push(usage),
    }
}

/// Adds usage, within the caller's transaction.
pub(crate) fn add(conn: &Connection, usage: &ModelUsage) -> rusqlite::Result<()> {
    if usage.calls + usage.tokens_in + usage.tokens_out == 0 {
        return Ok(());
    }
    let sql = "INSERT INTO spent (model, calls, tokens_in, tokens_out, cache_price, cached, cached_price, older, unpriced, in_place,
                                  divided, written, written_price, cache_rest, cached_rest, written_rest, beyond)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
               ON CONFLICT (model) DO UPDATE SET calls = calls + ?2, tokens_in = tokens_in + ?3, tokens_out = tokens_out + ?4,
                   cache_price = cache_price + ?5, cached = cached + ?6, cached_price = cached_price + ?7, older = older + ?8,
                   unpriced = unpriced + ?9, in_place = in_place + ?10, divided = divided + ?11, written = written + ?12,
                   written_price = written_price + ?13, cache_rest = cache_rest + ?14, cached_rest = cached_rest + ?15,
                   written_rest = written_rest + ?16, beyond = max(beyond, ?17)";
    let [calls, tokens_in, tokens_out, cached, older, unpriced, in_place, divided, written, beyond] = [
        usage.calls,
        usage.tokens_in,
        usage.tokens_out,
        usage.cached_tokens,
        usage.calls_of_older,
        usage.calls_unpriced,
        usage.calls_in_place,
        usage.divided_out,
        usage.written_tokens,
        usage.beyond_bound,
    ]
    .map(int);
    let prices = [usage.cache_price, usage.cached_price, usage.written_price];
    let [cache_price, cached_price, written_price] = prices.map(|hundredths| hundredths.div_euclid(100));
    let [cache_rest, cached_rest, written_rest] = prices.map(|hundredths| hundredths.rem_euclid(100));
    let values = params![
        usage.model,
        calls,
        tokens_in,
        tokens_out,
        cache_price,
        cached,
        cached_price,
        older,
        unpriced,
        in_place,
        divided,
        written,
        written_price,
        cache_rest,
        cached_rest,
        written_rest,
        beyond,
    ];
    conn.prepare_cached(sql)?.execute(values).map(drop)
}

/// Replaces all usage, within the caller's transaction.
pub(crate) fn replace(conn: &Connection, all: &[ModelUsage]) -> rusqlite::Result<()> {
    conn.execute("DELETE FROM spent", [])?;
    all.iter().try_for_each(|usage| add(conn, usage))
}

/// Usage as a row has it: the model, calls, tokens in and out, what a cache made of their price, and how that came.
pub(crate) fn of_row(row: &Row<'_>) -> rusqlite::Result<ModelUsage> {
    let number = |column: usize| row.get(column).map(count);
    let hundredths = |tokens: usize, rest: usize| {
        Ok::<i64, rusqlite::Error>(row.get::<_, i64>(tokens)? * 100 + row.get::<_, i64>(rest)?)
    };
    Ok(ModelUsage {
        model: row.get::<_, String>(0)?.into(),
        calls: number(1)?,
        tokens_in: number(2)?,
        tokens_out: number(3)?,
        cache_price: hundredths(4, 13)?,
        cached_tokens: number(5)?,
        cached_price: hundredths(6, 14)?,
        calls_of_older: number(7)?,
        calls_unpriced: number(8)?,
        calls_in_place: number(9)?,
        divided_out: number(10)?,
        written_tokens: number(11)?,
        written_price: hundredths(12, 15)?,
        beyond_bound: number(16)?,
    })
}

/// The usage by model; empty in a journal of an older version whose job has not gone on.
pub(crate) fn all(conn: &Connection) -> Result<Vec<ModelUsage>, JournalError> {
    let read = || {
        if !has_table(conn, "spent")? {
            return Ok(Vec::new());
        }
        let mut sql = "SELECT model, calls, tokens_in, tokens_out".to_owned();
        for column in LATER {
            let value = match has_column(conn, "spent", column)? {
                true => column,
                false if column == "older" => "calls",
                false => "0",
            };
            sql += &format!(", {value}");
        }
        sql += " FROM spent ORDER BY model";
        let mut select = conn.prepare(&sql)?;
        let rows = select.query_map([], of_row)?;
        rows.collect::<rusqlite::Result<_>>()
    };
    read().map_err(JournalError::sqlite("read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_of_an_older_version_learns_what_caches_make_of_prices() {
        let newer = TABLE.split_once(",\n        cache_price").expect("a column").1;
        for with_price in [false, true] {
            let conn = Connection::open_in_memory().expect("a database");
            let column = if with_price { ", cache_price INTEGER NOT NULL DEFAULT 0" } else { "" };
            let older =
                TABLE.replace(&format!(",\n        cache_price{newer}"), &format!("{column}) STRICT, WITHOUT ROWID;"));
            conn.execute_batch(&older).expect("the table");
            assert_eq!(has_column(&conn, "spent", "cache_price").expect("it reads"), with_price);
            conn.execute_batch("INSERT INTO spent (model, calls, tokens_in, tokens_out) VALUES ('m', 2, 30, 4)")
                .expect("a row");
            let before = ModelUsage {
                model: "m".into(),
                calls: 2,
                tokens_in: 30,
                tokens_out: 4,
                calls_of_older: 2,
                ..ModelUsage::default()
            };
            assert_eq!(all(&conn).expect("it reads"), std::slice::from_ref(&before), "as it stands");
            begin(&conn).expect("columns more");
            begin(&conn).expect("it has them");
            let call = ModelUsage {
                calls: 1,
                tokens_in: 20,
                tokens_out: 1,
                cache_price: 5,
                cached_tokens: 18,
                cached_price: -16,
                written_tokens: 2,
                written_price: 5,
                calls_of_older: 0,
                calls_unpriced: 1,
                divided_out: 1,
                beyond_bound: 7,
                ..before.clone()
            };
            [&call, &call].into_iter().for_each(|call| add(&conn, call).expect("it counts"));
            let both = ModelUsage {
                calls: 4,
                tokens_in: 70,
                tokens_out: 6,
                cache_price: 10,
                cached_tokens: 36,
                cached_price: -32,
                written_tokens: 4,
                written_price: 10,
                calls_unpriced: 2,
                divided_out: 2,
                beyond_bound: 7,
                ..before
            };
            assert_eq!(all(&conn).expect("it reads"), [both]);
        }
    }
}
