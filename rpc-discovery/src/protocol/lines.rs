//! A stream of JSON objects, one a line, cut into its lines.

/// Bytes that are not a whole line yet.
#[derive(Debug)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// Where the next line begins.
    at: usize,
    /// Up to where there is no line feed.
    looked: usize,
    max_bytes: usize,
}

/// A line is longer than it may be.
#[derive(Debug, PartialEq)]
pub(crate) struct TooLong;

impl Lines {
    /// Refuses lines above `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { bytes: Vec::new(), at: 0, looked: 0, max_bytes }
    }

    /// Adds what has arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // Once for all lines of what arrived before, whatever their number.
        self.bytes.drain(..self.at);
        (self.at, self.looked) = (0, self.looked - self.at);
        self.bytes.extend_from_slice(bytes);
    }

    /// The next line that is not blank, without its line feed; `None`: more has to arrive.
    ///
    /// # Errors
    /// [`TooLong`].
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        loop {
            let end = self.bytes[self.looked..].iter().position(|byte| *byte == b'\n');
            let Some(end) = end.map(|end| end + self.looked) else {
                self.looked = self.bytes.len();
                let is_long = self.looked - self.at > self.max_bytes;
                return if is_long { Err(TooLong) } else { Ok(None) };
            };
            if end - self.at > self.max_bytes {
                return Err(TooLong);
            }
            let line = &self.bytes[self.at..end];
            (self.at, self.looked) = (end + 1, end + 1);
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line.to_vec()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_arrive() {
        test_kit::for_seeds(1, 300, |rng| {
            let mut expected = Vec::new();
            let mut bytes = Vec::new();
            for _ in 0..rng.index(20) {
                let line = vec![b'a' + rng.byte() % 26; rng.index(30)];
                bytes.extend_from_slice(&line);
                bytes.push(b'\n');
                expected.extend(Some(line).filter(|line| !line.is_empty()));
            }
            bytes.extend_from_slice(b"rest");
            let (mut lines, mut found) = (Lines::new(30), Vec::new());
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(1 + rng.index(rest.len()));
                lines.push(now);
                rest = later;
                while let Some(line) = lines.next().unwrap() {
                    found.push(line);
                }
            }
            assert_eq!(found, expected);
        });
    }

    /// A regression: each line copied the rest of what had arrived.
    #[test]
    fn a_crowd_of_empty_lines_costs_little() {
        let _watchdog = test_kit::Watchdog::start("empty lines");
        let mut lines = Lines::new(10);
        lines.push(&vec![b'\n'; 4 << 20]);
        lines.push(b"1\n");
        assert_eq!(lines.next(), Ok(Some(b"1".to_vec())));
        assert_eq!(lines.next(), Ok(None));
    }

    #[test]
    fn a_long_line_is_an_error() {
        let mut lines = Lines::new(10);
        lines.push(b"0123456789");
        assert_eq!(lines.next(), Ok(None));
        lines.push(b"0");
        assert_eq!(lines.next(), Err(TooLong));
        let mut lines = Lines::new(10);
        lines.push(b"0123456789a\n");
        assert_eq!(lines.next(), Err(TooLong));
    }
}
