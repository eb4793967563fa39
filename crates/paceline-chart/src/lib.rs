#![doc = include_str!("../README.md")]

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
