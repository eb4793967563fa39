//! A figure as a file: SVG, and PNG made of it.

use plotters::backend::SVGBackend;
use plotters::drawing::IntoDrawingArea;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};

use crate::canvas::FINE;
use crate::draw;
use crate::figure::Figure;
use crate::font;

/// Pixels of a figure's width in a page.
const WIDTH: u32 = 860;

/// Pixels of a PNG file for each of a page, so that it is sharp on finer screens too.
const PNG_SCALE: u32 = 2;

/// Why there is no chart.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// A library could not draw the figure.
    #[error("the picture cannot be drawn: {0}")]
    Draw(String),
}

impl Figure {
    /// The figure as the text of an SVG file.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub fn svg(&self) -> Result<String, ChartError> {
        let height = draw::height(self);
        let mut drawn = String::new();
        let area = SVGBackend::with_string(&mut drawn, (WIDTH * FINE, height * FINE)).into_drawing_area();
        let present = draw::figure(self, &area).and_then(|()| area.present());
        drop(area);
        present.map_err(|error| ChartError::Draw(error.to_string()))?;
        // The library's own first line has the size of the drawing, which is finer than the page.
        let body = drawn.split_once('\n').map_or("", |(_, body)| body);
        let (wide, high) = (WIDTH * FINE, height * FINE);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {wide} {high}\" role=\"img\">\n<title>{}</title>\n{body}",
            escaped(&self.title)
        );
        // XML has no way to write what could move a cursor.
        svg.retain(|char| char == '\n' || !char.is_control());
        Ok(svg)
    }

    /// The figure as a PNG file, with twice as many pixels each way as the SVG has in a page.
    ///
    /// # Errors
    /// When a library fails to draw it.
    pub fn png(&self) -> Result<Vec<u8>, ChartError> {
        let failed = |error: String| ChartError::Draw(error);
        let options = Options { fontdb: font::database(), font_family: "Open Sans".to_owned(), ..Options::default() };
        let tree = Tree::from_str(&self.svg()?, &options).map_err(|error| failed(error.to_string()))?;
        let (width, height) = (WIDTH * PNG_SCALE, draw::height(self) * PNG_SCALE);
        let mut pixels = Pixmap::new(width, height).ok_or_else(|| failed(format!("{width} x {height} pixels")))?;
        let scale = PNG_SCALE as f32;
        resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
        pixels.encode_png().map_err(|error| failed(error.to_string()))
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Ink, Panel, Series, Shape};

    fn figure() -> Figure {
        let panel = |title: &str| {
            let line: Vec<_> = (0..50).map(|x| (f64::from(x), f64::from(x * x))).collect();
            Panel::new(title, Axis::linear("time in s", 0.0, 50.0), Axis::log_with_zero("calls", 0.1, 2_000.0))
                .with(Series::dashed("a bound", Ink::Black, line.clone()))
                .with(Series::area("an area", Ink::Blue, line.clone(), vec![(0.0, 0.0), (50.0, 0.0)]))
                .with(Series::points("crosses", Ink::Vermillion, Shape::Cross, line))
                .with(Series::named("names", Ink::Green, Shape::Triangle, vec![(10.0, 0.0, "<me> & you".to_owned())]))
        };
        Figure::new("Squares < \u{7}cubes").note("A note\u{1}.").row(200, vec![panel("Left"), panel("Right")])
    }

    #[test]
    fn an_svg_has_every_word_and_is_the_same_each_time() {
        let svg = figure().svg().expect("it is drawn");
        assert_eq!(svg, figure().svg().expect("it is drawn"));
        for word in ["Squares &lt; cubes", "A note.", "Left", "Right", "time in s", "a bound", "&lt;me&gt; &amp; you"] {
            assert!(svg.contains(word), "{word} is missing");
        }
        Tree::from_str(&svg, &Options::default()).expect("it is well formed");
    }

    /// The fonts of the machine are not looked at, so there would be no text at all without those of this crate.
    #[test]
    fn a_png_has_the_text_in_it() {
        let bare = |title: &str| Figure::new(title).png().expect("it is drawn");
        assert_ne!(bare("Title"), bare("Eltit"));
        let pixels = Pixmap::decode_png(&figure().png().expect("it is drawn")).expect("a PNG");
        assert_eq!(pixels.width(), WIDTH * PNG_SCALE);
        let dark = pixels.pixels().iter().filter(|pixel| pixel.red() < 60 && pixel.blue() < 60).count();
        assert!(dark > 2_000, "{dark} dark pixels");
    }
}
