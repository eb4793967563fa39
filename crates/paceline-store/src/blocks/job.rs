//! A job on many hosts, as those who work on it and those who look at it see it.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_core::Timestamp;

/// What has to be the same on all hosts of a job, by name: what its input is, and what decides how its lines are sent.
pub type Settings = BTreeMap<String, String>;

/// A setting that two hosts of a job do not share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Its name.
    pub key: String,
    /// Its value in the job; none where the job has no such setting.
    pub there: Option<String>,
    /// Its value on the host that would join.
    pub here: Option<String>,
}

/// Every setting in which a host differs from the job, by name.
pub(super) fn differences(there: &Settings, here: &Settings) -> Vec<Difference> {
    let keys: std::collections::BTreeSet<&String> = there.keys().chain(here.keys()).collect();
    let differs = keys.into_iter().filter(|key| there.get(*key) != here.get(*key));
    differs
        .map(|key| Difference { key: key.clone(), there: there.get(key).cloned(), here: here.get(key).cloned() })
        .collect()
}

/// A job in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedJob {
    /// By what the store knows it.
    pub id: i64,
    /// When it was made, by the database's clock.
    pub created: Timestamp,
    /// What its creator said.
    pub settings: Settings,
    /// The lines of its input that are in blocks: a host that has the input goes on from here.
    pub loaded: u64,
    /// Whether these are all.
    pub complete: bool,
}

/// What became of a wish to work on a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It is there, made just now or before.
    Job(SharedJob),
    /// It is there with other settings: never empty.
    Differs(Vec<Difference>),
}

/// Lines that are to be claimed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// How many they are.
    pub lines: u64,
    /// The lines, in whatever form workers read.
    pub body: Vec<u8>,
}

/// Identifies a worker that registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub(super) i64);

/// Which claim of a block is meant: each new one has a higher fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The first line of the block, from 0.
    pub first: u64,
    /// The fence of the claim.
    pub fence: i64,
}

/// What a worker says of lines that must not be sent twice, before they leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Departures {
    /// Lines that are about to be sent, each once, under the claims of their blocks.
    pub leave: Vec<(u64, Held)>,
    /// Lines that were said to leave, and of which it is known that no call was executed.
    pub stay: Vec<(u64, Held)>,
}

/// Lines that a worker has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The claim.
    pub held: Held,
    /// How many lines it has.
    pub lines: u64,
    /// The lines as they were appended.
    pub body: Vec<u8>,
    /// The lines of it that have a result, in order: they are not to be sent.
    pub have: Vec<u64>,
    /// How many workers were lost with it: they may have sent any line that has no result and may be sent twice.
    pub lost: u64,
}

/// What a claim found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockClaim {
    /// What is the worker's now, in the order of the input.
    pub blocks: Vec<Block>,
    /// Lines of these that a former worker said it was about to send, and of which nothing more is known.
    pub in_doubt: Vec<u64>,
    /// Since when at least one of the other workers that have lines without a result has said nothing: what it has may come free.
    pub silence: Duration,
    /// All lines of the job have a result: there will be nothing more to do.
    pub ended: bool,
}

/// A result that a worker offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The claim under which it was made.
    pub held: Held,
    /// The line of the input, from 0.
    pub line: u64,
    /// Whether the line succeeded. A failure is taken only while no other worker has claimed the block.
    pub ok: bool,
    /// The line of the results.
    pub body: Vec<u8>,
}

/// A result as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptResult {
    /// The line of the input, from 0.
    pub line: u64,
    /// Whether it succeeded.
    pub ok: bool,
    /// The line of the results.
    pub body: Vec<u8>,
}

/// A job as people are shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStatus {
    /// Its name.
    pub name: String,
    /// When it was made, by the database's clock.
    pub created: Timestamp,
    /// The lines that are in blocks.
    pub lines: u64,
    /// Whether these are all.
    pub complete: bool,
    /// Its blocks.
    pub blocks: u64,
    /// Blocks of which a line has no result.
    pub open: u64,
    /// Lines that succeeded.
    pub ok: u64,
    /// Lines that failed for good.
    pub failed: u64,
    /// Lines that were sent though a lost worker may have sent them.
    pub again: u64,
    /// Who works on it.
    pub workers: Vec<HostStatus>,
}

/// A worker as people are shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostStatus {
    /// The name that it gave.
    pub name: String,
    /// When it came, by the database's clock.
    pub since: Timestamp,
    /// What is left of its lease; none once that ran out.
    pub lease: Option<Duration>,
    /// Blocks that it holds of which a line has no result.
    pub blocks: u64,
    /// For how long it has said nothing.
    pub silence: Duration,
}
