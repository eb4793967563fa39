//! A hundred items for a table of DynamoDB.

use aws_sdk_dynamodb::config::{Builder, Credentials, Region, retry::RetryConfig};
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use futures_util::future::try_join_all;
use paceline::{Limiter, Quota};
use paceline_aws::Aws;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: table URL")?;
    let config = Builder::new().endpoint_url(url).region(Region::new("eu-west-1")).behavior_version_latest();
    let config = config.credentials_provider(Credentials::new("none", "none", None, None, "none"));
    let config = config.http_client(aws_smithy_http_client::Builder::new().build_http());
    let client = Client::from_conf(config.retry_config(RetryConfig::disabled()).build());
    let limiter = Limiter::new(Quota::per_second(50).burst(50))?;
    let put = async |n: u32| {
        let put = || client.put_item().table_name("orders").item("id", AttributeValue::N(n.to_string())).send();
        limiter.run(put).read_by(Aws).scope("orders").await
    };
    println!("{} items", try_join_all((0..100).map(put)).await?.len());
    Ok(())
}
