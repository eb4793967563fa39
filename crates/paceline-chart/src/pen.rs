//! How lines, areas, points and names are drawn.

use plotters::element::{Circle, PathElement, Polygon, Rectangle};
use plotters::style::Color;

use crate::canvas::{Canvas, DrawError, fine, name_style, stroke};
use crate::font;
use crate::labels::{self, Area, Label};
use crate::panel::Panel;
use crate::series::{Dash, Form, Ink, Series, Shape};

type Point = (i32, i32);

/// How much of what is behind an area it hides.
const COVER: f64 = 0.45;

/// Half of a point's size, in pixels of a page.
const RADIUS: u32 = 4;

/// The same where many points are drawn, and how many that are.
const SMALL: u32 = 2;
const MANY: usize = 200;

/// Draws a series where `at` says that its values stand.
pub(crate) fn series(series: &Series, canvas: &Canvas<'_>, at: impl Fn((f64, f64)) -> Point) -> Result<(), DrawError> {
    match &series.form {
        Form::Line { points, dash, width } => {
            line(canvas, points.iter().map(|point| at(*point)).collect(), series.ink, *dash, *width)
        }
        Form::Area { upper, lower } => {
            let around = upper.iter().chain(lower.iter().rev()).map(|point| at(*point));
            canvas.draw(&Polygon::new(around.collect::<Vec<_>>(), series.ink.rgb().mix(COVER).filled()))
        }
        Form::Points { points, shape } => {
            let radius = fine(if points.len() > MANY { SMALL } else { RADIUS });
            points.iter().try_for_each(|point| mark(canvas, *shape, series.ink, at(*point), radius))
        }
        Form::Named { points, shape } => {
            points.iter().try_for_each(|(x, y, _)| mark(canvas, *shape, series.ink, at((*x, *y)), fine(RADIUS)))
        }
    }
}

/// Draws a piece of a series for the legend, around the height `y`.
pub(crate) fn sample(series: &Series, canvas: &Canvas<'_>, (x, y): Point, width: i32) -> Result<(), DrawError> {
    let middle = (x + width / 2, y);
    match &series.form {
        Form::Line { dash, width: pen, .. } => line(canvas, vec![(x, y), (x + width, y)], series.ink, *dash, *pen),
        Form::Area { .. } => {
            let corners = [(x + fine(4), y - fine(5)), (x + width, y + fine(5))];
            canvas.draw(&Rectangle::new(corners, series.ink.rgb().mix(COVER).filled()))
        }
        Form::Points { shape, .. } | Form::Named { shape, .. } => {
            mark(canvas, *shape, series.ink, middle, fine(RADIUS))
        }
    }
}

/// Writes the names of points beside them, with a thin line to those that stand apart.
pub(crate) fn names(
    panel: &Panel,
    canvas: &Canvas<'_>,
    at: impl Fn((f64, f64)) -> Point,
    bounds: Area,
) -> Result<(), DrawError> {
    let named = panel.series.iter().filter_map(|series| match &series.form {
        Form::Named { points, .. } => Some(points.iter().map(|(x, y, name)| (*x, *y, name.as_str(), series.ink))),
        _ => None,
    });
    let named: Vec<(Point, &str, Ink)> = named.flatten().map(|(x, y, name, ink)| (at((x, y)), name, ink)).collect();
    let points: Vec<Point> = named.iter().map(|(point, ..)| *point).collect();
    let size = |name, ink: Ink| (font::width(name, &name_style(ink.rgb()).font), fine(15));
    let sizes = named.iter().map(|&(point, name, ink)| Label { point, size: size(name, ink) });
    let gap = fine(RADIUS + 3);
    let places = labels::place(&sizes.collect::<Vec<_>>(), &points, gap, bounds);
    for ((point, name, ink), area) in named.into_iter().zip(places) {
        let end = area.nearest(point);
        if (end.0 - point.0).abs().max((end.1 - point.1).abs()) > 2 * gap {
            canvas.draw(&PathElement::new(vec![point, end], stroke(ink.rgb(), 1)))?;
        }
        canvas.draw_text(name, &name_style(ink.rgb()), (area.left, (area.top + area.bottom) / 2))?;
    }
    Ok(())
}

fn line(canvas: &Canvas<'_>, points: Vec<Point>, ink: Ink, dash: Dash, width: u32) -> Result<(), DrawError> {
    let style = stroke(ink.rgb(), width + 1);
    let pieces = match dash {
        Dash::Never => vec![points],
        Dash::Long => dashes(&points, fine(6), fine(4)),
        Dash::Short => dashes(&points, fine(2), fine(2)),
    };
    pieces.into_iter().try_for_each(|piece| canvas.draw(&PathElement::new(piece, style)))
}

/// The pieces of a line that are drawn when `on` pixels are and then `off` are not. The library's own dashes end in
/// pieces without length, which cannot be drawn into a PNG.
fn dashes(points: &[Point], on: i32, off: i32) -> Vec<Vec<Point>> {
    let (mut pieces, mut piece) = (Vec::new(), Vec::new());
    let (mut drawn, mut left) = (true, f64::from(on));
    for ends in points.windows(2) {
        let [(x, y), (to_x, to_y)] = [ends[0], ends[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (to_x - x).hypot(to_y - y);
        let at = |along: f64| {
            let share = along / length;
            ((x + share * (to_x - x)).round() as i32, (y + share * (to_y - y)).round() as i32)
        };
        let mut along = 0.0;
        while along < length {
            let end = (along + left).min(length);
            if drawn {
                piece.extend([at(along), at(end)]);
            }
            left -= end - along;
            along = end;
            // The rest of a piece may be shorter than the precision of its end.
            if left < 1e-6 {
                pieces.push(std::mem::take(&mut piece));
                drawn = !drawn;
                left = f64::from(if drawn { on } else { off });
            }
        }
    }
    pieces.push(piece);
    pieces.iter_mut().for_each(Vec::dedup);
    pieces.retain(|piece| piece.len() > 1);
    pieces
}

fn mark(canvas: &Canvas<'_>, shape: Shape, ink: Ink, (x, y): Point, r: i32) -> Result<(), DrawError> {
    let style = stroke(ink.rgb(), 4);
    match shape {
        Shape::Circle => canvas.draw(&Circle::new((x, y), r, ink.rgb().filled())),
        Shape::Triangle => {
            let corners = vec![(x, y - r * 6 / 5), (x + r * 6 / 5, y + r), (x - r * 6 / 5, y + r)];
            canvas.draw(&Polygon::new(corners, ink.rgb().filled()))
        }
        Shape::Cross => {
            canvas.draw(&PathElement::new(vec![(x - r, y - r), (x + r, y + r)], style))?;
            canvas.draw(&PathElement::new(vec![(x - r, y + r), (x + r, y - r)], style))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_go_around_corners_and_have_a_length() {
        let pieces = dashes(&[(0, 0), (10, 0), (10, 10), (10, 10), (10, 14)], 8, 4);
        assert_eq!(pieces, [vec![(0, 0), (8, 0)], vec![(10, 2), (10, 10)]]);
        assert_eq!(dashes(&[(0, 0), (4, 0), (9, 0)], 6, 2), [vec![(0, 0), (4, 0), (6, 0)], vec![(8, 0), (9, 0)]]);
        let steep: Vec<_> = (0..1_000).map(|x| (x * 7, x * x % 977)).collect();
        assert!(dashes(&steep, 8, 8).len() > 1_000);
        assert!(dashes(&[(3, 3), (3, 3)], 6, 2).is_empty() && dashes(&[], 6, 2).is_empty());
    }
}
