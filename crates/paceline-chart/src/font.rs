//! The font: measured when a figure is laid out, and drawn in PNG files. Viewers of an SVG use it where they have it, else
//! another, which may be wider.

use std::sync::{Arc, OnceLock};

use plotters::style::{FontDesc, FontFamily, FontStyle, register_font};
use resvg::usvg::fontdb::Database;

/// As an SVG names it.
pub(crate) const FAMILY: &str = "Open Sans, Segoe UI, Helvetica Neue, Arial, sans-serif";

const REGULAR: &[u8] = include_bytes!("../fonts/OpenSans-Regular.ttf");
const SEMIBOLD: &[u8] = include_bytes!("../fonts/OpenSans-Semibold.ttf");

/// The library draws a font of size 1.24 as one of 1 em, and measures it as high from its deepest descender to its
/// highest ascender; fonts that viewers take instead are up to an eighth wider.
const EM: f64 = 1.24;
const WIDER: f64 = 1.362 / EM * 1.125;

/// The font in a size, in pixels of the drawing.
pub(crate) fn sized(pixels: f64, style: FontStyle) -> FontDesc<'static> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let registered = REGISTERED.get_or_init(|| {
        register_font(FAMILY, FontStyle::Normal, REGULAR).is_ok()
            && register_font(FAMILY, FontStyle::Bold, SEMIBOLD).is_ok()
    });
    assert!(registered, "the fonts in this crate are sound");
    FontDesc::new(FontFamily::Name(FAMILY), pixels * EM, style)
}

/// Pixels that a text takes at most, in the fonts that it may be shown in.
pub(crate) fn width(text: &str, font: &FontDesc<'_>) -> i32 {
    let (width, _) = font.box_size(text).expect("a registered font can be measured");
    (f64::from(width) * WIDER).ceil() as i32
}

/// The same font for the drawing of an SVG.
pub(crate) fn database() -> Arc<Database> {
    static FONTS: OnceLock<Arc<Database>> = OnceLock::new();
    let load = || {
        let mut fonts = Database::new();
        fonts.load_font_data(REGULAR.to_vec());
        fonts.load_font_data(SEMIBOLD.to_vec());
        fonts.set_sans_serif_family("Open Sans");
        Arc::new(fonts)
    };
    FONTS.get_or_init(load).clone()
}
