//! A host at work: it claims blocks while few of its lines wait, hands results in as they come, and ends with the whole job.
//!
//! Its calls know nothing of that: they go on with what is claimed while the store is away. What has ended waits in the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use paceline::{Instant, clock};
use paceline_config::Upstream;
use paceline_core::Timestamp;
use paceline_store::blocks::{BlockClaim, BlockStore, Departures, Held, HostId, Offer, SharedJob};
use paceline_store::work::WorkError;
use paceline_store::{AppendedLine, Journal, JournalError, LineFile, TakenBlock};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::block_in_place;

use crate::calls::feed::Fed;
use crate::calls::item::{Context, Phase};
use crate::hosts::blocks::lines_of;
use crate::hosts::line::{Broken, Line};
use crate::hosts::need::Need;
use crate::job::acknowledge::Acknowledge;
use crate::job::background_load::LoadError;
use crate::job::load::{Handed, hand_on};
use crate::job::refused;
use crate::lines::input::Span;
use crate::lines::wrong::Wrong;
use crate::other_hosts::host_view::{JobEnd, Whole};
use crate::other_hosts::others::Others;
use crate::other_hosts::pulse::{BEAT, LEASE, Pulse, SAFETY};
use crate::stops::stop::StopReason;
use crate::{text, upstream};

/// Between two looks at what has ended here.
const PAUSE: Duration = Duration::from_millis(250);

/// Between two questions for blocks where there were none.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The bytes of results that are handed in together: the next word must not wait for long.
const TOGETHER: u64 = 1 << 20;

/// How long the end of a run waits for a store that is away.
const LAST_WORDS: Duration = Duration::from_secs(15);

/// A host of a job.
pub(crate) struct Worker {
    pub(super) store: Arc<BlockStore>,
    pub(super) job: SharedJob,
    pub(super) name: String,
    /// What others see of this host.
    pub(super) host: String,
    /// By what the store knows this host.
    pub(super) id: watch::Sender<HostId>,
    /// Gives word, whatever else is said to the store.
    pub(super) _pulse: Pulse,
    pub(super) journal: Journal,
    /// The lines that were claimed.
    pub(super) spool: LineFile,
    pub(super) spooled: u64,
    pub(super) others: Arc<Others>,
    pub(super) mine: BTreeMap<u64, Mine>,
    pub(super) line: Line,
    pub(super) need: Need,
    /// The lines of a block, as far as any was here.
    pub(super) of_a_block: u64,
    /// Lines that were seen to end here.
    pub(super) ended: u64,
    pub(super) beat_at: Instant,
    pub(super) ask_at: Instant,
    /// The lines in the store while these are not all, and since when they are so many.
    pub(super) grown: (u64, Instant),
    pub(super) end: JobEnd,
    pub(super) ending: Option<oneshot::Sender<JobEnd>>,
}

/// A block that is not over here.
#[derive(Debug)]
pub(super) struct Mine {
    block: TakenBlock,
    /// Lines that have a result in the store, or whose result was offered.
    known: BTreeSet<u64>,
    /// Lines that are here and have not ended.
    open: u64,
    /// Of those, how many wait for a hold to end, or for a person.
    kept: u64,
    /// No other host has it.
    is_ours: bool,
}

impl Mine {
    pub(super) const fn of(block: TakenBlock) -> Self {
        Self { block, known: BTreeSet::new(), open: 0, kept: 0, is_ours: true }
    }
}

/// What the lines of a host are read with.
struct Desk {
    context: Arc<Context>,
    upstream: Upstream,
    acknowledge: Acknowledge,
    feed: mpsc::Sender<Result<Fed, LoadError>>,
}

impl Worker {
    /// Works beside the calls until the whole job has ended, or the receiver is gone.
    pub(crate) fn start(
        mut self,
        context: Arc<Context>,
        upstream: Upstream,
        acknowledge: Acknowledge,
    ) -> mpsc::Receiver<Result<Fed, LoadError>> {
        let (feed, receiver) = mpsc::channel(1);
        let desk = Desk { context, upstream, acknowledge, feed };
        tokio::spawn(async move {
            self.work(desk).await;
            self.leave().await;
            if let Some(ending) = self.ending.take() {
                // A run that broke waits for nothing.
                let _ = ending.send(self.end);
            }
        });
        receiver
    }

    async fn work(&mut self, desk: Desk) {
        loop {
            let turned = tokio::select! {
                turned = self.turn(&desk) => turned,
                () = desk.feed.closed() => return,
            };
            let stop = match turned {
                Ok(true) => return,
                Ok(false) => None,
                Err(Broken::Again) => None,
                Err(Broken::Away(waited)) => Some(StopReason::StoreAway { waited }),
                Err(broken) => Some(StopReason::Error { message: broken.to_string() }),
            };
            if let Some(stop) = stop {
                // The dispatcher ends for it.
                let _ = desk.feed.send(Ok(Fed::Stop(stop))).await;
                return desk.feed.closed().await;
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = desk.feed.closed() => return,
            }
        }
    }

    /// One look at everything; true once the whole job has ended.
    async fn turn(&mut self, desk: &Desk) -> Result<bool, Broken> {
        let looked = desk.context.limiter.now();
        if std::mem::take(&mut self.line.came_back) || self.others.is_in_question() {
            self.beat_at = self.line.clock.now();
        }
        if self.beat_at <= self.line.clock.now() {
            self.beat().await?;
        }
        self.tell_again().await?;
        self.hand_in(desk.context.now()).await?;
        self.leave_lost(desk).await?;
        self.others.have_some(self.end.whole.has_more_than(self.mine.values().map(|mine| mine.open).sum()));
        let now = self.line.clock.now();
        self.need.note(now, self.ended);
        let is_ending = *desk.context.phase.borrow() != Phase::Running;
        if is_ending || now < self.ask_at {
            return Ok(false);
        }
        let most = self.wanted(desk);
        if most == 0 {
            self.line.told.send_modify(|told| (told.found_none, told.silence) = (Some(looked), None));
            return Ok(false);
        }
        let Some(claim) = self.line.answer(self.store.claim(self.id(), most)).await? else {
            self.beat_at = now;
            return Ok(false);
        };
        self.need.claimed_in(self.line.clock.now() - now);
        if claim.ended {
            self.mine.values_mut().for_each(|mine| mine.is_ours = false);
            self.leave_lost(desk).await?;
        }
        // What a worker has that may be lost is no other's yet.
        let found_none = claim.blocks.is_empty().then(|| looked.saturating_sub(claim.silence));
        self.line.told.send_modify(|told| {
            told.found_none = found_none;
            told.silence = found_none.map(|_| claim.silence);
        });
        if claim.blocks.is_empty() {
            self.ask_at = now + ASK_AGAIN;
        } else {
            self.take(claim, desk).await?;
            return Ok(false);
        }
        // A call that is under way may succeed where a failure is kept.
        Ok(claim.ended && self.mine.is_empty())
    }

    /// How many blocks to claim. What waits for a hold to end, or for a person, gives this host nothing to do.
    fn wanted(&mut self, desk: &Desk) -> u32 {
        let Context { in_flight, held_back, .. } = &*desk.context;
        let under_way = in_flight.load(Ordering::Relaxed) + held_back.load(Ordering::Relaxed);
        let open: u64 = self.mine.values().map(|mine| mine.open).sum();
        let kept: u64 = self.mine.values().map(|mine| mine.kept).sum();
        self.of_a_block = self.mine.values().map(|mine| mine.block.lines).max().unwrap_or(self.of_a_block);
        self.need.blocks(open.saturating_sub(under_way), kept, self.of_a_block)
    }

    fn id(&self) -> HostId {
        *self.id.borrow()
    }

    /// Tells the store which lines were sent though a lost host may have sent them.
    async fn tell_again(&mut self) -> Result<(), Broken> {
        let lines = self.others.sent_again();
        if lines.is_empty() {
            return Ok(());
        }
        self.line.answer(self.store.again(self.job.id, &lines)).await?;
        self.others.told_again(&lines);
        Ok(())
    }

    /// Gives word, hears which blocks are still this host's, and how the whole job stands.
    pub(super) async fn beat(&mut self) -> Result<(), Broken> {
        let asked = self.others.now();
        let held = match self.line.answer(self.store.heartbeat(self.id())).await? {
            Some(held) => held,
            None => {
                let registered = self.line.answer(self.store.register(self.job.id, &self.host, LEASE)).await?;
                let gone = || Broken::Job(format!("the job {} was removed", self.name));
                self.id.send_replace(registered.ok_or_else(gone)?);
                self.resume().await?
            }
        };
        self.keep(&held);
        let unheard: Vec<Held> = held.iter().filter(|held| !self.mine.contains_key(&held.first)).copied().collect();
        if !unheard.is_empty() {
            self.line.answer(self.store.release(self.id(), &unheard)).await?;
        }
        self.others.lease_until(asked + (LEASE - SAFETY));
        self.ask_for_whole().await?;
        self.line.told.send_modify(|told| told.whole = Some(self.end.whole.clone()));
        self.beat_at = self.line.clock.now() + BEAT;
        self.input_goes_on()
    }

    /// How the whole job stands; of one that was removed, how it stood before.
    async fn ask_for_whole(&mut self) -> Result<(), Broken> {
        if let Some(status) = self.line.answer(self.store.status(self.job.id)).await? {
            self.end.whole = Whole::of(&status, &self.host);
        }
        Ok(())
    }

    /// The input is all in the store, or a host puts more of it there.
    fn input_goes_on(&mut self) -> Result<(), Broken> {
        let (lines, now) = (self.end.whole.lines, self.line.clock.now());
        if self.end.whole.complete || lines != self.grown.0 {
            self.grown = (lines, now);
        }
        let waited = now - self.grown.1;
        if waited < self.line.max_wait {
            return Ok(());
        }
        Err(Broken::Job(format!(
            "no worker has put more of the input of the job {} into the store for {} (--max-wait): run the command with the input again",
            self.name,
            text::duration(waited)
        )))
    }

    /// Takes back what no other host has claimed meanwhile.
    pub(super) async fn resume(&mut self) -> Result<Vec<Held>, Broken> {
        let of = |mine: &Mine| held(mine.block.first, mine.block.fence);
        let before: Vec<Held> = self.mine.values().map(of).collect();
        self.line.answer(self.store.resume(self.id(), &before)).await
    }

    /// Hears which lines of its blocks other hosts may have sent.
    pub(super) async fn doubt(&mut self) -> Result<(), Broken> {
        let in_doubt = self.line.answer(self.store.in_doubt(self.id())).await?;
        self.others.doubt(&in_doubt);
        Ok(())
    }

    /// These blocks are this host's, and no others.
    pub(super) fn keep(&mut self, held: &[Held]) {
        let held: BTreeMap<u64, i64> = held.iter().map(|held| (held.first, held.fence)).collect();
        for (first, mine) in &mut self.mine {
            mine.is_ours = held.get(first) == Some(&mine.block.fence);
            if !mine.is_ours {
                self.others.took(*first);
            }
        }
    }

    /// Offers what has ended here and is not in the store.
    pub(super) async fn hand_in(&mut self, wall: Timestamp) -> Result<(), Broken> {
        loop {
            let asked = self.mine.values().map(|mine| (mine.block, mine.known.clone())).collect();
            let found = block_in_place(|| self.journal.ended_lines(asked, TOGETHER, wall))?;
            let mut offers = Vec::new();
            for ended in &found {
                if let Some(mine) = self.mine.get_mut(&ended.block.first) {
                    (mine.open, mine.kept) = (ended.open, ended.kept);
                }
                let held = held(ended.block.first, ended.block.fence);
                let offer = |line: &paceline_store::EndedLine| Offer {
                    held,
                    line: line.ordinal,
                    ok: line.ok,
                    body: line.body.clone(),
                };
                offers.extend(ended.lines.iter().map(offer));
            }
            self.end.unsent = !offers.is_empty();
            if offers.is_empty() {
                return Ok(());
            }
            self.ended += offers.len() as u64;
            self.end.kept += self.line.answer(self.store.offer(self.job.id, offers)).await?;
            for ended in found {
                if let Some(mine) = self.mine.get_mut(&ended.block.first) {
                    mine.known.extend(ended.lines.iter().map(|line| line.ordinal));
                }
            }
            // Many results take long: people are told how the job stands meanwhile.
            if self.beat_at <= self.line.clock.now() {
                self.beat().await?;
            }
        }
    }

    /// Lines of blocks that others have now are not sent from here; blocks of which nothing is left are over.
    async fn leave_lost(&mut self, desk: &Desk) -> Result<(), Broken> {
        let gone = block_in_place(|| self.drop_lost())?;
        if gone > 0 {
            // Nothing is counted any more once the dispatcher has ended.
            let _ = desk.feed.send(Ok(Fed::Gone(gone))).await;
        }
        Ok(())
    }

    /// What has ended was handed in just before. Returns how many items are gone.
    pub(super) fn drop_lost(&mut self) -> Result<u64, JournalError> {
        for mine in self.mine.values().filter(|mine| mine.open == 0) {
            self.journal.end_block(mine.block)?;
        }
        self.mine.retain(|_, mine| mine.open > 0);
        let lost = self.mine.values().filter(|mine| !mine.is_ours);
        lost.map(|mine| self.journal.leave_block(mine.block).map(|left| left.gone)).sum()
    }

    /// Takes claimed lines into the journal.
    async fn take(&mut self, claim: BlockClaim, desk: &Desk) -> Result<(), Broken> {
        let appended = block_in_place(|| self.append(&claim, desk))?;
        let settled = appended.refused > 0;
        // One that cannot be read now is read at the next claim.
        upstream::warn_of_hosts(&desk.upstream, || block_in_place(|| self.journal.scopes()).unwrap_or_default());
        // The dispatcher that has ended takes nothing more; the journal has the lines.
        let _ = desk.feed.send(Ok(Fed::Lines(appended))).await;
        if settled {
            let Context { input, format, .. } = &*desk.context;
            block_in_place(|| refused::settle(&self.journal, input, format.results(), &desk.acknowledge))?;
        }
        Ok(())
    }

    fn append(&mut self, claim: &BlockClaim, desk: &Desk) -> Result<paceline_store::Appended, Broken> {
        let (mut text, mut taken) = (Vec::new(), Vec::new());
        for block in &claim.blocks {
            let lines = lines_of(&block.body).filter(|lines| lines.len() as u64 == block.lines);
            let lines = lines.ok_or_else(|| {
                Broken::Job(format!("the job {} was made by another version of paceline: it cannot be read", self.name))
            })?;
            let first = block.held.first;
            let known: BTreeSet<u64> = block.have.iter().copied().collect();
            let mut here = Vec::new();
            for (ordinal, (number, bytes)) in (first..).zip(lines).filter(|(ordinal, _)| !known.contains(ordinal)) {
                let span = Span { offset: self.spooled + text.len() as u64, len: bytes.len() as u64 };
                text.extend_from_slice(bytes);
                text.push(b'\n');
                let (line, _) =
                    hand_on(&desk.context.format, &desk.upstream, bytes, number, span, |handed| match handed {
                        Handed::Item(item, _) => AppendedLine::item(&item),
                        Handed::Refused(line) => AppendedLine::refused(&line),
                    });
                here.push((ordinal, line));
            }
            let block = TakenBlock { first, lines: block.lines, fence: block.held.fence, lost: block.lost > 0 };
            self.others.gave(block);
            self.mine.insert(first, Mine { known, open: here.len() as u64, ..Mine::of(block) });
            taken.push((block, here));
        }
        self.others.doubt(&claim.in_doubt);
        self.spool.append(&text)?;
        self.spooled += text.len() as u64;
        Ok(self.journal.take_blocks(taken, Wrong::REPEATED)?)
    }

    /// Lines that wait here: no call of them was executed.
    fn waiting(&self) -> Result<Vec<(u64, Held)>, JournalError> {
        let mut waiting = Vec::new();
        for block in self.mine.values().map(|mine| mine.block) {
            let held = held(block.first, block.fence);
            waiting.extend(self.journal.waiting_in(block)?.into_iter().map(|line| (line, held)));
        }
        Ok(waiting)
    }

    /// The last words of a run: its results, and that others may have its blocks.
    async fn leave(&mut self) {
        let words = tokio::time::timeout(LAST_WORDS, async {
            self.tell_again().await?;
            self.hand_in(clock::wall()).await?;
            let stay = block_in_place(|| self.waiting())?;
            if !stay.is_empty() {
                let departures = Departures { leave: Vec::new(), stay };
                self.line.answer(self.store.depart(self.job.id, self.id(), &departures)).await?;
            }
            self.line.answer(self.store.deregister(self.id())).await?;
            self.ask_for_whole().await
        });
        match words.await {
            Ok(Ok(())) => {}
            Ok(Err(broken)) => tracing::warn!("this worker could not leave the job {}: {broken}", self.name),
            Err(_) => tracing::warn!(
                "the store does not answer: this worker leaves the job {} without a word, and others take its lines in {} s",
                self.name,
                LEASE.as_secs()
            ),
        }
    }
}

/// The claim of a block, as the store knows it.
fn held(first: u64, fence: i64) -> Held {
    Held { first, fence }
}

/// A new host of a job.
///
/// # Errors
/// An error of the store.
pub(super) async fn register(store: &BlockStore, job: i64, host: &str) -> Result<Option<HostId>, WorkError> {
    store.register(job, host, LEASE).await
}
