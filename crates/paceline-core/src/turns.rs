//! Turns: clients of one account take places in its queue one after the other, however many requests each has.

use alloc::collections::BTreeMap;

/// Places for requests of several clients, such that clients that wait leave in turns: start-time fair queueing (Goyal, Vin and
/// Cheng, SIGCOMM 1996), with each request as one unit or as many as it costs.
///
/// A place is what [`Request::arrival`](crate::Request::arrival) takes, for every request of the account. Between two clients
/// that both wait, the units of their requests that leave differ by those of one request of each at most, unless scopes or
/// priorities part them.
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
    /// The place behind the last request of each client that may still wait.
    next: BTreeMap<u64, u64>,
    /// Once so many clients are kept, those that wait no more are forgotten.
    full: usize,
}

/// So many clients are kept at least.
const FEW: usize = 64;

impl Turns {
    /// The place of a client's next request, where each counts as one.
    pub fn place(&mut self, client: u64) -> u64 {
        self.place_of(client, 1)
    }

    /// The place of a client's next request, which counts as so many.
    pub fn place_of(&mut self, client: u64, units: u64) -> u64 {
        let now = self.now;
        if self.next.len() >= self.full.max(FEW) {
            self.next.retain(|_, next| *next > now);
            self.full = 2 * self.next.len();
        }
        let place = self.next.get(&client).map_or(now, |next| now.max(*next));
        self.next.insert(client, place.saturating_add(units));
        place
    }

    /// The request in that place has left.
    pub fn left(&mut self, place: u64) {
        self.now = self.now.max(place);
    }

    /// A request of the client, which counts as so many, waits no more and has not left: its next one comes so much earlier.
    pub fn withdrawn(&mut self, client: u64, units: u64) {
        let now = self.now;
        if let Some(next) = self.next.get_mut(&client) {
            *next = next.saturating_sub(units).max(now);
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
        (0..1_000).for_each(|_| turns.withdrawn(1, 1));
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
        assert!(turns.next.len() <= FEW, "{}", turns.next.len());
    }

    /// One client asks for long answers: the other's small requests do not wait for one of them each.
    #[test]
    fn clients_leave_in_turns_by_what_their_requests_cost() {
        let (mut turns, mut queue) = (Turns::default(), BTreeSet::new());
        (0..100).for_each(|number| _ = queue.insert((turns.place_of(1, 32), number, 1)));
        (0..100).for_each(|number| _ = queue.insert((turns.place_of(2, 1), 100 + number, 2)));
        let mut left = [0_u64; 3];
        for _ in 0..66 {
            let (place, _, client) = queue.pop_first().expect("both wait");
            turns.left(place);
            left[client] += 1;
        }
        assert_eq!(left[1..], [2, 64]);
        let place = turns.place_of(3, 32);
        turns.withdrawn(3, 32);
        assert_eq!(turns.place_of(3, 1), place);
    }
}
