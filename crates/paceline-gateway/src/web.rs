//! The page for people: its files, which are part of the program, so that nothing is loaded from elsewhere.

use http::header::{CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};

/// The look of the page, which reports share.
pub const STYLE: &str = include_str!("web/style.css");

/// Draws charts with [`UPLOT`]: the function `paceline_chart`.
pub const CHARTS: &str = include_str!("web/charts.js");

/// The library of the charts.
pub const UPLOT: &str = include_str!("web/uplot/uplot.js");

/// Its look.
pub const UPLOT_STYLE: &str = include_str!("web/uplot/uplot.css");

/// By path: the type and the content.
const FILES: [(&str, &str, &str); 10] = [
    ("/", "text/html; charset=utf-8", include_str!("web/index.html")),
    ("/api/page/icon.svg", "image/svg+xml", include_str!("web/icon.svg")),
    ("/api/page/style.css", STYLES, STYLE),
    ("/api/page/uplot.css", STYLES, UPLOT_STYLE),
    ("/api/page/uplot.js", SCRIPT, UPLOT),
    ("/api/page/charts.js", SCRIPT, CHARTS),
    ("/api/page/cards.js", SCRIPT, include_str!("web/cards.js")),
    ("/api/page/words.js", SCRIPT, include_str!("web/words.js")),
    ("/api/page/follow.js", SCRIPT, include_str!("web/follow.js")),
    ("/api/page/page.js", SCRIPT, include_str!("web/page.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLES: &str = "text/css; charset=utf-8";

/// What browsers are told with each file: it loads nothing from elsewhere, runs no script but its own, and is shown in no frame.
pub(crate) const HEADERS: [(HeaderName, &str); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
];

/// The type and the content of a file by its path.
pub(crate) fn file(path: &str) -> Option<(&'static str, &'static str)> {
    FILES.iter().find(|(known, ..)| *known == path).map(|(_, kind, content)| (*kind, *content))
}
