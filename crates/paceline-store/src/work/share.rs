//! How a claim is shared out among lanes: higher priorities first, and groups of one priority take turns.

use std::sync::Arc;

/// The items of one group at one priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) id: i64,
    pub(crate) group: Arc<str>,
    pub(crate) priority: i16,
}

/// Takes at most `limit` items from lanes that are sorted by falling priority. `take` takes as many as it is told from a
/// lane and says how many those were; fewer mean that the lane has no more.
pub(crate) fn share_out<E>(
    lanes: &[Lane],
    limit: usize,
    mut take: impl FnMut(&Lane, usize) -> Result<usize, E>,
) -> Result<usize, E> {
    let mut left = limit;
    for level in lanes.chunk_by(|a, b| a.priority == b.priority) {
        let mut lanes: Vec<&Lane> = level.iter().collect();
        while left > 0 && !lanes.is_empty() {
            let share = left.div_ceil(lanes.len());
            let mut more = Vec::with_capacity(lanes.len());
            for lane in lanes {
                let asked = share.min(left);
                let taken = if asked > 0 { take(lane, asked)? } else { 0 };
                left -= taken;
                if taken == asked {
                    more.push(lane);
                }
            }
            lanes = more;
        }
    }
    Ok(limit - left)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

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
            let taken = share_out::<Infallible>(&lanes, limit, |lane, n| {
                let stock = &mut stock[lane.id as usize];
                let taken = n.min(*stock);
                *stock -= taken;
                Ok(taken)
            });
            let got: Vec<usize> = before.iter().zip(stock).map(|(before, after)| before - after).collect();
            assert_eq!(taken.unwrap(), got.iter().sum::<usize>());
            assert_eq!(got, expected, "of {limit}");
        }
    }
}
