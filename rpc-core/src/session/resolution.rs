//! Calls of methods whose types differ at the two ends.
//!
//! Owns the requests that are kept until the peer has accepted or refused their types, and the
//! notes for replies of such methods. Knows nothing of types: the notes belong to the layer above.

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Note;

use super::{CallId, Session};
use crate::wire;

impl<W, H> Session<W, H> {
    /// Takes the request of a call that the peer has refused before any handler ran, if it may be
    /// sent again: with its schema, or to another peer. It is as in [`Session::take_request`].
    #[cold]
    pub(crate) fn take_refused_request(&mut self, id: CallId) -> Option<OutBuf> {
        let kept = self.calls.take_kept(id)?;
        if self.calls.is_refused(id) {
            return Some(kept);
        }
        self.discard(kept);
        None
    }

    /// The types of the method with this dense index differ: replies of its calls get this note.
    /// Returns a note of before.
    pub(crate) fn resolve(&mut self, method_index: u32, note: Note) -> Option<Note> {
        self.accepted_by_peer.resolve(method_index, note)
    }

    /// What is needed to read the results of a method whose types differ.
    pub(crate) fn resolution(&self, method_index: u32) -> Option<Note> {
        self.accepted_by_peer.resolution(method_index)
    }

    /// Whether the peer reads arguments by this end's schema, as far as is known.
    pub(crate) fn peer_resolves(&self) -> bool {
        self.peer.is_some_and(|hello| hello.features & wire::FEATURE_RESOLUTION != 0)
    }

    /// The peer has accepted the types of a call, the reply of which is stored.
    #[cold]
    pub(super) fn on_accepted(&mut self, call: u32) {
        let method_index = self.calls.head(call).method_index;
        match self.accepted_by_peer.resolution(method_index) {
            Some(note) => self.calls.annotate(call, note),
            None => self.accepted_by_peer.insert(method_index),
        }
        self.discard_kept(call);
    }

    /// The request that is kept of a call is not needed any more.
    #[cold]
    pub(super) fn discard_kept(&mut self, call: u32) {
        if let Some(kept) = self.calls.take_kept_at(call) {
            self.discard(kept);
        }
    }
}
