//! Memory pages: touching each, and counting page faults.

use anyhow::{Context, Result};

/// Bytes of a page; a receiver reads one byte of each.
pub const PAGE_BYTES: usize = 4096;

/// The sum of one byte of each page.
pub fn look(data: &[u8]) -> u64 {
    data.iter().step_by(PAGE_BYTES).map(|byte| u64::from(*byte)).sum()
}

/// Minor page faults of this process.
///
/// # Errors
/// `/proc` cannot be read.
pub fn page_faults() -> Result<u64> {
    page_faults_of("self")
}

/// Minor page faults of another process, by its id.
///
/// # Errors
/// `/proc` cannot be read.
pub fn page_faults_of(process: &str) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, which may contain spaces, is in parentheses; field 10 is the eighth after it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let count = fields.split_ascii_whitespace().nth(7).context("field 10 of its status")?;
    Ok(count.parse()?)
}
