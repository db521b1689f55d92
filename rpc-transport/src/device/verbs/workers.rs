//! Threads that wait for a device's commands, so that neither a CQ's owner nor the connection
//! manager's thread does: a NIC takes up to milliseconds to create a QP or to move it to RTS.
//!
//! Owns the queue of jobs, which run in any order. Each set-up has at most one job at a time, and a
//! set-up that was given up has none. Destroying has a thread of its own
//! ([`reaper`](super::reaper)). Never called by a thread that holds a shard: a job may run on the
//! calling thread, and its log lines run user code.

use std::collections::VecDeque;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::reaper::Token;
use crate::user_code::caught;

/// NICs execute commands of one process concurrently, but not many.
const MAX_THREADS: usize = 4;

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

/// Runs `job` on one of the threads, or on the caller's if no thread can be started. Teardown waits
/// for it.
pub(super) fn run(job: impl FnOnce() + Send + 'static) {
    let mut queue = WORKERS.queue.lock();
    queue.jobs.push_back((Box::new(job), Token::take()));
    if queue.jobs.len() <= queue.idle {
        drop(queue);
        WORKERS.more.notify_one();
        return;
    }
    if queue.threads == MAX_THREADS {
        return;
    }
    queue.threads += 1;
    drop(queue);
    // The thread lives as long as the process, and sleeps while there is nothing to do.
    let thread = thread::Builder::new().name("rdma-commands".to_owned());
    if let Err(error) = thread.spawn(work) {
        tracing::warn!(%error, "cannot start a thread for commands: waiting for an existing one");
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
    // Dropped last: the job may have dropped objects, which have taken their own tokens by now.
    drop(token);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::device::verbs::reaper::wait_for_teardown;

    #[test]
    fn jobs_run_concurrently_and_survive_a_panic() {
        for _ in 0..2 * MAX_THREADS {
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
        assert!(WORKERS.queue.lock().threads <= MAX_THREADS);
    }
}
