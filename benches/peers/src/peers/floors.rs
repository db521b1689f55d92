//! The floors: the raw speed of the machine without a framework. Two threads, since memory and
//! sockets do not know the difference; the floors of shared memory and of eventfds come from
//! `rpc-perf`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use anyhow::{Result, anyhow, ensure};
use rpc_perf::cores::{self, CpuPair};
use rpc_perf::floor;

use crate::columns::{Column, Numbers};
use crate::measure::{self, LARGE_BYTES, Laps, Plan, SMALL_BYTES, small};
use crate::row::Row;

pub(crate) fn rows() -> Vec<Row> {
    let row = |over, measure| Row { peer: "floor", over, measure, serve: None };
    vec![
        row("message", message),
        row("eventfd", eventfd),
        row("unix", unix),
        row("tcp", tcp),
        row("one-copy", one_copy),
        row("two-copies", two_copies),
    ]
}

/// 80 bytes each way through shared memory, by polling.
fn message(_: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let mut numbers = Numbers::default();
    numbers.set(Column::P50, floor::message_round_trip(cpus, plan.duration)? / 1e3);
    Ok(numbers)
}

/// Two threads that sleep until the other one rings.
fn eventfd(_: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let mut numbers = Numbers::default();
    numbers.set(Column::P50, floor::wake_round_trip(cpus, plan.duration)? / 1e3);
    Ok(numbers)
}

/// One slot that the sender copies into, and the receiver samples.
fn one_copy(_: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let rate = floor::large::one_copy(cpus, LARGE_BYTES, plan.duration)? / 1e9;
    let mut numbers = Numbers::default();
    numbers.set(Column::UpOne, rate);
    numbers.set(Column::DownOne, rate);
    Ok(numbers)
}

/// Four slots in turn, copied into and out of.
fn two_copies(_: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let rate = floor::large::two_copies(cpus, LARGE_BYTES, plan.duration)? / 1e9;
    let mut numbers = Numbers::default();
    numbers.set(Column::UpFour, rate);
    numbers.set(Column::DownFour, rate);
    Ok(numbers)
}

fn unix(_: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let (near, far) = UnixStream::pair()?;
    ping_pong(near, far, plan, cpus)
}

fn tcp(_: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    ping_pong(near, far, plan, cpus)
}

/// 64 bytes in both directions through blocking sockets.
fn ping_pong<S: Read + Write + Send + 'static>(
    mut near: S,
    mut far: S,
    plan: &Plan,
    cpus: CpuPair,
) -> Result<Numbers> {
    let echo = std::thread::spawn(move || {
        cores::pin(cpus.server);
        let mut data = [0; SMALL_BYTES];
        // Ends with the stream.
        while far.read_exact(&mut data).is_ok() && far.write_all(&data).is_ok() {}
    });
    cores::pin(cpus.client);
    let data = small();
    let mut back = [0; SMALL_BYTES];
    let mut laps = Laps::new(plan.duration);
    while laps.go_on()? {
        near.write_all(&data)?;
        near.read_exact(&mut back)?;
        ensure!(back == data, "the echo is not what was sent");
    }
    drop(near);
    echo.join().map_err(|_| anyhow!("the echoing thread panicked"))?;
    let mut numbers = Numbers::default();
    measure::lone(&laps.histogram(), &mut numbers);
    Ok(numbers)
}
