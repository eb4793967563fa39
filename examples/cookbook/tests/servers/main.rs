//! The adapters against servers that this project did not write: nginx, whose log is believed before our counts, moto, which
//! keeps what was written, and a server of `tonic`.
//!
//! Built with `--features peers` only. It needs `nginx` on the PATH, and in `MOTO_PYTHON` a Python with moto; scripts/test
//! installs both.
#![cfg(test)]

mod aws;
mod beside;
mod grpc;
mod http_clients;
mod nginx;

use axum::Router;

/// Serves on this machine for as long as the test's runtime lives; its address.
async fn serve(routes: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address").to_string();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address
}
