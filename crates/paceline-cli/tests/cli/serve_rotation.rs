//! Keys and certificates are exchanged for new ones: those of clients, that of an upstream, and what clients are shown.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::batches::{Service, counts, input};
use crate::serve::{Gateway, get, post, send, serve};
use crate::serve_keys::{certify, keys, post_with, told};
use crate::serve_operation::{configure, configured, wait_for_log};
use crate::support::{Job, Reply, Server, finish};

#[test]
fn a_new_key_of_a_revoked_name_goes_on_with_what_the_name_has_used() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let start = || Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    let restarted = |mut gateway: Gateway| {
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.ended(), Some(0));
        start()
    };
    let add = |name| told(&mut keys(&job, &["add", name, "--limit", "1 per 1h"]));
    let revoke = || told(&mut keys(&job, &["revoke", "tb"]));
    let until = |gateway: &Gateway, key: &str, status| {
        while post_with(&gateway.url, key).0 != status {
            std::thread::yield_now();
        }
    };
    let mut key = add("tb");
    let mut gateway = start();
    assert_eq!([post_with(&gateway.url, &key).0, post_with(&gateway.url, &key).0], [200, 429]);
    // Which of these a running gateway reads, and whether it runs at all meanwhile.
    for [seen, restarts] in [[false, false], [true, false], [true, true], [false, true]] {
        revoke();
        if seen {
            gateway.signal(Signal::HUP);
            until(&gateway, &key, 401);
        }
        if restarts {
            gateway = restarted(gateway);
        }
        let former = std::mem::replace(&mut key, add("tb"));
        gateway.signal(Signal::HUP);
        until(&gateway, &key, 429);
        assert_eq!(post_with(&gateway.url, &former).0, 401, "the old key ends at once");
        gateway = restarted(gateway);
        assert_eq!(post_with(&gateway.url, &key).0, 429, "seen {seen}, restarts {restarts}");
    }
    let other = add("tc");
    gateway.signal(Signal::HUP);
    until(&gateway, &other, 200);
    assert_eq!(server.count(), 2, "one of each name");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_client_has_two_keys_for_a_while_and_one_use_of_its_limit() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let start = || {
        let log = File::options().create(true).append(true).open(job.path("log")).expect("writable");
        Gateway::logging(serve(&job, &server, &["--state", "state", "--log-requests"]).env("RUST_LOG", "info"), log)
    };
    let until = |gateway: &Gateway, key: &str, status| {
        while post_with(&gateway.url, key).0 != status {
            std::thread::yield_now();
        }
    };
    let first = told(&mut keys(&job, &["add", "tb", "--limit", "4 per 1h"]));
    let mut gateway = start();
    assert_eq!(post_with(&gateway.url, &first).0, 200);
    let second = told(&mut keys(&job, &["rotate", "tb"]));
    gateway.signal(Signal::HUP);
    until(&gateway, &second, 200);
    assert_eq!(post_with(&gateway.url, &first).0, 200, "both keys are good");
    let listed = told(&mut keys(&job, &["list"]));
    assert!(listed.contains("  former key until 20") && listed.contains("used: 3 of 4 requests"), "{listed}");
    assert!(job.text("log").contains("another key: tb, which goes on with what it has used; the former one ends at"));
    gateway.signal(Signal::KILL);
    assert_eq!(gateway.ended(), None);
    let mut gateway = start();
    assert_eq!(post_with(&gateway.url, &first).0, 200, "the fourth, after a kill");
    assert_eq!([post_with(&gateway.url, &first).0, post_with(&gateway.url, &second).0], [429; 2], "one use");
    let third = told(&mut keys(&job, &["rotate", "tb", "--keep-old", "2s"]));
    gateway.signal(Signal::HUP);
    until(&gateway, &third, 429);
    assert_eq!(post_with(&gateway.url, &first).0, 401, "of the former keys the last one is good");
    until(&gateway, &second, 401);
    let names_it = |line: &str| line.contains("code=\"client_key\"") && line.contains("client=\"tb\"");
    while !job.text("log").lines().any(names_it) {
        std::thread::yield_now();
    }
    assert!(post_with(&gateway.url, &second).1.contains("the key that the request shows has ended"));
    assert_eq!(post_with(&gateway.url, &third).0, 429);
    assert!(!told(&mut keys(&job, &["list"])).contains("former"));
    let (code, log) = finish(&mut keys(&job, &["revoke", "tb", "--former"]));
    assert!(code == 2 && log.contains("tb has no former key that is good"), "{log}");
    let fourth = told(&mut keys(&job, &["rotate", "tb"]));
    told(&mut keys(&job, &["revoke", "tb"]));
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let gateway = start();
    assert_eq!([&third, &fourth].map(|key| post_with(&gateway.url, key).0), [401; 2], "it is revoked with both");
    assert_eq!(server.count(), 4);
}

#[test]
fn a_certificate_that_has_ended_is_told_in_place_of_a_good_one_and_by_a_check() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    certify(&job);
    let tls = ["--tls-cert", "tls.pem", "--tls-key", "tls.key"];
    let gateway = Gateway::logging(&mut serve(&job, &server, &tls), File::create(job.path("log")).expect("writable"));
    let log = || std::fs::read_to_string(job.path("log")).expect("a log");
    assert!(!log().contains("was valid until"), "{}", log());
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    params.not_after = rcgen::date_time_ymd(2026, 1, 4);
    let key = rcgen::KeyPair::generate().expect("a key");
    std::fs::write(job.path("tls.pem"), params.self_signed(&key).expect("a certificate").pem()).expect("writable");
    std::fs::write(job.path("tls.key"), key.serialize_pem()).expect("writable");
    gateway.signal(Signal::HUP);
    while !log().contains("the certificate was read again") {
        std::thread::yield_now();
    }
    let ended =
        "tls.pem: this certificate was valid until 2026-01-04T00:00:00.000Z, and clients that look at it refuse it";
    assert!(log().contains(ended) && log().contains("WARN"), "{}", log());
    let check = ["serve", "check", "--base-url", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    let checked = told(job.paceline().args(check).args(tls));
    assert!(checked.contains(ended) && checked.contains("all else is well"), "{checked}");
}

#[test]
fn the_key_of_an_upstream_that_is_exchanged_between_two_starts_begins_no_limit_anew() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let key = |key: &str| std::fs::write(job.path("key"), key).expect("writable");
    let flags = ["--state", "state", "--api-key-file", "key", "--limit", "2 per 1h"];
    let start = || {
        let log = File::create(job.path("log")).expect("writable");
        Gateway::logging(serve(&job, &server, &flags).env("RUST_LOG", "info"), log)
    };
    let ask = |gateway: &Gateway| {
        let url = format!("{}/generic/v1/things", gateway.url);
        send(&url, |client, url| client.get(url).header("x-paceline-deadline", "1s")).0
    };
    let end = |mut gateway: Gateway| {
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.ended(), Some(0));
    };
    let told = || std::fs::read_to_string(job.path("log")).expect("a log").contains("its key is another than that of");
    key("A");
    let gateway = start();
    assert_eq!([ask(&gateway), ask(&gateway), ask(&gateway)], [200, 200, 429]);
    end(gateway);
    key("B");
    let gateway = start();
    assert_eq!((ask(&gateway), told()), (429, true));
    // While it runs.
    key("C");
    gateway.signal(Signal::HUP);
    while !std::fs::read_to_string(job.path("log")).expect("a log").contains("changed: generic, its key") {
        std::thread::yield_now();
    }
    end(gateway);
    let gateway = start();
    assert_eq!((ask(&gateway), told()), (429, false), "the key is that of the last gateway");
    end(gateway);
    key("A");
    let gateway = start();
    assert_eq!((ask(&gateway), told()), (429, true), "back to the first");
    assert_eq!(server.count(), 2);
    let files = std::fs::read_dir(job.path("state")).expect("a folder").filter_map(Result::ok);
    let files = files.filter(|file| file.file_name().to_string_lossy().starts_with("generic-"));
    assert_eq!(files.count(), 1, "the file of an upstream goes with its key");
}

/// A gateway to a server that holds the first call until the guard is dropped, and repeats both keys; two requests wait behind
/// that call.
struct Exchange {
    job: Job,
    server: Server,
    gateway: Gateway,
    first: JoinHandle<(u16, String)>,
    waiting: Vec<JoinHandle<(u16, String)>>,
}

impl Exchange {
    fn begin(held: &Arc<Mutex<()>>) -> Self {
        let (job, held) = (Job::new(0), Arc::clone(held));
        let server = Server::new(move |arrival| {
            let is_first = arrival.headers["authorization"] == "Bearer sk-first";
            if is_first && arrival.before == 0 {
                drop(held.lock());
            }
            let said = "sk-first, sk-second";
            match is_first {
                true => Reply::new(401, &json!({"error": {"message": said, "code": "invalid_api_key"}})),
                false => Reply::new(200, &json!({"object": "list", "said": said})),
            }
        });
        let gateway = configured(&job, &server, "limits = [\"1 concurrent\"]\n");
        let ask = || {
            let url = format!("{}/first/v1/things", gateway.url);
            std::thread::spawn(move || post(&url, "60s"))
        };
        let first = ask();
        server.wait_for(1);
        let waiting = vec![ask(), ask()];
        let queued = || {
            let state: Value = serde_json::from_str(&get(&format!("{}/api/state", gateway.url)).1).expect("JSON");
            state["upstreams"][0]["requests"].as_u64()
        };
        while queued() < Some(3) {
            std::thread::yield_now();
        }
        Self { job, server, gateway, first, waiting }
    }

    /// The file has another key, and the gateway has taken it.
    fn exchanges_the_key(&self, says: &str) {
        std::fs::write(self.job.path("key"), "sk-second").expect("writable");
        self.gateway.signal(Signal::HUP);
        wait_for_log(&self.job, says, 1);
    }
}

#[test]
fn a_request_that_waits_shows_the_key_that_is_in_force_when_it_leaves() {
    let held = Arc::new(Mutex::new(()));
    let guard = held.lock().expect("no panic");
    let exchange = Exchange::begin(&held);
    exchange.exchanges_the_key("changed: first, its key");
    drop(guard);
    let Exchange { job, server, gateway: _gateway, first, waiting } = exchange;
    let (status, body) = first.join().expect("no panic");
    assert!(status == 401 && !body.contains("sk-"), "{body}");
    for asked in waiting {
        let (status, body) = asked.join().expect("no panic");
        assert!(status == 200 && !body.contains("sk-"), "{status}: {body}");
    }
    let shown: Vec<_> = server.arrivals().iter().map(|call| call.headers["authorization"].clone()).collect();
    assert_eq!(shown, ["Bearer sk-first", "Bearer sk-second", "Bearer sk-second"]);
    assert!(!job.text("log").contains("nothing leaves"), "the former key was refused: {}", job.text("log"));
}

#[test]
fn a_request_that_waits_for_another_server_does_not_show_it_the_new_key() {
    let held = Arc::new(Mutex::new(()));
    let guard = held.lock().expect("no panic");
    let exchange = Exchange::begin(&held);
    let other = Server::new(|_| Reply::ok());
    configure(&exchange.job, &other, "");
    exchange.exchanges_the_key("new: first");
    drop(guard);
    assert_eq!(exchange.first.join().expect("no panic").0, 401);
    exchange.waiting.into_iter().for_each(|asked| drop(asked.join().expect("no panic")));
    let shown = exchange.server.arrivals().into_iter().map(|call| call.headers["authorization"].clone());
    assert!({ shown }.all(|key| key == "Bearer sk-first"));
    assert_eq!(exchange.gateway.post("/first/v1/things", "60s").0, 200);
    assert_eq!(other.arrivals()[0].headers["authorization"], "Bearer sk-second");
}

/// A call of a batch showed the former key: its refusal stops nothing, and the batch goes on with the new key.
#[test]
fn a_batch_whose_call_was_in_flight_goes_on_with_the_new_key() {
    let (job, held) = (Job::new(0), Arc::new(Mutex::new(())));
    let guard = held.lock().expect("no panic");
    let waits = Arc::clone(&held);
    let server = Server::new(move |arrival| {
        if arrival.headers["authorization"] != "Bearer sk-first" {
            return Reply::ok();
        }
        drop(waits.lock());
        Reply::error(401, "invalid_api_key")
    });
    let service = Service::of(configured(&job, &server, ""));
    let id = service.create(&input(1), "24h");
    server.wait_for(1);
    std::fs::write(job.path("key"), "sk-second").expect("writable");
    service.signal(Signal::HUP);
    wait_for_log(&job, "changed: first, its key", 1);
    drop(guard);
    let batch = service.until_status(&id, "completed");
    assert_eq!(counts(&batch), [Some(1), Some(1), Some(0)]);
    let shown: Vec<_> = server.arrivals().iter().map(|call| call.headers["authorization"].clone()).collect();
    assert_eq!(shown, ["Bearer sk-first", "Bearer sk-second"]);
    assert_eq!(service.gateway.post("/first/v1/things", "1s").0, 200, "nothing is stopped");
    assert!(!job.text("log").contains("nothing leaves"), "the former key was refused: {}", job.text("log"));
}

/// A leaked key that fills the disk must be revoked just then.
#[test]
fn a_key_is_revoked_on_a_full_disk_or_told_to_work_as_before() {
    let job = Job::new(0);
    let paceline = env!("CARGO_BIN_EXE_paceline");
    let script = format!(
        "mkdir disk && mount -t tmpfs -o size=1m tmpfs disk || exit 99
         for name in a b c; do {paceline} serve keys add $name --state disk || exit 98; done
         head -c 2m /dev/zero > disk/filler
         {paceline} serve keys revoke c --state disk || exit 97
         {paceline} serve keys revoke b --state disk || exit 96
         {paceline} serve keys list --state disk > listed || exit 95
         rm disk/*.reserve && head -c 2m /dev/zero >> disk/filler
         {paceline} serve keys revoke a --state disk; test $? = 2 || exit 94
         {paceline} serve keys list --state disk"
    );
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script]).current_dir(job.path("")).env_clear();
    command.env("HOME", job.path("")).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let (code, log) = finish(&mut command);
    assert!(
        code == 0 && log.contains("No space left on device (os error 28); nothing has changed: every key"),
        "{code}: {log}"
    );
    let listed = job.text("listed");
    assert!(listed.starts_with("a  made") && listed.lines().count() == 1, "{listed}");
}

#[test]
fn a_file_of_keys_keeps_its_group_and_mode_when_keys_are_revoked() {
    let job = Job::new(0);
    told(&mut keys(&job, &["add", "ci"]));
    let file = job.path("state/client-keys.json");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).expect("its mode");
    // Only root may give files away.
    let group = std::os::unix::fs::chown(&file, None, Some(12_345)).map_or(None, |()| Some(12_345));
    told(&mut keys(&job, &["revoke", "ci"]));
    let found = std::fs::metadata(&file).expect("it is there");
    assert_eq!(found.permissions().mode() & 0o777, 0o640);
    assert_eq!(group.unwrap_or(found.gid()), found.gid(), "the gateway, of that group, reads what was revoked");
}
