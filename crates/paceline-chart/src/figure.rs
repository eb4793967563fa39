//! A figure: what is drawn as one file.

use crate::panel::Panel;

/// A title, a subtitle, and rows of panels.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub(crate) title: String,
    pub(crate) notes: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// Panels of the same height beside each other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) height: u32,
    pub(crate) panels: Vec<Panel>,
}

impl Figure {
    /// A figure with nothing but a title.
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), notes: Vec::new(), rows: Vec::new() }
    }

    /// Adds a line under the title.
    #[must_use]
    pub fn note(mut self, text: &str) -> Self {
        self.notes.push(text.to_owned());
        self
    }

    /// Adds panels beside each other under those that are there. `height` is in pixels, their titles and axes included.
    #[must_use]
    pub fn row(mut self, height: u32, panels: Vec<Panel>) -> Self {
        self.rows.push(Row { height, panels });
        self
    }
}
