//! What `paceline serve` adds to a call, holds and lets go: `cargo run --profile dist -p paceline-bench --bin gateway PACELINE`.
//!
//! Server, clients and clock are in this process, and the gateway is the program PACELINE, so a figure needs one clock only.
//! The gateway has the first core, and `scripts/gateway-speed` gives this process the second.

mod clients;
mod gateway;
mod nginx;
mod server;

use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use paceline::Clock;
use paceline_core::Instant;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::clients::Clients;
use self::gateway::Gateway;
use self::nginx::Nginx;
use self::server::Server;

/// Limits so wide that nothing waits for them.
const WIDE: &str = "pace = \"fixed\"\nrps = 1000000\nconcurrency = 4000\n";
/// One call after the other.
const ONE: &str = "pace = \"fixed\"\nconcurrency = 1\n";

/// Requests that wait at once for one that does not end.
const WAITING: usize = 2_000;
const STREAMS: usize = 1_000;

#[tokio::main]
async fn main() -> ExitCode {
    let Some(program) = std::env::args().nth(1) else {
        eprintln!("usage: gateway PACELINE, the program");
        return ExitCode::from(2);
    };
    raise_files();
    let server = Server::start().await;
    let met = [
        added(&program, &server).await,
        streams(&program, &server).await,
        memory(&program, &server).await,
        // One that still learns of clients that left would count their calls here.
        hang_ups(&program, &Server::start().await).await,
    ];
    if met.iter().all(|met| *met) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The time that the gateway adds to calls of 50 ms, 16 at a time: what the server itself took is not counted, nor what the same
/// calls take without the gateway. The same of nginx in its place.
async fn added(program: &str, server: &Server) -> bool {
    let (gateway, nginx) = (Gateway::start(program, server, WIDE), Nginx::start(server));
    let [direct, through, of_peer] = [server.url(), gateway.url(), nginx.url()].map(Clients::new);
    let (mut without, mut with, mut peer) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        without.extend(direct.calls(16, 60).await);
        with.extend(through.calls(16, 60).await);
        peer.extend(of_peer.calls(16, 60).await);
    }
    let mut most = |share| {
        let without = quantile(&mut without, share);
        [&mut with, &mut peer].map(|times| quantile(times, share) - without)
    };
    let ([half, half_of_peer], [most, most_of_peer]) = (most(0.5), most(0.99));
    println!("measure gateway, added_ms by nginx, 16 at a time: p50={half_of_peer:.2} p99={most_of_peer:.2}");
    let is_met = verdict("added_ms, 16 at a time", "p50", half, 0.5);
    verdict("added_ms, 16 at a time", "p99", most, 3.0) && is_met
}

/// How late the events of streams come, beside those of streams without the gateway, and through nginx.
async fn streams(program: &str, server: &Server) -> bool {
    let (gateway, nginx) = (Gateway::start(program, server, WIDE), Nginx::start(server));
    let [direct, through, of_peer] = [server.url(), gateway.url(), nginx.url()].map(Clients::new);
    let [mut without, mut with, mut peer] = [(); 3].map(|()| clients::Events::default());
    for _ in 0..10 {
        without.add(direct.streams(16).await);
        with.add(through.streams(16).await);
        peer.add(of_peer.streams(16).await);
    }
    let direct = quantile(&mut without.first, 0.5);
    let [first, first_of_peer] = [&mut with, &mut peer].map(|events| quantile(&mut events.first, 0.5) - direct);
    let transit = quantile(&mut with.transit, 0.99);
    println!("measure gateway, events without it: transit_ms p99={:.2}", quantile(&mut without.transit, 0.99));
    let transit_of_peer = quantile(&mut peer.transit, 0.99);
    println!(
        "measure gateway, events through nginx: first, added_ms p50={first_of_peer:.2} transit_ms p99={transit_of_peer:.2}"
    );
    let is_met = verdict("first event, added_ms", "p50", first, 0.4);
    verdict("events, transit_ms", "p99", transit, 5.0) && is_met
}

/// What an idle gateway holds, what a waiting request adds to that, and many streams at once.
async fn memory(program: &str, server: &Server) -> bool {
    let gateway = Gateway::start(program, server, ONE);
    let idle = gateway.memory();
    let clients = Clients::new(gateway.url());
    let waiting = clients.wait(WAITING);
    server.arrival().await;
    let held = gateway.while_it_holds(WAITING).await;
    let each = held.saturating_sub(idle) as f64 / 1_024.0 / WAITING as f64;
    drop(waiting);
    drop(gateway);
    server.gone_after(now()).await;
    let is_small = verdict("idle", "mib", idle as f64 / f64::from(1 << 20), 20.0);
    let is_met = verdict("a waiting request", "kib", each, 50.0) && is_small;
    let gateway = Gateway::start(program, server, WIDE);
    let events = Clients::new(gateway.url()).streams(STREAMS).await;
    let (got, all) = (events.transit.len(), STREAMS * server::EVENTS);
    let memory = gateway.memory() as f64 / f64::from(1 << 20);
    println!("measure gateway, {STREAMS} streams at once: events={got} of {all} memory_mib={memory:.1}");
    is_met && got == all
}

/// How long after a client's hang-up the server sees that its call is cancelled.
async fn hang_ups(program: &str, server: &Server) -> bool {
    let gateway = Gateway::start(program, server, ONE);
    let clients = Clients::new(gateway.url());
    let (mut waiting, mut streaming) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        // The one behind in the queue hangs up too: it is never sent.
        waiting.push(millis(server.gone_after(clients.hang_up("/never", server).await).await));
        streaming.push(millis(server.gone_after(clients.hang_up("/endless", server).await).await));
    }
    let is_met = verdict("cancelled upstream before its answer", "max_ms", quantile(&mut waiting, 1.0), 50.0);
    let is_met = verdict("cancelled upstream in a stream", "max_ms", quantile(&mut streaming, 1.0), 50.0) && is_met;
    println!("measure gateway, hung up in the queue: sent={} of 100", server.unseen());
    is_met && server.unseen() == 0
}

/// The one clock of server and clients.
fn now() -> Instant {
    static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::new);
    CLOCK.now()
}

/// A socket is a file.
fn raise_files() {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).expect("as many as the system allows");
}

fn verdict(what: &str, unit: &str, figure: f64, bar: f64) -> bool {
    let is_met = figure <= bar;
    let word = if is_met { "met" } else { "MISSED" };
    println!("measure gateway, {what}: {unit}={figure:.2} bar={bar:.2} {word}");
    is_met
}

/// That share of the figures is no larger.
fn quantile(figures: &mut [f64], share: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1);
    figures.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
