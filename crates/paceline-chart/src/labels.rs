//! Texts beside points, where they cover neither points nor each other.

/// A rectangle in pixels of the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) left: i32,
    pub(crate) top: i32,
    pub(crate) right: i32,
    pub(crate) bottom: i32,
}

impl Area {
    /// The pixels that both have.
    fn shared(&self, other: &Self) -> i64 {
        let width = self.right.min(other.right) - self.left.max(other.left);
        let height = self.bottom.min(other.bottom) - self.top.max(other.top);
        i64::from(width.max(0)) * i64::from(height.max(0))
    }

    fn size(&self) -> i64 {
        i64::from(self.right - self.left) * i64::from(self.bottom - self.top)
    }

    /// The point of it that is nearest to another.
    pub(crate) fn nearest(&self, (x, y): (i32, i32)) -> (i32, i32) {
        (x.clamp(self.left, self.right), y.clamp(self.top, self.bottom))
    }
}

/// A point with a text of that size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) point: (i32, i32),
    pub(crate) size: (i32, i32),
}

/// Directions in the order in which they are preferred: to the right, to the left, above, below, then aslant.
const DIRECTIONS: [(i32, i32); 8] = [(1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)];

/// So many distances are tried.
const DISTANCES: i32 = 12;

/// Puts each text near its point: the first place that is free, else the one where it covers least. `gap` is the least
/// distance between a point and its text, `points` all points that must be seen.
pub(crate) fn place(labels: &[Label], points: &[(i32, i32)], gap: i32, bounds: Area) -> Vec<Area> {
    let around = |&(x, y): &(i32, i32)| Area { left: x - gap, top: y - gap, right: x + gap, bottom: y + gap };
    let mut taken: Vec<Area> = points.iter().map(around).collect();
    let mut placed = Vec::with_capacity(labels.len());
    for label in labels {
        let covers = |area: &Area| {
            let outside = area.size() - area.shared(&bounds);
            outside + taken.iter().map(|other| other.shared(area)).sum::<i64>()
        };
        let best = candidates(label, gap).min_by_key(covers).expect("there are some");
        taken.push(best);
        placed.push(best);
    }
    placed
}

/// Places for a text, nearest first.
fn candidates(label: &Label, gap: i32) -> impl Iterator<Item = Area> {
    let ((x, y), (width, height)) = (label.point, label.size);
    let beside = move |distance: i32, (right, down): (i32, i32)| {
        let off = gap + distance * height / 2;
        let left = match right {
            1 => x + off,
            -1 => x - off - width,
            _ => x - width / 2,
        };
        let top = match down {
            1 => y + off,
            -1 => y - off - height,
            _ => y - height / 2,
        };
        Area { left, top, right: left + width, bottom: top + height }
    };
    (0..DISTANCES).flat_map(move |distance| DIRECTIONS.into_iter().map(move |direction| beside(distance, direction)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Area = Area { left: 0, top: 0, right: 1_000, bottom: 600 };

    #[test]
    fn twenty_texts_in_a_crowd_cover_neither_each_other_nor_a_point() {
        let labels: Vec<Label> = (0..20)
            .map(|index| Label { point: (480 + index * 37 % 41, 300 + index * 23 % 29), size: (90, 16) })
            .collect();
        let points: Vec<_> = labels.iter().map(|label| label.point).collect();
        let places = place(&labels, &points, 6, BOUNDS);
        for (index, area) in places.iter().enumerate() {
            assert_eq!(area.shared(&BOUNDS), area.size(), "{area:?} is outside");
            assert!(places[..index].iter().all(|other| other.shared(area) == 0), "{area:?}");
            assert!(points.iter().all(|&(x, y)| area.nearest((x, y)) != (x, y)), "{area:?} covers a point");
        }
    }

    #[test]
    fn a_text_at_the_edge_stays_inside() {
        let label = Label { point: (995, 5), size: (90, 16) };
        let place = place(&[label], &[label.point], 6, BOUNDS)[0];
        assert_eq!(place.shared(&BOUNDS), place.size());
    }
}
