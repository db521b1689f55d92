//! Errors and streams on their way through three services in a row, each in a process of its own.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use rpc_core::stream::{self, StreamEnd};
use rpc_core::{CallError, Code, Status};
use tests::chain::{OrdersClient, ShopClient, ShopError, StockClient, StockError};
use tests::flow::marked;
use tests::probe::Mark;
use tests::process::OPEN;
use tests::scheme::Scheme;
use tests::world::{World, start_server};
use tokio::sync::oneshot;

use crate::SERVER;

between_processes! {
    a_result_and_every_error_come_through,
    a_dead_middle_service_is_named,
    a_deadline_holds_for_the_whole_chain,
    a_dead_middle_ends_both_stream_sides,
    a_dead_middle_ends_both_upload_sides,
    a_dropped_stream_stops_through_two_hops,
}

/// The three servers, the first one last, and clients of each.
struct Row {
    stock: World,
    orders: World,
    _shop: World,
    ask_stock: StockClient,
    ask_orders: OrdersClient,
    ask_shop: ShopClient,
}

async fn row(scheme: Scheme) -> Row {
    let stock = World::start(SERVER, scheme).await;
    let orders = World::start_with(SERVER, scheme, &["--next", &stock.address]).await;
    let shop = World::start_with(SERVER, scheme, &["--next", &orders.address]).await;
    let ask_stock = stock.channel_with(|builder| builder).await.into();
    let ask_orders = orders.channel_with(|builder| builder).await.into();
    let ask_shop = shop.channel_with(|builder| builder).await.into();
    Row { stock, orders, _shop: shop, ask_stock, ask_orders, ask_shop }
}

async fn buy(shop: &ShopClient, article: &str) -> Result<u32, Status> {
    Ok(shop.buy(article).await?)
}

async fn a_result_and_every_error_come_through(scheme: Scheme) {
    let row = row(scheme).await;
    let Row { ask_stock, ask_orders, ask_shop, .. } = &row;
    assert_eq!(buy(ask_shop, "apple").await, Ok(9));

    // The method's own error: unchanged, converted to another one, and converted to a status.
    let empty = StockError::Empty("plum".to_owned());
    assert_eq!(ask_orders.place("plum").await, Err(CallError::User(empty.clone())));
    let sold_out = ShopError::SoldOut("plum".to_owned());
    assert_eq!(ask_shop.basket("plum").await, Err(CallError::User(sold_out)));
    assert_eq!(buy(ask_shop, "plum").await, Err(empty.into()));

    // A status: code and details stay, the text names the hops.
    let full =
        |text: &str| Status::resource_exhausted(text.to_owned()).with_details(b"shelf 9".to_vec());
    let seen = ask_stock.reserve("full").await;
    assert_eq!(seen, Err(full("the shelf is full").with_retryable(true).into()));
    let seen = ask_orders.place("full").await;
    assert_eq!(seen, Err(full("Stock.reserve: the shelf is full").into()));
    let far = full("Orders.place: Stock.reserve: the shelf is full");
    assert_eq!(buy(ask_shop, "full").await, Err(far.clone()));
    assert_eq!(ask_shop.basket("full").await, Err(far.into()));
    let far = full("Orders.quote: Stock.reserve: the shelf is full").with_retryable(true);
    assert_eq!(
        ask_shop.price("full").await.map_err(Status::from),
        Err(far),
        "all of them may be done again"
    );
    let bare = Status::not_found("Orders.place: Stock.reserve");
    assert_eq!(buy(ask_shop, "bare").await, Err(bare));
    let bug = Status::internal("Orders.place: Stock.reserve: the handler panicked");
    assert_eq!(buy(ask_shop, "bug").await, Err(bug));
}

async fn a_dead_middle_service_is_named(scheme: Scheme) {
    let mut row = row(scheme).await;
    assert_eq!(buy(&row.ask_shop, "apple").await, Ok(9));
    row.stock.process().kill().await;
    let status = loop {
        match buy(&row.ask_shop, "apple").await {
            // The servers may notice a little later.
            Ok(sold) => assert_eq!(sold, 9),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().starts_with("Orders.place: Stock.reserve: "), "{status}");
    assert!(!status.is_retryable(), "two handlers have run: {status}");
}

async fn a_deadline_holds_for_the_whole_chain(scheme: Scheme) {
    let row = row(scheme).await;
    let late = row.ask_shop.buy("slow").timeout(Duration::from_millis(50)).await;
    let status = Status::from(late.expect_err("nobody answers"));
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(buy(&row.ask_shop, "apple").await, Ok(9));
}

async fn a_dead_middle_ends_both_stream_sides(scheme: Scheme) {
    let mut row = row(scheme).await;
    let flow = row.stock.flow().await;
    let mut numbers = row.ask_shop.pass_twice(1, 10).await.expect("accepted");
    for number in 0..10 {
        assert_eq!(numbers.next().await, Some(Ok(number)));
    }
    marked(&flow, 1, Mark::Started).await;
    row.orders.process().kill().await;
    let status = Status::from(numbers.next().await.expect("no clean end").expect_err("it is dead"));
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().starts_with("Passage.pass: "), "{status}");
    assert!(!status.is_retryable(), "two handlers have run: {status}");
    assert_eq!(numbers.end(), Some(StreamEnd::Failed), "the nearest server lives");
    marked(&flow, 1, Mark::Cancelled).await;

    // The existing channels find its successor.
    let options = ["--next", &*row.stock.address];
    let _again = start_server(SERVER, &row.orders.address, &options).await;
    let mut numbers = loop {
        let mut numbers = row.ask_shop.pass_twice(2, 1).await.expect("the nearest server lives");
        match numbers.next().await.expect("no clean end") {
            Ok(number) => {
                assert_eq!(number, 0);
                break numbers;
            }
            Err(error) => assert_eq!(Status::from(error).code(), Code::Unavailable),
        }
    };
    row.stock.process().command(&format!("{OPEN} 2")).await;
    assert_eq!(numbers.next().await, Some(Ok(1)));
    assert_eq!(numbers.next().await, None);
}

async fn a_dead_middle_ends_both_upload_sides(scheme: Scheme) {
    let mut row = row(scheme).await;
    let flow = row.stock.flow().await;
    let (flows, flowing) = oneshot::channel();
    let (mut flows, held) = (Some(flows), Arc::new(()));
    let source = Arc::clone(&held);
    // More than fits the windows of two hops, so the far end reads; after that it never ends.
    let rows = stream::iter(0..2000).chain(futures::stream::poll_fn(move |_| {
        let _held = &source;
        flows.take().map(|flows| flows.send(()));
        Poll::Pending
    }));
    let filling = tokio::spawn(row.ask_shop.fill_twice(1, rows).start());
    flowing.await.expect("the source is read");
    row.orders.process().kill().await;
    let status = filling.await.expect("no panic").expect_err("the middle is dead");
    let status = Status::from(status);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().starts_with("Passage.fill: "), "{status}");
    assert_eq!(Arc::strong_count(&held), 1, "nobody sends any more");
    let seen = flow.observed(1).await.expect("the server notices");
    assert!(seen.ends_with("dropped") || seen.contains("Disconnected"), "{seen}");
}

async fn a_dropped_stream_stops_through_two_hops(scheme: Scheme) {
    let row = row(scheme).await;
    let flow = row.stock.flow().await;
    let mut numbers = row.ask_shop.pass_twice(1, 10).await.expect("accepted");
    assert_eq!(numbers.next().await, Some(Ok(0)));
    // Only a waiting handler reports its end.
    marked(&flow, 1, Mark::Started).await;
    drop(numbers);
    marked(&flow, 1, Mark::Cancelled).await;
}
