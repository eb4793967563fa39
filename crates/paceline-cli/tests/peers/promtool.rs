//! Prometheus's own tool reads what is for Prometheus: the page of metrics, and the alerts.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::gateway::Gateway;
use crate::bounded::{Bounded, TestBound};

#[test]
fn promtool_takes_the_metrics_and_the_alerts() {
    let _bound = TestBound::new();
    let gateway = Gateway::start("http://127.0.0.1:1", "[upstream.first]\nrpm = 60\n");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let page = runtime.block_on(async {
        let client = paceline_http::client_to(&gateway.url).build().expect("a client");
        let refused = client.get(format!("{}/first/things", gateway.url)).header("x-paceline-priority", "high").send();
        assert_eq!(refused.await.expect("an answer").status().as_u16(), 400);
        let page = client.get(format!("{}/metrics", gateway.url)).send().await.expect("an answer");
        page.text().await.expect("a body")
    });
    let mut promtool = Command::new("promtool");
    let mut child = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).spawn().expect("promtool is installed");
    child.stdin.take().expect("it is piped").write_all(page.as_bytes()).expect("it reads");
    assert!(child.ended().success(), "{page}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus");
    for (what, file) in [("check", "alerts.yml"), ("test", "alerts_test.yml")] {
        let status = Command::new("promtool").args([what, "rules"]).arg(folder.join(file)).ended();
        assert!(status.success(), "{what} {file}");
    }
}

/// What the alerts and the dashboard ask for is there.
#[test]
fn alerts_and_dashboard_name_metrics_that_exist() {
    let _bound = TestBound::new();
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    let metrics = [
        include_str!("../../../paceline-gateway/src/metrics.rs"),
        include_str!("../../../paceline-gateway/src/metrics/fleet.rs"),
        include_str!("../../../paceline-gateway/src/metrics/turned_away.rs"),
        include_str!("../../../paceline-gateway/src/conditions.rs"),
    ]
    .concat();
    for file in ["prometheus/alerts.yml", "grafana/paceline.json"] {
        let text = std::fs::read_to_string(contrib.join(file)).expect("it is there");
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for name in words.filter(|word| word.starts_with("paceline_")) {
            let name = name.trim_end_matches("_bucket");
            assert!(metrics.contains(&format!("\"{name}\"")), "{file}: {name}");
        }
    }
}
