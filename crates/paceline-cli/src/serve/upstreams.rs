//! The upstreams of a gateway as they are configured now, what has to live as long as each of them, and how they change.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use http::HeaderMap;
use paceline::{Limiter, PacerConfig};
use paceline_config::{Source, Upstream};
use paceline_gateway::{Backend, Bounds, Conditions, Gateway};
use paceline_http::Sender;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::args::{Flags, warn_of_jobs_settings};
use super::batches;
use super::check::limits_of;
use super::state::{self, Saved};
use crate::account::{Account, SharedLimits};
use crate::args::Everywhere;
use crate::exit::Failure;
use crate::logging;
use crate::mock::{self, MockServer};
use crate::upstream;

/// All upstreams.
pub(super) struct Upstreams<'a> {
    flags: &'a Flags,
    everywhere: &'a Everywhere,
    bounds: Bounds,
    /// For what limiters know; none where there is none.
    folder: Option<state::Folder>,
    conditions: Conditions,
    served: Vec<Served>,
    /// Removed ones, whose last requests are not answered yet.
    leaving: Vec<(Weak<Backend>, Keeper)>,
    /// Those that the configuration is read from.
    files: Vec<PathBuf>,
    /// Those that the configuration is read from which was refused last: what is missing may come.
    files_of_refused: Vec<PathBuf>,
}

/// One upstream.
struct Served {
    configured: Upstream,
    headers: HeaderMap,
    backend: Arc<Backend>,
    /// What sends for batches.
    sender: Arc<Sender>,
    account: Account,
    keeper: Keeper,
    mock: Option<MockServer>,
}

/// What is to become of an upstream that is configured.
enum Plan {
    /// It is there already, and goes on.
    Renewed {
        place: usize,
        fresh: Box<Fresh>,
    },
    New(Box<Served>),
}

/// What came of reading the configuration again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reloaded {
    /// An upstream has changed.
    Changed,
    AsBefore,
    /// It cannot be read, or is wrong.
    Refused,
}

/// An upstream as it would be served.
pub(super) struct Fresh {
    configured: Upstream,
    headers: HeaderMap,
    account: Account,
    backend: Arc<Backend>,
    sender: Arc<Sender>,
}

impl<'a> Upstreams<'a> {
    /// Sets them up. Nothing is sent yet.
    pub(super) async fn open(flags: &'a Flags, everywhere: &'a Everywhere, bounds: Bounds) -> Result<Self, Failure> {
        let configured = flags.upstreams(everywhere)?;
        let conditions = Conditions::of_program(logging::lost_lines());
        let folder = state::folder(flags.state.as_deref(), &conditions)?;
        let files = configured.files();
        let mut served = Vec::new();
        for configured in configured.upstreams {
            served.push(Served::open(configured, folder.as_ref(), &bounds, flags.lift_holds).await?);
        }
        tell_neighbours(&served);
        Ok(Self {
            flags,
            everywhere,
            bounds,
            folder,
            conditions,
            served,
            leaving: Vec::new(),
            files,
            files_of_refused: Vec::new(),
        })
    }

    /// What a gateway serves.
    pub(super) fn backends(&self) -> impl Iterator<Item = Arc<Backend>> {
        self.served.iter().map(|served| Arc::clone(&served.backend))
    }

    /// The same for batches.
    pub(super) fn for_batches(&self) -> Vec<batches::Served> {
        let of = |served: &Served| {
            batches::Served::new(Arc::clone(&served.backend), served.configured.clone(), Arc::clone(&served.sender))
        };
        self.served.iter().map(of).collect()
    }

    /// The folder for what outlives the process.
    pub(super) fn folder(&self) -> Option<&state::Folder> {
        self.folder.as_ref()
    }

    /// How this program fares.
    pub(super) fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// The files that the configuration in force is read from.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Those and the ones of a configuration that was refused since: once one of them changes, another reading may find it right.
    pub(super) fn watched(&self) -> Vec<PathBuf> {
        let of_refused = self.files_of_refused.iter().filter(|file| !self.files.contains(file));
        self.files.iter().chain(of_refused).cloned().collect()
    }

    /// Reads the configuration again. One that is wrong is not used. With `mends` stops end, whose cause is mended then; without
    /// it another file has changed, and that nothing has here is no news.
    pub(super) async fn reload(&mut self, gateway: &Gateway, mends: bool) -> Reloaded {
        match self.try_reload(gateway, mends).await {
            Ok(changes) => {
                let names: Vec<_> = self.served.iter().map(|served| served.backend.name()).collect();
                let what = if changes.is_empty() { "nothing has changed".to_owned() } else { changes.join("; ") };
                if mends || !changes.is_empty() {
                    tracing::info!("the configuration was read again; upstreams: {}; {what}", names.join(", "));
                }
                if changes.is_empty() { Reloaded::AsBefore } else { Reloaded::Changed }
            }
            Err(error) => {
                tracing::warn!("the configuration was read again and is wrong, the former one stays: {error}");
                Reloaded::Refused
            }
        }
    }

    /// Returns what has changed.
    async fn try_reload(&mut self, gateway: &Gateway, mends: bool) -> Result<Vec<String>, Failure> {
        self.files_of_refused.clear();
        let configured = self.flags.upstreams(self.everywhere)?;
        let files = configured.files();
        self.files_of_refused = files.iter().cloned().chain(configured.answers()).collect();
        // All that may fail comes first: a configuration is taken whole, or not at all.
        let mut plans = Vec::new();
        for configured in configured.upstreams {
            plans.push(self.plan(configured).await?);
        }
        gateway.replace_upstreams(plans.iter().map(Plan::backend)).map_err(Failure::refused)?;
        let mut before: Vec<_> = std::mem::take(&mut self.served).into_iter().map(Some).collect();
        let mut changes = Vec::new();
        for plan in plans {
            self.served.push(match plan {
                Plan::New(served) => {
                    changes.push(format!("new: {}", served.backend.name()));
                    *served
                }
                Plan::Renewed { place, fresh } => {
                    let served = before[place].take().expect("names differ");
                    let change = changed(&served, &fresh);
                    warn_of_lost_limits(&served.configured, &fresh.configured);
                    let differs = change.is_some();
                    changes.extend(change);
                    served.renew(*fresh, self.folder.as_ref(), mends || differs).await
                }
            });
        }
        self.files = files;
        self.files_of_refused.clear();
        if !changes.is_empty() {
            tell_neighbours(&self.served);
        }
        for Served { backend, keeper, .. } in before.into_iter().flatten() {
            changes.push(format!("gone: {}", backend.name()));
            self.leaving.push((Arc::downgrade(&backend), keeper));
        }
        self.forget_those_that_left().await;
        Ok(changes)
    }

    async fn plan(&self, mut configured: Upstream) -> Result<Plan, Failure> {
        let known = self.served.iter().position(|served| served.backend.name() == configured.name);
        let Some((place, served)) = known.map(|place| (place, &self.served[place])) else {
            return Ok(Plan::New(Box::new(Served::open(configured, self.folder.as_ref(), &self.bounds, false).await?)));
        };
        if let Some(mock) = &served.mock {
            configured.base_url.get_or_insert_with(|| mock.url());
        }
        let fresh = Fresh::new(configured, &self.bounds, Some(&served.backend))?;
        if fresh.account.is_at_host_of(&served.account) {
            return Ok(Plan::Renewed { place, fresh: Box::new(fresh) });
        }
        Ok(Plan::New(Box::new(Served::open(fresh.configured, self.folder.as_ref(), &self.bounds, false).await?)))
    }

    async fn forget_those_that_left(&mut self) {
        let (left, leaving) = std::mem::take(&mut self.leaving).into_iter().partition(|(of, _)| of.strong_count() == 0);
        self.leaving = leaving;
        let left: Vec<(Weak<Backend>, Keeper)> = left;
        for (_, keeper) in left {
            keeper.end().await;
        }
    }

    /// Saves what is known.
    pub(super) async fn end(self) {
        let leaving = self.leaving.into_iter().map(|(_, keeper)| keeper);
        // Each may wait for other processes, so all end at the same time.
        let keepers = self.served.into_iter().map(|served| served.keeper).chain(leaving);
        for saved in keepers.map(Keeper::end).collect::<Vec<_>>() {
            saved.await;
        }
    }
}

impl Plan {
    fn backend(&self) -> Arc<Backend> {
        Arc::clone(match self {
            Self::Renewed { fresh, .. } => &fresh.backend,
            Self::New(served) => &served.backend,
        })
    }
}

impl Fresh {
    /// That upstream, or the one that is served already under another configuration.
    ///
    /// # Errors
    /// A missing key, certificates that cannot be read, and settings that a gateway cannot follow.
    pub(super) fn new(mut configured: Upstream, bounds: &Bounds, before: Option<&Backend>) -> Result<Self, Failure> {
        paceline_http::warn_of_idle(&configured);
        warn_of_jobs_settings(&configured);
        let headers = upstream::headers(&configured)?;
        configured.pacer.background = configured.background;
        let limiter = Limiter::new(configured.pacer.clone()).map_err(Failure::refused)?.with_name(&*configured.name);
        let account = Account::of(&configured, &headers);
        let backend = match before {
            Some(before) => before.renewed(configured.clone(), headers.clone(), bounds),
            None => Backend::new(configured.clone(), headers.clone(), limiter, bounds),
        };
        let backend = Arc::new(backend.map_err(Failure::refused)?);
        let sender = Sender::to(&configured, headers.clone(), bounds.first_byte).map_err(Failure::refused)?;
        let sender = sender.with_ratios(backend.ratios());
        Ok(Self { configured, headers, account, backend, sender: Arc::new(sender) })
    }

    /// What a gateway would serve.
    pub(super) fn backend(self) -> Arc<Backend> {
        self.backend
    }
}

impl Served {
    async fn open(
        mut configured: Upstream,
        folder: Option<&state::Folder>,
        bounds: &Bounds,
        lift_holds: bool,
    ) -> Result<Self, Failure> {
        let mock = mock::start_for(&mut configured, None).await?;
        let Fresh { configured, headers, account, backend, sender } = Fresh::new(configured, bounds, None)?;
        let kept = Kept::open(&configured, folder, &account, backend.limiter(), mock.is_some()).await?;
        kept.saved.restore(&kept.shared, lift_holds);
        Ok(Self { configured, headers, backend, sender, account, keeper: kept.begin(), mock })
    }

    /// The same upstream under another configuration, or with another key. Its limiter goes on, and knows what it knew.
    async fn renew(self, fresh: Fresh, folder: Option<&state::Folder>, mends: bool) -> Self {
        let Fresh { configured, headers, account, backend, sender } = fresh;
        let limiter = backend.limiter();
        let stays = account.name() == self.account.name()
            && (self.keeper.is_shared || !SharedLimits::is_for(&configured.pacer))
            && fleet_of(&self.configured) == fleet_of(&configured);
        let kept = if stays {
            Some(self.keeper)
        } else {
            // What was sent is in the files of the former account, or in none.
            self.keeper.end().await;
            if account.name() != self.account.name() {
                state::move_file(folder, &configured.name, [&self.account, &account]);
            }
            limiter.undivide();
            None
        };
        if let Err(error) = limiter.reconfigure(configured.pacer.clone()) {
            tracing::error!("upstream {}: its former limits stay: {error}", backend.name());
        }
        // As after a restart: a person says that the cause is mended.
        if mends && backend.end_stops() {
            tracing::info!("the stop of {} ended: calls go again", backend.name());
        }
        let keeper = match kept {
            Some(keeper) => keeper,
            None => Kept::open_anew(&configured, folder, &account, limiter, self.mock.is_some()).await.begin(),
        };
        Self { configured, headers, backend, sender, account, keeper, mock: self.mock }
    }
}

/// Names the upstreams that call one host with one key.
fn tell_neighbours(served: &[Served]) {
    for (place, first) in served.iter().enumerate() {
        let of_it = |other: &&Served| other.account.name() == first.account.name() && other.mock.is_none();
        let others: Vec<_> = served.iter().filter(of_it).collect();
        // Each of them once.
        if others.len() < 2 || served[..place].iter().any(|before| of_it(&before)) {
            continue;
        }
        let names: Vec<_> = others.iter().map(|other| other.backend.name()).collect();
        let what = if others.iter().all(|other| other.keeper.is_shared) {
            "they share the configured limits, and take turns of a tenth of a second"
        } else {
            "each counts its own calls alone, where it has no limits"
        };
        tracing::info!("the upstreams {} call one host with one key: {what}", names.join(" and "));
    }
}

/// What is another in the configuration of an upstream, for people.
fn changed(served: &Served, fresh: &Fresh) -> Option<String> {
    let (before, now) = (&served.configured, &fresh.configured);
    let name = &now.name;
    if before.pacer.limits != now.pacer.limits {
        return Some(format!("changed: {name}, whose limits are now: {}", limits_of(now)));
    }
    if without_lines(before) != without_lines(now) {
        return Some(format!("changed: {name}"));
    }
    (served.headers != fresh.headers).then(|| format!("changed: {name}, its key"))
}

/// A configuration as it is wherever in its file each line stands.
fn without_lines(upstream: &Upstream) -> Upstream {
    let mut upstream = upstream.clone();
    for row in upstream.effective.iter_mut().chain(&mut upstream.idle) {
        if let Source::File { line, .. } = &mut row.source {
            *line = None;
        }
    }
    upstream
}

/// Warns where what was limited is no more: the file may be written at present, or be cut off.
fn warn_of_lost_limits(before: &Upstream, now: &Upstream) {
    let limited = |of: &Upstream| -> BTreeSet<String> {
        let of_tiers = of.pacer.tiers.iter().map(|(name, limits)| (format!(" in {name}"), limits));
        let all = [(String::new(), &of.pacer.limits)].into_iter().chain(of_tiers);
        all.flat_map(|(place, limits)| limits.quotas.iter().map(move |quota| format!("{}{place}", quota.dimension)))
            .collect()
    };
    let now_limited = limited(now);
    let lost: Vec<_> = limited(before).into_iter().filter(|what| !now_limited.contains(what)).collect();
    if !lost.is_empty() {
        tracing::warn!(
            upstream = now.name,
            "the new configuration has no limit on {} any more; if you did not mean that, the file may be half written",
            lost.join(" and none on ")
        );
    }
}

/// The fleet of an upstream, and the limits that it divides: with others it is another fleet.
fn fleet_of(configured: &Upstream) -> Option<impl PartialEq> {
    let PacerConfig { limits, tiers, places, tier_places, longest_call, .. } = &configured.pacer;
    configured.fleet.as_ref().map(|fleet| (fleet, limits, tiers, places, tier_places, longest_call))
}

/// What has to live as long as an upstream.
struct Kept {
    saved: Saved,
    shared: SharedLimits,
    _in_use: Option<File>,
}

impl Kept {
    async fn open(
        configured: &Upstream,
        folder: Option<&state::Folder>,
        account: &Account,
        limiter: &Limiter,
        is_mock: bool,
    ) -> Result<Self, Failure> {
        let saved = Saved::open(folder, &configured.name, account, limiter.clone());
        let account = Some(account).filter(|_| !is_mock);
        let mut shared =
            SharedLimits::open(account, configured.fleet.as_ref(), &configured.pacer, limiter.clone(), true).await?;
        folder.iter().for_each(|folder| shared.tell(&folder.conditions));
        let in_use = account.and_then(|account| account.mark(shared.is_shared()));
        Ok(Self { saved, shared, _in_use: in_use })
    }

    /// The same for an upstream that is served already. Where its fleet cannot be joined, nothing leaves.
    async fn open_anew(
        configured: &Upstream,
        folder: Option<&state::Folder>,
        account: &Account,
        limiter: &Limiter,
        is_mock: bool,
    ) -> Self {
        match Self::open(configured, folder, account, limiter, is_mock).await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::error!(
                    "upstream {}: nothing leaves, for its fleet cannot be joined: {error}",
                    configured.name
                );
                let saved = Saved::open(folder, &configured.name, account, limiter.clone());
                let shared = SharedLimits::of_this_user(None, &configured.pacer, limiter.clone());
                Self { saved, shared, _in_use: None }
            }
        }
    }

    /// Begins a task for it.
    fn begin(mut self) -> Keeper {
        self.shared.begin();
        let (ends, told) = oneshot::channel();
        Keeper { is_shared: self.shared.is_shared(), ends, task: tokio::spawn(self.keep_until(told)) }
    }

    async fn keep_until(mut self, ends: oneshot::Receiver<()>) {
        tokio::select! {
            _ = async { tokio::join!(self.saved.keep(), self.shared.keep()) } => {}
            _ = ends => {}
        }
        self.saved.save();
        self.shared.end().await;
    }
}

/// The task that keeps it, until it is ended or dropped.
struct Keeper {
    is_shared: bool,
    ends: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Keeper {
    /// Has it save what is known, from now on. Returns once it is saved.
    fn end(self) -> impl Future<Output = ()> {
        drop(self.ends);
        async {
            if let Err(error) = self.task.await {
                tracing::warn!("what is known of the limits may not be saved: {error}");
            }
        }
    }
}
