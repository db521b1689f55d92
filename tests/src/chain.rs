//! Three services in a row, each of which calls the next: how an error changes on its way back.

use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{CallError, Channel, Code, Status};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::flow::FlowClient;
use crate::limit::patient_channel;

/// Why nothing was reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StockError {
    /// Out of stock; the article.
    #[error("nothing is left of {0}")]
    Empty(String),
}

impl From<StockError> for Status {
    fn from(error: StockError) -> Self {
        Self::failed_precondition(error.to_string())
    }
}

/// Why nothing was bought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ShopError {
    /// An article is not there.
    #[error("sold out: {0}")]
    SoldOut(String),
}

impl From<StockError> for ShopError {
    fn from(StockError::Empty(article): StockError) -> Self {
        Self::SoldOut(article)
    }
}

/// The last of the three.
#[rpc_core::service]
pub trait Stock {
    /// Reserves an article, or fails as the article's name demands.
    async fn reserve(&self, article: &str) -> Result<u32, CallError<StockError>>;
}

/// The second.
#[rpc_core::service]
pub trait Orders {
    /// Calls [`Stock::reserve`].
    async fn place(&self, article: &str) -> Result<u32, CallError<StockError>>;
    /// Calls [`Stock::reserve`]; idempotent.
    #[rpc(idempotent)]
    async fn quote(&self, article: &str) -> Result<u32, CallError<StockError>>;
}

/// The first.
#[rpc_core::service]
pub trait Shop {
    /// Calls [`Orders::place`] and has no error of its own.
    async fn buy(&self, article: &str) -> Result<u32, Status>;
    /// Calls [`Orders::place`] and has another error.
    async fn basket(&self, article: &str) -> Result<u32, CallError<ShopError>>;
    /// Calls [`Orders::quote`]; idempotent.
    #[rpc(idempotent)]
    async fn price(&self, article: &str) -> Result<u32, Status>;
    /// Forwards the stream of [`Passage::pass`].
    fn pass_twice(&self, tag: u64, items: u64) -> impl Stream<Item = Result<u64, Status>>;
    /// Forwards `rows` to [`Passage::fill`].
    async fn fill_twice(&self, tag: u64, rows: Streaming<u64>) -> Result<u64, Status>;
}

/// The middle of streams.
#[rpc_core::service]
pub trait Passage {
    /// Forwards the stream of [`Flow::hold`](crate::flow::Flow::hold).
    fn pass(&self, tag: u64, items: u64) -> impl Stream<Item = Result<u64, Status>>;
    /// Forwards `rows` to [`Flow::observe`](crate::flow::Flow::observe).
    async fn fill(&self, tag: u64, rows: Streaming<u64>) -> Result<u64, Status>;
}

/// All three services in one process; the next process has the services that they call.
#[derive(Debug, Default)]
pub struct Chain {
    next: Option<String>,
    channel: OnceCell<Channel>,
}

impl Chain {
    /// Services that call those at `next`.
    #[must_use]
    pub fn new(next: Option<String>) -> Self {
        Self { next, channel: OnceCell::new() }
    }

    async fn next(&self) -> Result<Channel, Status> {
        let address = self.next.as_ref().ok_or_else(|| Status::internal("there is no next"))?;
        let connect = || patient_channel().connect(address);
        let channel = self.channel.get_or_try_init(connect).await;
        channel.cloned().map_err(|error| Status::unavailable(error.to_string()))
    }
}

impl Stock for Chain {
    async fn reserve(&self, article: &str) -> Result<u32, CallError<StockError>> {
        match article {
            "apple" => Ok(7),
            "full" => {
                let status = Status::resource_exhausted("the shelf is full");
                Err(status.with_details(b"shelf 9".to_vec()).with_retryable(true))?
            }
            "bare" => Err(Status::from(Code::NotFound))?,
            "slow" => std::future::pending().await,
            "bug" => panic!("on purpose"),
            _ => Err(CallError::User(StockError::Empty(article.to_owned()))),
        }
    }
}

impl Orders for Chain {
    async fn place(&self, article: &str) -> Result<u32, CallError<StockError>> {
        Ok(StockClient::from(self.next().await?).reserve(article).await? + 1)
    }

    async fn quote(&self, article: &str) -> Result<u32, CallError<StockError>> {
        self.place(article).await
    }
}

impl Shop for Chain {
    async fn buy(&self, article: &str) -> Result<u32, Status> {
        Ok(OrdersClient::from(self.next().await?).place(article).await? + 1)
    }

    async fn basket(&self, article: &str) -> Result<u32, CallError<ShopError>> {
        let orders = OrdersClient::from(self.next().await?);
        Ok(orders.place(article).await.map_err(CallError::user_into)? + 1)
    }

    async fn price(&self, article: &str) -> Result<u32, Status> {
        Ok(OrdersClient::from(self.next().await?).quote(article).await? + 1)
    }

    fn pass_twice(&self, tag: u64, items: u64) -> impl Stream<Item = Result<u64, Status>> {
        stream::try_stream(async move |mut out| {
            let next = PassageClient::from(self.next().await?);
            let mut numbers = next.pass(tag, items).await?;
            while let Some(number) = numbers.try_next().await? {
                out.send(number).await?;
            }
            Ok(())
        })
    }

    async fn fill_twice(&self, tag: u64, rows: Streaming<u64>) -> Result<u64, Status> {
        Ok(PassageClient::from(self.next().await?).fill(tag, rows).await?)
    }
}

impl Passage for Chain {
    fn pass(&self, tag: u64, items: u64) -> impl Stream<Item = Result<u64, Status>> {
        stream::try_stream(async move |mut out| {
            let mut numbers = FlowClient::from(self.next().await?).hold(tag, items).await?;
            while let Some(number) = numbers.try_next().await? {
                out.send(number).await?;
            }
            Ok(())
        })
    }

    async fn fill(&self, tag: u64, rows: Streaming<u64>) -> Result<u64, Status> {
        FlowClient::from(self.next().await?).observe(tag, rows).await
    }
}
