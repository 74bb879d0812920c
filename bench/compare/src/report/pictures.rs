//! The kinds of pictures that there are.

use lockkit_bench::{Result, Spread, Unit};
use maud::{Markup, html};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{Anchor, Canvas, FINE, Look, Mark, Series};
use super::scale::{Axis, short};

/// How wide a picture is: on a phone, a unit is nearly a pixel.
pub(super) const WIDTH: u32 = 400;

/// A letter, about.
const LETTER: u32 = 7;

/// The least distance of two lines of text.
const LINE: i32 = 14 * FINE;

type Chart<'a> = ChartContext<'a, Canvas, Cartesian2d<Axis, Axis>>;

/// A line with what it says.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) series: Series,
    pub(super) points: Vec<(f64, f64)>,
    /// Which of the points have one.
    pub(super) marks: Vec<(usize, Mark)>,
}

/// One that shows a figure.
#[derive(Clone, Debug)]
pub(super) struct Dot {
    pub(super) series: Series,
    pub(super) mark: Mark,
    pub(super) spread: Spread,
}

/// A row of a picture with a mark for each of its subjects.
#[derive(Clone, Debug)]
pub(super) struct Dots {
    pub(super) label: String,
    pub(super) dots: Vec<Dot>,
}

/// Latencies at each share of all, in seconds.
pub(super) fn curves(title: &str, about: &str, lines: &[Line]) -> Result<Markup> {
    let (least, most) = ends(lines.iter().flat_map(|line| &line.points).map(|point| point.1));
    let axes = (Axis::tail(), Axis::logarithmic(Unit::Time, least, most));
    line_plot(title, about, axes, lines)
}

/// Values over a few numbers that double or so.
pub(super) fn growth(
    title: &str,
    about: &str,
    unit: Unit,
    numbers: &[usize],
    lines: &[Line],
) -> Result<Markup> {
    let y = Axis::of(unit, lines.iter().flat_map(|line| &line.points).map(|point| point.1));
    line_plot(title, about, (Axis::numbers(numbers), y), lines)
}

/// Rows, each with its marks on one axis; `limit` is a line with a name.
pub(super) fn rows(
    title: &str,
    about: &str,
    unit: Unit,
    rows: &[Dots],
    limit: Option<(f64, &str)>,
) -> Result<Markup> {
    const ROW: i32 = 22;
    const TOP: i32 = 18;
    const FOOT: i32 = 26;
    let height = (TOP + FOOT + ROW * rows.len() as i32).unsigned_abs();
    let canvas = Canvas::new(WIDTH, height);
    let root = canvas.clone().into_drawing_area();
    let spreads = rows.iter().flat_map(|row| &row.dots).map(|dot| dot.spread);
    let values = spreads.flat_map(|it| [it.least, it.median, it.most]);
    // Texts side by side take more room than one above the other.
    let axis = Axis::of(unit, values.chain(limit.map(|(value, _)| value))).with_at_most(4);
    let labels = rows.iter().map(|row| width(&row.label)).max().unwrap_or_default();
    let labels = labels.clamp(50, 175);
    let one_each = rows.iter().all(|row| row.dots.len() <= 1);
    // Where all are lockkit, its colour would tell nothing.
    let mut looks = rows.iter().flat_map(|row| &row.dots).map(|dot| dot.series.look);
    let has_kinds =
        one_each && (rows.len() == 1 || looks.any(|look| !matches!(look, Look::Lockkit(_))));
    let beside = if one_each { 62 } else { 24 };
    let last = rows.len() as f64;
    let (least, most) = axis.ends();
    let mut chart = ChartBuilder::on(&root)
        .margin_top(TOP * FINE)
        .margin_right(beside * FINE)
        .set_label_area_size(LabelAreaPosition::Left, labels.cast_signed() * FINE)
        .set_label_area_size(LabelAreaPosition::Bottom, FOOT * FINE)
        .build_cartesian_2d(axis, Axis::rows(rows.len()))?;
    canvas.group("axes", || {
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().disable_y_axis().light_line_style(TRANSPARENT);
        mesh.axis_style(TRANSPARENT).draw()
    })?;
    if let Some((value, name)) = limit {
        let (x, top) = chart.backend_coord(&(value, 0.0));
        let (_, bottom) = chart.backend_coord(&(value, last));
        canvas.group("limit", || {
            canvas.line("line", (x, top), (x, bottom));
            canvas.text((x, top - 8 * FINE), Anchor::Middle, name);
        });
    }
    for (at, row) in rows.iter().enumerate() {
        let y = at as f64 + 0.5;
        let (left, middle) = chart.backend_coord(&(least, y));
        let (right, _) = chart.backend_coord(&(most, y));
        let label =
            || canvas.text((left - 8 * FINE, middle), Anchor::End, &cut(&row.label, labels));
        canvas.group("axes", || canvas.line("row", (left, middle), (right, middle)));
        if !has_kinds || row.dots.is_empty() {
            canvas.group("names", label);
        }
        for Dot { series, mark, spread } in &row.dots {
            let place = |value| chart.backend_coord(&(value, y));
            canvas.series(series, || {
                if has_kinds {
                    label();
                }
                if one_each {
                    let text = short(spread.unit, spread.median);
                    canvas.text((right + 6 * FINE, middle), Anchor::Start, &text);
                    canvas.line("spread", place(spread.least), place(spread.most));
                }
                canvas.mark(mark, place(spread.median));
            });
        }
    }
    Ok(svg(&canvas, height, title, about))
}

fn line_plot(title: &str, about: &str, (x, y): (Axis, Axis), lines: &[Line]) -> Result<Markup> {
    const HEIGHT: u32 = 230;
    let canvas = Canvas::new(WIDTH, HEIGHT);
    let root: DrawingArea<Canvas, Shift> = canvas.clone().into_drawing_area();
    let names = lines.iter().map(|line| width(&line.series.subject)).max().unwrap_or_default();
    let names = names.clamp(50, 166);
    let mut chart = ChartBuilder::on(&root)
        .margin_top(10 * FINE)
        .margin_right(names.cast_signed() * FINE)
        .set_label_area_size(LabelAreaPosition::Left, 46 * FINE)
        .set_label_area_size(LabelAreaPosition::Bottom, 24 * FINE)
        .build_cartesian_2d(x, y)?;
    canvas.group("axes", || {
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT).axis_style(TRANSPARENT).disable_x_mesh().draw()
    })?;
    let edge = chart.plotting_area().get_pixel_range().0.end;
    let ends: Vec<i32> = lines.iter().map(|line| end(&chart, line).map_or(0, |it| it.1)).collect();
    let places = apart(&ends, 8 * FINE, (HEIGHT.cast_signed() - 16) * FINE);
    // What is lockkit's lies on top.
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by_key(|at| matches!(lines[*at].series.look, Look::Lockkit(_)));
    for at in order {
        let line = &lines[at];
        canvas.series(&line.series, || -> Result<()> {
            chart.draw_series([PathElement::new(line.points.clone(), BLACK)])?;
            for (point, mark) in &line.marks {
                if let Some(place) = line.points.get(*point) {
                    canvas.mark(mark, chart.backend_coord(place));
                }
            }
            if let Some((x, y)) = end(&chart, line) {
                canvas.line("leader", (x + 5 * FINE, y), (edge + 10 * FINE, places[at]));
                let name = cut(&line.series.subject, names);
                canvas.text((edge + 13 * FINE, places[at]), Anchor::Start, &name);
            }
            Ok(())
        })?;
    }
    Ok(svg(&canvas, HEIGHT, title, about))
}

fn end(chart: &Chart<'_>, line: &Line) -> Option<(i32, i32)> {
    line.points.last().map(|point| chart.backend_coord(point))
}

/// Moves texts that would stand on one another, and as little as that takes.
fn apart(wanted: &[i32], least: i32, most: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|at| wanted[*at]);
    let mut places = wanted.to_vec();
    let mut above = least - LINE;
    for &at in &order {
        places[at] = places[at].max(above + LINE);
        above = places[at];
    }
    let mut below = most + LINE;
    for &at in order.iter().rev() {
        places[at] = places[at].min(below - LINE);
        below = places[at];
    }
    places
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let of_use = values.filter(|value| *value > 0.0 && value.is_finite());
    let (least, most) = of_use.fold((f64::INFINITY, 0.0), |(least, most), value| {
        (f64::min(least, value), f64::max(most, value))
    });
    if most > 0.0 { (least, most) } else { (1e-6, 1.0) }
}

/// How wide a text is, with what stands before and behind it.
fn width(text: &str) -> u32 {
    text.chars().count() as u32 * LETTER + 20
}

/// As much of a text as there is room for.
fn cut(text: &str, room: u32) -> String {
    let letters = (room.saturating_sub(18) / LETTER) as usize;
    match text.chars().count() <= letters {
        true => text.into(),
        false => text.chars().take(letters.saturating_sub(1)).chain(['…']).collect(),
    }
}

fn svg(canvas: &Canvas, height: u32, title: &str, about: &str) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img" class="plot"
            viewBox={ "0 0 " (WIDTH) " " (height) } width=(WIDTH) height=(height) {
            title { (title) }
            desc { (about) }
            (canvas.drawn())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stand_apart_and_inside() {
        let places = apart(&[100, 110, 5_000, 4_990, 105], 0, 5_000);
        assert_eq!(places, [100, 100 + 2 * LINE, 5_000, 5_000 - LINE, 100 + LINE]);
    }

    #[test]
    fn a_text_that_is_too_long_is_cut() {
        assert_eq!(cut("kazoo Lock", width("kazoo Lock")), "kazoo Lock");
        assert_eq!(cut("a library of a very long name", 100), "a library …");
    }
}
