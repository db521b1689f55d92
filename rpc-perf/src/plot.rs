//! A plot of a run: latencies on top, bandwidth by size below, one panel per transport, with the
//! raw limits.

use anyhow::{Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use crate::report::{Latency, Raw, RawKind, Report, Run};
use crate::units::{bytes, time};

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 380;
/// Pixels of a dash, and of the gap.
const DASH: u32 = 6;
const GAP: u32 = 4;
const FONT: &str = "sans-serif";

/// Colours that are distinguishable with colour blindness (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
];
const RAW_COLOUR: RGBColor = RGBColor(90, 90, 90);

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One line of a panel.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    colour: RGBColor,
    dashed: bool,
}

impl Series {
    fn new(name: impl Into<String>, points: Vec<(f64, f64)>, number: usize) -> Self {
        let colour = COLOURS[number % COLOURS.len()];
        Self { name: name.into(), points, colour, dashed: false }
    }

    fn dashed(mut self) -> Self {
        self.dashed = true;
        self
    }
}

/// Draws the plot.
pub(crate) fn svg(report: &Report) -> Result<String> {
    let latencies = latencies(report);
    let bandwidths: Vec<&Run> = report.runs.iter().filter(|run| run.bandwidth.len() > 1).collect();
    let panels = usize::from(!latencies.is_empty()) + bandwidths.len();
    if panels == 0 {
        bail!("nothing to plot: --plot needs a run with latency or bandwidth");
    }
    let mut text = String::new();
    {
        let height = PANEL_HEIGHT * u32::try_from(panels)?;
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        let mut panels = root.split_evenly((panels, 1)).into_iter();
        if !latencies.is_empty()
            && let Some(panel) = panels.next()
        {
            let title = format!("Latency of calls of {}", bytes(report.settings.call_bytes));
            draw_latencies(&panel, &title, &latencies)?;
        }
        for (run, panel) in bandwidths.into_iter().zip(panels) {
            draw_bandwidth(&panel, run)?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(text)
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw the plot: {error}")
}

/// Shares of calls as a number of nines: 0.9 is 1, 0.99 is 2.
fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

fn latencies(report: &Report) -> Vec<Series> {
    let mut all = Vec::new();
    for (number, run) in report.runs.iter().enumerate() {
        let line = |name: String, latency: &Latency| {
            // The last step, at a share of 1, has no place on this scale.
            let points: Vec<_> = latency
                .cdf
                .iter()
                .filter(|(_, share)| *share < 1.0 - 1e-9)
                .map(|(time, share)| (time.max(1.0), nines(*share)))
                .collect();
            (points.len() > 1).then(|| Series::new(name, points, number))
        };
        all.extend(run.latency.as_ref().and_then(|it| line(run.scheme.clone(), it)));
        let open = run
            .open_loop
            .as_ref()
            .and_then(|open| line(format!("{}, {} calls/s", run.scheme, open.rate), &open.latency));
        all.extend(open.map(Series::dashed));
    }
    all
}

/// The least and the largest of the values.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values
        .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)))
}

/// The axes and labels of a panel.
struct Frame<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    /// Base of the logarithm on the x axis.
    base: f64,
    x_label: fn(f64) -> String,
    y_label: fn(f64) -> String,
    y_labels: usize,
    legend: SeriesLabelPosition,
}

fn draw(panel: &Panel<'_>, frame: Frame<'_>, series: &[Series]) -> Result<()> {
    let points = || series.iter().flat_map(|series| &series.points);
    let (least, most) = bounds(points().map(|point| point.0));
    let (_, top) = bounds(points().map(|point| point.1));
    let x = (least * 0.95..most * 1.05).log_scale().base(frame.base);
    let mut chart = ChartBuilder::on(panel)
        .caption(frame.title, (FONT, 20))
        .margin(12)
        .margin_right(28)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(x, 0.0..top.max(1e-6) * 1.05)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(frame.x)
        .y_desc(frame.y)
        .x_labels(12)
        .y_labels(frame.y_labels)
        .x_label_formatter(&|value| (frame.x_label)(*value))
        .y_label_formatter(&|value| (frame.y_label)(*value))
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .draw()
        .map_err(drawing)?;
    for series in series {
        let style = series.colour.stroke_width(2);
        let (points, dashed) = (series.points.iter().copied(), series.dashed);
        let drawn = if dashed {
            chart.draw_series(DashedLineSeries::new(points, DASH, GAP, style)).map_err(drawing)?
        } else {
            chart.draw_series(LineSeries::new(points, style)).map_err(drawing)?
        };
        drawn.label(&series.name).legend(move |(x, y)| {
            let line = [(x, y), (x + 20, y)];
            if dashed {
                DashedPathElement::new(line, DASH, GAP, style).into_dyn()
            } else {
                PathElement::new(line, style).into_dyn()
            }
        });
    }
    chart
        .configure_series_labels()
        .position(frame.legend)
        .background_style(WHITE.mix(0.85))
        .border_style(RAW_COLOUR.mix(0.4))
        .label_font((FONT, 13))
        .draw()
        .map_err(drawing)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "nines are few")]
fn draw_latencies(panel: &Panel<'_>, title: &str, series: &[Series]) -> Result<()> {
    let (_, top) = bounds(series.iter().flat_map(|series| &series.points).map(|point| point.1));
    let frame = Frame {
        title,
        x: "time",
        y: "percentile",
        base: 10.0,
        x_label: time,
        y_label: percentile,
        y_labels: top as usize + 1,
        legend: SeriesLabelPosition::LowerRight,
    };
    draw(panel, frame, series)
}

/// The name of a number of nines: 2 is `p99`, 3 is `p99.9`; empty for values in between.
fn percentile(nines: f64) -> String {
    if nines.fract() != 0.0 {
        return String::new();
    }
    let percent = format!("{:.6}", 100.0 * (1.0 - 10_f64.powf(-nines)));
    format!("p{}", percent.trim_end_matches('0').trim_end_matches('.'))
}

fn draw_bandwidth(panel: &Panel<'_>, run: &Run) -> Result<()> {
    let rows = &run.bandwidth;
    let line = |name: &str, number, rate: fn(&crate::report::Bandwidth) -> f64| {
        Series::new(
            name,
            rows.iter().map(|row| (row.size as f64, rate(row) / 1e9)).collect(),
            number,
        )
    };
    let mut series = vec![
        line("Bytes up", 0, |row| row.bytes_up),
        line("Bytes down", 1, |row| row.bytes_down),
        line("Bulk up", 2, |row| row.bulk_up),
        line("Bulk down", 3, |row| row.bulk_down),
    ];
    let raw = |name: &str, rate: fn(Raw) -> Option<f64>| {
        let rate = |row: &crate::report::Bandwidth| Some((row.size as f64, rate(row.raw?)? / 1e9));
        let points: Vec<_> = rows.iter().filter_map(rate).collect();
        let series = Series { colour: RAW_COLOUR, ..Series::new(name, points, 0) };
        (!series.points.is_empty()).then(|| series.dashed())
    };
    let kind = rows.iter().find_map(|row| row.raw).map(|raw| raw.kind);
    let name = match kind {
        Some(RawKind::Tcp) => "raw TCP stream",
        _ => "raw: copied in and out",
    };
    series.extend(raw(name, |raw| Some(raw.rate)));
    series.extend(
        raw("raw: one copy", |raw| raw.one_copy)
            .map(|series| Series { colour: COLOURS[4], ..series }),
    );
    let in_flight = rows.first().map_or(0, |row| row.in_flight);
    let title = format!("Payloads over {}, {in_flight} in flight", run.scheme);
    let frame = Frame {
        title: &title,
        x: "size of a payload",
        y: "GB/s",
        base: 4.0,
        x_label: size_label,
        y_label: |rate| {
            format!("{:.3}", rate).trim_end_matches('0').trim_end_matches('.').to_owned()
        },
        y_labels: 8,
        legend: SeriesLabelPosition::UpperLeft,
    };
    draw(panel, frame, &series)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes are whole")]
fn size_label(size: f64) -> String {
    bytes(size.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::full;

    #[test]
    fn a_picture_is_xml_and_names_its_series() {
        let text = svg(&full()).unwrap();
        let picture = roxmltree::Document::parse(&text).unwrap();
        let texts: Vec<String> = picture
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .filter_map(|node| node.text().map(|text| text.trim().to_owned()))
            .collect();
        for name in [
            "Latency of calls of 64 B",
            "shm",
            "shm, 50000 calls/s",
            "p90",
            "Payloads over shm, 4 in flight",
            "Bytes up",
            "Bulk down",
            "raw: copied in and out",
            "raw: one copy",
            "64 MiB",
        ] {
            assert!(texts.iter().any(|text| text == name), "{name}: {texts:?}");
        }
        let lines = picture.descendants().filter(|node| node.has_tag_name("polyline"));
        // A dashed line consists of many, so these are minimums: latency 1, bandwidth 4.
        assert!(lines.filter(|line| line.attribute("stroke-width") == Some("2")).count() >= 5);
    }

    #[test]
    fn nothing_to_plot_is_said() {
        let mut report = full();
        report.runs.clear();
        assert!(svg(&report).unwrap_err().to_string().contains("nothing to plot"));
    }

    #[test]
    fn percentiles_have_names() {
        for (nines, name) in [(0.0, "p0"), (1.0, "p90"), (4.0, "p99.99"), (1.5, "")] {
            assert_eq!(percentile(nines), name);
        }
    }
}
