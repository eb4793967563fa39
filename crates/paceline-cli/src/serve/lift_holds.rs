//! `paceline serve lift-holds`: asks the gateway that runs on a state folder to end its holds. It does so by a file there: who
//! may write that folder has the keys of clients in hand, too.

use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_gateway::Gateway;
use tokio::time::sleep;

use super::{state, whole_file};
use crate::exit::{Failure, Status};
use crate::{output, text};

/// The file in the state folder: a line for each upstream, none for all.
const FILE: &str = "lift-holds";

/// The file beside it in which the gateway says what it lifted.
const LIFTED: &str = "lifted-holds";

/// How often the gateway looks for it.
const LOOKED_AT: Duration = Duration::from_millis(200);

/// After so many looks no gateway is there.
const LOOKS: u32 = 25;

/// `paceline serve lift-holds`.
#[derive(Debug, clap::Args)]
pub(super) struct LiftArgs {
    /// Upstream whose holds end; may be repeated [default: all]
    #[arg(long, value_name = "NAME")]
    upstream: Vec<String>,
    /// State folder of the gateway, as its --state names it [default: paceline/serve in your state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

/// Asks the gateway, and waits until it has done so.
///
/// # Errors
/// No gateway that serves these upstreams runs on the folder, or its folder cannot be written.
pub(super) async fn command(args: LiftArgs) -> Result<Status, Failure> {
    let LiftArgs { upstream, state } = args;
    let folder = state::place(state.as_deref()).map_err(|error| Failure::refused(error.to_string()))?;
    let of = if upstream.is_empty() { String::new() } else { format!(" that serves {}", upstream.join(", ")) };
    let none = format!(
        "no gateway{of} runs on the state folder {}; name its folder with --state, or begin one without holds: `paceline serve --lift-holds`",
        folder.display()
    );
    if !folder.is_dir() {
        return Err(Failure::refused(none));
    }
    let path = folder.join(FILE);
    let refused = |error| Failure::refused(format!("{}: {error}", path.display()));
    let lifted = folder.join(LIFTED);
    let _ = std::fs::remove_file(&lifted);
    whole_file::replace(&path, upstream.join("\n").as_bytes()).map_err(refused)?;
    for _ in 0..LOOKS {
        sleep(LOOKED_AT).await;
        if !path.exists() {
            let told = whole_file::check(&lifted).and_then(|()| std::fs::read_to_string(&lifted));
            let _ = std::fs::remove_file(&lifted);
            // An earlier gateway does not say.
            let told = told.unwrap_or_else(|_| "done".to_owned());
            output::print(|out| writeln!(out, "{}", text::printable(&told)))?;
            return Ok(Status::Success);
        }
    }
    std::fs::remove_file(&path).map_err(refused)?;
    Err(Failure::refused(none))
}

/// Ends holds each time that a person asks for it, for as long as it is polled.
pub(super) async fn follow(folder: Option<&Path>, gateway: &Gateway) {
    let Some(path) = folder.map(|folder| folder.join(FILE)) else { return std::future::pending().await };
    // What is there already was for another gateway.
    let _ = std::fs::remove_file(&path);
    loop {
        sleep(LOOKED_AT).await;
        let Some(asked) = whole_file::check(&path).ok().and_then(|()| std::fs::read_to_string(&path).ok()) else {
            continue;
        };
        let Some(lifted) = lift(gateway, &asked) else { continue };
        if let Some(folder) = folder
            && let Err(error) = whole_file::replace(&folder.join(LIFTED), lifted.as_bytes())
        {
            tracing::warn!("{}: what was lifted cannot be told to the user: {error}", folder.join(LIFTED).display());
        }
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!("{}: {error}; it was done, and is not looked at again before a restart", path.display());
            return std::future::pending().await;
        }
    }
}

/// Ends the holds of these upstreams; of none where one is unknown. Returns what was lifted.
fn lift(gateway: &Gateway, asked: &str) -> Option<String> {
    let (upstreams, asked) = (gateway.upstreams(), asked.lines().collect::<Vec<_>>());
    if asked.iter().any(|name| upstreams.iter().all(|upstream| upstream.name() != *name)) {
        return None;
    }
    let mut lifted = Vec::new();
    for upstream in upstreams.iter().filter(|upstream| asked.is_empty() || asked.contains(&upstream.name())) {
        let what = upstream.lift_holds();
        tracing::info!(
            upstream = upstream.name(),
            "its holds, pauses and stops were lifted by `paceline serve lift-holds`: {what}"
        );
        lifted.push(format!("{}: {what}", upstream.name()));
    }
    Some(format!("lifted: {}", lifted.join("; ")))
}
