//! A shop of three processes: a gateway that speaks HTTP, orders, and inventory. One command starts
//! them, buys, kills one after the other while it buys, and counts at the end what was lost:
//! nothing.
//!
//! ```text
//!   buyers --HTTP--> gateway --Orders--> orders --Inventory--> inventory
//!                                        journal               journal
//! ```
//!
//! A buyer gives each order a key, and sends it again under that key until it is answered. Orders
//! and inventory record each deed under its key in a journal, so that it is done once however often
//! it is requested. That makes their methods idempotent, and the channels between them retry
//! automatically.
//!
//! | file | idea |
//! |---|---|
//! | `cli` | the command line |
//! | `service` | the two services |
//! | `journal` | the deeds under each key, across the end of a process |
//! | `inventory`, `orders` | the two servers |
//! | `serving` | their common surroundings |
//! | `gateway` | HTTP to calls |
//! | `process` | a process that is started, killed and restarted |
//! | `buyer` | HTTP as a buyer uses it |
//! | `drive` | the run, and its counts |

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
use rpc_core::text::printable;

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
            eprintln!("error: {}", printable(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}
