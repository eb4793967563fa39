//! What durable work costs: `scripts/work-speed`, which runs this beside its peers.
//!
//! ```text
//! work jobs FILE JOBS AT_A_TIME   the seconds until all empty jobs were added, and from then until the last was recorded
//! work waiting FILE ITEMS         adds items that wait, and some that are due
//! work claim FILE                 claims those in a process of its own: time and memory
//! work due FILE                   ten thousand items due over two seconds: how late each begins
//! work postgres ADDRESS           four worker processes beside a bare loop on the same tables
//! work groups ADDRESS             a worker on Postgres, its items in one group and in ten thousand
//! ```

mod postgres;
mod process;
mod sqlite;

use std::error::Error;
use std::path::Path;

/// Any failure ends the program.
type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["jobs", file, jobs, at_a_time] => sqlite::jobs(Path::new(file), jobs.parse()?, at_a_time.parse()?).await,
        ["waiting", file, items] => sqlite::waiting(Path::new(file), items.parse()?).await,
        ["claim", file] => sqlite::claim(Path::new(file)).await,
        ["due", file] => sqlite::due(Path::new(file)).await,
        ["postgres", address] => postgres::compare(address).await,
        ["groups", address] => postgres::groups(address).await,
        ["worker", kind, address, schema] => postgres::worker(kind, address, schema).await,
        _ => Err("see the top of bench/src/bin/work/main.rs".into()),
    }
}
