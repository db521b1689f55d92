//! The actions of the callee's handlers: they begin, are stopped, and end.

use rpc_core::session::{Answer, Deadline, Incoming};
use rpc_transport::message::outgoing::OutBuf;

use super::record::{Life, Replied};
use super::{Handler, Number, SLACK, World, signature};

impl World<'_> {
    pub(super) fn request(&mut self, end: usize, incoming: Incoming) {
        let number = Number::from_le_bytes(incoming.body()[..8].try_into().expect("eight"));
        let record = self.calls.get_mut(&number).expect("known");
        assert_eq!(record.caller, 1 - end);
        record.runs += 1;
        assert_eq!(record.runs, 1, "a call ran twice");
        assert!(!record.never_sent, "a call ran that was said never to have been sent");
        assert_eq!(incoming.deadline.is_some(), record.deadline.is_some());
        assert!(incoming.metadata().is_empty() || incoming.metadata() == b"meta");
        if let Some(hash) = incoming.signature {
            assert_eq!(hash, signature(incoming.method));
            self.ends[end].accept_signature(incoming.id);
        }
        let id = incoming.id;
        assert_eq!(&incoming.into_body()[..8], number.to_le_bytes());
        let (attached, stopped, waits_for) = (false, false, Vec::new());
        self.handlers.push(Handler { number, end, id, attached, stopped, waits_for });
        assert!(
            self.handlers.iter().filter(|handler| handler.end == end).count()
                <= self.limits[end].max_incoming_calls as usize
                || self.cut,
            "more handlers at once than announced"
        );
        if self.rng.chance(40) {
            let last = self.handlers.len() - 1;
            self.finish_handler(last);
        } else if self.calls[&number].maker.is_none() && self.rng.chance(self.nests) {
            self.call_back(number);
        }
    }

    /// A handler calls its caller, once or twice.
    fn call_back(&mut self, number: Number) {
        let end = self.handler_of(number).end;
        let record = &self.calls[&number];
        let deadline = record.deadline.map(|at| Deadline { at, now: self.now });
        for _ in 0..=self.rng.index(2) {
            self.start_for(end, deadline, Some(number));
        }
    }

    pub(super) fn handler_of(&mut self, number: Number) -> &mut Handler {
        let mut handlers = self.handlers.iter_mut();
        handlers.find(|handler| handler.number == number).expect("it runs")
    }

    /// A call has ended, or nobody waits for it.
    pub(super) fn waits_no_more(&mut self, number: Number) {
        let maker = self.calls[&number].maker;
        if let Some(handler) = self.handlers.iter_mut().find(|it| Some(it.number) == maker) {
            handler.waits_for.retain(|call| *call != number);
        }
    }

    /// A handler's own calls end with it.
    fn drop_nested(&mut self, nested: Vec<Number>) {
        for number in nested {
            self.drop_call(number);
        }
    }

    pub(super) fn stop(&mut self, end: usize, number: Number) {
        // It may have ended on its own since the session reported it.
        if let Some(handler) = self.handlers.iter_mut().find(|handler| handler.number == number) {
            assert_eq!(handler.end, end);
            handler.stopped = true;
            let nested = std::mem::take(&mut handler.waits_for);
            self.drop_nested(nested);
        }
        let cut = self.cut;
        let now = self.now;
        let record = self.calls.get_mut(&number).expect("known");
        record.stops += 1;
        self.tally.stops += 1;
        assert_eq!(record.stops, 1, "told to stop twice");
        assert!(!record.no_cancel, "told to stop though it must not be");
        let given_up = matches!(record.life, Life::Dropped) || record.failed.is_some();
        assert!(given_up || cut || record.is_expired(now + SLACK), "told to stop for nothing");
    }

    pub(super) fn attach(&mut self, at: usize) {
        let Handler { number, end, id, .. } = self.handlers[at];
        self.handlers[at].attached = true;
        if let Err(handle) = self.ends[end].attach_handler(id, number) {
            assert_eq!(handle, number);
            self.tally.refused_attach += 1;
            self.stop(end, number);
        }
    }

    /// A handler ends on its own, or finally obeys its stop.
    pub(super) fn finish_handler(&mut self, at: usize) {
        let Handler { number, end, id, stopped, waits_for, .. } = self.handlers.swap_remove(at);
        self.drop_nested(waits_for);
        let choice = self.rng.index(10);
        let mut body = OutBuf::new();
        body.extend_from_slice(&number.to_le_bytes());
        body.extend_from_slice(self.bulk());
        let text = format!("call {number}");
        let details = number.to_le_bytes();
        let said = match choice {
            0..=5 => Some((Replied::Ok, Answer::Ok(body))),
            6 => Some((Replied::UserError, Answer::UserError(body))),
            7 => {
                let (code, details) = (9, &details[..]);
                let answer = Answer::Status { code, retryable: false, text: &text, details };
                Some((Replied::Status(9), answer))
            }
            _ => None,
        };
        match said {
            Some((replied, answer)) => {
                let taken = self.ends[end].reply(id, answer);
                assert!(!(stopped && taken.is_ok()), "a stopped handler's reply was taken");
                assert!(!(self.cut && taken.is_ok()), "a reply was taken after the end");
                self.tally.gone += u64::from(taken.is_err());
                if taken.is_ok() {
                    self.calls.get_mut(&number).expect("known").replied = Some(replied);
                    assert!(self.ends[end].reply(id, Answer::Ok(OutBuf::new())).is_err());
                }
            }
            None => {
                self.calls.get_mut(&number).expect("known").ended_without_reply = true;
                self.ends[end].handler_ended(id);
            }
        }
        // A repeated report changes nothing.
        self.ends[end].handler_ended(id);
        self.settle(end);
    }
}
