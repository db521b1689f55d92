//! A row of the table: a peer over one of its transports.

use std::future::Future;

use anyhow::Result;
use rpc_perf::cores::CpuPair;

use crate::columns::Numbers;
use crate::measure::Plan;

/// A peer over one of its transports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// The peer, by its name on crates.io.
    pub(crate) peer: &'static str,
    /// The transport, and the way of waiting.
    pub(crate) over: &'static str,
    /// Measures it once.
    pub(crate) measure: fn(Row, &Plan, CpuPair) -> Result<Numbers>,
    /// Serves it at a place until the process ends; `None` if its server is not a process.
    pub(crate) serve: Option<fn(Row, &str) -> Result<()>>,
}

impl Row {
    /// Its name for `--only` and in the JSON.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.peer, self.over)
    }
}

/// Rows that are served by processes.
pub(crate) fn served<const N: usize>(
    peer: &'static str,
    overs: [&'static str; N],
    measure: fn(Row, &Plan, CpuPair) -> Result<Numbers>,
    serve: fn(Row, &str) -> Result<()>,
) -> Vec<Row> {
    overs.map(|over| Row { peer, over, measure, serve: Some(serve) }).to_vec()
}

/// Runs a future to its end on a current-thread runtime, among tasks that need not be `Send`: all
/// peers are measured, and serve, on such a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, future)
}
