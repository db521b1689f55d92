//! Prints the numbers of the house with their bounds: `cargo run -p tests --bin house`. With a part
//! of a number's name, also what was counted: `cargo run -p tests --bin house -- circles`.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use tests::house::{Number, numbers};

fn main() {
    let details = std::env::args().nth(1);
    println!("{:>7} {:>7}", "now", "most");
    for Number { name, now, most, places, .. } in numbers() {
        let verdict = if now <= most { "" } else { "  (too many)" };
        println!("{now:>7} {most:>7}  {name}{verdict}");
        if details.as_ref().is_some_and(|part| name.contains(part.as_str())) {
            places.iter().for_each(|place| println!("{:18}{place}", ""));
        }
    }
}
