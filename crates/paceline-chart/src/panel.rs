//! One pair of axes.

use crate::axis::Axis;
use crate::series::Series;

/// A pair of axes and what is drawn between them, in the order in which it was added.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
}

impl Panel {
    /// An empty panel. The title says what the y axis shows; the label of that axis, its unit, stands behind it.
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self { title: title.to_owned(), x, y, series: Vec::new() }
    }

    /// Draws a series over those that are there.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }
}
