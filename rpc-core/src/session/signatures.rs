//! Which methods' signatures have been checked on a connection, from either end.
//!
//! Owns the two memories that let most calls leave the signature out. Never compares signatures:
//! that is the callee's dispatch, which knows its methods.
//!
//! Invariants:
//! 1. The caller leaves a signature out only after a response said that the callee accepted it,
//!    and never for a method whose types differ.
//! 2. The callee forgets nothing that it accepted while the connection lives, and holds at most
//!    as many methods as it has itself.

use super::{CallHead, CopiedTails, PlanId, Reads};

/// The caller's side: what the peer has accepted, by the process's dense method index.
#[derive(Debug)]
pub(super) struct AcceptedByPeer {
    by_index: Vec<bool>,
    /// The types of methods that differ, by the method's id and the hash of this end's types, each
    /// with the number of the plan to read results by. Two traits of this process may have methods
    /// of one id. Each of their calls asks.
    resolved: Vec<((u32, u64), PlanId)>,
    /// Whether a refused call may be sent again with its schema. True until the peer's hello says
    /// otherwise.
    resolves: bool,
}

impl Default for AcceptedByPeer {
    fn default() -> Self {
        Self { by_index: Vec::new(), resolved: Vec::new(), resolves: true }
    }
}

impl AcceptedByPeer {
    /// How this end reads what the peer writes of a call that is sent now.
    #[inline]
    pub(super) fn reads(&self, head: &CallHead) -> Reads {
        if self.contains(head.method_index) { Reads::Same } else { self.reads_of_asked(head) }
    }

    #[cold]
    fn reads_of_asked(&self, head: &CallHead) -> Reads {
        match self.find((head.method, head.signature)) {
            Ok(at) => Reads::By(self.resolved[at].1),
            Err(_) => Reads::Asked,
        }
    }

    #[inline]
    pub(super) fn contains(&self, method_index: u32) -> bool {
        self.by_index.get(method_index as usize).copied().unwrap_or(false)
    }

    pub(super) fn insert(&mut self, method_index: u32) {
        let index = method_index as usize;
        if index >= self.by_index.len() {
            self.by_index.resize(index + 1, false);
        }
        self.by_index[index] = true;
    }

    pub(super) fn set_resolves(&mut self, resolves: bool) {
        self.resolves = resolves;
    }

    pub(super) fn resolves(&self) -> bool {
        self.resolves
    }

    /// These types of a method differ at the peer. Gives the number of the plan to read results by,
    /// which is new or that of before. There are at most as many as this process has methods.
    pub(super) fn resolve(&mut self, method: u32, signature: u64) -> PlanId {
        let key = (method, signature);
        match self.find(key) {
            Ok(at) => self.resolved[at].1,
            Err(at) => {
                let plan = PlanId(u32::try_from(self.resolved.len()).unwrap_or(u32::MAX));
                self.resolved.insert(at, (key, plan));
                plan
            }
        }
    }

    fn find(&self, key: (u32, u64)) -> Result<usize, usize> {
        self.resolved.binary_search_by_key(&key, |(key, _)| *key)
    }
}

/// The callee's side: which method ids it has accepted a signature for, and what is known of the
/// messages of these methods.
#[derive(Debug, Default)]
pub(super) struct AcceptedHere {
    sorted: Vec<(u32, CopiedTails)>,
    /// Most callers call one method many times in a row.
    last: Option<u32>,
}

impl AcceptedHere {
    #[inline]
    pub(super) fn contains(&mut self, method: u32) -> bool {
        if self.last == Some(method) {
            return true;
        }
        let found = self.find(method).is_ok();
        if found {
            self.last = Some(method);
        }
        found
    }

    pub(super) fn insert(&mut self, method: u32, copied_tails: CopiedTails) {
        if let Err(at) = self.find(method) {
            self.sorted.insert(at, (method, copied_tails));
        }
    }

    pub(super) fn copied_tails(&self, method: u32) -> CopiedTails {
        self.find(method).map_or(CopiedTails::NONE, |at| self.sorted[at].1)
    }

    fn find(&self, method: u32) -> Result<usize, usize> {
        self.sorted.binary_search_by_key(&method, |(id, _)| *id)
    }
}
