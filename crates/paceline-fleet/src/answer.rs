//! What a store says: to a request, and by itself.

use std::time::Duration;

use paceline_core::fleet::{BoardReply, MemberId, MemberInput, MemberRequest, Note, SyncReply};

/// What a store says by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// To ask would help this member.
    Hint(MemberId),
    /// A member told this to all.
    Note(Note),
    /// The connection is gone.
    Closed,
}

/// The answer to a request: no reply to a sync that was overtaken, and to a bye; what all members are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerAnswer {
    /// To a sync.
    pub reply: Option<SyncReply>,
    /// The members to which to ask would be of use; they are told.
    pub wakes: Vec<MemberId>,
    /// To a request for the board.
    pub board: Option<BoardReply>,
    /// What was told to all members by that.
    pub note: Option<Note>,
}

impl LedgerAnswer {
    /// What a member is told that has asked.
    pub fn input(self, request: &MemberRequest) -> MemberInput {
        match (request, self.reply, self.board) {
            (MemberRequest::Bye(request), ..) => MemberInput::ByeDone(request.seq),
            (_, Some(reply), _) => MemberInput::Reply(reply),
            (_, None, Some(reply)) => MemberInput::Answered(reply),
            (_, None, None) => MemberInput::Lost(request.seq()),
        }
    }
}

impl Notice {
    /// What a message on the ledger's channel says: a note, or the members to which to ask would be of use.
    pub fn all(words: &str) -> Vec<Self> {
        let hint = |id| u64::from_str_radix(id, 16).ok().map(|id| Self::Hint(MemberId(id)));
        match Self::note(words) {
            Some(note) => vec![note],
            None => words.split(' ').filter_map(hint).collect(),
        }
    }

    /// What a member of that name is told by this; nothing if it is for others, or no word of the ledger.
    pub fn input(self, member: MemberId) -> Option<MemberInput> {
        match self {
            Self::Hint(id) => (id == member).then_some(MemberInput::Notice),
            Self::Note(note) => Some(MemberInput::Told(note)),
            Self::Closed => None,
        }
    }

    /// A note as a text: `! NUMBER FROM LEFT VALUE,VALUE TOPIC`, with the time that is left in microseconds.
    fn note(words: &str) -> Option<Self> {
        let mut words = words.strip_prefix("! ")?.splitn(5, ' ');
        let number = words.next()?.parse().ok()?;
        let from = MemberId(u64::from_str_radix(words.next()?, 16).ok()?);
        let left = Duration::from_micros(words.next()?.parse().ok()?);
        let values = words.next()?.split(',').filter(|value| !value.is_empty());
        let values = values.map(|value| value.parse().ok()).collect::<Option<_>>()?;
        Some(Self::Note(Note { number, from, topic: words.next()?.to_owned(), left, values }))
    }

    /// The text of a note.
    #[cfg(any(feature = "client", test))]
    pub(crate) fn words(note: &Note) -> String {
        let Note { number, from: MemberId(from), topic, left, values } = note;
        let values = values.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        format!("! {number} {from:016x} {} {values} {topic}", left.as_micros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let (from, left) = (MemberId(0xA5), Duration::from_micros(61_000_001));
        for (topic, values) in [("gate", vec![]), ("gate a model, with words", vec![2, 1 << 52])] {
            let note = Note { number: 7, from, topic: topic.to_owned(), left, values };
            assert_eq!(Notice::all(&Notice::words(&note)), [Notice::Note(note)]);
        }
        assert_eq!(Notice::all("00000000000000a5 0f"), [Notice::Hint(from), Notice::Hint(MemberId(15))]);
    }
}
