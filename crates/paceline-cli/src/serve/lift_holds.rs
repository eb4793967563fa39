//! `paceline serve lift-holds`: asks the gateway that runs on a state folder to end its holds. It does so by a file there: who
//! may write that folder has the keys of clients in hand, too.

use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_gateway::Gateway;
use tokio::time::sleep;

use super::{state, whole_file};
use crate::exit::{Failure, Status};

/// The file in the state folder: a line for each upstream, none for all.
const FILE: &str = "lift-holds";

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
    whole_file::replace(&path, upstream.join("\n").as_bytes()).map_err(refused)?;
    for _ in 0..LOOKS {
        sleep(LOOKED_AT).await;
        if !path.exists() {
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
        if !lift(gateway, &asked) {
            continue;
        }
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!("{}: {error}; it was done, and is not looked at again before a restart", path.display());
            return std::future::pending().await;
        }
    }
}

/// Ends the holds of these upstreams; of none where one is unknown.
fn lift(gateway: &Gateway, asked: &str) -> bool {
    let (upstreams, asked) = (gateway.upstreams(), asked.lines().collect::<Vec<_>>());
    if asked.iter().any(|name| upstreams.iter().all(|upstream| upstream.name() != *name)) {
        return false;
    }
    for upstream in upstreams.iter().filter(|upstream| asked.is_empty() || asked.contains(&upstream.name())) {
        upstream.lift_holds();
        tracing::info!(
            upstream = upstream.name(),
            "its holds, pauses and stops were lifted by `paceline serve lift-holds`"
        );
    }
    true
}
