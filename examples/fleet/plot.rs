//! A plot of a run: calls per second of each server on top, errors below, with the phases.

use std::collections::BTreeSet;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::Outcome;
use super::watch::{Course, Row};

const WIDTH: u32 = 1200;
const HEIGHT: u32 = 760;
const FONT: &str = "sans-serif";
const PHASE: RGBColor = RGBColor(90, 90, 90);

/// Colours that are distinguishable with colour blindness (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 110, 20),
];

/// Draws the plot.
pub(crate) fn svg(course: &Course) -> Outcome<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        let (above, below) = root.split_vertically(HEIGHT * 3 / 5);
        panel(&above, course, "Calls per second of each server", |row| row.calls)?;
        panel(&below, course, "Errors per second of each server", |row| row.errors)?;
        root.present().map_err(drawing)?;
    }
    Ok(text)
}

fn drawing(error: impl std::fmt::Display) -> String {
    format!("cannot draw the plot: {error}")
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    course: &Course,
    title: &str,
    value: fn(&Row) -> f64,
) -> Outcome<()> {
    let rows = || course.samples.iter().flat_map(|sample| &sample.rows);
    let top = rows().map(value).fold(1.0, f64::max) * 1.1;
    let end = course.samples.back().map_or(1.0, |sample| sample.at.max(1.0));
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .margin_right(28)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end, 0.0..top)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("seconds")
        .x_label_formatter(&|at| format!("{at:.0}"))
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .label_style((FONT, 13))
        .draw()
        .map_err(drawing)?;
    for number in rows().map(|row| row.number).collect::<BTreeSet<_>>() {
        let points = course.samples.iter().filter_map(|sample| {
            let row = sample.rows.iter().find(|row| row.number == number)?;
            Some((sample.at, value(row)))
        });
        let style = COLOURS[number % COLOURS.len()].stroke_width(2);
        chart.draw_series(LineSeries::new(points, style)).map_err(drawing)?;
    }
    for (at, phase) in &course.phases {
        let line = PathElement::new([(*at, 0.0), (*at, top)], PHASE.mix(0.5));
        chart.draw_series([line]).map_err(drawing)?;
        let font = (FONT, 13).into_font().color(&PHASE);
        let label = Text::new(*phase, (*at + end / 400.0, top), font);
        chart.draw_series([label]).map_err(drawing)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_panels_servers_and_phases() {
        let text = svg(&Course::example()).unwrap();
        for part in ["Calls per second", "Errors per second", "errors"] {
            assert!(text.contains(part), "{part}");
        }
        // Two servers in two panels.
        let lines = text.matches("<polyline").count();
        assert!(lines >= 4, "{lines}");
        assert!(svg(&Course::new()).unwrap().contains("</svg>"), "nothing was sampled");
    }
}
