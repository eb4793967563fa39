//! How a claim is shared out among lanes: higher priorities first, and groups of one priority take turns.

use std::collections::VecDeque;
use std::sync::Arc;

/// The items of one group at one priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) id: i64,
    pub(crate) group: Arc<str>,
    pub(crate) priority: i16,
}

/// Decides from which lane to take how many next, given how many there were.
#[derive(Debug)]
pub(crate) struct FairShare {
    levels: VecDeque<Vec<Lane>>,
    /// Lanes of the present level that are still to be asked in this round, and those that may have more.
    round: VecDeque<Lane>,
    more: Vec<Lane>,
    share: usize,
    asked: usize,
    left: usize,
}

impl FairShare {
    /// At most `limit` items of lanes that are sorted by falling priority. `turn` says which group begins: where few items
    /// are asked for at a time, another one each time.
    pub(crate) fn new(lanes: &[Lane], limit: usize, turn: usize) -> Self {
        let in_turn = |level: &[Lane]| {
            let mut lanes = level.to_vec();
            let first = turn % lanes.len();
            lanes.rotate_left(first);
            lanes
        };
        let levels = lanes.chunk_by(|a, b| a.priority == b.priority).map(in_turn).collect();
        Self { levels, round: VecDeque::new(), more: Vec::new(), share: 0, asked: 0, left: limit }
    }

    /// The lane to take from, and how many at most.
    pub(crate) fn next(&mut self) -> Option<(Lane, usize)> {
        if self.round.is_empty() {
            let lanes = if self.more.is_empty() { self.levels.pop_front()? } else { std::mem::take(&mut self.more) };
            self.share = self.left.div_ceil(lanes.len());
            self.round = lanes.into();
        }
        self.asked = self.share.min(self.left);
        (self.asked > 0).then_some((self.round.front()?.clone(), self.asked))
    }

    /// So many were there; fewer than asked for mean that the lane has no more.
    pub(crate) fn took(&mut self, count: usize) {
        self.left = self.left.saturating_sub(count);
        let lane = self.round.pop_front();
        self.more.extend(lane.filter(|_| count == self.asked));
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Shares out among lanes whose items are taken at once.
    fn share_out<E>(
        lanes: &[Lane],
        limit: usize,
        turn: usize,
        mut take: impl FnMut(&Lane, usize) -> Result<usize, E>,
    ) -> Result<(), E> {
        let mut sharing = FairShare::new(lanes, limit, turn);
        while let Some((lane, n)) = sharing.next() {
            let count = take(&lane, n)?;
            sharing.took(count);
        }
        Ok(())
    }

    #[test]
    fn groups_take_turns_and_priorities_do_not() {
        let lane = |id, priority| Lane { id, group: Arc::from(id.to_string()), priority };
        let lanes = [lane(0, 9), lane(1, 0), lane(2, 0), lane(3, 0), lane(4, -1)];
        for (limit, expected) in [
            (2, [2, 0, 0, 0, 0]),
            (3, [3, 0, 0, 0, 0]),
            (9, [3, 2, 2, 2, 0]),
            (10, [3, 3, 2, 2, 0]),
            (20, [3, 8, 2, 7, 0]),
            (99, [3, 10, 2, 10, 5]),
            (0, [0; 5]),
        ] {
            let mut stock = [3, 10, 2, 10, 5];
            let before = stock;
            let taken = share_out::<Infallible>(&lanes, limit, 0, |lane, n| {
                let stock = &mut stock[lane.id as usize];
                let taken = n.min(*stock);
                *stock -= taken;
                Ok(taken)
            });
            let got: Vec<usize> = before.iter().zip(stock).map(|(before, after)| before - after).collect();
            taken.unwrap();
            assert_eq!(got, expected, "of {limit}");
        }
    }

    #[test]
    fn one_at_a_time_groups_take_turns_too() {
        let lane = |id, priority| Lane { id, group: Arc::from(id.to_string()), priority };
        let lanes = [lane(0, 9), lane(1, 0), lane(2, 0), lane(3, 0)];
        let mut stock = [1, 2, 2, 2];
        let mut order = Vec::new();
        for turn in 0..7 {
            let taken = share_out::<Infallible>(&lanes, 1, turn, |lane, n| {
                let taken = stock[lane.id as usize].min(n);
                stock[lane.id as usize] -= taken;
                order.extend(std::iter::repeat_n(lane.id, taken));
                Ok(taken)
            });
            taken.unwrap();
        }
        assert_eq!(order, [0, 2, 3, 1, 2, 3, 1]);
    }
}
