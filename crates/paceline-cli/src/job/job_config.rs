//! The configuration of a job in its journal, and what follows when the next run has another one.
//!
//! An item's scope is stored when it is loaded. A tier that came, went or changed its place between two runs has to take
//! its items all the same, and the hold of one account must not apply to another.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use paceline_config::{Money, Price, Prices, Source, Upstream};
use paceline_core::Timestamp;
use paceline_providers::table::Scope;
use paceline_store::{ACCOUNT, Journal, JournalError, JournalItem, ModelUsage, Reader, ScopeStatus};
use serde::{Deserialize, Serialize};

use crate::budget::Limits;
use crate::exit::Failure;
use crate::job::{holds, load};
use crate::job_settings::Opening;
use crate::lines::format::Format;
use crate::lines::input::{Input, Span};
use crate::lines::line::LineError;
use crate::lines::spool::{self, Earlier};
use crate::text;
use crate::upstream::{host_of, is_host};

/// What the names of settings that are prices begin with; the model follows.
const PRICE: &str = "price.";

/// The same of prices of other upstreams; the name of the model there follows.
const PRICE_OF_OTHER: &str = "price_of_other.";

/// So many changed settings are told.
const CHANGES: usize = 6;

/// The configuration of a run, as its journal keeps it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct JobConfig {
    upstream: String,
    /// The form of the input's lines.
    format: String,
    /// By what its compressed input is known, where the job works on a copy of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    packed: Option<String>,
    /// The flags by which its requests were made of rows.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    made: BTreeMap<String, String>,
    /// What decides an item's scope: the provider, what it limits together, the endpoint of lines without a url, then the
    /// tiers in their order.
    scoping: Vec<String>,
    /// Every value in force, as `paceline check` shows it; the prices are those of the run, which a flag may have set.
    settings: BTreeMap<String, String>,
    /// The budgets of the job, which hold until a run is given others.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_tokens: Option<u64>,
    /// In the smallest units of money.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_cost: Option<u64>,
    /// What `--extract` says, which holds in the same way. A job that has it is one whose file of values is its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    extract: Option<String>,
}

impl JobConfig {
    /// The configuration of this run.
    pub(crate) fn of(upstream: &Upstream, input: &Input, format: &Format, opening: &Opening) -> Self {
        let configured = upstream.effective.iter().filter(|value| !value.key.starts_with(PRICE));
        let settings = configured.map(|value| (value.key.clone(), value.value.clone()));
        let prices = upstream.prices.iter().map(|(model, price)| (format!("{PRICE}{model}"), price.to_string()));
        let others = upstream.prices.of_others();
        let others = others.map(|(name, price)| (format!("{PRICE_OF_OTHER}{name}"), price.to_string()));
        let together = upstream.effective.iter().find(|row| row.key == "scope").map(|row| row.value.clone());
        let first = [upstream.provider.to_string(), together.unwrap_or_default(), format.endpoint().to_owned()];
        let tiers = upstream.tiers.iter().map(|tier| tier.scope.to_string());
        Self {
            upstream: upstream.name.clone(),
            format: format.name().to_owned(),
            packed: input.packed().map(ToOwned::to_owned),
            made: input.made().cloned().unwrap_or_default(),
            scoping: first.into_iter().chain(tiers).collect(),
            settings: settings.chain(prices).chain(others).collect(),
            budget_tokens: opening.budgets.job_tokens,
            budget_cost: opening.budgets.job_cost.map(Money::units),
            extract: opening.extract.clone(),
        }
    }

    /// That of the last run of the job at `journal`; none where it cannot be read: opening the job reports why.
    pub(crate) fn of_journal(journal: &Path) -> Option<Self> {
        let json = Reader::open(journal).and_then(|reader| reader.config_json());
        json.ok().map(|json| Self::read(&json))
    }

    /// What the copy of the input means to the job at `journal`.
    pub(crate) fn earlier_input(journal: &Path) -> Earlier {
        let known = Self::of_journal(journal).and_then(|config| Some((config.packed?, config.made)));
        known.map_or(Earlier::MustMatch, |(packed, made)| Earlier::From { packed, made })
    }

    /// Which of the flags that make requests of rows have other values than in the last run of the job at `journal`, with both;
    /// none where none has, or that is not known.
    pub(crate) fn made_otherwise(journal: Option<&Path>, input: &Input) -> Option<String> {
        spool::changed(&Self::of_journal(journal?)?.made, input.made()?)
    }

    /// As it stands in the journal.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("texts and maps of texts are JSON")
    }

    /// What a journal holds, which a run of another version may have written.
    pub(crate) fn read(json: &str) -> Self {
        serde_json::from_str(json).unwrap_or_default()
    }

    /// The budgets of the job.
    pub(crate) fn budgets(&self) -> Limits {
        let job_cost = self.budget_cost.map(Money::from_units);
        Limits { run_tokens: None, job_tokens: self.budget_tokens, job_cost }
    }

    /// What `--extract` said last.
    pub(crate) fn extract(&self) -> Option<&str> {
        self.extract.as_deref()
    }

    /// Whether the file of values beside the results is of this job.
    pub(crate) const fn has_extracted(&self) -> bool {
        self.extract.is_some()
    }

    /// The prices that the last run of the job had.
    pub(crate) fn prices(&self) -> Prices {
        let begins = |with: &'static str| {
            let price = move |(key, value): (&String, &String)| {
                Some((key.strip_prefix(with)?.to_owned(), value.parse::<Price>().ok()?))
            };
            self.settings.iter().filter_map(price)
        };
        begins(PRICE).collect::<Prices>().with_others(begins(PRICE_OF_OTHER))
    }

    /// The upstream that the last run of the job went to.
    pub(crate) fn upstream(&self) -> &str {
        &self.upstream
    }

    /// What calls of earlier runs used, by the names that they have at the upstream of this run.
    pub(crate) fn used_at(&self, upstream: &Upstream, used: Vec<ModelUsage>) -> Vec<ModelUsage> {
        let name = |model: &str| upstream.prices.name_after(model, &self.upstream, &upstream.name).into();
        used.into_iter().map(|used| ModelUsage { model: name(&used.model), ..used }).collect()
    }

    /// Refuses to read the lines of the job in another form than before.
    ///
    /// # Errors
    /// Names the form that it was begun with.
    pub(crate) fn refuse_other_format(&self, format: &Format) -> Result<(), Failure> {
        let (before, now) = (&self.format, format.name());
        if before == now {
            return Ok(());
        }
        Err(Failure::refused(format!(
            "this job began with lines of the form {before}, and now they would be read as {now}: add --format {before}"
        )))
    }

    /// Logs which settings this run has that the last one had not. Prices and budgets are told by themselves, and so is another
    /// account.
    fn tell_changes(&self, now: &Self, upstream: &Upstream) {
        let is_given = |key: &str| {
            let row = upstream.effective.iter().find(|row| row.key == key);
            row.is_some_and(|row| !matches!(row.source, Source::Default | Source::Preset(_)))
        };
        let keys: BTreeSet<&String> = self.settings.keys().chain(now.settings.keys()).collect();
        let change = |key: &&String| match (self.settings.get(*key), now.settings.get(*key)) {
            (Some(was), Some(is)) if was != is => Some(text::changed(key, Some(was), Some(is))),
            (Some(was), None) if was != "none" => Some(text::changed(key, Some(was), None)),
            (None, Some(is)) if is_given(key) => Some(text::changed(key, None, Some(is))),
            _ => None,
        };
        // Where the pace starts follows from the limit, unless it is given; and so does the burst.
        let follows = |key: &str| matches!(key, "start" | "burst") && !is_given(key);
        let is_price = |key: &str| [PRICE, PRICE_OF_OTHER].iter().any(|price| key.starts_with(price));
        let keys = keys.iter().filter(|key| !is_price(key) && ***key != "base_url" && !follows(key));
        let changes: Vec<String> = keys.filter_map(change).take(CHANGES).collect();
        if !changes.is_empty() {
            tracing::info!("changed since the last run of this job: {}", text::printable(&changes.join("; ")));
        }
    }

    fn account(&self) -> (&str, Option<&String>) {
        (&self.upstream, self.settings.get("base_url"))
    }

    fn account_words(&self) -> String {
        match self.account() {
            (name, Some(address)) if address.contains("://") => format!("upstream {name} at {address}"),
            (name, _) => format!("upstream {name}"),
        }
    }
}

/// Brings a job that is taken up to the present configuration; false when it works with another account from now on.
///
/// # Errors
/// An error of the journal, and lines that cannot be read any more.
pub(crate) fn adopt(
    journal: &Journal,
    input: &Input,
    format: &Format,
    upstream: &Upstream,
    opening: &Opening,
) -> Result<bool, Failure> {
    let now = JobConfig::of(upstream, input, format, opening);
    let before = JobConfig::read(&journal.config_json().map_err(load::refused)?);
    if before == now {
        return Ok(true);
    }
    before.refuse_other_format(format)?;
    before.tell_changes(&now, upstream);
    let same_account = before.account() == now.account();
    if !same_account {
        tracing::warn!(
            "this job began with {}: its answers are kept, and the remaining items{} go to {}",
            before.account_words(),
            if upstream.dialect.scope() == Scope::Host { " whose lines name no host of their own" } else { "" },
            now.account_words(),
        );
        forget_holds(journal).map_err(load::refused)?;
    }
    if before.scoping != now.scoping {
        rescope(journal, input, format, upstream).map_err(Failure::from)?;
    }
    let used = journal.usage().map_err(load::refused)?;
    let used = (before.upstream != now.upstream).then(|| before.used_at(upstream, used));
    // Last: a run that is killed before compares again.
    journal.set_config(now.json(), used).map_err(load::refused)?;
    Ok(same_account)
}

/// Holds, stops and waits belong to the account that caused them.
fn forget_holds(journal: &Journal) -> Result<(), JournalError> {
    // If opening one fails, so does the call below.
    holds::open_all(journal, || drop)?;
    journal.forget_waits()
}

/// Gives every item that has not ended the scope that it has by the present tiers.
fn rescope(journal: &Journal, input: &Input, format: &Format, upstream: &Upstream) -> Result<(), Unscoped> {
    let states: BTreeMap<_, _> = journal.scopes()?.into_iter().map(|row| (row.name, row.state)).collect();
    let mut known: BTreeSet<Arc<str>> = states.keys().cloned().chain([ACCOUNT.into()]).collect();
    let (mut moved, mut hosts) = (0, BTreeSet::new());
    journal.rescope(|item: &JournalItem| -> Result<Option<Arc<str>>, Unscoped> {
        let bytes = input.read(Span { offset: item.src_off, len: item.src_len })?;
        let line = format.read(&bytes, item.line)?;
        let scope: Arc<str> = upstream.scope_name(&line.names()).into();
        if scope == item.scope {
            return Ok(None);
        }
        if known.insert(Arc::clone(&scope)) {
            // If it fails, so does the move that follows.
            journal.set_scope(&scope, ScopeStatus::Open, drop);
        }
        // A hold and a stop are the host's, whatever tier it has.
        if is_same_host(&item.scope, &scope) && hosts.insert((Arc::clone(&item.scope), Arc::clone(&scope))) {
            let [was, is] = [&item.scope, &scope].map(|name| states.get(name).cloned().unwrap_or_default());
            if let Some(state) = longer(was, is) {
                journal.set_scope(&scope, state, drop);
            }
        }
        moved += 1;
        Ok(Some(scope))
    })?;
    for (before, _) in hosts {
        if !journal.waits_in(&before)? {
            journal.set_scope(&before, ScopeStatus::Open, drop);
        }
    }
    if moved > 0 {
        tracing::info!("tiers or scope changed since the last run: {moved} items moved to other scopes");
    }
    Ok(())
}

/// Whether two scopes are one host.
fn is_same_host(scope: &str, other: &str) -> bool {
    is_host(scope, host_of(other)) || is_host(other, host_of(scope))
}

/// The state that a scope gets of another one, where that is closed for longer.
fn longer(was: ScopeStatus, is: ScopeStatus) -> Option<ScopeStatus> {
    let lasts = |state: &ScopeStatus| match state {
        ScopeStatus::Open => Timestamp::from_millis(0),
        ScopeStatus::Held { until, .. } => *until,
        ScopeStatus::Stopped { .. } => Timestamp::from_millis(i64::MAX),
    };
    (lasts(&was) > lasts(&is)).then_some(was)
}

#[derive(Debug, thiserror::Error)]
enum Unscoped {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot read the input: {0}")]
    Io(#[from] io::Error),
    #[error("the input changed since the job began: {0}")]
    Line(#[from] LineError),
}

impl From<Unscoped> for Failure {
    fn from(error: Unscoped) -> Self {
        match error {
            Unscoped::Journal(error) => load::refused(error),
            other => Self::refused(other),
        }
    }
}
