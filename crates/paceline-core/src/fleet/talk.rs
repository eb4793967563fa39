//! What a member has to say to all others, and what it has heard of them.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::interface::MemberChange;
use super::message::{BoardReply, BoardRequest, BoardStep, MemberId, Note};
use crate::time::Instant;

/// A topic that is given back is told for so long: then the ledger has taken it back by itself.
const RELEASE: Duration = Duration::from_secs(5);

/// To draw is of no use later: the calls have asked again.
const DRAWS: Duration = Duration::from_secs(1);

/// Each is said until the ledger has answered, or until it is of no use any more.
#[derive(Clone, Debug, Default)]
pub(super) struct Talk {
    /// The newest note that was heard, and all before.
    heard: u64,
    said: Vec<Said>,
}

#[derive(Clone, Debug)]
struct Said {
    topic: String,
    step: BoardStep,
    /// Of no use from then on.
    until: Instant,
    /// The number of the last request, and when it is given up.
    sent: Option<(u64, Instant)>,
}

impl Talk {
    pub(super) const fn heard(&self) -> u64 {
        self.heard
    }

    /// Another ledger has other notes.
    pub(super) const fn forget(&mut self) {
        self.heard = 0;
    }

    /// What is said takes the place of what was said before of that topic and kind.
    pub(super) fn say(&mut self, now: Instant, topic: String, step: BoardStep) {
        self.said.retain(|said| said.topic != topic || kind(&said.step) != kind(&step));
        let lasts = match &step {
            BoardStep::Post { lasts, .. } | BoardStep::Take { lasts } => *lasts,
            BoardStep::Release => RELEASE,
            BoardStep::Draw(_) => DRAWS,
        };
        self.said.push(Said { topic, step, until: now + lasts, sent: None });
    }

    /// What is to be sent now; `seq` is the last number of a request.
    pub(super) fn requests(
        &mut self,
        now: Instant,
        member: MemberId,
        seq: &mut u64,
        given_up: Duration,
    ) -> Vec<BoardRequest> {
        // What is drawn twice counts as spent twice: it is not said again.
        let is_lost = |said: &Said| is_draw(&said.step) && said.sent.is_some_and(|(_, until)| until <= now);
        self.said.retain(|said| said.until > now && !is_lost(said));
        let due = self.said.iter_mut().filter(|said| said.sent.is_none_or(|(_, until)| until <= now));
        let request = |said: &mut Said| {
            *seq += 1;
            said.sent = Some((*seq, now + given_up));
            let left = said.until - now;
            let step = match &said.step {
                BoardStep::Post { values, .. } => BoardStep::Post { values: values.clone(), lasts: left },
                BoardStep::Take { .. } => BoardStep::Take { lasts: left },
                BoardStep::Release => BoardStep::Release,
                BoardStep::Draw(draw) => BoardStep::Draw(draw.clone()),
            };
            BoardRequest { member, seq: *seq, topic: said.topic.clone(), step }
        };
        due.map(request).collect()
    }

    /// When something is to be sent that is not answered; `now` where something was never sent.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.said.iter().map(|said| said.sent.map_or(now, |(_, until)| until)).min()
    }

    /// That request was not answered, or none was, where it is none: it is sent again.
    pub(super) fn lost(&mut self, seq: Option<u64>) {
        self.said.retain(|said| {
            !is_draw(&said.step) || said.sent.is_none_or(|(sent, _)| seq.is_some_and(|seq| seq != sent))
        });
        for said in &mut self.said {
            said.sent = said.sent.filter(|(sent, _)| seq.is_some_and(|seq| seq != *sent));
        }
    }

    /// The ledger has answered, to what is given up after that time. Returns what that means for the calls.
    pub(super) fn answered(&mut self, reply: BoardReply, given_up: Duration) -> Option<MemberChange> {
        let is_it = |said: &Said| said.sent.is_some_and(|(seq, _)| seq == reply.seq);
        let said = self.said.remove(self.said.iter().position(is_it)?);
        let (Said { topic, step, sent, .. }, BoardReply { waits, units, after, .. }) = (said, reply);
        match step {
            BoardStep::Take { .. } => Some(MemberChange::Taken { topic, waits }),
            // The ledger counts from later on.
            BoardStep::Draw(_) => {
                let since = sent?.1.saturating_sub(given_up);
                Some(MemberChange::Drawn { topic, units, after, waits, since })
            }
            BoardStep::Post { .. } | BoardStep::Release => None,
        }
    }

    /// Another member told something. Returns whether that is new, and whether something before it was missed.
    pub(super) const fn hear(&mut self, note: &Note) -> (bool, bool) {
        let is_next = note.number == self.heard + 1;
        let is_new = note.number > self.heard;
        if is_next {
            self.heard = note.number;
        }
        (is_new, is_new && !is_next)
    }

    /// All up to that note was heard.
    pub(super) const fn heard_all(&mut self, newest: u64) {
        self.heard = newest;
    }
}

/// What takes the place of another word of the same topic.
const fn kind(step: &BoardStep) -> u8 {
    match step {
        BoardStep::Post { .. } => 0,
        BoardStep::Take { .. } | BoardStep::Release => 1,
        BoardStep::Draw(_) => 2,
    }
}

const fn is_draw(step: &BoardStep) -> bool {
    matches!(step, BoardStep::Draw(_))
}
