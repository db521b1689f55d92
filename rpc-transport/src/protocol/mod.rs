//! The protocol as pure state machines: what may be sent, written and freed now, and what each byte
//! means.
//!
//! **Never** reads a clock, waits, posts or names a runtime: time is an argument, input is
//! `on_*(..)`, output is `poll_*(..)`. So the same code runs in production and under the model
//! tests.

pub mod arena;
pub mod config;
pub mod credit;
pub mod error;
pub mod frame;
pub mod handshake;
pub mod kind;
pub mod link;
pub mod lock;
mod text;
