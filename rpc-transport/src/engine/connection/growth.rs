//! Growth of buffers where memory may be refused.
//!
//! Owns how much is asked for, and how often after a refusal.

use crate::device::ProviderError;
use crate::user_code::logged;

/// How many times nothing is asked for after a refusal: each question is a system call.
const PAUSE: u32 = 64;

/// What was learned from the last refusal.
#[derive(Debug, Default)]
pub(super) struct Growth {
    pause: u32,
}

impl Growth {
    /// Asks for `most`, and for half of what was refused until something is granted. `None` if
    /// nothing is, and for a while after that.
    pub(super) fn by<T>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_asked_for_until_it_is_granted_and_a_refusal_of_all_is_remembered() {
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
