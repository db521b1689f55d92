//! The table, and its values as JSON.

use serde_json::{Map, Value, json};

use crate::columns::{COLUMNS, Column};
use crate::measure::Plan;
use crate::rounds::{Distance, Round};
use crate::row::Row;

/// Width of a column.
const WIDTH: usize = 13;
/// Width of the first one.
const NAME_WIDTH: usize = 24;

/// Prints one table for each distance of the cores that occurred.
pub(crate) fn print(rows: &[Row], rounds: &[Round], plan: &Plan) {
    for distance in Distance::ALL {
        let alike: Vec<_> =
            rounds.iter().filter(|round| round.distance() == Some(distance)).collect();
        if alike.is_empty() {
            continue;
        }
        let lines = alike.iter().flat_map(|round| round.lines.iter().copied());
        println!(
            "{} of {} rounds on {} (a cache line there and back: {:.0} ns), {} ms a number; \
             medians, \u{b1} half of the spread",
            alike.len(),
            rounds.len(),
            distance.text(),
            median(lines.collect()),
            plan.duration.as_millis(),
        );
        print!("{:<NAME_WIDTH$}", "");
        for (_, head, _) in COLUMNS {
            print!("{head:>WIDTH$}");
        }
        println!();
        for row in rows {
            let name = row.name();
            print!("{name:<NAME_WIDTH$}");
            for (column, ..) in COLUMNS {
                print!("{:>WIDTH$}", cell(&values(&alike, &name, column)));
            }
            println!();
        }
        println!();
    }
    let mixed = rounds.iter().filter(|round| round.distance().is_none()).count();
    if mixed > 0 {
        println!(
            "{mixed} of {} rounds are left out: the host moved the CPUs meanwhile. Run it again, or with more --rounds.",
            rounds.len()
        );
    }
    for (number, round) in (1..).zip(rounds) {
        for (name, numbers) in &round.rows {
            if let Err(error) = numbers {
                println!("{name} failed in round {number}: {error}");
            }
        }
    }
}

/// The rounds' values of a row in one column.
pub(crate) fn values(rounds: &[&Round], name: &str, column: Column) -> Vec<f64> {
    let of_round = |round: &&Round| {
        let (_, numbers) = round.rows.iter().find(|(other, _)| other == name)?;
        numbers.as_ref().ok()?.get(column)
    };
    rounds.iter().filter_map(of_round).collect()
}

fn cell(values: &[f64]) -> String {
    if values.is_empty() {
        return "-".to_owned();
    }
    let middle = median(values.to_vec());
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let decimals = match middle {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{middle:.decimals$} \u{b1}{:.0}%", 50.0 * (most - least) / middle)
}

/// The median: the middle value, or the mean of the two middle ones.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// Every number of every round.
pub(crate) fn json(rounds: &[Round], plan: &Plan) -> Value {
    let of_round = |round: &Round| {
        let rows: Map<_, _> = round
            .rows
            .iter()
            .map(|(name, numbers)| {
                let row = match numbers {
                    Ok(numbers) => COLUMNS
                        .iter()
                        .filter_map(|(column, _, key)| {
                            Some(((*key).to_owned(), json!(numbers.get(*column)?)))
                        })
                        .collect(),
                    Err(error) => json!({ "error": error }),
                };
                (name.clone(), row)
            })
            .collect();
        json!({
            "distance": round.distance().map(Distance::text),
            "line_ns": round.lines,
            "rows": rows,
        })
    };
    json!({
        "duration_ms": plan.duration.as_millis() as u64,
        "rounds": rounds.iter().map(of_round).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_shows_median_and_half_the_spread() {
        assert_eq!(cell(&[2.0, 1.0, 1.5]), "1.50 \u{b1}33%");
        assert_eq!(cell(&[100.0, 300.0]), "200 \u{b1}50%");
        assert_eq!(cell(&[]), "-");
    }

    #[test]
    fn round_with_moved_cores_has_no_distance() {
        let round = |lines: &[f64]| Round { lines: lines.to_vec(), rows: Vec::new() };
        assert_eq!(round(&[110.0, 130.0]).distance(), Some(Distance::Near));
        assert_eq!(round(&[50.0, 40.0]).distance(), Some(Distance::Siblings));
        assert_eq!(round(&[250.0]).distance(), Some(Distance::Far));
        for mixed in [[110.0, 250.0], [40.0, 110.0]] {
            assert_eq!(round(&mixed).distance(), None);
        }
    }
}
