//! A stream of JSON objects, one a line, cut into its lines.

/// Bytes that are not a whole line yet.
#[derive(Debug)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// Bytes at the start without a line feed.
    looked: usize,
    max_bytes: usize,
}

/// A line is longer than it may be.
#[derive(Debug, PartialEq)]
pub(crate) struct TooLong;

impl Lines {
    /// Refuses lines above `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { bytes: Vec::new(), looked: 0, max_bytes }
    }

    /// Adds what has arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
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
                return if self.looked > self.max_bytes { Err(TooLong) } else { Ok(None) };
            };
            if end > self.max_bytes {
                return Err(TooLong);
            }
            let rest = self.bytes.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.bytes, rest);
            self.looked = 0;
            line.truncate(end);
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
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
