use std::collections::HashMap;
use std::sync::Arc;

pub struct Line;

#[rpc_core::service]
pub trait Mistake {
    async fn name(&self, name: Arc<str>);
    async fn lines(&self, lines: HashMap<String, Vec<Line>>) -> Result<Option<Line>, std::io::Error>;
    async fn again(&self, line: &Line, name: Arc<str>) -> (u32, Line);
}

fn main() {}
