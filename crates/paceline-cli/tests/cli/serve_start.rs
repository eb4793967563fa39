//! `paceline serve check` and the start of a gateway: the same things stop both, before anything is sent.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use rustix::process::Signal;

use crate::bounded::{Bounded, BoundedOutput};
use crate::serve::{Gateway, get, send, serve};
use crate::serve_keys::{certify, keys, post_with, told};
use crate::support::{Job, Reply, Server, finish};

/// The exit code of a check, and all that it says.
fn check(job: &Job, server: &Server, flags: &[&str]) -> (Option<i32>, String) {
    let listen = ["serve", "check", "--listen", "127.0.0.1:0", "--base-url", &server.url()];
    let told = job.paceline().args(listen).args(flags).ended_with_output();
    (told.status.code(), [told.stdout, told.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
}

#[test]
fn what_stops_a_start_stops_a_check() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    std::fs::write(job.path("file"), "").expect("writable");
    let upstream = format!("[upstream.a]\nbase_url = \"{}\"\nfallback_to = [\"b\"]\n", server.url());
    std::fs::write(job.path("lost.toml"), upstream).expect("writable");
    for (flags, expected) in [
        (&["--state", "file/state"][..], "--state file/state: "),
        (&["--state", "/proc/none"], "expected a folder that the user of the gateway may make and write"),
        (
            &["--metrics-listen", "192.0.2.1:9"],
            "--metrics-listen 192.0.2.1:9: cannot listen there: Cannot assign requested address",
        ),
        (&["--tls-cert", "none.pem", "--tls-key", "none.key"], "none.pem"),
        (&["--config", "lost.toml", "--upstream", "a"], "expected an upstream that is served here: a"),
        (&["--client-keys", "none.json"], "--client-keys none.json: there is no such file"),
        (&["--api-key-file", "none.key"], "none.key"),
    ] {
        let (code, told) = check(&job, &server, flags);
        assert!(code == Some(2) && told.contains(expected), "{expected}: {told}");
        let (code, told) = finish(&mut serve(&job, &server, flags));
        assert!(code == 2 && told.contains(expected), "{expected}: {told}");
    }
    assert_eq!(server.count(), 0);
}

#[cfg(unix)]
#[test]
fn a_configuration_with_a_password_that_others_can_read_is_warned_about() {
    use std::os::unix::fs::PermissionsExt as _;
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    for (fleet, mode, is_told) in [("me:sesame@", 0o644, true), ("me:sesame@", 0o640, false), ("", 0o644, false)] {
        let text = format!("[upstream.a]\nrpm = 60\nfleet = \"redis://{fleet}127.0.0.1:9\"\n");
        std::fs::write(job.path("fleet.toml"), text).expect("writable");
        std::fs::set_permissions(job.path("fleet.toml"), std::fs::Permissions::from_mode(mode)).expect("ours");
        let (code, told) = check(&job, &server, &["--config", "fleet.toml", "--upstream", "a"]);
        let expected = "the configuration, which has the password of the fleet, fleet.toml can be read by others (mode 644): chmod o= ";
        assert_eq!((code, told.contains(expected)), (Some(0), is_told), "{fleet} {mode:o}: {told}");
        assert!(!told.contains("sesame"), "{told}");
    }
}

/// The port is this gateway's own where its configuration is checked before a reload, and that of systemd before a start.
#[test]
fn a_port_that_is_taken_is_told_and_stops_no_check() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("it listens").to_string();
    let (code, told) = check(&job, &server, &["--metrics-listen", &taken]);
    let expected =
        format!("--metrics-listen {taken}: another program listens there; that is right if it is this gateway");
    assert!(code == Some(0) && told.contains(&expected) && told.contains("\nall else is well: "), "{told}");
    let (code, told) = finish(&mut serve(&job, &server, &["--metrics-listen", &taken]));
    assert!(code == 2 && told.contains(&format!("--metrics-listen {taken}: cannot listen there: ")), "{told}");
}

#[test]
fn relative_paths_of_a_configuration_begin_at_its_folder() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    std::fs::create_dir(job.path("etc")).expect("writable");
    std::fs::write(job.path("etc/key"), "sk-of-etc").expect("writable");
    std::fs::write(job.path("etc/down.json"), "{}").expect("writable");
    let settings = "api_key_file = \"key\"\nfallback_to = [\"static:503:down.json\"]\n";
    let upstream = format!("[upstream.first]\nprovider = \"openai\"\nbase_url = \"{}\"\n{settings}", server.url());
    std::fs::write(job.path("etc/paceline.toml"), upstream).expect("writable");
    let command = || {
        let mut command = job.paceline();
        command.args(["serve", "--listen", "127.0.0.1:0", "--config", "etc/paceline.toml", "--state", "state"]);
        command
    };
    let gateway = Gateway::start(&mut command());
    assert_eq!(gateway.post("/first/v1/things", "1s").0, 200);
    assert_eq!(server.arrivals()[0].headers["authorization"], "Bearer sk-of-etc");
    // A flag is what a person types where he stands.
    let (code, log) = finish(command().args(["--api-key-file", "key"]));
    assert!(code == 2 && log.contains("key cannot be read"), "{log}");
}

/// Without a name and without keys gateways share the user's folder.
#[test]
fn a_second_gateway_on_a_state_folder_says_that_it_takes_no_batches() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let _first = Gateway::start(&mut serve(&job, &server, &[]));
    let mut second = serve(&job, &server, &[]);
    let _second = Gateway::logging(&mut second, File::create(job.path("log")).expect("writable"));
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    assert!(log.contains("batches cannot be taken here: another gateway has the batches of "), "{log}");
}

/// To a process that may write no byte to a file, its disk is full.
#[test]
fn a_check_names_the_scheme_of_its_addresses_and_tells_of_a_full_disk() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    certify(&job);
    let (code, told) = check(&job, &server, &["--tls-cert", "tls.pem", "--tls-key", "tls.key", "--state", "state"]);
    assert!(code == Some(0) && told.contains("generic at https://127.0.0.1:0/generic: "), "{told}");
    assert!(!told.contains("http://127.0.0.1:0") && told.contains("\nall is well: "), "{told}");
    let mut full = Command::new("sh");
    full.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_paceline")]).current_dir(job.path("."));
    full.args(["serve", "check", "--listen", "127.0.0.1:0", "--state", "state", "--base-url", &server.url()]);
    let output = full.ended_with_output();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("\nall else is well: "), "{told}");
    assert!(
        told.contains("state state: nothing can be written there now: File too large (os error 27); a gateway starts"),
        "{told}"
    );
    assert!(!job.path("state").exists(), "nothing stays behind");
}

/// Standard output may be a file on a full disk.
#[test]
#[cfg(target_os = "linux")]
fn a_gateway_serves_though_its_output_takes_no_line() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let (address, log) = (format!("127.0.0.1:{port}"), File::create(job.path("log")).expect("writable"));
    let mut command = job.paceline();
    command.args(["serve", "--listen", &address, "--base-url", &server.url()]);
    let full = File::options().write(true).open("/dev/full").expect("it is there");
    let mut child = command.stdout(full).stderr(log).spawn().expect("the binary runs");
    let log = || std::fs::read_to_string(job.path("log")).expect("a log");
    while !log().contains("standard output does not take where the gateway listens") {
        assert!(child.try_wait().expect("known").is_none(), "{}", log());
        std::thread::yield_now();
    }
    assert_eq!(get(&format!("http://{address}/healthz")).0, 200);
    child.kill().expect("it runs");
    child.ended();
}

/// The folder with the keys is not mounted: a restart must not open the gateway to all.
#[test]
fn a_gateway_that_requires_keys_does_not_begin_without_them() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let flags = ["--state", "state", "--require-client-keys"];
    let lacks_keys = |told: &str| {
        told.contains("state/client-keys.json does not exist; if it") && told.contains("add NAME --state state`")
    };
    for n in 0..2 {
        let output = serve(&job, &server, &flags).ended_with_output();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && lacks_keys(&told), "{told}");
        assert!(
            job.paceline()
                .args(["serve", "keys", "add", "ci", "--state", "state"])
                .ended_with_output()
                .status
                .success()
        );
        drop(Gateway::start(&mut serve(&job, &server, &flags)));
        let (_, told) = check(&job, &server, &flags);
        assert!(told.contains("clients: 1 key\n"), "{told}");
        std::fs::rename(job.path("state"), job.path(&format!("gone-{n}"))).expect("movable");
    }
    let _gateway =
        Gateway::logging(&mut serve(&job, &server, &flags[..2]), File::create(job.path("log")).expect("writable"));
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    assert!(
        log.contains(
            "WARN every program of this machine may call without a key, and so may every program that reaches a proxy"
        ),
        "{log}"
    );
}

/// The last key was revoked: no client must be the first to learn that none may call.
#[test]
fn a_gateway_whose_clients_have_no_key_says_so_at_its_start() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    told(&mut keys(&job, &["add", "ci"]));
    told(&mut keys(&job, &["revoke", "ci"]));
    let [in_state, required] = [&["--state", "state"][..], &["--state", "state", "--require-client-keys"]];
    let named = &["--client-keys", "state/client-keys.json"][..];
    for (flags, where_they_are) in
        [(in_state, "--state state"), (required, "--state state"), (named, "--client-keys state/client-keys.json")]
    {
        let log = File::create(job.path("log")).expect("writable");
        let gateway = Gateway::logging(&mut serve(&job, &server, flags), log);
        let says = format!(
            "no program may call: there is no key of a client in state/client-keys.json; `paceline serve keys add NAME {where_they_are}` \
             makes one, also while the gateway runs"
        );
        assert!(job.text("log").contains(&format!("WARN {says}")), "{}", job.text("log"));
        assert_eq!(post_with(&gateway.url, "any").0, 401);
        let (code, told) = check(&job, &server, flags);
        assert!(code == Some(0) && told.contains(&says) && told.contains("all else is well"), "{told}");
    }
    let log = File::create(job.path("log")).expect("writable");
    let gateway = Gateway::logging(&mut serve(&job, &server, required), log);
    let key = told(&mut keys(&job, &["add", "ci"]));
    gateway.signal(Signal::HUP);
    while post_with(&gateway.url, &key).0 != 200 {
        std::thread::yield_now();
    }
    drop(gateway);
    drop(Gateway::logging(&mut serve(&job, &server, required), File::create(job.path("log")).expect("writable")));
    assert!(!job.text("log").contains("no program may call"), "{}", job.text("log"));
}

#[test]
fn limits_of_keys_in_a_fleet_are_told_to_count_in_each_gateway() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let keys = ["serve", "keys", "add", "ci", "--limit", "5 per 1h", "--client-keys", "keys.json"];
    assert!(job.paceline().args(keys).ended_with_output().status.success());
    let fleet = ["--fleet", "redis://127.0.0.1:1", "--limit", "200 per 20s", "--client-keys", "keys.json"];
    let words = "the limits of clients' keys are not shared in a fleet";
    for (count, expected) in [(6, true), (2, false)] {
        let flags = if expected { &fleet[..count] } else { &fleet[4..] };
        let mut command = serve(&job, &server, flags);
        let _gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
        let log = std::fs::read_to_string(job.path("log")).expect("a log");
        assert_eq!(log.contains(words), expected, "{log}");
    }
    let listed = job.paceline().args(["serve", "keys", "list", "--client-keys", "keys.json"]).ended_with_output();
    assert!(
        String::from_utf8_lossy(&listed.stderr).contains("each gateway that has this file allows a key its limits")
    );
}

#[test]
fn a_gateway_whose_fleet_has_no_store_says_that_nothing_leaves() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let fleet = ["--fleet", "redis://127.0.0.1:1", "--limit", "200 per 20s"];
    let checked = job.paceline().args(["serve", "check", "--base-url", &server.url()]).args(fleet).ended_with_output();
    let checked = String::from_utf8(checked.stdout).expect("text");
    assert!(checked.contains("in a fleet, whose store is not asked here"), "{checked}");
    let gateway = Gateway::logging(&mut serve(&job, &server, &fleet), File::create(job.path("log")).expect("writable"));
    let page = |path: &str| get(&format!("{}{path}", gateway.url));
    let (status, text) = page("/readyz");
    assert_eq!(
        (status, text.contains("generic: nothing leaves: the store of the fleet on 127.0.0.1:1 does not answer: ")),
        (503, true),
        "{text}"
    );
    let url = format!("{}/generic/v1/things", gateway.url);
    let (status, text) = send(&url, |client, url| client.get(url).header("x-paceline-deadline", "1s"));
    assert_eq!(status, 429, "{text}");
    assert!(text.contains("nothing leaves: the store of the fleet on 127.0.0.1:1 does not answer: "), "{text}");
    assert!(text.contains("\"wait_ms\":null") && text.contains("\"limit\":\"the store of the fleet\""), "{text}");
    let (_, metrics) = page("/metrics");
    assert!(metrics.contains("paceline_fleet_away{upstream=\"generic\"} 1"), "{metrics}");
    for (name, value) in [("members", 0), ("lease_seconds", 0), ("reads", 0)] {
        let line = format!("\npaceline_fleet_{name}{{upstream=\"generic\"}} {value}\n");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    let (_, state) = page("/api/state");
    assert!(state.contains("nothing leaves: the store of the fleet on 127.0.0.1:1 does not answer: "), "{state}");
    let top = job.paceline().args(["top", "--once", &gateway.url]).ended_with_output();
    let top = String::from_utf8(top.stdout).expect("text");
    assert!(top.contains("fleet of generic: out, 0 members known; here 0 of 200 requests per 20s\n"), "{top}");
    assert!(
        top.contains("nothing leaves: the store of the fleet on 127.0.0.1:1") && !top.contains("all is well"),
        "{top}"
    );
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    assert!(log.contains("ERROR") && log.contains("nothing leaves before it answers"), "{log}");
    assert_eq!(server.count(), 0);
}

#[test]
fn a_store_that_refuses_the_password_after_it_was_away_is_told_with_both_reasons() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let store = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://pace:other@{}", store.local_addr().expect("it listens"));
    std::thread::spawn(move || {
        for (n, connection) in store.incoming().flatten().enumerate() {
            // The first one is closed at once.
            let mut connection = if n == 0 { continue } else { connection };
            let mut asked = [0; 4096];
            while let Ok(read @ 1..) = connection.read(&mut asked) {
                let commands = asked[..read].iter().filter(|byte| **byte == b'*').count();
                let refusal = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
                drop(connection.write_all(refusal.repeat(commands).as_bytes()));
            }
        }
    });
    let fleet = ["--fleet", &url, "--limit", "200 per 20s"];
    let gateway = Gateway::logging(&mut serve(&job, &server, &fleet), File::create(job.path("log")).expect("writable"));
    let log = || std::fs::read_to_string(job.path("log")).expect("a log");
    while !log().contains("WRONGPASS") {
        std::thread::yield_now();
    }
    let (status, text) = get(&format!("{}/readyz", gateway.url));
    assert!(status == 503 && text.contains("refuses: WRONGPASS"), "{text}");
    let told: Vec<_> = log().lines().filter(|line| line.contains("asking again")).map(str::to_owned).collect();
    assert!(told.len() == 2 && told[0].contains("does not answer") && told[1].contains("WRONGPASS"), "{told:?}");
}

#[test]
fn counts_for_other_processes_that_cannot_be_written_are_in_it_too() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let gateway = Gateway::start(&mut serve(&job, &server, &["--limit", "600rpm", "--state", "state"]));
    let has_metric = |line: &str| while !get(&format!("{}/metrics", gateway.url)).1.contains(line) {};
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    let folder = job.path(".local/state/paceline");
    let files = || std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ledger = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let ledger = loop {
        if let Some(ledger) = files().find(is_ledger) {
            break ledger;
        }
    };
    // The new file cannot take its place where there is a folder.
    let obstacle = ledger.with_extension("new");
    while std::fs::create_dir(&obstacle).is_err() {}
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    has_metric("paceline_unwritten_files 1");
    std::fs::remove_dir(&obstacle).expect("it is empty");
    assert_eq!(gateway.post("/generic/v1/things", "1s").0, 200);
    has_metric("paceline_unwritten_files 0");
}
