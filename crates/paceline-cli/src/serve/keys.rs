//! `paceline serve keys`: makes, lists and revokes the keys of clients.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use paceline::{QuotaSnapshot, clock};
use paceline_config::{parse_count, parse_duration};
use paceline_core::Timestamp;
use paceline_gateway::{Clients, KeyHash, limit_json};
use paceline_providers::secrets::hidden;
use paceline_store::private_file;
use serde_json::{Value, json};

use super::batches::Unfinished;
use super::client_keys::{Former, KeyFile, Priority, Record};
use super::key_checks::{check_limits, check_models, check_paths, warn_of_unknown_upstreams};
use super::{client_usage, state, whole_file};
use crate::args::Everywhere;
use crate::exit::{Failure, Status};
use crate::output;

/// What the file beside the keys says from the first key on.
const MARK: &[u8] =
    b"There are keys of clients in the file beside this one. Without that file a gateway does not begin.\n";

/// When a change of the keys acts, and where.
fn known(place: &Place) -> String {
    let file = path(place).map(|path| path.display().to_string()).unwrap_or_default();
    format!("a gateway whose keys are in {file} knows it within two seconds, or at once on SIGHUP")
}

/// The longest name.
const LONGEST_NAME: usize = 64;

/// `paceline serve keys`.
#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

/// What can be done with keys.
#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key for a client, and print it once: only its hash is kept; a gateway that runs knows it within two seconds, or at
    /// once on SIGHUP
    Add(AddArgs),
    /// Change what the client of a key may do; the key stays, and so does what was used of its limits; a gateway that runs knows
    /// it within two seconds, or at once on SIGHUP
    Set(SetArgs),
    /// List the keys that there are, by name, with what each client has used of its limits
    List(ListArgs),
    /// Give a client another key, and print it once; the former one is good for a while, and both are one client with one use of
    /// its limits; a gateway that runs knows it within two seconds, or at once on SIGHUP
    Rotate(RotateArgs),
    /// Revoke the keys of a client; a gateway that runs knows it within two seconds, or at once on SIGHUP
    Revoke(RevokeArgs),
}

/// Where the keys are.
#[derive(Debug, Args)]
struct Place {
    /// File of the keys [default: client-keys.json in the folder of --state]
    #[arg(long, value_name = "FILE")]
    client_keys: Option<PathBuf>,
    /// State folder of the gateway, as its --state names it [default: paceline/serve in your state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

/// Which keys there are.
#[derive(Debug, Args)]
struct ListArgs {
    /// Print JSON, an array with an object for each key
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// A new key.
#[derive(Debug, Args)]
struct AddArgs {
    /// Name of the client: letters, digits, '.', '_' and '-'
    name: String,
    /// A limit of this client on requests, tokens, money or calls in flight, beside those of the upstreams: 60rpm, '1M tokens per
    /// 24h', '5.00 money per 24h' (at the prices of the configuration, in their currency), '5 concurrent'; may be repeated, or
    /// several with commas between them
    #[arg(long, value_name = "LIMIT", value_delimiter = ',', value_parser = trimmed)]
    limit: Vec<String>,
    /// How many requests of this client may leave at once after idling, under its shortest limit on requests of at most 60 s; the
    /// others are spaced: 60rpm without this lets one leave each second [default: the limit per second, rounded up]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    burst: Option<u64>,
    /// Models that this client may ask for, with commas between them; gpt-5* means all that begin so [default: all]
    #[arg(long, value_name = "MODELS", value_delimiter = ',', value_parser = trimmed)]
    models: Vec<String>,
    /// Paths that this client may call, and all below them, with commas between them: /openai/v1/chat/completions [default: all]
    #[arg(long, value_name = "PATHS", value_delimiter = ',', value_parser = trimmed)]
    paths: Vec<String>,
    /// Which requests of this client go first
    #[arg(long, value_enum, default_value_t, value_name = "PRIORITY")]
    priority: Priority,
    #[command(flatten)]
    place: Place,
}

/// What a client may do from now on; what is not named stays.
#[derive(Debug, Args)]
struct SetArgs {
    /// Name of the client
    name: String,
    /// The limits of this client in place of its former ones, as `keys add` takes them; none has no limits; may be repeated, or
    /// several with commas between them
    #[arg(long, value_name = "LIMIT", value_delimiter = ',', value_parser = trimmed)]
    limit: Vec<String>,
    /// How many requests of this client may leave at once after idling, as `keys add` takes it
    #[arg(long, value_name = "N", value_parser = parse_count)]
    burst: Option<u64>,
    /// Models that this client may ask for in place of its former ones, with commas between them; all means every model
    #[arg(long, value_name = "MODELS", value_delimiter = ',', value_parser = trimmed)]
    models: Vec<String>,
    /// Paths that this client may call in place of its former ones, with commas between them; all means every path
    #[arg(long, value_name = "PATHS", value_delimiter = ',', value_parser = trimmed)]
    paths: Vec<String>,
    /// Which requests of this client go first
    #[arg(long, value_enum, value_name = "PRIORITY")]
    priority: Option<Priority>,
    #[command(flatten)]
    place: Place,
}

/// Another key.
#[derive(Debug, Args)]
struct RotateArgs {
    /// Name of the client
    name: String,
    /// How long the former key is good beside the new one, such as 24h; 0s ends it at once
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration)]
    keep_old: Duration,
    #[command(flatten)]
    place: Place,
}

/// A key that is to go.
#[derive(Debug, Args)]
struct RevokeArgs {
    /// Name of the client
    name: String,
    /// Only the former key, which `keys rotate` left good for a while
    #[arg(long)]
    former: bool,
    #[command(flatten)]
    place: Place,
}

/// One of several with commas between them, and perhaps a blank behind a comma.
fn trimmed(text: &str) -> Result<String, Infallible> {
    Ok(text.trim().to_owned())
}

/// Does what its command says.
///
/// # Errors
/// A name that is taken, or is none; a file that cannot be read or written.
pub(super) fn command(args: KeysArgs, everywhere: &Everywhere) -> Result<Status, Failure> {
    if let KeysCommand::Add(AddArgs { limit, paths, .. }) | KeysCommand::Set(SetArgs { limit, paths, .. }) =
        &args.command
    {
        check_limits(limit)?;
        warn_of_unknown_upstreams(paths, everywhere);
    }
    match args.command {
        KeysCommand::Add(args) => add(args)?,
        KeysCommand::Set(args) => set(args)?,
        KeysCommand::List(ListArgs { json, place }) => list(&place, json)?,
        KeysCommand::Rotate(args) => rotate(args)?,
        KeysCommand::Revoke(RevokeArgs { name, former, place }) => revoke(&name, former, &place)?,
    }
    Ok(Status::Success)
}

fn add(args: AddArgs) -> Result<(), Failure> {
    let AddArgs { name, limit, burst, models, paths, priority, place } = args;
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_of_name) {
        let expected = format!("expected 1 to {LONGEST_NAME} letters, digits, '.', '_' or '-'");
        return Err(Failure::refused(format!("{name:?} is no name of a client: {expected}")));
    }
    if *hidden(&name) != *name {
        return Err(Failure::refused(
            "NAME looks like a key: expected a name of the client, which is shown in logs and on the page; the key is made here",
        ));
    }
    check_models(&models)?;
    check_paths(&paths)?;
    let (key, sha256) = fresh_key()?;
    let (made, limits) = (clock::wall().to_string(), limit);
    let record = Record { name, sha256, made, limits, burst, models, paths, priority, former: None };
    record.client().map_err(Failure::refused)?;
    let told = record.name.clone();
    change(&place, |path, file| {
        if file.keys.iter().any(|known| known.name == record.name) {
            let (name, path) = (&record.name, path.display());
            return Err(Failure::refused(format!(
                "{path} has a key of the name {name}; revoke it first, or choose another"
            )));
        }
        file.keys.push(record);
        Ok(())
    })?;
    tell_what_holds(&told, &place);
    output::print(|out| writeln!(out, "{key}"))
}

/// A new key, and its hash.
fn fresh_key() -> Result<(String, String), Failure> {
    let mut random = [0; KeyHash::RANDOM];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::refused(format!("the system has no random bytes: {error}")))?;
    let key = random.iter().fold(KeyHash::PREFIX.to_owned(), |key, byte| key + &format!("{byte:02x}"));
    let sha256 = KeyHash::of(&key).to_string();
    Ok((key, sha256))
}

fn rotate(args: RotateArgs) -> Result<(), Failure> {
    let RotateArgs { name, keep_old, place } = args;
    let (key, sha256) = fresh_key()?;
    let (now, mut older) = (clock::wall(), None);
    let until = (!keep_old.is_zero()).then(|| now + keep_old);
    change_known(&name, "rotate", &place, |keys, at| {
        let record = &mut keys[at];
        older = record.former_in_force().map(Former::until);
        let sha256 = std::mem::replace(&mut record.sha256, sha256);
        record.former = until.map(|until| Former { sha256, until_ms: until.as_millis() });
        record.made = now.to_string();
        Ok(())
    })?;
    if let Some(older) = older {
        tracing::warn!("the key before the former one, which was good until {older}, has ended");
    }
    let until = until.map_or_else(|| "has ended".to_owned(), |until| format!("is good until {until}"));
    tracing::info!(
        "the former key of {name} {until}; a gateway that runs knows both within two seconds, or at once on SIGHUP"
    );
    tell_batches(&name, &place);
    output::print(|out| writeln!(out, "{key}"))
}

fn set(args: SetArgs) -> Result<(), Failure> {
    let SetArgs { name, limit, burst, models, paths, priority, place } = args;
    check_models(&models)?;
    if paths != ["all"] {
        check_paths(&paths)?;
    }
    if limit.is_empty() && burst.is_none() && models.is_empty() && paths.is_empty() && priority.is_none() {
        let expected = "expected --limit, --burst, --models, --paths or --priority";
        return Err(Failure::refused(format!("there is nothing to change: {expected}")));
    }
    // A list that is the word alone is empty.
    let list = |given: Vec<String>, word: &str| if given == [word] { Vec::new() } else { given };
    change_known(&name, "change", &place, |keys, at| {
        let key = &mut keys[at];
        if !limit.is_empty() {
            key.limits = list(limit, "none");
            // What was chosen for other limits goes with them.
            key.burst = burst;
        }
        key.burst = burst.or(key.burst);
        if !models.is_empty() {
            key.models = list(models, "all");
        }
        if !paths.is_empty() {
            key.paths = list(paths, "all");
        }
        key.priority = priority.unwrap_or(key.priority);
        key.client().map(drop).map_err(Failure::refused)
    })?;
    tell_what_holds(&name, &place);
    tell_batches(&name, &place);
    Ok(())
}

/// Says what a client may do now, with its limits as they were understood.
fn tell_what_holds(name: &str, place: &Place) {
    let file = kept(place);
    let Some(record) = file.iter().flat_map(|file| &file.keys).find(|key| key.name == name) else { return };
    tracing::info!("{name}: {}; {}", record.understood(), known(place));
}

fn revoke(name: &str, former: bool, place: &Place) -> Result<(), Failure> {
    change_known(name, "revoke", place, |keys, at| {
        if !former {
            keys.remove(at);
            return Ok(());
        }
        let has_one = keys[at].former_in_force().is_some();
        keys[at].former = None;
        let refused =
            || Failure::refused(format!("{name} has no former key that is good; without --former its key is revoked"));
        has_one.then_some(()).ok_or_else(refused)
    })?;
    let what = if former { "the former key" } else { "every key" };
    tracing::info!("{what} of {name} is revoked: {}", known(place));
    tell_batches(name, place);
    Ok(())
}

/// The keys as they are kept now; none where they cannot be read.
fn kept(place: &Place) -> Option<KeyFile> {
    KeyFile::read(&path(place).ok()?).ok()?
}

/// Says which batches of a client end by what its keys are now.
fn tell_batches(name: &str, place: &Place) {
    let Some(folder) = state::place(place.state.as_deref()).ok() else { return };
    let file = kept(place);
    let clients = file.as_ref().and_then(|file| Clients::with_keys(file.clients().ok()?, &Clients::OfThisMachine).ok());
    let (Some(file), Some(clients)) = (file, clients) else { return };
    let former = file.keys.iter().find(|key| key.name == name).and_then(Record::former_in_force);
    for batch in Unfinished::of(&folder, name) {
        let id = batch.id();
        if let Some(why) = batch.why_not(&clients) {
            tracing::info!("the gateway cancels {id}, at once or as it starts: {why}");
        } else if let Some(former) = former.filter(|former| batch.is_of(&former.sha256)) {
            tracing::info!(
                "{id} was asked for with the former key, and is cancelled if it has not ended by {}",
                former.until()
            );
        }
    }
}

/// Changes the keys where there is one of that name, given its place among them. `what` is done to it, for people.
fn change_known(
    name: &str,
    what: &str,
    place: &Place,
    act: impl FnOnce(&mut Vec<Record>, usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let path = path(place)?;
    let shown = hidden(name);
    // Nothing is made where there is nothing to change.
    if !path.exists() {
        return Err(Failure::refused(format!(
            "{} is not there, so there is no key {shown:?} to {what}",
            path.display()
        )));
    }
    change(place, |path, file| match file.keys.iter().position(|key| key.name == name) {
        Some(at) => act(&mut file.keys, at),
        None => Err(Failure::refused(format!("{} has no key of the name {shown:?}", path.display()))),
    })
}

fn list(place: &Place, as_json: bool) -> Result<(), Failure> {
    let path = path(place)?;
    let Some(file) = KeyFile::read(&path)? else {
        if let Some(missed) = KeyFile::missed(&path, place.client_keys.is_some()) {
            return Err(Failure::refused(missed));
        }
        tracing::warn!(
            "there are no keys: {} is not there; `paceline serve keys add NAME` makes it, and a gateway with another state folder \
             has its keys elsewhere (--state)",
            path.display()
        );
        return if as_json { output::print(|out| writeln!(out, "[]")) } else { Ok(()) };
    };
    let used = used(&file, place);
    if place.client_keys.is_some() && file.keys.iter().any(|key| !key.limits.is_empty()) {
        tracing::info!(
            "each gateway that has this file allows a key its limits, also in a fleet; `used` is of the one of --state"
        );
    }
    if as_json {
        let keys: Vec<_> = file.keys.iter().map(|key| json_of(key, used.get(&key.name))).collect();
        return output::print(|out| writeln!(out, "{}", Value::from(keys)));
    }
    output::print(|out| {
        file.keys.iter().try_for_each(|key| {
            let used = used.get(&key.name).map_or_else(String::new, Used::describe);
            writeln!(out, "{}  made {}  {}{used}", key.name, key.made, key.described())
        })
    })
}

/// A key as an object, without the key and its hash.
fn json_of(key: &Record, used: Option<&Used>) -> Value {
    json!({
        "name": key.name,
        "made": key.made,
        "limits": key.limits,
        "burst": key.burst,
        "models": key.models,
        "paths": key.paths,
        "priority": key.priority,
        "former_until": key.former_in_force().map(|former| former.until().to_string()),
        "used": used.map_or(&[][..], |used| &used.quotas).iter().map(|quota| limit_json(quota, "used", quota.used)).collect::<Vec<_>>(),
        "as_of": used.map(|used| used.at.to_string()),
    })
}

/// What a client has used of its limits, and when a gateway wrote that.
struct Used {
    quotas: Vec<QuotaSnapshot>,
    at: Timestamp,
}

impl Used {
    fn describe(&self) -> String {
        let of = |quota: &QuotaSnapshot| {
            let used = quota.dimension.amount(quota.used);
            let limit = quota.window.map_or_else(String::new, |window| quota.dimension.per(quota.limit, window));
            format!("{used} of {limit}")
        };
        let used: Vec<_> = self.quotas.iter().map(of).collect();
        format!("  used: {} (as of {})", used.join(", "), self.at)
    }
}

/// What each client has used of its limits, by name, as far as a gateway has written it.
fn used(file: &KeyFile, place: &Place) -> BTreeMap<String, Used> {
    let folder = state::place(place.state.as_deref());
    // A file with a limit that is none is listed all the same.
    let clients = file.clients().ok().and_then(|clients| Clients::with_keys(clients, &Clients::OfThisMachine).ok());
    let Some((folder, clients)) = folder.ok().zip(clients) else { return BTreeMap::new() };
    let Some(at) = client_usage::look(&folder, &clients) else { return BTreeMap::new() };
    let used = clients.with_limits().filter(|(_, quotas)| !quotas.is_empty());
    used.map(|(name, quotas)| (name.to_owned(), Used { quotas, at })).collect()
}

fn path(place: &Place) -> Result<PathBuf, Failure> {
    let path = KeyFile::path(place.client_keys.as_deref(), place.state.as_deref());
    path.ok_or_else(|| Failure::refused("there is no state folder: name the file of the keys with --client-keys"))
}

/// Changes the file, under a lock: two changes at once would lose one of them.
fn change(place: &Place, change: impl FnOnce(&Path, &mut KeyFile) -> Result<(), Failure>) -> Result<(), Failure> {
    let path = path(place)?;
    let failed = |error: io::Error| Failure::refused(format!("{}: {error}", path.display()));
    whole_file::make_folder_of(&path).map_err(failed)?;
    let mut lock = private_file().create(true).append(true).open(KeyFile::mark(&path)).map_err(failed)?;
    whole_file::hand_over(&lock, &path).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut file = KeyFile::read(&path)?.unwrap_or_default();
    change(&path, &mut file)?;
    // An earlier version reads a file without them.
    file.keys.iter_mut().filter(|key| key.former_in_force().is_none()).for_each(|key| key.former = None);
    file.write(&path).map_err(|error| {
        let path = path.display();
        Failure::refused(format!("{path}: {error}; nothing has changed: every key works as before, and no other does"))
    })?;
    // The key counts from now on, and is to be printed: what a full disk does not take is written with the next change.
    if lock.metadata().is_ok_and(|mark| mark.len() == 0) {
        let _ = lock.write_all(MARK);
    }
    Ok(())
}
