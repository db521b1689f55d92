//! The floor: an 80-byte message each way through shared memory, busy polling, on two cores.
//!
//! Owns the raw ping-pong to which every latency is compared: 64 bytes of payload and 16 of header,
//! written into a slot with an in-band sequence word and read out again. No framework code. The
//! floor for sleeping ends is two threads that wake each other. Also detects the kind of cores,
//! which determines the meaning of the ratios.
#![allow(unsafe_code, reason = "raw shared memory is what is measured")]

pub mod large;
pub mod tcp;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::cores::{self, CpuPair};

const SLOT_BYTES: usize = 128;
const SLOTS: usize = 64;
const PAYLOAD_BYTES: usize = 72;
const RING_BYTES: usize = SLOT_BYTES * SLOTS;

/// One direction: slots of 128 bytes, the sequence word in the first 8.
#[derive(Clone, Copy)]
struct Ring(*mut u8);

// SAFETY: the mapping lives until the process ends, and words are accessed atomically.
unsafe impl Send for Ring {}

impl Ring {
    fn slot(self, sequence: u64) -> *mut u8 {
        let index = usize::try_from(sequence % SLOTS as u64).unwrap_or(0);
        // SAFETY: the index is below SLOTS, so the slot lies inside the mapping.
        unsafe { self.0.add(index * SLOT_BYTES) }
    }

    fn word(self, sequence: u64) -> &'static AtomicU64 {
        // SAFETY: slots are aligned to 128 bytes, mapped for the life of the process, and this
        // word is only accessed as an atomic.
        unsafe { &*self.slot(sequence).cast::<AtomicU64>() }
    }

    fn send(self, sequence: u64, payload: &[u8; PAYLOAD_BYTES]) {
        // SAFETY: payload and slot do not overlap, 8 + 72 bytes fit the slot.
        let to = unsafe { self.slot(sequence).add(8) };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, PAYLOAD_BYTES) };
        self.word(sequence).store(sequence, Ordering::Release);
    }

    fn receive(self, sequence: u64, payload: &mut [u8; PAYLOAD_BYTES]) {
        while self.word(sequence).load(Ordering::Acquire) != sequence {
            std::hint::spin_loop();
        }
        // SAFETY: the slot lies inside the mapping.
        let from = unsafe { self.slot(sequence).add(8) };
        // SAFETY: the writer is done with the slot (sequence word read with Acquire).
        unsafe { std::ptr::copy_nonoverlapping(from, payload.as_mut_ptr(), PAYLOAD_BYTES) };
    }
}

/// Median round trip of an 80-byte message, nanoseconds.
///
/// # Errors
/// Memory or a thread is not available.
pub fn message_round_trip(cpus: CpuPair, duration: Duration) -> Result<f64> {
    // SAFETY: a fresh anonymous mapping, leaked on purpose: the echoing thread is detached.
    let base = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            RING_BYTES * 2,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
        )
    }
    .context("mapping the floor's rings")?
    .cast::<u8>();
    let there = Ring(base);
    // SAFETY: the second ring starts inside the mapping.
    let back = Ring(unsafe { base.add(RING_BYTES) });
    let echo = std::thread::spawn(move || {
        let (there, back) = (there, back);
        cores::pin(cpus.server);
        let mut payload = [0; PAYLOAD_BYTES];
        for sequence in 1.. {
            there.receive(sequence, &mut payload);
            if payload[0] == 0xff {
                return;
            }
            back.send(sequence, &payload);
        }
    });
    cores::pin(cpus.client);
    let mut payload = [1; PAYLOAD_BYTES];
    let mut histogram = crate::histogram();
    let start = Instant::now();
    let mut sequence = 1;
    // Timed in batches: reading the clock costs a tenth of a round trip.
    const BATCH: u64 = 16;
    while start.elapsed() < duration {
        let batch = Instant::now();
        for _ in 0..BATCH {
            there.send(sequence, &payload);
            back.receive(sequence, &mut payload);
            sequence += 1;
        }
        let nanos = u64::try_from(batch.elapsed().as_nanos())?;
        histogram.record(nanos / BATCH)?;
    }
    payload[0] = 0xff;
    there.send(sequence, &payload);
    let _ = echo.join();
    Ok(crate::quantile(&histogram, 0.5))
}

/// Median round trip between two threads that sleep until the other signals their eventfd,
/// nanoseconds: mostly the time that the machine takes to wake a CPU.
///
/// # Errors
/// The echoing thread or an fd is not available.
pub fn wake_round_trip(cpus: CpuPair, duration: Duration) -> Result<f64> {
    const ENDS: u64 = 2;

    let eventfd = || eventfd(0, EventfdFlags::CLOEXEC).context("a floor's eventfd");
    let (there, back) = (eventfd()?, eventfd()?);
    let (asked, answer) = (there.try_clone()?, back.try_clone()?);
    let echo = std::thread::spawn(move || -> Result<()> {
        cores::pin(cpus.server);
        while wait(&asked)? < ENDS {
            ring(&answer, 1)?;
        }
        Ok(())
    });
    cores::pin(cpus.client);
    let mut histogram = crate::histogram();
    let start = Instant::now();
    while start.elapsed() < duration {
        let lap = Instant::now();
        ring(&there, 1)?;
        wait(&back)?;
        histogram.record(u64::try_from(lap.elapsed().as_nanos())?)?;
    }
    ring(&there, ENDS)?;
    echo.join().map_err(|_| anyhow::anyhow!("the echoing thread panicked"))??;
    Ok(crate::quantile(&histogram, 0.5))
}

fn ring(eventfd: &OwnedFd, value: u64) -> Result<()> {
    rustix::io::write(eventfd, &value.to_ne_bytes())?;
    Ok(())
}

/// Sleeps until it is signalled; returns the value.
fn wait(eventfd: &OwnedFd) -> Result<u64> {
    let mut value = [0; 8];
    rustix::io::read(eventfd, &mut value)?;
    Ok(u64::from_ne_bytes(value))
}

/// Threshold for the round trip of a cache line, nanoseconds: it is longer between two physical
/// cores, and shorter between threads of one.
const SIBLINGS_NANOS: f64 = 70.0;

/// Round trips timed together.
const LINE_BATCH: u64 = 64;

/// The round trip of a cache line, nanoseconds, and the kind of cores that it indicates.
///
/// # Errors
/// The echoing thread is not available.
pub fn line_round_trip(cpus: CpuPair, duration: Duration) -> Result<f64> {
    /// Alone on its cache lines.
    #[repr(align(256))]
    struct Line(AtomicU64);

    let line = Arc::new(Line(AtomicU64::new(0)));
    let echoed = Arc::clone(&line);
    let echo = std::thread::spawn(move || {
        cores::pin(cpus.server);
        // Odd values are requests, the even ones after them replies; the largest value ends the
        // loop.
        loop {
            match echoed.0.load(Ordering::Acquire) {
                u64::MAX => return,
                asked if asked % 2 == 1 => echoed.0.store(asked + 1, Ordering::Release),
                _ => std::hint::spin_loop(),
            }
        }
    });
    cores::pin(cpus.client);
    let mut histogram = crate::histogram();
    let start = Instant::now();
    let mut asked = 1;
    while start.elapsed() < duration {
        let batch = Instant::now();
        for _ in 0..LINE_BATCH {
            line.0.store(asked, Ordering::Release);
            while line.0.load(Ordering::Acquire) == asked {
                std::hint::spin_loop();
            }
            asked += 2;
        }
        let nanos = u64::try_from(batch.elapsed().as_nanos())?;
        histogram.record((nanos / LINE_BATCH).max(1))?;
    }
    line.0.store(u64::MAX, Ordering::Release);
    echo.join().map_err(|_| anyhow::anyhow!("the echoing thread panicked"))?;
    // The minimum shows the kind of cores, undisturbed.
    Ok(crate::quantile(&histogram, 0.1))
}

/// The relation of two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cores {
    /// Two physical cores.
    Separate,
    /// Two threads of one core.
    Siblings,
}

impl Cores {
    /// Classifies them by the round trip of a cache line.
    #[must_use]
    pub fn of(line_nanos: f64) -> Self {
        if line_nanos < SIBLINGS_NANOS { Self::Siblings } else { Self::Separate }
    }

    /// The consequence for measurements; none for two cores.
    #[must_use]
    pub fn remark(self) -> &'static str {
        match self {
            Self::Separate => "",
            Self::Siblings => "they share one core's units and caches",
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Separate => "two cores",
            Self::Siblings => "two threads of one core",
        })
    }
}
