//! A master, its replica and three Sentinels that watch them, on loopback; they end with the test that started them.

use std::fs;
use std::process::{Child, Command, Stdio};

use crate::free_ports::free_ports;
use crate::redis_server::RedisServer;

/// Its servers and Sentinels.
pub(crate) struct SentinelSet {
    pub(crate) master: RedisServer,
    _replica: RedisServer,
    sentinels: Vec<Child>,
    ports: [u16; 3],
    folder: tempfile::TempDir,
}

impl SentinelSet {
    /// Returns once each Sentinel knows of the replica and of the two others.
    pub(crate) fn start() -> Self {
        let [master, replica, sentinels @ ..] = free_ports::<5>();
        let [master, replica] = [master, replica].map(|port| port.to_string());
        let address = ["--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0", "--port"];
        let start = |rest: &[&str]| RedisServer::start(&[&address[..], rest].concat());
        let set = (start(&[&master]), start(&[&replica, "--replicaof", "127.0.0.1", &master]));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut all = Self { master: set.0, _replica: set.1, sentinels: Vec::new(), ports: sentinels, folder };
        for port in all.ports {
            let config = all.folder.path().join(port.to_string());
            let words = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor set 127.0.0.1 {master} 2\n\
                 sentinel down-after-milliseconds set 800\nsentinel failover-timeout set 3000\n",
                all.folder.path().display()
            );
            fs::write(&config, words).expect("a folder of its own");
            let sentinel = Command::new("redis-server").arg(config).arg("--sentinel").stdout(Stdio::null()).spawn();
            all.sentinels.push(sentinel.expect("redis-server is installed"));
        }
        while !all.ports.iter().all(|port| all.is_complete(*port)) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        all
    }

    fn is_complete(&self, port: u16) -> bool {
        let port = port.to_string();
        let asked = ["-p", &port, "SENTINEL", "MASTER", "set"];
        let output = Command::new("redis-cli").args(asked).output().expect("redis-cli is installed");
        let words = String::from_utf8(output.stdout).expect("text");
        let lines = words.lines().collect::<Vec<_>>();
        let has = |name: &str, value: &str| lines.windows(2).any(|pair| pair == [name, value]);
        has("num-slaves", "1") && has("num-other-sentinels", "2") && has("flags", "master")
    }

    /// The set by its Sentinels.
    pub(crate) fn url(&self) -> String {
        let hosts = self.ports.iter().map(|port| format!("127.0.0.1:{port}"));
        format!("redis+sentinel://{}/set", hosts.collect::<Vec<_>>().join(","))
    }
}

impl Drop for SentinelSet {
    fn drop(&mut self) {
        for sentinel in &mut self.sentinels {
            // It has ended where it could not begin.
            let _ = sentinel.kill();
            let _ = sentinel.wait();
        }
    }
}
