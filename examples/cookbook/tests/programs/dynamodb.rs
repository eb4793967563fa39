//! A table in memory behind the SDK's client.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_dynamodb::types::{AttributeValue, PutRequest, WriteRequest};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use cookbook::dynamodb::{client, limiter, write};
use paceline::Class;
use paceline::testing::{MockAnswer, MockApi, ProviderConfig, block_on};
use serde_json::{Value, json};

/// Accepts all but the last ten items of a batch, and less where fewer come.
#[derive(Clone, Debug)]
struct Table {
    api: MockApi,
    written: Arc<Mutex<BTreeSet<u64>>>,
}

impl HttpConnector for Table {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let table = self.clone();
        HttpConnectorFuture::new(async move {
            let answer = table.api.call().await.map_err(|error| ConnectorError::io(error.into()))?;
            let (status, mut body) = (answer.status().as_u16(), answer.into_body());
            if status == 200 {
                let batch: Value = serde_json::from_slice(request.body().bytes().expect("in memory")).expect("JSON");
                let items = batch["RequestItems"]["orders"].as_array().expect("a batch");
                let (accepted, rest) = items.split_at(items.len().saturating_sub(10).max(1));
                let id =
                    |item: &Value| item["PutRequest"]["Item"]["id"]["N"].as_str().and_then(|id| id.parse::<u64>().ok());
                table.written.lock().expect("no panic").extend(accepted.iter().map(|item| id(item).expect("a number")));
                let rest = if rest.is_empty() { json!({}) } else { json!({ "orders": rest }) };
                body = json!({ "UnprocessedItems": rest }).to_string();
            }
            Ok(HttpResponse::new(status.try_into().expect("a status"), body.into()))
        })
    }
}

#[test]
fn every_item_is_written_although_calls_are_throttled_and_batches_accepted_in_part() {
    let table = Table { api: MockApi::new(ProviderConfig::default()).expect("no limit"), written: Arc::default() };
    let throttle = |exception: &str| {
        let body = json!({ "__type": format!("com.amazonaws.dynamodb.v20120810#{exception}"), "message": "no" });
        MockAnswer::status(400).body(&body.to_string())
    };
    let throttles = [throttle("ProvisionedThroughputExceededException"), throttle("ThrottlingException")];
    table.api.answer_next([MockAnswer::status(500), MockAnswer::reset()].into_iter().chain(throttles));
    let connector = table.clone();
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("eu-west-1"))
        .credentials_provider(Credentials::new("none", "none", None, None, "none"))
        .http_client(http_client_fn(move |_, _| SharedHttpConnector::new(connector.clone())));
    let item = |id: u32| PutRequest::builder().item("id", AttributeValue::N(id.to_string())).build().expect("whole");
    let items = (0..100).map(|id| WriteRequest::builder().put_request(item(id)).build()).collect();
    block_on(async {
        let limiter = limiter().expect("valid");
        write(&client(config), &limiter, "orders", items).await.expect("all are written");
        let classes = limiter.snapshot().account.totals.by_class;
        assert_eq!((classes[Class::Throttled as usize], classes[Class::Transient as usize]), (2, 2));
        assert!(classes[Class::Partial as usize] >= 4, "{classes:?}");
    });
    assert_eq!(*table.written.lock().expect("no panic"), (0..100).collect());
}
