//! Turns: clients of one account take places in its queue one after the other, however many requests each has.

use alloc::collections::BTreeMap;

/// Places for requests of several clients, such that clients that wait leave in turns: start-time fair queueing (Goyal, Vin and
/// Cheng, SIGCOMM 1996) with each request as one unit.
///
/// A place is what [`Request::arrival`](crate::Request::arrival) takes, for every request of the account. Between two clients
/// that both wait, the numbers of their requests that leave differ by one at most, unless scopes or priorities part them.
///
/// ```
/// use paceline_core::Turns;
///
/// let mut turns = Turns::default();
/// let many = [turns.place(1), turns.place(1), turns.place(1)];
/// turns.left(many[0]);
/// let one = turns.place(2);
/// assert!(one < many[1], "the client with one request waits behind none of the other's backlog");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// The latest place that a request left from.
    now: u64,
    /// The last place of each client that may still wait.
    last: BTreeMap<u64, u64>,
    /// Once so many clients are kept, those that wait no more are forgotten.
    full: usize,
}

/// So many clients are kept at least.
const FEW: usize = 64;

impl Turns {
    /// The place of a client's next request.
    pub fn place(&mut self, client: u64) -> u64 {
        let now = self.now;
        if self.last.len() >= self.full.max(FEW) {
            self.last.retain(|_, last| *last >= now);
            self.full = 2 * self.last.len();
        }
        let place = self.last.get(&client).map_or(now, |last| now.max(last + 1));
        self.last.insert(client, place);
        place
    }

    /// The request in that place has left.
    pub fn left(&mut self, place: u64) {
        self.now = self.now.max(place);
    }

    /// A request of the client waits no more and has not left: its next one comes a turn earlier.
    pub fn withdrawn(&mut self, client: u64) {
        let now = self.now;
        if let Some(last) = self.last.get_mut(&client).filter(|last| **last > now) {
            *last -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::{collection, prop_assert, proptest};

    proptest! {
        /// Two clients that wait all the time leave equally often, whatever others do.
        #[test]
        fn clients_that_wait_leave_in_turns(steps in collection::vec((0..6_u64, 1..9_u64), 1..200)) {
            let (mut turns, mut queue, mut number) = (Turns::default(), BTreeSet::new(), 0_u64);
            let mut left = [0_u64; 8];
            let mut enqueue = |turns: &mut Turns, queue: &mut BTreeSet<(u64, u64, u64)>, client| {
                number += 1;
                queue.insert((turns.place(client), number, client));
            };
            (0..3).for_each(|_| [6, 7].into_iter().for_each(|client| enqueue(&mut turns, &mut queue, client)));
            for (client, leave) in steps {
                (0..leave).for_each(|_| enqueue(&mut turns, &mut queue, client));
                for _ in 0..leave {
                    let (place, _, client) = queue.pop_first().expect("two clients always wait");
                    turns.left(place);
                    left[client as usize] += 1;
                    if client >= 6 {
                        enqueue(&mut turns, &mut queue, client);
                    }
                    prop_assert!(left[6].abs_diff(left[7]) <= 1, "{left:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_withdrawn_costs_no_turn() {
        let mut turns = Turns::default();
        let first = turns.place(1);
        (0..1_000).for_each(|_| _ = turns.place(1));
        (0..1_000).for_each(|_| turns.withdrawn(1));
        turns.left(first);
        assert_eq!((turns.place(1), turns.place(2)), (first + 1, first));
    }

    #[test]
    fn clients_that_wait_no_more_are_forgotten() {
        let mut turns = Turns::default();
        for client in 0..100_000 {
            let place = turns.place(client);
            turns.left(place + 1);
        }
        assert!(turns.last.len() <= FEW, "{}", turns.last.len());
    }
}
