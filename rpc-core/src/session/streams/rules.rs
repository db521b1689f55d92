//! Broken rules of streams: switches that break one rule each, so that the model can show that
//! each rule is needed.
//!
//! Never part of a production build: all rules hold there, and the switches take no room.

/// Which rules hold. The default: all.
#[cfg_attr(
    not(any(test, feature = "model")),
    allow(unreachable_pub, reason = "public for the models only")
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// Which one does not.
    #[cfg(any(test, feature = "model"))]
    pub broken: Option<Broken>,
}

/// A rule that is broken.
#[cfg(any(test, feature = "model"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Items without credit are sent.
    ItemsWaitForCredit,
    /// An item goes only when there is credit for all of its bytes.
    OneItemMayOverdraw,
    /// A grant is made only when a whole window of items was consumed.
    HalfAWindowIsGranted,
    /// No grant is ever made.
    ConsumedIsGranted,
    /// A dropped receiver sends nothing, and grants nothing for the items that it discards.
    DroppedReceiversStop,
    /// The room for items in the link is not asked for when it runs low.
    RoomComesBack,
}

macro_rules! rule {
    ($(#[$meta:meta])* $name:ident, $broken:ident, $otherwise:expr) => {
        $(#[$meta])*
        #[inline]
        pub(super) fn $name(self) -> bool {
            #[cfg(any(test, feature = "model"))]
            if self.broken == Some(Broken::$broken) {
                return !$otherwise;
            }
            $otherwise
        }
    };
}

impl Rules {
    rule!(
        /// R1.
        needs_credit, ItemsWaitForCredit, true
    );
    rule!(
        /// R3.
        may_overdraw, OneItemMayOverdraw, true
    );
    rule!(
        /// R4, broken.
        grants_late, HalfAWindowIsGranted, false
    );
    rule!(
        /// R4.
        grants, ConsumedIsGranted, true
    );
    rule!(
        /// R5.
        sends_stop, DroppedReceiversStop, true
    );
    rule!(
        /// R6.
        asks_for_room, RoomComesBack, true
    );
}
