//! The keys of clients in a text that is too long to be held, such as a file on its way.

use std::sync::Arc;

use super::Clients;
use super::shown::{LENGTH, has_a_key_anywhere};
use crate::query;

/// Looks for the keys of clients in a text that comes in pieces, of which little is held.
#[derive(Debug)]
pub struct KeySearch {
    clients: Arc<Clients>,
    unread: Vec<u8>,
    found: bool,
}

impl KeySearch {
    /// So much of a text is searched at once.
    const PIECE: usize = 64 << 10;

    /// As long is a key at the most, each letter percent-encoded as often as is decoded: a `%`, `25` for each time but the first,
    /// and two digits.
    const LONGEST: usize = LENGTH * (1 + 2 * query::MOST_DECODED);

    /// That of a text that begins.
    pub const fn new(clients: Arc<Clients>) -> Self {
        Self { clients, unread: Vec::new(), found: false }
    }

    /// Goes on with the next piece.
    pub fn read(&mut self, piece: &[u8]) {
        for piece in piece.chunks(Self::PIECE) {
            self.unread.extend_from_slice(piece);
            if self.unread.len() >= Self::PIECE {
                self.search();
                // A key may go on in the next one.
                self.unread.drain(..self.unread.len() - Self::LONGEST);
            }
        }
    }

    /// Whether a key stood in the text, which has ended.
    pub fn ends(mut self) -> bool {
        self.search();
        self.found
    }

    fn search(&mut self) {
        if let (false, Clients::WithKeys(clients)) = (self.found, &*self.clients) {
            self.found = has_a_key_anywhere(clients, &self.unread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::KeyHash;

    #[test]
    fn a_key_is_found_in_a_text_wherever_that_is_cut() {
        let key = format!("{}{}", KeyHash::PREFIX, "ab".repeat(KeyHash::RANDOM));
        let clients = Arc::new(Clients::WithKeys(Clients::of_keys(&[("own", &key)])));
        let often = |text: &str| (1..query::MOST_DECODED).fold(text.to_owned(), |text, _| text.replace('%', "%25"));
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let longest = often(&encoded);
        assert_eq!(longest.len(), KeySearch::LONGEST);
        for key in [&key, &encoded, &longest] {
            // Also as a part of one long word.
            for beside in ["x", " ", "%"] {
                for before in (KeySearch::PIECE - key.len() - 2..KeySearch::PIECE + 2).step_by(61) {
                    let text = format!("{}{key}{}", beside.repeat(before), beside.repeat(9));
                    for size in [before + key.len() / 2, 1_000, text.len()] {
                        let mut search = KeySearch::new(Arc::clone(&clients));
                        text.as_bytes().chunks(size).for_each(|piece| search.read(piece));
                        assert!(search.unread.len() < 2 * KeySearch::PIECE && search.ends(), "{before} by {size}");
                    }
                }
            }
            let mut search = KeySearch::new(Arc::clone(&clients));
            search.read(&key.as_bytes()[1..]);
            assert!(!search.ends(), "only a part of it");
        }
    }
}
