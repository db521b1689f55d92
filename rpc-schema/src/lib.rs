#![doc = include_str!("../README.md")]

mod agree;
pub mod changes;
pub mod exchange;
pub mod hash;
pub mod lines;
mod minimal;
pub mod plan;
mod resolve;
pub mod schema;
pub mod services;
pub mod text;
pub mod value;

pub use self::plan::Plan;
pub use self::resolve::Planned;
pub use self::schema::Schema;
