//! Threads that wait for a device's commands, so that neither a CQ's owner nor the connection
//! manager's thread does: a NIC takes up to milliseconds to create a QP or to move it to RTS.
//!
//! Owns the queue of jobs, which are done in any order: for each set-up under way one at a time, and
//! of one that was given up nothing is done. Destroying has a thread of its own
//! ([`reaper`](super::reaper)). Never called by a thread that holds a shard: a job may be done here
//! and now, and what is logged runs the user's code.

use std::collections::VecDeque;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::reaper::Token;
use crate::user_code::caught;

/// NICs carry out commands of one process side by side, but not many.
const MOST_THREADS: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

struct Workers {
    queue: Mutex<Queue>,
    more: Condvar,
}

struct Queue {
    jobs: VecDeque<(Job, Token)>,
    idle: usize,
    threads: usize,
}

static WORKERS: Workers = Workers {
    queue: Mutex::new(Queue { jobs: VecDeque::new(), idle: 0, threads: 0 }),
    more: Condvar::new(),
};

/// Runs `job` on one of the threads; here and now if there can be none. Teardown waits for it.
pub(super) fn run(job: impl FnOnce() + Send + 'static) {
    let mut queue = WORKERS.queue.lock();
    queue.jobs.push_back((Box::new(job), Token::take()));
    if queue.jobs.len() <= queue.idle {
        drop(queue);
        WORKERS.more.notify_one();
        return;
    }
    if queue.threads == MOST_THREADS {
        return;
    }
    queue.threads += 1;
    drop(queue);
    // It lives as long as the process, and sleeps while there is nothing to do.
    let thread = thread::Builder::new().name("rdma-commands".to_owned());
    if let Err(error) = thread.spawn(work) {
        tracing::warn!(%error, "no thread for commands: one that is there waits for the device");
        let mut queue = WORKERS.queue.lock();
        queue.threads -= 1;
        let left =
            if queue.threads == 0 { std::mem::take(&mut queue.jobs) } else { VecDeque::new() };
        drop(queue);
        left.into_iter().for_each(carry_out);
    }
}

fn work() {
    loop {
        let mut queue = WORKERS.queue.lock();
        while queue.jobs.is_empty() {
            queue.idle += 1;
            WORKERS.more.wait(&mut queue);
            queue.idle -= 1;
        }
        let job = queue.jobs.pop_front();
        drop(queue);
        job.into_iter().for_each(carry_out);
    }
}

fn carry_out((job, token): (Job, Token)) {
    caught(job);
    // Dropped only now: the job may have dropped objects, which have taken their own tokens by now.
    drop(token);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::device::verbs::reaper::wait_for_teardown;

    #[test]
    fn jobs_that_wait_for_each_other_run_side_by_side_and_one_that_panics_ends_no_thread() {
        for _ in 0..2 * MOST_THREADS {
            run(|| panic!("on purpose"));
        }
        let (first, second) = (mpsc::channel(), mpsc::channel());
        let (done, outcome) = mpsc::channel();
        let told = done.clone();
        run(move || {
            first.0.send(1).unwrap();
            told.send(second.1.recv().unwrap()).unwrap();
        });
        run(move || {
            second.0.send(2).unwrap();
            done.send(first.1.recv().unwrap()).unwrap();
        });
        let mut said: Vec<i32> = outcome.iter().collect();
        said.sort_unstable();
        assert_eq!(said, [1, 2]);
        assert!(wait_for_teardown(Duration::from_secs(60)));
        assert!(WORKERS.queue.lock().threads <= MOST_THREADS);
    }
}
