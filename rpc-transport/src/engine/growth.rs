//! Growth of buffers and arenas where memory may be refused.
//!
//! Owns how much is asked for, and how often after a refusal.

use std::time::Instant;

use crate::device::ProviderError;
use crate::device::connection_error::CloseCause;
use crate::log_limit::LogLimit;
use crate::memory::budget::MemoryBudget;
use crate::memory::region::{Access, MemoryWindow, ProtectionDomain};
use crate::protocol::link::Link;
use crate::user_code::logged;

/// How many times nothing is asked for after a refusal: each question is a system call.
const PAUSE: u32 = 64;

/// What was learned from the last refusal.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    pause: u32,
}

impl Growth {
    /// Asks for `most`, and for half of what was refused until something is granted. `None` if
    /// nothing is, and for a while after that.
    pub(crate) fn by<T>(
        &mut self,
        most: u32,
        mut allocate: impl FnMut(u32) -> Result<T, ProviderError>,
    ) -> Option<T> {
        if let Some(pause) = self.pause.checked_sub(1) {
            self.pause = pause;
            return None;
        }
        let mut count = most;
        while count > 0 {
            match allocate(count) {
                Ok(granted) => return Some(granted),
                Err(error) => {
                    logged(move || tracing::debug!(%error, count, "no memory for more buffers"));
                    count /= 2;
                }
            }
        }
        self.pause = PAUSE;
        None
    }
}

/// Gives the link the arena that it wants, if memory and budget allow it. With `in_window` the peer
/// writes it through the window that is returned: bind it before anything else is posted.
#[cold]
pub(crate) fn grow_arena(
    link: &mut Link,
    domain: &ProtectionDomain,
    budget: &MemoryBudget,
    bytes: u64,
    in_window: bool,
) -> Result<Option<MemoryWindow>, CloseCause> {
    // An arena is optional, so half of the budget is left for messages that must be put together.
    let charge = match budget.reserve_spare(bytes) {
        Ok(charge) => charge,
        Err(reason) => {
            logged(move || tracing::debug!(%reason, "no arena: copying large messages"));
            link.decline_arena();
            return Ok(None);
        }
    };
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    let access = if in_window { Access::WINDOWS } else { Access::REMOTE_WRITE };
    let arena = domain.allocate(len, access).and_then(|region| {
        let window = in_window.then(|| domain.window(&region)).transpose()?;
        Ok((region, window))
    });
    match arena {
        Ok((region, window)) => {
            region.charge(charge);
            let added = match window.clone() {
                Some(window) => link.add_window(window),
                None => link.add_arena(region),
            };
            added.map_err(|error| CloseCause::Device(error.to_string().into()))?;
            Ok(window)
        }
        Err(error) => {
            let text = "no memory for an arena: copying large messages";
            let log = move || tracing::warn!(%error, bytes, "{text}");
            NO_ARENAS.fault(Instant::now(), || logged(log));
            link.decline_arena();
            Ok(None)
        }
    }
}

static NO_ARENAS: LogLimit = LogLimit::new("arenas without memory");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_halves_until_granted_and_remembers_refusals() {
        let refused = || ProviderError::Resources { what: "register", message: String::new() };
        let mut growth = Growth::default();
        let mut asked = Vec::new();
        let mut up_to = |most, granted| {
            growth.by(most, |count| {
                asked.push(count);
                if count <= granted { Ok(count) } else { Err(refused()) }
            })
        };
        assert_eq!(up_to(8, 8), Some(8));
        assert_eq!(up_to(9, 3), Some(2));
        assert_eq!(up_to(3, 0), None);
        for _ in 0..PAUSE {
            assert_eq!(up_to(3, 3), None);
        }
        assert_eq!(up_to(3, 3), Some(3));
        assert_eq!(asked, [8, 9, 4, 2, 3, 1, 3]);
    }
}
