//! `iceoryx2`: request and response in shared memory, payloads written into loaned slots. `poll`
//! polls for requests and responses all the time, `event` sleeps until the other side notifies. It
//! has no serialization and no table of calls: a hand-written loop reaches these numbers. Services
//! are sized to the calls in flight, since its cost grows with that size.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ::iceoryx2::pending_response::PendingResponse;
use ::iceoryx2::port::client::Client;
use ::iceoryx2::port::listener::Listener;
use ::iceoryx2::port::notifier::Notifier;
use ::iceoryx2::port::server::Server;
use ::iceoryx2::prelude::*;
use anyhow::{Result, anyhow, bail, ensure};
use rpc_perf::cores::CpuPair;
use rpc_perf::pages::look;

use crate::columns::{Column, Numbers};
use crate::measure::{
    self, FILL, IN_FLIGHT, LARGE_BYTES, Laps, Plan, SMALL_BYTES, small, sum_of_large,
};
use crate::row::{Row, served};
use crate::server;

pub(crate) fn rows() -> Vec<Row> {
    served("iceoryx2", ["poll", "event"], measure, serve)
}

type Pending = PendingResponse<ipc::Service, [u8], u64, [u8], ()>;

/// The operation of a request, in its header.
const ECHO: u64 = 0;
const PUT: u64 = 1;
const GET: u64 = 2;
const END: u64 = 3;

/// Each side listens at a service of its own.
struct Bell {
    notifier: Notifier<ipc::Service>,
    listener: Listener<ipc::Service>,
}

impl Bell {
    fn new(node: &Node<ipc::Service>, place: &str, rings: &str, listens: &str) -> Result<Self> {
        let service = |side: &str| {
            let name = format!("{place}-{side}");
            anyhow::Ok(node.service_builder(&name.as_str().try_into()?).event().open_or_create()?)
        };
        Ok(Self {
            notifier: service(rings)?.notifier_builder().create()?,
            listener: service(listens)?.listener_builder().create()?,
        })
    }
}

/// A place is a name, calls in flight and bytes of a payload.
fn parts(place: &str) -> Result<(usize, usize)> {
    let mut parts = place.rsplit(':');
    let mut number = || anyhow::Ok(parts.next().ok_or_else(|| anyhow!("no size"))?.parse()?);
    let bytes = number()?;
    Ok((number()?, bytes))
}

fn node() -> Result<Node<ipc::Service>> {
    set_log_level(LogLevel::Error);
    Ok(NodeBuilder::new().create::<ipc::Service>()?)
}

fn serve(row: Row, place: &str) -> Result<()> {
    let (in_flight, bytes) = parts(place)?;
    let node = node()?;
    let service = node
        .service_builder(&place.try_into()?)
        .request_response::<[u8], [u8]>()
        .request_user_header::<u64>()
        .max_active_requests_per_client(in_flight)
        .max_response_buffer_size(1)
        .max_borrowed_responses_per_pending_response(1)
        .max_clients(1)
        .max_servers(1)
        .create()?;
    let server: Server<ipc::Service, [u8], u64, [u8], ()> =
        service.server_builder().initial_max_slice_len(bytes).create()?;
    let bell = match row.over {
        "event" => Some(Bell::new(&node, place, "replies", "requests")?),
        _ => None,
    };
    let payload = vec![FILL; LARGE_BYTES];
    server::ready(place)?;
    loop {
        let mut answered = false;
        while let Some(request) = server.receive()? {
            let answer = |bytes: &[u8]| -> Result<()> {
                request.loan_slice_uninit(bytes.len())?.write_from_slice(bytes).send()?;
                Ok(())
            };
            match *request.user_header() {
                ECHO => answer(request.payload())?,
                PUT => answer(&look(request.payload()).to_le_bytes())?,
                GET => answer(&payload)?,
                _ => return Ok(()),
            }
            answered = true;
        }
        match &bell {
            Some(bell) => {
                if answered {
                    bell.notifier.notify()?;
                }
                bell.listener.blocking_wait(|_| {})?;
            }
            None => std::hint::spin_loop(),
        }
    }
}

fn measure(row: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let mut numbers = Numbers::default();
    with_server(row, "lone", 1, SMALL_BYTES, plan, cpus, |caller| {
        let mut laps = Laps::new(plan.duration);
        while laps.go_on()? {
            caller.run(ECHO, 1, Duration::ZERO)?;
        }
        measure::lone(&laps.histogram(), &mut numbers);
        Ok(())
    })?;
    with_server(row, "many", IN_FLIGHT, SMALL_BYTES, plan, cpus, |caller| {
        caller.run(ECHO, IN_FLIGHT, plan.duration / 4)?;
        numbers.set(Column::Rate, caller.run(ECHO, IN_FLIGHT, plan.duration)? / 1e3);
        Ok(())
    })?;
    with_server(row, "large", 4, LARGE_BYTES, plan, cpus, |caller| {
        for (column, what, in_flight) in [
            (Column::UpOne, PUT, 1),
            (Column::UpFour, PUT, 4),
            (Column::DownOne, GET, 1),
            (Column::DownFour, GET, 4),
        ] {
            caller.run(what, in_flight, plan.duration / 4)?;
            let rate = caller.run(what, in_flight, plan.duration)?;
            numbers.set(column, rate * LARGE_BYTES as f64 / 1e9);
        }
        Ok(())
    })?;
    Ok(numbers)
}

fn with_server(
    row: Row,
    name: &str,
    in_flight: usize,
    bytes: usize,
    plan: &Plan,
    cpus: CpuPair,
    measure: impl FnOnce(&mut Caller) -> Result<()>,
) -> Result<()> {
    let place = format!("peers-{}-{}-{name}:{in_flight}:{bytes}", std::process::id(), row.over);
    let mut server = server::start(row, &place, cpus)?;
    let mut caller = Caller::new(row, &place, bytes, plan)?;
    measure(&mut caller)?;
    // A server that is killed leaves its memory behind.
    let pending = caller.send(END)?;
    caller.ring()?;
    let deadline = Instant::now() + plan.patience();
    while server.ended()?.is_none() {
        ensure!(Instant::now() < deadline, "its server does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(pending);
    Ok(())
}

struct Caller {
    client: Client<ipc::Service, [u8], u64, [u8], ()>,
    bell: Option<Bell>,
    payload: Vec<u8>,
    patience: Duration,
    slots: VecDeque<Pending>,
}

impl Caller {
    fn new(row: Row, place: &str, bytes: usize, plan: &Plan) -> Result<Self> {
        let node = node()?;
        let service = node
            .service_builder(&place.try_into()?)
            .request_response::<[u8], [u8]>()
            .request_user_header::<u64>()
            .open()?;
        let client = service.client_builder().initial_max_slice_len(bytes).create()?;
        let bell = match row.over {
            "event" => Some(Bell::new(&node, place, "requests", "replies")?),
            _ => None,
        };
        let payload = vec![FILL; LARGE_BYTES];
        Ok(Self { client, bell, payload, patience: plan.patience(), slots: VecDeque::new() })
    }

    fn send(&self, what: u64) -> Result<Pending> {
        let small = small();
        let bytes: &[u8] = if what == PUT { &self.payload } else { &small };
        let mut request = self.client.loan_slice_uninit(bytes.len())?.write_from_slice(bytes);
        *request.user_header_mut() = what;
        let pending = request.send()?;
        ensure!(pending.number_of_server_connections() == 1, "the server is gone");
        Ok(pending)
    }

    fn ring(&self) -> Result<()> {
        if let Some(bell) = &self.bell {
            bell.notifier.notify()?;
        }
        Ok(())
    }

    /// Calls per second, each slot's one after the other; each slot has at least one call.
    fn run(&mut self, what: u64, in_flight: usize, duration: Duration) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..in_flight {
            let pending = self.send(what)?;
            self.slots.push_back(pending);
        }
        self.ring()?;
        let (mut calls, mut idle) = (0_u64, 0_u32);
        while !self.slots.is_empty() {
            let (mut sent, mut done) = (false, false);
            let again = start.elapsed() < duration;
            for _ in 0..self.slots.len() {
                let Some(pending) = self.slots.pop_front() else { break };
                let Some(reply) = pending.receive()? else {
                    self.slots.push_back(pending);
                    continue;
                };
                check(what, reply.payload())?;
                drop(reply);
                drop(pending);
                calls += 1;
                done = true;
                if again {
                    let pending = self.send(what)?;
                    self.slots.push_back(pending);
                    sent = true;
                }
            }
            if sent {
                self.ring()?;
            }
            idle = if done { 0 } else { idle + 1 };
            if !done && !self.slots.is_empty() {
                self.wait(idle, start + duration)?;
            }
        }
        Ok(calls as f64 / start.elapsed().as_secs_f64())
    }

    /// Waits for a reply; fails long after the end.
    fn wait(&self, idle: u32, end: Instant) -> Result<()> {
        if let Some(bell) = &self.bell {
            bell.listener.timed_wait(|_| {}, self.patience)?;
        } else {
            std::hint::spin_loop();
            if !idle.is_multiple_of(1 << 16) {
                return Ok(());
            }
        }
        if Instant::now() > end + self.patience {
            bail!("it hangs");
        }
        Ok(())
    }
}

fn check(what: u64, reply: &[u8]) -> Result<()> {
    match what {
        ECHO => ensure!(reply == small(), "the echo is not what was sent"),
        PUT => {
            ensure!(reply == sum_of_large().to_le_bytes(), "the server has read something else");
        }
        _ => ensure!(
            reply.len() == LARGE_BYTES && look(reply) == sum_of_large(),
            "what arrived is something else"
        ),
    }
    Ok(())
}
