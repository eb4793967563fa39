//! Charts as SVG and PNG: a figure has rows of panels, a panel has axes and what is drawn between them.
//!
//! The same figure gives the same bytes on every machine: nothing is asked of the clock, the locale or the fonts that are
//! installed. Figures have a white ground of their own, so that they can be read on dark pages, and whatever differs by
//! colour differs by shape or dashes too.
//!
//! ```
//! use paceline_chart::{Axis, Figure, Ink, Panel, Series};
//!
//! let wave = (0..100).map(|x| (f64::from(x), (f64::from(x) / 10.0).sin())).collect();
//! let panel = Panel::new("Height", Axis::linear("time in s", 0.0, 100.0), Axis::linear("m", -1.0, 1.0))
//!     .with(Series::line("the wave", Ink::Blue, wave));
//! let svg = Figure::new("A wave").row(300, vec![panel]).svg()?;
//! assert!(svg.starts_with("<svg "));
//! # Ok::<(), paceline_chart::ChartError>(())
//! ```

mod axis;
mod canvas;
mod draw;
mod figure;
mod font;
mod labels;
mod panel;
mod pen;
mod render;
mod series;

pub use axis::Axis;
pub use figure::Figure;
pub use panel::Panel;
pub use render::ChartError;
pub use series::{Ink, Series, Shape};
