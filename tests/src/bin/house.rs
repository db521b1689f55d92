//! Prints the numbers of the house with their goals: `cargo run -p tests --bin house`. With a part
//! of a number's name, also what was counted: `cargo run -p tests --bin house -- once`.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use tests::house::{Number, numbers};

fn main() {
    let details = std::env::args().nth(1);
    println!("{:>7} {:>7}", "now", "goal");
    for Number { name, now, goal, places, .. } in numbers() {
        let verdict = if now <= goal { "" } else { "  (not yet)" };
        println!("{now:>7} {goal:>7}  {name}{verdict}");
        if details.as_ref().is_some_and(|part| name.contains(part.as_str())) {
            places.iter().for_each(|place| println!("{:18}{place}", ""));
        }
    }
}
