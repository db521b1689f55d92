//! A shop of three processes: a gateway that speaks HTTP, orders, and inventory. One command starts
//! them, buys, kills one after the other while it buys, and counts at the end what was lost: nothing.
//!
//! ```text
//!   buyers --HTTP--> gateway --Orders--> orders --Inventory--> inventory
//!                                        journal               journal
//! ```
//!
//! A buyer gives each order a key, and sends it again under that key until it is answered. Orders and
//! inventory keep what they have done under a key in a journal, so that it is done once however often
//! it is asked for. That makes their methods idempotent, and the channels between them try again by
//! themselves.
//!
//! | file | idea |
//! |---|---|
//! | `cli` | the command line |
//! | `service` | the two services |
//! | `journal` | what was done under which key, over the end of a process |
//! | `inventory`, `orders` | the two servers |
//! | `serving` | what both have around them |
//! | `gateway` | HTTP to calls |
//! | `process` | a process that is started, killed and started again |
//! | `buyer` | HTTP as a buyer speaks it |
//! | `drive` | the run, and what is counted |

mod buyer;
mod cli;
mod drive;
mod gateway;
mod inventory;
mod journal;
mod orders;
mod process;
mod service;
mod serving;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Command, Options};

/// The program.
pub async fn main() -> ExitCode {
    let options = Options::parse();
    examples::logging::init();
    let outcome = match &options.command {
        None => drive::run(&options.run).await,
        Some(Command::Inventory(role)) => inventory::serve(role).await,
        Some(Command::Orders(role)) => orders::serve(role).await,
        Some(Command::Gateway(role)) => gateway::serve(role).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
