//! What a message costs in each codec: its bytes, and the time to encode and decode it; and what it
//! costs to read it by a plan, as from an end whose types differ.
//!
//!     cargo run --release -p rpc-over-rdma --example codec_cost
//!
//! Compare the columns of one run: the time is the least of many rounds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rpc_core::Codec;
use rpc_core::service::Described;
use rpc_schema::Plan;
use rpc_schema::schema::Schema;
use rpc_transport::message::outgoing::OutBuf;

mod old {
    #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
    pub(super) struct Order {
        pub(super) id: u64,
        pub(super) customer: String,
        pub(super) street: String,
        pub(super) city: String,
        pub(super) items: Vec<u32>,
        pub(super) price: f64,
        pub(super) paid: bool,
    }

    #[rpc_core::service]
    pub(super) trait Orders {
        async fn put(&self, order: Order) -> u64;
    }
}

mod new {
    #[derive(Debug, serde::Deserialize, serde::Serialize)]
    pub(super) struct Order {
        pub(super) customer: String,
        pub(super) id: u64,
        #[serde(default)]
        pub(super) note: Option<String>,
        pub(super) street: String,
        pub(super) city: String,
        pub(super) items: Vec<u32>,
        #[serde(default)]
        pub(super) discount: u32,
        pub(super) price: f64,
        pub(super) paid: bool,
        #[serde(default)]
        pub(super) tags: Vec<String>,
    }

    #[rpc_core::service]
    pub(super) trait Orders {
        async fn put(&self, order: Order) -> u64;
    }
}

fn order() -> old::Order {
    old::Order {
        id: 4_294_967_296,
        customer: "Ada Lovelace".to_owned(),
        street: "12 St James's Square".to_owned(),
        city: "London".to_owned(),
        items: vec![7, 300, 70_000],
        price: 12.5,
        paid: true,
    }
}

/// Nanoseconds of one run, in the fastest of many rounds.
fn least(mut run: impl FnMut()) -> f64 {
    const RUNS: u32 = 2_000;
    let rounds = (0..200).map(|_| {
        let began = Instant::now();
        (0..RUNS).for_each(|_| run());
        began.elapsed()
    });
    rounds.min().unwrap_or(Duration::MAX).as_secs_f64() * 1e9 / f64::from(RUNS)
}

fn types<D: Described>() -> &'static Schema {
    D::service().methods[0].types().expect("they can be looked at")
}

fn main() {
    let order = order();
    let (writer, reader) = (types::<old::OrdersClient>(), types::<new::OrdersClient>());
    let [written, read] =
        [writer, reader].map(|types| types.arguments().next().expect("an argument").1);
    let plan = Plan::new(writer, written, reader, read).expect("they fit");
    println!(
        "{:<10}{:>8}{:>12}{:>12}{:>12}{:>8}",
        "", "bytes", "encode ns", "decode ns", "by plan", "ratio"
    );
    for codec in [Codec::Bincode, Codec::Postcard, Codec::MsgPack] {
        let mut message = OutBuf::new();
        codec.encode(&order, &mut message).expect("it is small");
        let bytes = message.to_vec();
        let encode = least(|| {
            let mut out = OutBuf::new();
            codec.encode(black_box(&order), &mut out).expect("it is small");
            black_box(&out);
        });
        let decode = least(|| {
            black_box(codec.decode::<old::Order>(black_box(&bytes))).expect("it is one");
        });
        print!("{:<10}{:>8}{encode:>12.0}{decode:>12.0}", format!("{codec:?}"), bytes.len());
        if codec == Codec::MsgPack {
            println!("{:>12}{:>8}", "-", "-");
            continue;
        }
        let by_plan = least(|| {
            let seed = plan.seed(std::marker::PhantomData::<new::Order>);
            black_box(codec.decode_seed(seed, black_box(&bytes))).expect("it fits");
        });
        println!("{by_plan:>12.0}{:>8.1}", by_plan / decode);
    }
}
