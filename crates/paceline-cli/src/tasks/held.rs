//! What is held until a time: groups, by the store, and scopes such as hosts, by their servers. A person opens both by name
//! (`retry --open`).

use paceline_core::Timestamp;
use paceline_store::work::{Filter, WorkError, WorkStore};
use paceline_store::{ACCOUNT, ScopeRow, ScopeStatus};

use super::closed_scopes::{self, APART, BY_EACH, ClosedScope, ClosedScopes, Why};
use super::opened;
use crate::exit::Failure;
use crate::only::is_host;
use crate::text;

/// So many groups, and scopes, that are held are named.
const NAMED: usize = 3;

/// What a report calls a group, before its name.
const GROUP: &str = "group ";

/// A group that is held.
struct HeldGroup {
    row: ScopeRow,
    until: Timestamp,
    reason: String,
}

impl HeldGroup {
    fn of(row: ScopeRow) -> Option<Self> {
        match row.state.clone() {
            ScopeStatus::Held { until, reason } => Some(Self { row, until, reason }),
            ScopeStatus::Open | ScopeStatus::Stopped { .. } => None,
        }
    }

    fn name(&self) -> &str {
        &self.row.name
    }

    /// That a retry does not open it.
    fn line(&self) -> String {
        let (name, until) = (self.name(), text::end(self.until));
        match name {
            ACCOUNT => format!("still held: all groups until {until} ({})", self.reason),
            _ => format!(
                "still held: group {name} until {until} ({}); --open {name} tries its items all the same",
                self.reason
            ),
        }
    }
}

/// What is held at present, and which scopes fail.
pub(super) struct Held {
    groups: Vec<HeldGroup>,
    scopes: ClosedScopes,
}

impl Held {
    /// # Errors
    /// An error of the store.
    pub(super) async fn of(store: &dyn WorkStore) -> Result<Self, WorkError> {
        let groups = store.scopes().await?.into_iter().filter_map(HeldGroup::of).collect();
        Ok(Self { groups, scopes: ClosedScopes::of(store).await? })
    }

    /// Those that a person names, by their whole names: a host may be named without its port where that is plain, and a group as
    /// a report names it. Refuses what is not held.
    ///
    /// # Errors
    /// Says what is not held, or which of several it may be.
    pub(super) fn named(&self, names: &[String]) -> Result<Vec<String>, Failure> {
        names.iter().map(|name| self.whole_name(name)).collect()
    }

    fn whole_name(&self, name: &str) -> Result<String, Failure> {
        let is_group = |name: &str| self.groups.iter().any(|group| group.name() == name);
        let scopes: Vec<&str> = self.scopes.holds().map(|held| held.name.as_str()).collect();
        if is_group(name) || scopes.contains(&name) {
            return Ok(name.to_owned());
        }
        if let Some(group) = name.strip_prefix(GROUP).filter(|group| is_group(group)) {
            return Ok(group.to_owned());
        }
        let is_of = |scope: &&&str| is_host(scope, name);
        match *scopes.iter().filter(is_of).collect::<Vec<_>>() {
            [only] => Ok((*only).to_owned()),
            [] => Err(Failure::refused(format!(
                "--open {name}: no group and no scope of that name is held, and nothing was changed; `paceline tasks report` \
                 names those that are"
            ))),
            [first, second, ..] => Err(Failure::refused(format!(
                "--open {name}: {first} and {second} are held; name one, or each with an --open of its own"
            ))),
        }
    }

    /// Keeps what concerns the items of a filter.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn retain_of(&mut self, store: &dyn WorkStore, items: &Filter) -> Result<(), WorkError> {
        if let Some(of) = &items.group {
            self.groups.retain(|group| [ACCOUNT, of.as_str()].contains(&group.name()));
        }
        self.scopes.retain_of(store, items.clone()).await
    }

    /// Leaves out those of these names.
    pub(super) fn leave_out(&mut self, names: &[String]) {
        let is_other = |name: &str| !names.iter().any(|named| named == name);
        self.groups.retain(|group| is_other(group.name()));
        self.scopes.retain(is_other);
    }

    /// A line for each of the first few that go on waiting: a retry ends no pause that a server asked for, and of those that wait
    /// for a failing server one is called. Of a group that is a scope it is told once.
    pub(super) fn lines(&self) -> Vec<String> {
        let is_group = |name: &str| self.groups.iter().any(|group| group.name() == name);
        let groups = self.groups.iter().map(HeldGroup::line).take(NAMED);
        let scopes = self.scopes.0.iter().filter(|scope| !is_group(&scope.name)).filter_map(line_of_held).take(NAMED);
        let failing = self.scopes.0.iter().filter_map(line_of_failing).take(NAMED);
        groups.chain(scopes).chain(failing).map(|line| text::printable(&line).into_owned()).collect()
    }
}

/// Opens what has these names, for the items of a filter: in the store, and in the workers, which notice within seconds.
///
/// # Errors
/// An error of the store.
pub(super) async fn open(store: &dyn WorkStore, names: &[String], items: &Filter) -> Result<(), WorkError> {
    closed_scopes::open(store, names).await?;
    // Before the groups: no worker is to have their items while its own limiter holds them.
    opened::open(store, names, items).await?;
    let held = store.scopes().await?.into_iter().filter_map(HeldGroup::of);
    let open: Vec<ScopeRow> = held
        .filter(|group| names.iter().any(|name| name == group.name()))
        .map(|group| ScopeRow { state: ScopeStatus::Open, ..group.row })
        .collect();
    if open.is_empty() { Ok(()) } else { store.record(Vec::new(), open).await.map(drop) }
}

/// Of a scope that its server holds: that no retry opens it.
fn line_of_held(scope: &ClosedScope) -> Option<String> {
    let ClosedScope { name, until_ms, reason, .. } = scope;
    let until = text::end(Timestamp::from_millis((*until_ms)?));
    Some(format!("still held: all items of {name} until {until} ({reason}); --open {name} tries them all the same"))
}

/// Of a scope whose calls fail: that of the items that a person sends for one tests it.
fn line_of_failing(scope: &ClosedScope) -> Option<String> {
    let is_by_each = [BY_EACH, APART].iter().any(|end| scope.reason.ends_with(end));
    (scope.why == Some(Why::Failing) && !is_by_each).then(|| {
        let name = &scope.name;
        format!("{name} fails: one of these items tests it next, and the others wait for how that ends")
    })
}
