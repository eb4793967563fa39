//! What is drawn on, and with: pixels, strokes and the style of texts.

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, RGBColor, ShapeStyle, TextStyle};

use crate::font;

/// Pixels of the drawing for each of a page: the library draws at whole ones.
pub(crate) const FINE: u32 = 4;

pub(crate) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// So many pixels of a page.
pub(crate) const fn fine(pixels: u32) -> i32 {
    (pixels * FINE) as i32
}

pub(crate) fn stroke(color: RGBColor, width: u32) -> ShapeStyle {
    ShapeStyle { color: color.to_rgba(), filled: false, stroke_width: width * FINE / 2 }
}

pub(crate) fn text(size: f64, style: FontStyle, color: RGBColor) -> TextStyle<'static> {
    font::sized(size * f64::from(FINE), style).color(&color)
}

/// The style of names in a legend and beside points.
pub(crate) fn name_style(color: RGBColor) -> TextStyle<'static> {
    text(12.0, FontStyle::Normal, color).pos(Pos::new(HPos::Left, VPos::Center))
}
