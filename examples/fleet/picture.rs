//! The fleet in the terminal: a table that is redrawn, or a line for each event where stdout is no
//! terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use examples::units::{count, whole};

use super::watch::Course;

/// Characters of the longest bar.
const BAR: f64 = 24.0;

/// Where the course of a run is shown.
pub(crate) struct Picture {
    is_terminal: bool,
    /// Lines of the table that is on the screen.
    drawn: usize,
    /// Events that have a line.
    told: usize,
}

impl Picture {
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stdout().is_terminal(), drawn: 0, told: 0 }
    }

    /// Shows what is new.
    pub(crate) fn show(&mut self, course: &Course, registry: &str) -> io::Result<()> {
        let mut text = String::new();
        if self.is_terminal {
            let table = table(course, registry);
            if self.drawn > 0 {
                // Up to the first line, and all below it removed.
                let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn);
            }
            self.drawn = table.lines().count();
            text.push_str(&table);
        } else {
            for (at, event) in &course.events[self.told..] {
                let _ = writeln!(text, "{at:7.2} s  {event}");
            }
            self.told = course.events.len();
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

/// The newest sample and the last events.
fn table(course: &Course, registry: &str) -> String {
    let mut text = format!(
        "{:.0} s: {}    etcd: {registry}\n\n",
        course.elapsed().as_secs_f64(),
        course.phase()
    );
    let _ = writeln!(
        text,
        "{:>6}  {:<28} {:<9} {:>7} {:>7} {:>9} {:>8}",
        "server", "address", "state", "clients", "ejected", "calls/s", "errors/s"
    );
    let rows = course.samples.back().map(|it| it.rows.as_slice()).unwrap_or_default();
    let most = rows.iter().map(|it| it.calls).fold(1.0, f64::max);
    for row in rows {
        let bar = "#".repeat(usize::try_from(whole(row.calls / most * BAR)).unwrap_or(0));
        let _ = writeln!(
            text,
            "{:>6}  {:<28} {:<9} {:>7} {:>7} {:>9} {:>8}  {bar}",
            row.number,
            row.address,
            row.state.word(),
            row.connected,
            row.ejected,
            count(whole(row.calls)),
            count(whole(row.errors)),
        );
    }
    text.push('\n');
    for (at, event) in course.recent() {
        let _ = writeln!(text, "{at:7.2} s  {event}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_servers_and_events() {
        let text = table(&Course::example(), "up");
        let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap().to_owned();
        assert!(line("10.0.0.1").contains("ready"), "{text}");
        let ill = line("10.0.0.2");
        assert!(ill.contains(" ill ") && ill.contains(" 109 ") && ill.contains(" 7 "), "{ill}");
        assert!(text.contains("2.00 s  server 2 answers with errors"), "{text}");
        assert!(text.starts_with("0 s: errors    etcd: up"), "{text}");
    }
}
