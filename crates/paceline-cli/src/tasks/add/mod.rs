//! `paceline tasks add`: items into a store, one or a file of them.

mod file;
mod hosts;
mod line;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_core::Timestamp;
use paceline_store::ACCOUNT;
use paceline_store::work::{Added, DEFAULT_GROUP, NewItem, State, WorkClock, WorkError, WorkStore};
use serde_json::json;

use super::compact::on_one_line;
use super::store::StoreArgs;
use crate::args::{Everywhere, duration};
use crate::database::not_begun;
use crate::exit::{Failure, Status};
use crate::lines::not_sent::NotSent;
use crate::text::shell_word;
use crate::{logging, output, text};
use file::Items;
use hosts::Hosts;
pub(crate) use hosts::host_and_address_of;

/// `paceline tasks add`.
#[derive(Debug, clap::Args)]
#[command(after_help = LINES)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Input of the work, as JSON; - reads standard input
    #[arg(value_name = "PAYLOAD_JSON", required_unless_present = "from")]
    payload: Option<String>,
    /// Items from a file, one a line; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["payload", "key", "priority", "deadline", "group", "not_before"])]
    from: Option<PathBuf>,
    /// Name of the item, unique in its store; an item that has this key already stays as it is [default: a new one, printed]
    #[arg(long, value_name = "KEY", value_parser = name)]
    key: Option<String>,
    /// Among due items, higher goes first
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    priority: i16,
    /// How long after its first try the item fails for good [default: --deadline of the run]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    deadline: Option<Duration>,
    /// Items of one group are held and stopped together, and groups take turns
    #[arg(long, value_name = "GROUP", default_value = DEFAULT_GROUP, value_parser = group)]
    group: String,
    /// Earliest time of the first try: an instant (RFC 3339), or a duration from now
    #[arg(long, value_name = "TIME", value_parser = When::parse)]
    not_before: Option<When>,
    /// Refuse what `tasks run --http` could not send: a payload that is no request, an address that is none
    #[arg(long)]
    http: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const LINES: &str = "\
Lines of --from; key and payload are required:
  {\"key\": \"a\", \"payload\": {}, \"priority\": 0, \"deadline\": \"24h\", \"group\": \"default\", \"not_before\": \"10m\"}
All lines are checked before the first item is added. The same file may be added again: items that exist stay as they are.";

/// Adds the items.
///
/// # Errors
/// Refuses what is no item, before anything is added; and reports a failure of the store.
pub(crate) async fn command(args: Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    let clock = WorkClock::system();
    if let Some(from) = &args.from {
        let items = Items::check(from, args.http)?;
        let store = args.store.open_or_make(&clock).await.map_err(nothing_added)?;
        let items = items.at(store.now().await.map_err(not_begun)?);
        let tally = add_all(&*store, items, everywhere.quiet).await?;
        if args.json || !everywhere.quiet {
            print(&tally, None, args.json)?;
        }
        return Ok(Status::Success);
    }
    let made = args.key.is_none();
    let mut item = one(&args)?;
    let store = args.store.open_or_make(&clock).await.map_err(nothing_added)?;
    if let Some(when) = args.not_before {
        item.not_before = Some(when.from(store.now().await.map_err(not_begun)?));
    }
    let mut tally = Tally::default();
    let key = item.key.clone();
    tally.count(&store.insert(vec![item]).await.map_err(|error| not_added(error, &key))?);
    if args.json {
        print(&tally, Some(&key), true)?;
    } else if made {
        // No other command shows it.
        output::print(|out| writeln!(out, "{key}"))?;
    } else if !everywhere.quiet {
        print(&tally, Some(&key), false)?;
    }
    Ok(Status::Success)
}

/// The item of the flags, but for its due time.
fn one(args: &Args) -> Result<NewItem, Failure> {
    let payload = match args.payload.as_deref().unwrap_or_default() {
        "-" => {
            let mut payload = String::new();
            let read = std::io::stdin().lock().take(MOST_PAYLOAD).read_to_string(&mut payload);
            read.map_err(|error| Failure::refused(format!("cannot read the payload: {error}")))?;
            payload
        }
        payload => payload.to_owned(),
    };
    let payload = on_one_line(&payload).map_err(|error| {
        Failure::refused(match payload.trim().is_empty() {
            true => "the payload is empty: expected JSON, such as {} or null".to_owned(),
            false => format!(
                "the payload is not JSON (line {}, column {}); a string needs its own quotes: '\"text\"'",
                error.line(),
                error.column()
            ),
        })
    })?;
    let refused = |why| Failure::refused(format!("the payload: {why}"));
    line::refuse_keys(&payload).map_err(refused)?;
    if args.http {
        let mut not_sent = NotSent::default();
        line::refuse_no_request(&payload).map_err(refused)?.into_iter().for_each(|key| not_sent.note(key, 1));
        not_sent.tell();
    }
    let key = args.key.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let item = NewItem {
        priority: args.priority,
        deadline: args.deadline,
        group: args.group.clone(),
        ..NewItem::new(key, payload)
    };
    item.check().map_err(Failure::refused)?;
    Ok(item)
}

/// More than a store takes, so that it says so.
const MOST_PAYLOAD: u64 = 32 << 20;

/// Adds the items of a file, many at a time.
async fn add_all(store: &dyn WorkStore, mut items: Items, quiet: bool) -> Result<Tally, Failure> {
    let bar = progress(items.bytes(), quiet);
    let (mut tally, mut hosts, all) = (Tally::default(), Hosts::default(), items.count());
    while let Some(together) = items.next_together()? {
        together.iter().for_each(|item| hosts.note(&item.payload));
        let added = store.insert(together).await.map_err(|error| not_all_added(error, &tally, all))?;
        tally.count(&added);
        bar.set_position(items.position());
    }
    bar.finish_and_clear();
    if let Some(words) = hosts.describe().filter(|_| tally.added > 0) {
        tracing::info!("{}", text::printable(&words));
    }
    Ok(tally)
}

/// Why nothing was added where the same command adds it later: that nothing was is told too.
fn nothing_added(why: Failure) -> Failure {
    match why {
        Failure::Interrupted(why) => Failure::Interrupted(format!("nothing was added: {why}")),
        Failure::DiskFull(why) => Failure::DiskFull(format!("nothing was added: {why}")),
        why => why,
    }
}

/// Why that item was not added, or may not have been.
fn not_added(error: WorkError, key: &str) -> Failure {
    match error.is_unreachable() {
        true => Failure::interrupted(format!(
            "the item may be in the store, or may not: {error}; add it again with --key {}, which adds it once",
            shell_word(key)
        )),
        false => nothing_added(not_begun(error)),
    }
}

/// Why only those of `all` items were added that the tally has.
fn not_all_added(error: WorkError, tally: &Tally, all: u64) -> Failure {
    let there = tally.added + tally.known.values().sum::<u64>();
    if there == 0 && !error.is_unreachable() {
        return nothing_added(not_begun(error));
    }
    let (there, all) = (text::count(there), text::counted(all, "item"));
    let are = if error.is_unreachable() { "are known to be" } else { "are" };
    let what_follows = match error.is_disk_full() {
        // What to do about that it says itself.
        true => ", which adds the rest",
        false => "; add the same file again, which adds the rest",
    };
    Failure::interrupted(format!("{there} of {all} {are} in the store: {error}{what_follows}"))
}

fn progress(bytes: u64, quiet: bool) -> ProgressBar {
    let target = if logging::draws(quiet) { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style =
        ProgressStyle::with_template("adding {bytes} of {total_bytes}, {eta} left").expect("the template is valid");
    ProgressBar::with_draw_target(Some(bytes), target).with_style(style)
}

/// The counts of the items.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    added: u64,
    /// Those that were there already, by the state that they are in.
    known: BTreeMap<State, u64>,
    /// Those of them whose payload is another one.
    differing: u64,
}

impl Tally {
    fn count(&mut self, added: &[Added]) {
        for one in added {
            match one {
                Added::New => self.added += 1,
                Added::Known(state) | Added::Differs(state) => *self.known.entry(*state).or_default() += 1,
            }
            self.differing += u64::from(matches!(one, Added::Differs(_)));
        }
    }

    /// As in `3 added, 2 were there already (1 waiting, 1 succeeded), 1 of them with another payload, which stays`.
    fn describe(&self) -> String {
        let known: u64 = self.known.values().sum();
        let mut line = format!("{} added", text::count(self.added));
        if known > 0 {
            let states: Vec<_> =
                self.known.iter().map(|(state, items)| format!("{} {}", text::count(*items), state.as_str())).collect();
            let were = if known == 1 { "was" } else { "were" };
            line += &format!(", {} {were} there already ({})", text::count(known), states.join(", "));
        }
        match self.differing {
            0 => {}
            1 if known == 1 => line += ", with another payload, which stays as it is",
            differing => {
                line += &format!(", {} of them with another payload, which stays as it is", text::count(differing))
            }
        }
        line
    }
}

fn print(tally: &Tally, key: Option<&str>, as_json: bool) -> Result<(), Failure> {
    output::print(|out| {
        if !as_json {
            return writeln!(out, "{}", tally.describe());
        }
        let known: BTreeMap<_, _> = tally.known.iter().map(|(state, items)| (state.as_str(), items)).collect();
        writeln!(out, "{}", json!({ "added": tally.added, "known": known, "differing": tally.differing, "key": key }))
    })
}

/// An instant, or how long from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    At(Timestamp),
    In(Duration),
}

impl When {
    fn parse(text: &str) -> Result<Self, String> {
        if let Ok(wait) = paceline_config::parse_duration(text) {
            return Ok(Self::In(wait));
        }
        crate::text::instant(text).map(Self::At).ok_or_else(|| {
            "expected an instant such as 2027-01-31T12:00:00Z, before the end of 9999, or a duration such as 15m"
                .to_owned()
        })
    }

    fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::In(wait) => now + wait,
        }
    }
}

/// A key.
fn name(text: &str) -> Result<String, String> {
    match text {
        "" => Err("expected at least one character".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// A group: a name, but not the one of all groups.
fn group(text: &str) -> Result<String, String> {
    match name(text)?.as_str() {
        ACCOUNT => Err(format!("{ACCOUNT} stands for all groups")),
        group => Ok(group.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_that_may_have_been_added_is_told_with_its_key() {
        let silent = || WorkError::Silent { action: "add", server: "db".into(), waited: Duration::from_secs(30) };
        let why = not_added(silent(), "a key").to_string();
        assert!(why.starts_with("the item may be in the store, or may not: "), "{why}");
        assert!(why.ends_with("; add it again with --key 'a key', which adds it once"), "{why}");
        let why = not_all_added(silent(), &Tally::default(), 5).to_string();
        assert!(why.starts_with("0 of 5 items are known to be in the store: "), "{why}");
    }
}
