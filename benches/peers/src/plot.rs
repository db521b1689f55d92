//! The table as a picture: a panel for each of some columns, a bar for each row, the best on top.
//!
//! Bars are medians, thin lines reach from the least to the most. Only rounds with one distance of
//! the cores are drawn: the distance of most rounds.

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::columns::Column;
use crate::rounds::{Distance, Round};
use crate::row::Row;
use crate::table::{median, values};

const WIDTH: i32 = 1000;
/// Height of a bar with the gap below it, of a panel's title, and of the line at the foot of the
/// picture.
const BAR: i32 = 17;
const TITLE: i32 = 40;
const FOOT: i32 = 30;
/// Where bars begin in a panel, and the room to their right for the value.
const NAMES: i32 = 150;
const VALUES: i32 = 70;
const FONT: &str = "sans-serif";

/// Colours of this framework, of others, and of the floors.
const OURS: RGBColor = RGBColor(0, 114, 178);
const OTHERS: RGBColor = RGBColor(230, 159, 0);
const FLOORS: RGBColor = RGBColor(170, 170, 170);
const TEXT: RGBColor = RGBColor(60, 60, 60);

/// The panels, from left to right and down: column, title, whether the axis is logarithmic.
const PANELS: [(Column, &str, bool); 6] = [
    (Column::P50, "A lone call of 64 B, median, us (log scale)", true),
    (Column::P999, "A lone call of 64 B, p99.9, us (log scale)", true),
    (Column::Rate, "Thousand calls/s, 32 in flight (log scale)", true),
    (Column::UpFour, "1 MiB to the server, four in flight, GB/s", false),
    (Column::UpOne, "1 MiB to the server, one in flight, GB/s", false),
    (Column::DownOne, "1 MiB from the server, one in flight, GB/s", false),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One bar.
struct Bar {
    name: String,
    colour: RGBColor,
    middle: f64,
    least: f64,
    most: f64,
}

/// Draws the rounds.
///
/// # Errors
/// When every round was left out, since the host moved the cores.
pub(crate) fn svg(rows: &[Row], rounds: &[Round]) -> Result<String> {
    let of = |distance: Distance| -> Vec<&Round> {
        rounds.iter().filter(|round| round.distance() == Some(distance)).collect()
    };
    let (distance, alike) = Distance::ALL
        .map(|distance| (distance, of(distance)))
        .into_iter()
        .max_by_key(|(_, alike)| alike.len())
        .filter(|(_, alike)| !alike.is_empty())
        .context("there is nothing to draw: the host moved the CPUs in every round")?;
    let panels = PANELS.map(|(column, title, log)| (title, log, bars(rows, &alike, column)));
    let most = panels.iter().map(|(.., bars)| bars.len()).max().unwrap_or(0);
    let height = TITLE + BAR * i32::try_from(most)? + BAR;
    let down = i32::try_from(panels.len().div_ceil(2))?;
    let mut text = String::new();
    {
        let size = (WIDTH.cast_unsigned(), (height * down + FOOT).cast_unsigned());
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (above, below) = root.split_vertically(height * down);
        for (area, (title, log, bars)) in above.split_evenly((down as usize, 2)).iter().zip(panels)
        {
            draw(area, title, log, &bars)?;
        }
        let foot = format!(
            "rpc-over-rdma in blue, its peers in orange, raw limits in grey; medians of {} round{} on {}, least to most as lines",
            alike.len(),
            if alike.len() == 1 { "" } else { "s" },
            distance.text(),
        );
        below.draw(&Text::new(foot, (12, 6), style(13, HPos::Left))).map_err(failed)?;
        root.present().map_err(failed)?;
    }
    Ok(text)
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("the picture cannot be drawn: {error}")
}

/// The rows that have this column, the best first.
fn bars(rows: &[Row], rounds: &[&Round], column: Column) -> Vec<Bar> {
    let bar = |row: &Row| {
        let values = values(rounds, &row.name(), column);
        if values.is_empty() {
            return None;
        }
        let colour = match row.peer {
            "rpc-over-rdma" => OURS,
            "floor" => FLOORS,
            _ => OTHERS,
        };
        let (least, most) = (values.iter().copied(), values.iter().copied());
        Some(Bar {
            name: row.name(),
            colour,
            least: least.fold(f64::MAX, f64::min),
            most: most.fold(f64::MIN, f64::max),
            middle: median(values),
        })
    };
    let mut bars: Vec<_> = rows.iter().filter_map(bar).collect();
    bars.sort_by(|a, b| a.middle.total_cmp(&b.middle));
    if !column.is_time() {
        bars.reverse();
    }
    bars
}

fn style<'a>(size: u32, at: HPos) -> TextStyle<'a> {
    (FONT, size).into_font().color(&TEXT).pos(Pos::new(at, VPos::Center))
}

/// Where a value ends on an axis from `from` to `to`, as a share of its length.
fn share(value: f64, from: f64, to: f64, log: bool) -> f64 {
    let place = |value: f64| if log { value.ln() } else { value };
    ((place(value) - place(from)) / (place(to) - place(from))).clamp(0.0, 1.0)
}

#[allow(clippy::cast_possible_truncation, reason = "pixels of a picture")]
fn draw(area: &Area<'_>, title: &str, log: bool, bars: &[Bar]) -> Result<()> {
    let (width, _) = area.dim_in_pixel();
    let room = f64::from(width.cast_signed() - NAMES - VALUES);
    let most = bars.iter().map(|bar| bar.most).fold(0.0, f64::max);
    let least = bars.iter().map(|bar| bar.least).fold(f64::MAX, f64::min);
    // A logarithmic axis has no zero: the shortest bar is a stub.
    let from = if log { least / 2.0 } else { 0.0 };
    let at = |value| NAMES + (room * share(value, from, most, log)) as i32;
    area.draw(&Text::new(title, (12, TITLE / 2), style(15, HPos::Left))).map_err(failed)?;
    for (number, bar) in (0..).zip(bars) {
        let top = TITLE + BAR * number;
        let middle = top + BAR / 2;
        let name = Text::new(bar.name.as_str(), (NAMES - 6, middle), style(12, HPos::Right));
        area.draw(&name).map_err(failed)?;
        let filled = [(NAMES, top + 2), (at(bar.middle), top + BAR - 2)];
        area.draw(&Rectangle::new(filled, bar.colour.filled())).map_err(failed)?;
        let spread = [(at(bar.least), middle), (at(bar.most), middle)];
        area.draw(&PathElement::new(spread, TEXT)).map_err(failed)?;
        let end = at(bar.most.max(bar.middle)) + 6;
        area.draw(&Text::new(number_text(bar.middle), (end, middle), style(12, HPos::Left)))
            .map_err(failed)?;
    }
    Ok(())
}

/// A value with about three digits.
fn number_text(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Numbers;

    fn rows() -> Vec<Row> {
        let row = |peer| Row { peer, over: "tcp", measure: |_, _, _| unreachable!(), serve: None };
        ["rpc-over-rdma", "other", "floor"].map(row).to_vec()
    }

    fn round(line: f64, times: [f64; 3]) -> Round {
        let of = |(row, time): (Row, f64)| {
            let mut numbers = Numbers::default();
            numbers.set(Column::P50, time);
            numbers.set(Column::UpOne, time);
            (row.name(), Ok(numbers))
        };
        Round { lines: vec![line], rows: rows().into_iter().zip(times).map(of).collect() }
    }

    #[test]
    fn plot_ranks_rounds_of_one_core_distance() {
        let rounds =
            [round(100.0, [2.0, 8.0, 1.0]), round(100.0, [4.0, 8.0, 1.0]), round(30.0, [0.1; 3])];
        let alike: Vec<_> = rounds[..2].iter().collect();
        let names = |column| -> Vec<_> {
            bars(&rows(), &alike, column).into_iter().map(|bar| (bar.name, bar.middle)).collect()
        };
        let [ours, other, floor] =
            [("rpc-over-rdma/tcp", 3.0), ("other/tcp", 8.0), ("floor/tcp", 1.0)]
                .map(|(name, middle)| (name.to_owned(), middle));
        assert_eq!(names(Column::P50), [floor.clone(), ours.clone(), other.clone()]);
        assert_eq!(names(Column::UpOne), [other, ours, floor]);
        assert!(names(Column::Rate).is_empty());
        let picture = svg(&rows(), &rounds).unwrap();
        assert!(picture.contains("medians of 2 rounds on two cores, near"), "{picture}");
        assert!(picture.contains("3.00") && !picture.contains("0.10"), "{picture}");
    }

    #[test]
    fn rounds_with_moved_cores_are_not_plotted() {
        let mut moved = round(100.0, [1.0; 3]);
        moved.lines.push(30.0);
        assert!(svg(&rows(), &[moved]).unwrap_err().to_string().contains("nothing to draw"));
    }

    #[test]
    fn log_axis_centers_on_the_geometric_mean() {
        assert!((share(10.0, 1.0, 100.0, true) - 0.5).abs() < 1e-9);
        assert!((share(25.0, 0.0, 100.0, false) - 0.25).abs() < 1e-9);
    }
}
