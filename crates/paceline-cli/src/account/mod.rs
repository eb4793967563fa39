//! What the processes of a user that call one host with one key know of each other: which of them are at work, and what they
//! have sent under configured limits; and which gateways the user has. It is in a folder of the user, in files whose names
//! reveal neither host nor key.

mod bucket_levels;
mod departed;
mod fleet;
pub(crate) mod gateways;
mod ledger;
mod lock;
mod prune;
mod shared_limits;
mod turn_wait;

use std::fs::{DirBuilder, File};
use std::io;
use std::path::{Path, PathBuf};

use http::{HeaderMap, HeaderValue};
use paceline_config::{Upstream, account_host, account_name};
use paceline_providers::table::Scope;

pub(crate) use self::shared_limits::{SharedLimits, TURN_LASTS};
pub(crate) use self::turn_wait::{OthersTurn, TurnWait};

/// The extensions of an account's locks: held by one of the processes that call it, ...
const IN_USE: &str = "lock";

/// ... by the run that has the turn under the configured limits, ...
const TURN: &str = "turn";

/// ... and by the run that has the next turn.
const NEXT: &str = "next";

/// A host and a key.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    host: String,
    name: String,
    has_key: bool,
    /// Whether those who call it may be in each other's way: not where calls without a key go to the hosts of the payloads,
    /// under no limit.
    is_shared: bool,
}

impl Account {
    /// The account that an upstream is called under with those headers.
    pub(crate) fn of(upstream: &Upstream, headers: &HeaderMap) -> Self {
        let account = Self::new(upstream.base_url.as_deref().unwrap_or_default(), headers);
        let calls_others = upstream.dialect.scope() == Scope::Host && upstream.pacer.limits.quotas.is_empty();
        Self { is_shared: account.has_key || !calls_others, ..account }
    }

    /// The account that calls with those headers belong to.
    pub(crate) fn new(address: &str, headers: &HeaderMap) -> Self {
        let host = account_host(address);
        let has_key = headers.values().any(HeaderValue::is_sensitive);
        let name = account_name(&host, headers);
        Self { host, name, has_key, is_shared: true }
    }

    /// Whether both are accounts of one host.
    pub(crate) fn is_at_host_of(&self, other: &Self) -> bool {
        self.host == other.host
    }

    /// What another process that calls it has in common, for people.
    const fn with(&self) -> &'static str {
        if self.has_key { " with the same key" } else { ", both without a key" }
    }

    /// A name that reveals neither host nor key.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A name of its host, whichever the key.
    pub(crate) fn host_name(&self) -> String {
        account_name(&self.host, &HeaderMap::new())
    }

    /// Marks the account as in use for as long as the file is held. Warns when another process has marked it, unless both share
    /// their configured limits. Without a folder there is no warning; that is no reason not to run.
    pub(crate) fn mark(&self, shares: bool) -> Option<File> {
        if !self.is_shared {
            return None;
        }
        let marked = folder().and_then(|folder| self.mark_in(&folder, shares));
        marked.unwrap_or_else(|error| {
            tracing::debug!("whether others use this key is not known: {error}");
            None
        })
    }

    fn mark_in(&self, folder: &Path, shares: bool) -> io::Result<Option<File>> {
        let path = folder.join(&self.name).with_extension(IN_USE);
        if let Some(file) = lock::take(&path)? {
            // The file is held without a signature too, for example on a full disk.
            lock::sign(&file, shares).unwrap_or_else(|error| tracing::debug!("{}: {error}", path.display()));
            return Ok(Some(file));
        }
        let (pid, other_shares) = lock::signed_by(&path);
        if !(shares && other_shares) {
            let with = self.with();
            if pid == Some(std::process::id()) {
                tracing::warn!(
                    "two upstreams call {}{with}; each counts its own calls alone, so together they may exceed the server's \
                     limits: give each its share as a limit, or make them one upstream",
                    self.host,
                );
                return Ok(None);
            }
            let who = lock::named(pid);
            // On a full disk it may have no room to say so, and take turns all the same.
            let counted = match pid {
                None if shares => {
                    "it is not known yet whether it shares the configured limits; unless a further line here tells that both do,"
                }
                _ => "each run counts its own calls alone, so",
            };
            tracing::warn!(
                "{who} may call {}{with}, too; {counted} together they may exceed the server's limits: give each its share with \
                 --limit, send both through one gateway (`paceline serve`, then --via), or wait until the other has ended",
                self.host,
            );
        }
        Ok(None)
    }
}

/// Where the user's processes find each other: `paceline` in the user's state folder, which is made.
pub(crate) fn folder() -> io::Result<PathBuf> {
    let folder = place()?;
    make_private(&folder).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?;
    Ok(folder)
}

/// The same folder, which may not be there yet.
pub(crate) fn place() -> io::Result<PathBuf> {
    let of = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| of("HOME").map(|home| home.join(".local/state")));
    let Some(state) = state.or_else(|| of("LOCALAPPDATA")) else {
        return Err(io::Error::other("neither XDG_STATE_HOME nor HOME names a folder"));
    };
    Ok(state.join("paceline"))
}

/// Makes a folder that its user alone may read.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
