//! The limits of this process that connections may reach.

use std::io::{self, Write};

use examples::units::{bytes, count};
use rustix::process::{Resource, Rlimit, getrlimit};

/// Prints them, each with its purpose.
pub(crate) fn print(out: &mut impl Write) -> io::Result<()> {
    let files = shown(getrlimit(Resource::Nofile), count);
    writeln!(out, "  open files: {files}; each connection needs a few; raise with `ulimit -n`")?;
    let locked = shown(getrlimit(Resource::Memlock), bytes);
    writeln!(
        out,
        "  locked memory: {locked} (root: no limit); RDMA locks its buffers; raise with `ulimit -l`"
    )
}

fn shown(limit: Rlimit, number: impl Fn(u64) -> String) -> String {
    let Some(current) = limit.current else { return "no limit".to_owned() };
    match limit.maximum {
        Some(maximum) if maximum == current => number(current),
        Some(maximum) => format!("{}, can be raised to {}", number(current), number(maximum)),
        None => format!("{}, can be raised to any value", number(current)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_shown_with_their_hard_limits() {
        let limit = |current, maximum| shown(Rlimit { current, maximum }, count);
        assert_eq!(limit(None, None), "no limit");
        assert_eq!(limit(Some(1024), Some(1024)), "1,024");
        assert_eq!(limit(Some(1024), Some(4096)), "1,024, can be raised to 4,096");
        assert_eq!(limit(Some(1024), None), "1,024, can be raised to any value");
        let mut text = Vec::new();
        print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("open files: ") && text.contains("locked memory: "), "{text}");
    }
}
