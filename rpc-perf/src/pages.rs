//! Pages: looking at each, and how many were new to a process.

use anyhow::{Context, Result};

/// Bytes of a page; a receiver looks at one byte of each.
pub const PAGE_BYTES: usize = 4096;

/// The sum of one byte of each page.
pub fn look(data: &[u8]) -> u64 {
    data.iter().step_by(PAGE_BYTES).map(|byte| u64::from(*byte)).sum()
}

/// Page faults of this process that needed no reading.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn page_faults() -> Result<u64> {
    page_faults_of("self")
}

/// The same of another process, by its id.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn page_faults_of(process: &str) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, which may have spaces, is in parentheses; field 10 of all is the eighth behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let count = fields.split_ascii_whitespace().nth(7).context("field 10 of its status")?;
    Ok(count.parse()?)
}
