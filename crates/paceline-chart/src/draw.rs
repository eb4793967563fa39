//! How a figure is laid out: titles, legends, axes, and where each stands.

use plotters::chart::ChartBuilder;
use plotters::element::Rectangle;
use plotters::style::{Color, FontStyle, RGBColor};

use crate::axis::Axis;
use crate::canvas::{Canvas, DrawError, FINE, fine, name_style, stroke, text};
use crate::figure::Figure;
use crate::font;
use crate::labels::Area;
use crate::panel::Panel;
use crate::pen;
use crate::series::Series;

const GROUND: RGBColor = RGBColor(255, 255, 255);
const EDGE: RGBColor = RGBColor(208, 208, 208);
const GRID: RGBColor = RGBColor(230, 230, 230);
const DARK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(92, 92, 92);

/// Pixels of a page.
const MARGIN: u32 = 16;
const TITLE: u32 = 30;
const LINE: u32 = 18;

/// The height of a figure in pixels of a page.
pub(crate) fn height(figure: &Figure) -> u32 {
    head(figure) + figure.rows.iter().map(|row| row.height).sum::<u32>() + MARGIN / 2
}

fn head(figure: &Figure) -> u32 {
    MARGIN + TITLE + LINE * figure.notes.len() as u32
}

/// Draws everything.
pub(crate) fn figure(figure: &Figure, canvas: &Canvas<'_>) -> Result<(), DrawError> {
    canvas.fill(&GROUND)?;
    let (width, height) = canvas.dim_in_pixel();
    let edge = [(fine(1) / 2, fine(1) / 2), (width as i32 - fine(1) / 2, height as i32 - fine(1) / 2)];
    canvas.draw(&Rectangle::new(edge, stroke(EDGE, 2)))?;
    let left = fine(MARGIN);
    canvas.draw_text(&figure.title, &text(17.0, FontStyle::Bold, DARK), (left, fine(MARGIN - 2)))?;
    for (index, note) in figure.notes.iter().enumerate() {
        let top = MARGIN + TITLE - 4 + LINE * index as u32;
        canvas.draw_text(note, &text(12.5, FontStyle::Normal, FAINT), (left, fine(top)))?;
    }
    // And those below each other begin at the same place.
    let numbers = figure.rows.iter().flat_map(|row| {
        let numbers = |one| widest_number(&with_steps(one, width, row.height * FINE).y);
        row.panels.iter().map(numbers)
    });
    let numbers = numbers.max().unwrap_or_default();
    let mut top = head(figure);
    for row in &figure.rows {
        let wide = (width - 2 * MARGIN * FINE) / row.panels.len().max(1) as u32;
        // Panels beside each other have their axes at the same height.
        let legend = row.panels.iter().map(|one| legend(one, wide).1).max().unwrap_or_default();
        for (index, one) in row.panels.iter().enumerate() {
            let left = MARGIN * FINE + wide * index as u32;
            let cell = canvas.clone().shrink((left, top * FINE), (wide, row.height * FINE));
            panel(&with_steps(one, wide, row.height * FINE), Room { legend, numbers }, canvas, &cell)?;
        }
        top += row.height;
    }
    Ok(())
}

/// The panel with as many named values on its axes as have room.
fn with_steps(panel: &Panel, width: u32, height: u32) -> Panel {
    let mut panel = panel.clone();
    panel.x.most_steps = (width / (52 * FINE)).clamp(3, 12);
    panel.y.most_steps = (height / (44 * FINE)).clamp(3, 8);
    panel
}

/// What a panel leaves beside and above its axes.
#[derive(Clone, Copy)]
struct Room {
    legend: i32,
    numbers: i32,
}

/// A title, the legend under it, and the axes with what is between them.
fn panel(panel: &Panel, room: Room, canvas: &Canvas<'_>, cell: &Canvas<'_>) -> Result<(), DrawError> {
    // One text, because viewers show it in fonts of another width.
    let title = [panel.title.as_str(), &panel.y.label].into_iter().filter(|text| !text.is_empty());
    let title = title.collect::<Vec<_>>().join(", ");
    cell.draw_text(&title, &text(13.0, FontStyle::Bold, DARK), (0, fine(6)))?;
    let (entries, _) = legend(panel, cell.dim_in_pixel().0);
    for Entry { series, place: (x, y), swatch } in entries {
        let y = y + fine(LINE + 4);
        pen::sample(series, cell, (x, y), swatch)?;
        cell.draw_text(&series.name, &name_style(DARK), (x + swatch + fine(6), y))?;
    }
    let (_, below) = cell.split_vertically(fine(LINE + 4) + room.legend);
    let mut chart = ChartBuilder::on(&below)
        .margin_top(fine(6))
        .margin_right(fine(20))
        .x_label_area_size(fine(if panel.x.label.is_empty() { 22 } else { 36 }))
        .y_label_area_size(room.numbers)
        .build_cartesian_2d(panel.x.clone(), panel.y.clone())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .set_all_tick_mark_size(fine(4))
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(stroke(GRID, 2))
        .axis_style(stroke(FAINT, 2))
        .label_style(text(11.5, FontStyle::Normal, FAINT))
        .x_desc(panel.x.label.as_str())
        .axis_desc_style(text(12.0, FontStyle::Normal, FAINT))
        .draw()?;
    let plot = chart.plotting_area();
    let at = |(x, y): (f64, f64)| plot.map_coordinate(&(x, y));
    for series in &panel.series {
        pen::series(series, canvas, at)?;
    }
    let (across, down) = plot.get_pixel_range();
    let bounds = Area { left: across.start, top: down.start, right: across.end, bottom: down.end };
    pen::names(panel, canvas, at, bounds)
}

/// Room for the numbers of an axis that stands upright.
fn widest_number(axis: &Axis) -> i32 {
    let style = text(11.5, FontStyle::Normal, FAINT);
    let widths = axis.ticks().into_iter().map(|tick| font::width(&axis.text(tick), &style.font));
    widths.max().unwrap_or_default() + fine(10)
}

/// A name in a legend.
struct Entry<'a> {
    series: &'a Series,
    /// The left end of its sample, and half its height; from the upper left corner of the legend.
    place: (i32, i32),
    /// The width of the sample.
    swatch: i32,
}

/// Where the names of series stand under a title, in as many lines as they take in that width, and how high they are.
fn legend(panel: &Panel, width: u32) -> (Vec<Entry<'_>>, i32) {
    let style = name_style(DARK);
    let (mut x, mut y) = (0, fine(LINE / 2));
    let mut entries = Vec::new();
    for series in panel.series.iter().filter(|series| !series.name.is_empty()) {
        let swatch = fine(if series.is_points() { 10 } else { 24 });
        let wide = swatch + fine(6) + font::width(&series.name, &style.font);
        if x > 0 && x + wide > width as i32 {
            (x, y) = (0, y + fine(LINE));
        }
        entries.push(Entry { series, place: (x, y), swatch });
        x += wide + fine(12);
    }
    let height = if entries.is_empty() { 0 } else { y + fine(LINE / 2) };
    (entries, height)
}
