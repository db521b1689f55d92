//! Errors on their way through three services in a row, each in a process of its own.

use std::time::Duration;

use rpc_core::{CallError, Code, Status};
use tests::chain::{OrdersClient, ShopClient, ShopError, StockClient, StockError};
use tests::scheme::Scheme;
use tests::world::World;

use crate::SERVER;

between_processes! {
    a_result_and_every_error_come_through,
    a_service_in_the_middle_that_dies_is_named,
    a_deadline_holds_for_the_whole_chain,
}

/// The three servers, the first one last, and clients of each.
struct Row {
    stock: World,
    _orders: World,
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
    Row { stock, _orders: orders, _shop: shop, ask_stock, ask_orders, ask_shop }
}

async fn buy(shop: &ShopClient, article: &str) -> Result<u32, Status> {
    Ok(shop.buy(article).await?)
}

async fn a_result_and_every_error_come_through(scheme: Scheme) {
    let row = row(scheme).await;
    let Row { ask_stock, ask_orders, ask_shop, .. } = &row;
    assert_eq!(buy(ask_shop, "apple").await, Ok(9));

    // The method's own error: as it is, converted to another, and to a status.
    let empty = StockError::Empty("plum".to_owned());
    assert_eq!(ask_orders.place("plum").await, Err(CallError::User(empty.clone())));
    let sold_out = ShopError::SoldOut("plum".to_owned());
    assert_eq!(ask_shop.basket("plum").await, Err(CallError::User(sold_out)));
    assert_eq!(buy(ask_shop, "plum").await, Err(empty.into()));

    // A status: code and details stay, the text says the hops.
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

async fn a_service_in_the_middle_that_dies_is_named(scheme: Scheme) {
    let mut row = row(scheme).await;
    assert_eq!(buy(&row.ask_shop, "apple").await, Ok(9));
    row.stock.process().kill().await;
    let status = loop {
        match buy(&row.ask_shop, "apple").await {
            // The servers may find out a little later.
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
