//! The handlers: they read, write, depend on what they read, and end in every way.

use rpc_core::session::{Answer, ReadItem, SendError, StreamEnd};

use super::call::{Number, Side, body};
use super::{World, send, task};

impl World<'_> {
    /// Runs a handler.
    pub(super) fn handle(&mut self, number: Number, mut steps: u32) -> bool {
        let stalling = self.stalling;
        let Some(call) = self.calls.get_mut(&number) else { return false };
        let end = 1 - call.caller;
        let Some(handler) = &mut call.handler else { return false };
        if !handler.runnable || (stalling && handler.stalls && !handler.stopped) {
            return false;
        }
        while steps > 0 {
            steps -= 1;
            let call = self.calls.get_mut(&number).expect("it is here");
            let Some(handler) = &mut call.handler else { break };
            let id = handler.id;
            if handler.stopped {
                if self.rng.chance(50) {
                    self.read_out(number);
                }
                self.ends[end].handler_ended(id);
                let call = self.calls.get_mut(&number).expect("it is here");
                call.handler = None;
                break;
            }
            if self.rng.chance(5) {
                _ = self.ends[end].accept(id);
            }
            let mut moved = false;
            if !handler.has_read {
                if handler.stop_after == Some(0) {
                    handler.stop_after = None;
                    call.up.stopped = Some(5);
                    self.ends[end].stop(id, 5);
                }
                match self.ends[end].take_item(id) {
                    ReadItem::Item(item) => {
                        call.up.take(&item);
                        handler.stop_after = handler.stop_after.map(|left| left - 1);
                        self.tally.read += 1;
                        // A stream that depends on the other one.
                        handler.owed += u32::from(handler.depends);
                        moved = true;
                    }
                    ReadItem::Pending => {
                        let waiter = task(number, Side::Handler);
                        self.ends[end].set_reader(id, waiter);
                    }
                    ReadItem::End(ended) => {
                        handler.has_read = true;
                        call.up.check_end(ended, call.up_end, self.cut, call.has_deadline);
                        if ended == StreamEnd::Clean {
                            self.tally.clean += 1;
                        }
                        moved = true;
                    }
                }
            }
            let may_write = !handler.depends || handler.owed > 0 || handler.has_read;
            if call.down.left > 0 && may_write && !handler.has_written {
                match send(
                    &mut self.ends[end],
                    id.into(),
                    &mut call.down,
                    number,
                    self.rng,
                    self.now,
                ) {
                    Ok(()) => {
                        self.tally.sent += 1;
                        handler.owed = handler.owed.saturating_sub(1);
                        moved = true;
                    }
                    Err(SendError::Full) => {
                        self.tally.full += 1;
                        let waiter = task(number, Side::Handler);
                        self.ends[end].set_writer(id, waiter);
                    }
                    Err(SendError::Stopped(code)) => {
                        assert_eq!(call.down.stopped, Some(code), "stopped by nobody");
                        self.tally.stopped += 1;
                        handler.has_written = true;
                        moved = true;
                    }
                    Err(SendError::Ended) => {
                        handler.has_written = true;
                        moved = true;
                    }
                    Err(error) => panic!("a handler writes: {error}"),
                }
            }
            let has_written = call.down.left == 0 || handler.has_written;
            if (handler.has_read && has_written) || handler.leaves_early {
                self.reply(number);
                break;
            }
            if !moved {
                handler.runnable = false;
                break;
            }
        }
        self.settle(end);
        self.forget(number);
        true
    }

    /// Reads the remaining items of a handler that is to stop.
    fn read_out(&mut self, number: Number) {
        let call = self.calls.get_mut(&number).expect("it is here");
        let Some(handler) = &call.handler else { return };
        while let ReadItem::Item(item) = self.ends[1 - call.caller].take_item(handler.id) {
            call.up.take(&item);
            self.tally.read_after_end += 1;
        }
    }

    fn reply(&mut self, number: Number) {
        let call = self.calls.get_mut(&number).expect("it is here");
        let Some(handler) = call.handler.take() else { return };
        let session = &mut self.ends[1 - call.caller];
        let status = Answer::Status { code: 9, retryable: false, text: "no", details: &[] };
        let choice = self.rng.below(10);
        let said = match choice {
            0..=5 => session.reply(handler.id, Answer::Ok(body(&[]))),
            6 => session.reply(handler.id, Answer::UserError(body(&[]))),
            7 => session.reply(handler.id, status),
            8 => session.reset_results(handler.id, status),
            _ => {
                session.handler_ended(handler.id);
                Ok(())
            }
        };
        call.said = said.is_ok().then_some(choice);
        // A repeated report changes nothing.
        session.handler_ended(handler.id);
        assert!(session.reply(handler.id, Answer::Ok(body(&[]))).is_err());
    }
}
