//! DynamoDB as moto has it, behind nginx, which throttles, and a proxy that accepts a part of each batch.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Builder, Config, Credentials, Region};
use aws_sdk_dynamodb::operation::batch_get_item::BatchGetItemOutput;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, KeysAndAttributes, PutRequest,
    ScalarAttributeType, WriteRequest,
};
use axum::Router;
use axum::extract::State;
use bytes::Bytes;
use cookbook::dynamodb::{client, limiter, write};
use http::HeaderMap;
use paceline::{Class, Limiter, PacerConfig};
use paceline_aws::{Aws, Batch};
use paceline_http::client_to;
use serde_json::Value;

use super::nginx::Nginx;
use super::serve;

pub(crate) const TABLE: &str = "orders";

/// Of every tenth batch of 25 items the proxy accepts so many.
const ACCEPTED: usize = 15;

/// moto as a process, ended with the value.
pub(crate) struct Moto {
    process: Child,
    pub(crate) address: String,
}

impl Moto {
    pub(crate) fn start() -> Self {
        let python =
            std::env::var("MOTO_PYTHON").expect("MOTO_PYTHON names a Python with moto (scripts/test installs it)");
        let mut command = Command::new(python);
        command
            .args(["-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
            .stderr(Stdio::piped())
            .stdout(Stdio::null());
        let mut process = command.spawn().expect("moto");
        let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let address =
            lines.find_map(|line| Some(line.split_once("http://")?.1.to_owned())).expect("moto says where it listens");
        // Its log is read to the end, or it would block.
        std::thread::spawn(move || lines.count());
        Self { process, address }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It has ended already where this fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A proxy to moto that accepts a part of some batches, as a table does that runs out of capacity within them. With how many
/// batches came.
async fn proxy(moto: &str) -> (String, Arc<AtomicUsize>) {
    let batches = Arc::new(AtomicUsize::new(0));
    let came = Arc::clone(&batches);
    let (http, url) = (client_to("http://127.0.0.1").build().expect("a client"), format!("http://{moto}"));
    let forward = async move |State((http, url)): State<(reqwest::Client, String)>, headers: HeaderMap, body: Bytes| {
        let mut batch: Value = serde_json::from_slice(&body).expect("JSON");
        let requests = batch["RequestItems"][TABLE].as_array_mut().expect("a batch");
        let accepted = if came.fetch_add(1, Ordering::Relaxed).is_multiple_of(10) { ACCEPTED } else { requests.len() };
        let rest = requests.split_off(accepted.min(requests.len()));
        let sent = http
            .post(&url)
            .header("x-amz-target", &headers["x-amz-target"])
            .header("authorization", &headers["authorization"]);
        let answer = sent.body(batch.to_string()).send().await.expect("moto answers");
        assert!(answer.status().is_success(), "{answer:?}");
        let left = if rest.is_empty() { serde_json::json!({}) } else { serde_json::json!({ TABLE: rest }) };
        ([("content-type", "application/x-amz-json-1.0")], serde_json::json!({ "UnprocessedItems": left }).to_string())
    };
    (serve(Router::new().fallback(forward).with_state((http, url))).await, batches)
}

/// For the client of a program that calls that address.
pub(crate) fn config(url: &str) -> Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("eu-west-1"))
        .credentials_provider(Credentials::new("none", "none", None, None, "none"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(url)
}

pub(crate) async fn create_table(client: &Client) {
    let name = AttributeDefinition::builder()
        .attribute_name("id")
        .attribute_type(ScalarAttributeType::N)
        .build()
        .expect("whole");
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build().expect("whole");
    let table = client.create_table().table_name(TABLE).attribute_definitions(name).key_schema(key);
    table.billing_mode(BillingMode::PayPerRequest).send().await.expect("a table");
}

fn items(ids: std::ops::Range<u32>) -> Vec<WriteRequest> {
    let item = |id: u32| PutRequest::builder().item("id", AttributeValue::N(id.to_string())).build().expect("whole");
    ids.map(|id| WriteRequest::builder().put_request(item(id)).build()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_calls_in_flight_follow_what_the_table_takes() {
    let moto = Moto::start();
    let direct = client(config(&format!("http://{}", moto.address)));
    create_table(&direct).await;
    let (proxy, batches) = proxy(&moto.address).await;
    // nginx counts a call until it is logged, a moment after its answer.
    let wide = Nginx::limiting_calls_in_flight(20, &moto.address);
    let narrow = Nginx::limiting_calls_in_flight(4, &proxy);
    let limiter = limiter().expect("valid");
    let concurrency = || limiter.snapshot().scopes[0].concurrency.clone();

    write(&client(config(&wide.url)), &limiter, TABLE, items(0..5_000)).await.expect("all are written");
    let risen = concurrency();
    assert_eq!((risen.current_limit, risen.peak_active, risen.total_decreases), (16, 16, 0), "{risen:?}");

    write(&client(config(&narrow.url)), &limiter, TABLE, items(5_000..8_000)).await.expect("all are written");
    let fallen = concurrency();
    assert!(fallen.current_limit <= 8 && fallen.total_decreases > 0, "{fallen:?}");

    let mut pages = direct.scan().table_name(TABLE).into_paginator().items().send();
    let mut written = 0;
    while pages.next().await.transpose().expect("a page").is_some() {
        written += 1;
    }
    assert_eq!(written, 8_000);
    let (refused, partial) = (narrow.counts("400").1 as u64, batches.load(Ordering::Relaxed).div_ceil(10) as u64);
    let totals = limiter.snapshot().account.totals;
    assert_eq!(totals.by_class[Class::Throttled as usize], refused, "nothing but the limiter sends again");
    assert!((1..=partial).contains(&totals.by_class[Class::Partial as usize]), "{totals:?}");
    println!("measure dynamodb: sends={} refused={refused} limits={:?}", totals.sends, fallen.limit_history);
}

/// An answer has 16 MB at most: moto leaves the keys of the other items, as DynamoDB does.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_is_answered_in_part_is_read_to_its_end() {
    let moto = Moto::start();
    let client = client(config(&format!("http://{}", moto.address)));
    create_table(&client).await;
    let limiter = limiter().expect("valid");
    let number = |id: u32| AttributeValue::N(id.to_string());
    let large = AttributeValue::S("x".repeat(390_000));
    let item =
        |id: u32| PutRequest::builder().item("id", number(id)).item("text", large.clone()).build().expect("whole");
    let items = (0..60).map(|id| WriteRequest::builder().put_request(item(id)).build()).collect();
    write(&client, &limiter, TABLE, items).await.expect("all are written");

    let keys = (0..60).map(|id| HashMap::from([("id".to_owned(), number(id))])).collect();
    let keys = KeysAndAttributes::builder().set_keys(Some(keys)).build().expect("whole");
    let (batch, read) = (Batch::new(HashMap::from([(TABLE.to_owned(), keys)])), Mutex::new(HashSet::new()));
    let send = |keys| client.batch_get_item().set_request_items(Some(keys)).send();
    let rest = |answer: BatchGetItemOutput| {
        let rows = answer.responses.into_iter().flatten().flat_map(|(_, rows)| rows);
        read.lock().expect("no panic").extend(rows.map(|row| row["id"].as_n().expect("a number").clone()));
        answer.unprocessed_keys
    };
    limiter.run(|| batch.send(send, rest)).scope(TABLE).await.expect("all are read");
    assert_eq!(read.into_inner().expect("no panic").len(), 60);
    assert_eq!(limiter.snapshot().account.totals.by_class[Class::Partial as usize], 1);
}

/// The SDK says so in the causes of its error alone.
#[tokio::test]
async fn a_call_that_found_no_server_counts_as_no_try() {
    let limiter = Limiter::new(PacerConfig::default().with_max_retries(0)).expect("valid");
    let client = client(config("http://127.0.0.1:1"));
    let (tell, told) = tokio::sync::oneshot::channel();
    let mut tell = Some(tell);
    let call = limiter.run(|| client.describe_table().table_name(TABLE).send()).read_by(Aws);
    let call = call.notify(|again| {
        let reason = again.reason.unwrap_or_default().to_owned();
        tell.take().map(|tell| tell.send(reason));
    });
    tokio::select! {
        ended = call => panic!("{ended:?}"),
        reason = told => assert!(reason.expect("a reason").contains("refused")),
    }
}
