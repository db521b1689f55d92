use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;

const MS: u64 = 1_000;

/// A server with workers that take turns: calls come at even times and are refused above the
/// limit. Times in µs.
struct Simulated {
    workers: usize,
    limiter: Limiter,
    now: u64,
    /// When calls arrived that wait for a worker.
    queue: VecDeque<u64>,
    /// End and arrival of those that run.
    running: BinaryHeap<Reverse<(u64, u64)>>,
    window: (u64, u32, u64, u32),
    times: Vec<u64>,
    refused: u64,
    seed: u64,
}

impl Simulated {
    fn new(workers: usize) -> Self {
        Self::of(workers, 1)
    }

    fn of(workers: usize, least: u32) -> Self {
        Self {
            workers,
            limiter: Limiter::new(least, u32::MAX),
            now: 0,
            queue: VecDeque::new(),
            running: BinaryHeap::new(),
            window: (0, 0, 0, 0),
            times: Vec::new(),
            refused: 0,
            seed: 7,
        }
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.queue.len() + self.running.len()).unwrap()
    }

    /// Exponential times, as of work that differs a lot, or always this one.
    fn service_time(&mut self, mean: u64, is_even: bool) -> u64 {
        if is_even {
            return mean;
        }
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        #[expect(clippy::cast_precision_loss, reason = "53 bits")]
        let uniform = ((self.seed >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        #[expect(clippy::cast_sign_loss, reason = "positive")]
        let time = (-uniform.ln() * mean as f64) as u64;
        time.max(1)
    }

    fn end_until(&mut self, until: u64, time: u64, is_even: bool) {
        loop {
            while self.running.len() < self.workers
                && let Some(arrived) = self.queue.pop_front()
            {
                let end = self.now.max(arrived) + self.service_time(time, is_even);
                self.running.push(Reverse((end, arrived)));
            }
            let Some(Reverse((end, arrived))) = self.running.peek().copied() else { break };
            if end > until {
                break;
            }
            self.running.pop();
            self.now = end;
            self.times.push(end - arrived);
            let (began, calls, sum, peak) = self.window;
            self.window = (began, calls + 1, sum + end - arrived, peak);
            let length = Duration::from_micros(end - began);
            if (length >= WINDOW && calls + 1 >= WINDOW_CALLS) || length >= OLD_WINDOW {
                let mean = Duration::from_micros(self.window.2 / u64::from(self.window.1));
                self.limiter.on_window(Window { mean, peak, length });
                self.window = (end, 0, 0, self.in_flight());
            }
        }
        self.now = until;
    }

    /// Calls every `every`, for `long`. The calls that ended, and their times in order.
    fn run(&mut self, every: u64, long: u64, time: u64, is_even: bool) -> Vec<u64> {
        self.times.clear();
        for arrived in (self.now..self.now + long).step_by(usize::try_from(every).unwrap()) {
            self.end_until(arrived, time, is_even);
            if self.in_flight() >= self.limiter.limit() {
                self.refused += 1;
                continue;
            }
            self.queue.push_back(arrived);
            self.window.3 = self.window.3.max(self.in_flight());
        }
        let mut times = std::mem::take(&mut self.times);
        times.sort_unstable();
        times
    }
}

#[test]
fn twice_the_load_keeps_nine_tenths_of_capacity() {
    for workers in [1, 2, 8, 64] {
        for is_even in [true, false] {
            let mut server = Simulated::new(workers);
            // Half of the capacity, then twice as much as it.
            let (time, workers) = (10 * MS, workers as u64);
            let calm = server.run(2 * time / workers, 20_000 * MS, time, is_even);
            let calm_p99 = calm[calm.len() * 99 / 100];
            server.run(time / workers / 2, 5_000 * MS, time, is_even);
            let busy = server.run(time / workers / 2, 30_000 * MS, time, is_even);
            let (done, can) = (busy.len() as u64, 30_000 * MS / time * workers);
            let p99 = busy[busy.len() * 99 / 100];
            let said = format!(
                "{workers} workers, even {is_even}: {done} of {can}, p99 {p99} of {calm_p99}, \
                 limit {}",
                server.limiter.limit()
            );
            println!("{said}");
            assert!(done * 10 >= can * 9, "{said}");
            assert!(p99 <= 3 * calm_p99.max(time), "{said}");
        }
    }
}

#[test]
fn slower_calls_get_a_new_floor() {
    let mut server = Simulated::new(8);
    server.run(MS, 20_000 * MS, 10 * MS, true);
    // Each call now takes five times as long; twice as many come as can be served.
    server.run(3 * MS, 60_000 * MS, 50 * MS, true);
    let after = server.run(3 * MS, 60_000 * MS, 50 * MS, true);
    assert!(after.len() as u64 >= 60_000 / 50 * 8 * 9 / 10, "{}", after.len());
    assert!(after[after.len() * 99 / 100] <= 150 * MS);
}

/// Calls that take longer from one moment on: a cold cache, or another mix of methods.
#[test]
fn a_minute_later_a_server_does_its_best() {
    for (least, factor, workers, is_even) in [1, 4, 8, 32].into_iter().flat_map(|least| {
        let ways = [(64, true), (64, false), (8, false)];
        let steps = [2, 3, 20].into_iter();
        steps.flat_map(move |step| ways.map(|(workers, even)| (least, step, workers, even)))
    }) {
        let mut server = Simulated::of(workers, least);
        let time = 10 * MS;
        // 64 workers have room for half as much again, 8 get twice what they can do.
        let every = match workers {
            64 => time * factor / 42,
            _ => time * factor / 16,
        };
        server.run(every.max(time / 4), 20_000 * MS, time, is_even);
        server.run(every, 60_000 * MS, time * factor, is_even);
        let done = server.run(every, 30_000 * MS, time * factor, is_even).len() as u64;
        let can = 30_000 * MS / every.max(time * factor / workers as u64);
        let said = format!(
            "least {least}, x{factor}, {workers} workers, even {is_even}: {done} of {can}, \
             limit {}",
            server.limiter.limit()
        );
        println!("{said}");
        // Of calls of 200 ms, measuring a floor with half as many takes a tenth.
        assert!(done * 5 >= can * 4, "{said}");
    }
}

#[test]
fn unreached_limits_stay() {
    let mut limiter = Limiter::new(1, 1000);
    for _ in 0..1000 {
        let (mean, length) = (Duration::from_millis(5), WINDOW);
        limiter.on_window(Window { mean, peak: 3, length });
    }
    assert_eq!(limiter.limit(), FIRST);
}

#[test]
fn any_windows_keep_the_bounds() {
    let mut seed = 1_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed >> 33
    };
    let mut limiter = Limiter::new(4, 300);
    for _ in 0..100_000 {
        let mean = Duration::from_nanos(1 << (next() % 40));
        let peak = u32::try_from(next() % 400).unwrap();
        limiter.on_window(Window { mean, peak, length: Duration::from_millis(next() % 4000) });
        assert!((4..=300).contains(&limiter.limit()), "{limiter:?}");
    }
}
