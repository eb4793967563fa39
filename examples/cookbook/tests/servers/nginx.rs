//! nginx in a folder of its own, stopped with the value.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::Command;

/// Where it listens for what it does not log.
const SOCKET: &str = "quiet";

pub(crate) struct Nginx {
    folder: tempfile::TempDir,
    pub(crate) url: String,
}

impl Nginx {
    /// Twenty calls a second and as many at once; every refusal is a 429 that asks for a second.
    pub(crate) fn limiting_rate(upstream: &str) -> Self {
        Self::limiting_rate_of("", &format!("proxy_pass http://{upstream};"))
    }

    /// The same for gRPC.
    pub(crate) fn limiting_grpc(upstream: &str) -> Self {
        Self::limiting_rate_of("http2", &format!("grpc_pass grpc://{upstream};"))
    }

    fn limiting_rate_of(protocol: &str, pass: &str) -> Self {
        let zone = "limit_req_zone $server_name zone=all:1m rate=20r/s; limit_req_status 429;";
        let refusal = "add_header Retry-After 1 always; return 429 '{\"error\":{\"message\":\"slow down\"}}';";
        Self::start(zone, protocol, &format!("limit_req zone=all burst=20 nodelay; {pass}"), refusal)
    }

    /// So many calls in flight; more are what DynamoDB calls a throttle.
    pub(crate) fn limiting_calls_in_flight(calls: u32, upstream: &str) -> Self {
        let zone = "limit_conn_zone $server_name zone=all:1m; limit_conn_status 429;";
        let refusal =
            "return 400 '{\"__type\":\"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException\"}';";
        Self::start(zone, "", &format!("limit_conn all {calls}; proxy_pass http://{upstream};"), refusal)
    }

    /// Returns when nginx listens: as a daemon it goes to the background only after that.
    fn start(zone: &str, protocol: &str, rule: &str, refusal: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join(SOCKET).display().to_string();
        for _ in 0..5 {
            // Free a moment ago: another process may take it first.
            let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
            let config = format!(
                "master_process off; pid nginx.pid; error_log error.log; events {{ worker_connections 1024; }}
                http {{
                    client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
                    log_format status '$status'; access_log access.log status; {zone}
                    server {{
                        listen 127.0.0.1:{port} backlog=1024 {protocol}; server_name limited;
                        location / {{ {rule} error_page 429 = @refused; proxy_buffering off; }}
                        location @refused {{ default_type application/json; {refusal} }}
                    }}
                    server {{ listen unix:{socket}; access_log off; return 204; }}
                }}"
            );
            fs::write(folder.path().join("nginx.conf"), config).expect("writing nginx.conf");
            if nginx(&folder, &[]) {
                return Self { folder, url: format!("http://127.0.0.1:{port}") };
            }
        }
        panic!("nginx does not start: {:?}", fs::read_to_string(folder.path().join("error.log")));
    }

    /// All calls, and those with that status. nginx writes its log right after an answer and before it turns to anything else:
    /// so it is asked for something else first.
    pub(crate) fn counts(&self, status: &str) -> (usize, usize) {
        let mut nginx = UnixStream::connect(self.folder.path().join(SOCKET)).expect("nginx listens");
        nginx.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("nginx reads");
        nginx.read_to_end(&mut Vec::new()).expect("nginx answers");
        let log = fs::read_to_string(self.folder.path().join("access.log")).expect("an access log");
        (log.lines().count(), log.lines().filter(|line| *line == status).count())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        nginx(&self.folder, &["-s", "stop"]);
    }
}

fn nginx(folder: &tempfile::TempDir, arguments: &[&str]) -> bool {
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder.path()).args(["-e", "error.log", "-c", "nginx.conf"]).args(arguments);
    command.status().expect("nginx is on the PATH (scripts/test installs it)").success()
}
