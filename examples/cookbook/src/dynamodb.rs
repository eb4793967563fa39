//! A table of DynamoDB is filled, and nothing of a batch is lost.

use std::collections::HashMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Builder, retry::RetryConfig};
use aws_sdk_dynamodb::operation::batch_write_item::BatchWriteItemError;
use aws_sdk_dynamodb::types::WriteRequest;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use paceline::{Concurrency, ConfigError, Limiter, Pace, PacerConfig, RunError};
use paceline_aws::{Batch, BatchError};

/// The most that DynamoDB takes at once.
const ITEMS: usize = 25;

/// Calls in flight follow from what the table takes: one more for each round trip, half as many after a throttle.
pub fn limiter() -> Result<Limiter, ConfigError> {
    let concurrency = Concurrency::Aimd { floor: 1, start: 4, max: 16 };
    Limiter::new(PacerConfig::default().with_pace(Pace::Aimd).with_concurrency(concurrency))
}

/// The limiter decides about retries: those of the SDK are off.
pub fn client(config: Builder) -> Client {
    Client::from_conf(config.retry_config(RetryConfig::disabled()).build())
}

/// Writes all items. Each batch is sent until the table has accepted every one of its items.
pub async fn write(
    client: &Client,
    limiter: &Limiter,
    table: &str,
    items: Vec<WriteRequest>,
) -> Result<(), RunError<BatchError<BatchWriteItemError>>> {
    let batches = items.chunks(ITEMS).map(|items| Batch::new(HashMap::from([(table.to_owned(), items.to_vec())])));
    let write = async |batch: Batch<_>| {
        let send = |items| client.batch_write_item().set_request_items(Some(items)).send();
        limiter.run(|| batch.send(send, |answer| answer.unprocessed_items)).scope(table).await
    };
    stream::iter(batches).map(write).buffer_unordered(64).try_collect().await
}
