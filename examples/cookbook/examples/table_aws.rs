//! The same with the adaptive retries of the SDK.

use aws_sdk_dynamodb::config::{Builder, Credentials, Region, retry::RetryConfig};
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use futures_util::future::try_join_all;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: table_aws URL")?;
    let config = Builder::new().endpoint_url(url).region(Region::new("eu-west-1")).behavior_version_latest();
    let config = config.credentials_provider(Credentials::new("none", "none", None, None, "none"));
    let config = config.http_client(aws_smithy_http_client::Builder::new().build_http());
    let client = Client::from_conf(config.retry_config(RetryConfig::adaptive().with_max_attempts(8)).build());
    let put =
        async |n: u32| client.put_item().table_name("orders").item("id", AttributeValue::N(n.to_string())).send().await;
    println!("{} items", try_join_all((0..100).map(put)).await?.len());
    Ok(())
}
