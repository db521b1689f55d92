//! What happened in a world, line by line, and a hash of all of it.
//!
//! Owns the lines of this process, which runs one world. Each line carries the number and the hash
//! of all looks at the clock and waits before it ([`clock::beat`]): two runs that did the same
//! things in another way have different traces.

use std::fmt;

use parking_lot::Mutex;

use crate::clock;

static TRACE: Mutex<Trace> = Mutex::new(Trace { lines: Vec::new(), hash: 0xcbf2_9ce4_8422_2325 });

/// All lines so far.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) lines: Vec<Line>,
    pub(crate) hash: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) at_us: u64,
    beat: (u64, u64),
    /// The call that it is about. 0: the whole world.
    pub(crate) call: u32,
    text: String,
}

/// Adds a line about the world.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    say_of(0, text);
}

/// Adds a line about a call.
pub(crate) fn say_of(call: u32, text: fmt::Arguments<'_>) {
    let line =
        Line { at_us: clock::elapsed_us(), beat: clock::beat(), call, text: text.to_string() };
    let mut trace = TRACE.lock();
    for word in [line.at_us, line.beat.0, line.beat.1, u64::from(call)] {
        trace.add(&word.to_le_bytes());
    }
    trace.add(line.text.as_bytes());
    trace.lines.push(line);
}

/// The hash of all lines.
pub(crate) fn hash() -> u64 {
    TRACE.lock().hash
}

/// The whole trace, as text that two runs are compared by.
pub(crate) fn whole() -> String {
    let trace = TRACE.lock();
    let lines = trace.lines.iter().map(|line| {
        let (beat, looks) = line.beat;
        format!("{line} (look {looks}, {beat:016x})\n")
    });
    lines.collect()
}

/// The lines that explain what happened to one call, or (0) to the world.
pub(crate) fn timeline(call: u32, at_us: u64) -> String {
    /// Lines before the end that are shown whatever they are about.
    const LAST: usize = 15;
    let trace = TRACE.lock();
    let until = trace.lines.partition_point(|line| line.at_us <= at_us);
    let lines = trace.lines.iter().enumerate();
    let is_shown = |(at, line): &(usize, &Line)| {
        let is_recent = *at < until && *at + LAST >= until;
        line.call == 0 || line.call == call || is_recent
    };
    lines.filter(is_shown).map(|(_, line)| format!("{line}\n")).collect()
}

impl Trace {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:12.6} ", self.at_us as f64 / 1e6)?;
        if self.call > 0 {
            write!(f, "call {} ", self.call)?;
        }
        f.write_str(&self.text)
    }
}
