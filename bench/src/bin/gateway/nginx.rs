//! The peer: nginx as a proxy with a limit that never binds, and nothing kept back.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

use crate::server::Server;

/// `nginx` before the server, killed with the value.
pub(crate) struct Nginx {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Nginx {
    pub(crate) fn start(server: &Server) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr()).expect("a port").port();
        let behind = server.url().trim_start_matches("http://").trim_end_matches("/v1");
        let text = format!(
            "daemon off; master_process off; pid nginx.pid;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n\
             access_log off; keepalive_requests 10000000; proxy_buffering off; proxy_temp_path proxy;\n\
             client_body_temp_path body; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
             limit_req_zone $server_name zone=all:1m rate=1000000r/s;\n\
             upstream behind {{ server {behind}; keepalive 128; keepalive_requests 10000000; }}\n\
             server {{ listen 127.0.0.1:{port}; location / {{\n\
             limit_req zone=all burst=10000; proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection '';\n\
             }} }} }}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), text).expect("writing the configuration");
        let mut command = Command::new("taskset");
        command.args(["-c", "0", "nginx", "-e", "nginx.log", "-c", "nginx.conf", "-p"]).arg(folder.path());
        let child = command.spawn().expect("nginx starts");
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, url: format!("http://127.0.0.1:{port}/v1"), _folder: folder }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
