//! The columns of the table, and one round's values of a row.

/// The measured quantities of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Median round trip of a lone call with 64 bytes, us.
    P50,
    /// The mean of those round trips.
    Mean,
    /// Their 99.9th percentile.
    P999,
    /// Thousand calls per second with 32 in flight.
    Rate,
    /// GB/s of payloads to the server, one in flight.
    UpOne,
    /// Four in flight.
    UpFour,
    /// GB/s of payloads from the server, one in flight.
    DownOne,
    /// Four in flight.
    DownFour,
}

/// The columns from left to right: head in the table, key in the JSON.
pub(crate) const COLUMNS: [(Column, &str, &str); 8] = [
    (Column::P50, "p50 us", "p50_us"),
    (Column::Mean, "mean us", "mean_us"),
    (Column::P999, "p99.9 us", "p999_us"),
    (Column::Rate, "k/s @32", "kilo_calls_per_second"),
    (Column::UpOne, "up x1 GB/s", "up_1_gb_per_second"),
    (Column::UpFour, "up x4", "up_4_gb_per_second"),
    (Column::DownOne, "down x1", "down_1_gb_per_second"),
    (Column::DownFour, "down x4", "down_4_gb_per_second"),
];

/// Just the columns.
pub(crate) const ALL: [Column; COLUMNS.len()] = {
    let mut columns = [Column::P50; COLUMNS.len()];
    let mut at = 0;
    while at < columns.len() {
        columns[at] = COLUMNS[at].0;
        at += 1;
    }
    columns
};

impl Column {
    /// Its head in the table.
    pub(crate) fn head(self) -> &'static str {
        COLUMNS[self as usize].1
    }

    /// How many times as fast `ours` is as `peer`; `None` if one of them lacks this column.
    pub(crate) fn speed(self, ours: &Numbers, peer: &Numbers) -> Option<f64> {
        let (ours, peer) = (ours.get(self)?, peer.get(self)?);
        Some(if self.is_time() { peer / ours } else { ours / peer })
    }

    /// Whether less is better; else it is a rate.
    pub(crate) fn is_time(self) -> bool {
        match self {
            Self::P50 | Self::Mean | Self::P999 => true,
            Self::Rate | Self::UpOne | Self::UpFour | Self::DownOne | Self::DownFour => false,
        }
    }
}

/// The values of a row; `None` for columns that it lacks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Numbers([Option<f64>; COLUMNS.len()]);

impl Numbers {
    pub(crate) fn set(&mut self, column: Column, value: f64) {
        self.0[column as usize] = Some(value);
    }

    pub(crate) fn get(&self, column: Column) -> Option<f64> {
        self.0[column as usize]
    }
}
