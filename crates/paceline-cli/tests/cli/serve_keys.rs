//! `paceline serve keys`: keys of clients are made, listed and revoked, and decide who may call.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use crate::bounded::{Bounded, BoundedOutput};
use crate::serve::{Gateway, get, send, serve};
use crate::support::{Job, Reply, Server, finish};

pub(crate) fn keys(job: &Job, args: &[&str]) -> Command {
    let mut command = job.paceline();
    command.args(["serve", "keys"]).args(args).args(["--state", "state"]);
    command
}

/// What a command prints that succeeds.
pub(crate) fn told(command: &mut Command) -> String {
    let output = command.ended_with_output();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

pub(crate) fn post_with(url: &str, key: &str) -> (u16, String) {
    send(&format!("{url}/generic/v1/things"), |client, url| {
        client.post(url).header("authorization", format!("Bearer {key}")).body(r#"{"model":"m"}"#)
    })
}

#[test]
fn a_key_is_printed_once_and_its_file_has_none() {
    let job = Job::new(0);
    let key = told(&mut keys(
        &job,
        &["add", "ci", "--limit", "60rpm,5 concurrent", "--models", "m,gpt-*", "--priority", "batch"],
    ));
    assert!(key.starts_with("pl_") && key.len() == 67, "{key}");
    let file = job.path("state/client-keys.json");
    assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert!(!std::fs::read_to_string(&file).expect("text").contains(&key[3..]));
    let listed = told(&mut keys(&job, &["list"]));
    assert!(listed.starts_with("ci  made 20") && !listed.contains(&key[3..]), "{listed}");
    assert!(listed.ends_with("limits: 60rpm, 5 concurrent  models: m, gpt-*  priority: batch"), "{listed}");
    let (code, log) = finish(&mut keys(&job, &["set", "ci", "--limit", "1M/day"]));
    assert!(code == 0 && log.contains("ci: limits: 1M/day  models: m, gpt-*"), "{log}");
    assert!(log.contains("which means: 1000000 requests per 24h"), "{log}");
    for (args, expected) in [
        (&["add", "ci"][..], "has a key of the name ci; revoke it first"),
        (&["add", "a b"], "\"a b\" is no name of a client: expected 1 to 64 letters"),
        (&["add", "other", "--limit", "many"], "other: \"many\" is no limit: expected"),
        (&["add", "other", "--models", "a,,b"], "\"\" is no model"),
        (&["revoke", "other"], "has no key of the name \"other\""),
    ] {
        let (code, log) = finish(&mut keys(&job, args));
        assert!(code == 2 && log.contains(expected), "{expected}: {log}");
    }
    for (text, expected) in [
        (&b"{}"[..], "it has no keys as `paceline serve keys` writes them: missing field `version`"),
        (b"{\"version\":1,\n\"keys\":[", "it is cut off in line 2"),
        (b"{]", "it is no JSON: "),
        (b"\xff\xfe{\0", "it is no text in UTF-8"),
    ] {
        std::fs::write(&file, text).expect("writable");
        let (code, log) = finish(&mut keys(&job, &["list"]));
        let expected = format!("the keys of clients in state/client-keys.json: the file is damaged: {expected}");
        assert!(code == 2 && log.contains(&expected) && log.contains("put back a copy of it"), "{expected}: {log}");
    }
    std::fs::write(&file, "{\"version\":9,\"keys\":[]}").expect("writable");
    let (_, log) = finish(&mut keys(&job, &["list"]));
    assert!(log.contains("a later version of paceline wrote them") && !log.contains("damaged"), "{log}");
}

#[test]
fn a_key_that_root_makes_can_be_read_by_the_user_of_its_folder() {
    let job = Job::new(0);
    std::fs::create_dir(job.path("state")).expect("writable");
    // Only root may give files away.
    if std::os::unix::fs::chown(job.path("state"), Some(12_345), Some(12_345)).is_err() {
        return;
    }
    told(&mut keys(&job, &["add", "ci"]));
    told(job.paceline().args(["serve", "keys", "add", "ci", "--state", "state/of/serve"]));
    let files = ["client-keys.json", "client-keys.lock", "of/serve/client-keys.json", "of/serve/client-keys.lock"];
    for (name, mode) in files.map(|name| (name, 0o600)).into_iter().chain([("of", 0o700), ("of/serve", 0o700)]) {
        let owner = std::fs::metadata(job.path("state").join(name)).expect("it is there");
        assert_eq!((owner.uid(), owner.gid(), owner.permissions().mode() & 0o777), (12_345, 12_345, mode), "{name}");
    }
}

#[test]
fn keys_are_made_and_revoked_while_the_gateway_runs() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let mut command = serve(&job, &server, &["--state", "state", "--log-requests"]);
    let gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    assert_eq!(post_with(&gateway.url, "any").0, 200, "without keys every program of this machine may call");
    let wait_until = |is: &dyn Fn() -> bool| {
        while !is() {
            std::thread::yield_now();
        }
    };
    let key = told(&mut keys(&job, &["add", "ci", "--limit", "1 per 1h"]));
    gateway.signal(Signal::HUP);
    wait_until(&|| post_with(&gateway.url, "any").0 == 401);
    assert_eq!(post_with(&gateway.url, &key).0, 200);
    let (status, text) = post_with(&gateway.url, &key);
    assert_eq!((status, text.contains("the key ci: the request must wait")), (429, true), "{text}");
    let (status, text) =
        send(&format!("{}/v1/files", gateway.url), |client, url| client.get(url).header("x-api-key", &key));
    assert_eq!((status, text.contains("has limits, models or paths of its own")), (403, true), "{text}");
    assert_eq!([get(&format!("{}/healthz", gateway.url)).0, get(&format!("{}/metrics", gateway.url)).0], [200, 401]);
    told(&mut keys(&job, &["revoke", "ci"]));
    wait_until(&|| post_with(&gateway.url, &key).0 == 401);
    assert_eq!(post_with(&gateway.url, "any").0, 401, "a file without keys lets no client pass");
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    assert!(log.contains("client=\"ci\"") && !log.contains(&key[3..]), "{log}");
}

#[test]
fn a_file_of_keys_that_goes_lets_no_program_pass() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let key = told(&mut keys(&job, &["add", "ci"]));
    let mut command = serve(&job, &server, &["--state", "state"]);
    let gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    std::fs::remove_file(job.path("state/client-keys.json")).expect("it is there");
    gateway.signal(Signal::HUP);
    while !std::fs::read_to_string(job.path("log")).expect("a log").contains("their file is gone") {
        std::thread::yield_now();
    }
    assert_eq!([post_with(&gateway.url, "any").0, post_with(&gateway.url, &key).0], [401, 200]);
}

#[test]
fn a_gateway_begins_without_keys_only_where_there_never_were_any() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let begins = |flags: &[&str]| finish(&mut serve(&job, &server, flags));
    let named = ["--state", "state", "--client-keys", "keys/of-clients.json"];
    for command in [&["serve", "check", "--base-url", "http://127.0.0.1:1"][..], &["serve", "keys", "list"]] {
        let (code, log) = finish(job.paceline().args(command).args(named));
        assert!(
            code == 2 && log.contains("--client-keys keys/of-clients.json: there is no such file; `paceline"),
            "{log}"
        );
    }
    let (code, log) = begins(&named);
    assert!(code == 2 && log.contains("makes it with a first key"), "{log}");
    // The default file was there once, and is gone when the next gateway begins.
    told(&mut keys(&job, &["add", "ci"]));
    std::fs::remove_file(job.path("state/client-keys.json")).expect("it is there");
    let (code, log) = begins(&["--state", "state"]);
    assert!(code == 2 && log.contains("state/client-keys.json, and there is no such file now; put it back"), "{log}");
    assert!(finish(&mut keys(&job, &["list"])).0 == 2, "nor are no keys listed");
    std::fs::remove_file(job.path("state/client-keys.lock")).expect("it is there");
    let mut command = serve(&job, &server, &["--state", "state"]);
    let gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    assert_eq!(post_with(&gateway.url, "any").0, 200);
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    assert!(log.contains("every program of this machine may call without a key"), "{log}");
}

#[test]
fn to_list_or_revoke_keys_makes_no_file() {
    let job = Job::new(0);
    let (code, log) = finish(&mut keys(&job, &["list"]));
    assert!(code == 0 && log.contains("there are no keys: state/client-keys.json is not there"), "{log}");
    let (code, log) = finish(&mut keys(&job, &["revoke", "ci"]));
    assert!(code == 2 && log.contains("is not there, so there is no key \"ci\" to revoke"), "{log}");
    assert!(!job.path("state").exists(), "reading makes nothing");
}

#[test]
fn files_of_keys_that_others_can_read_or_change_are_warned_about() {
    let job = Job::new(0);
    told(&mut keys(&job, &["add", "ci"]));
    let file = job.path("state/client-keys.json");
    for (mode, expected) in
        [(0o666, "can be changed by others (mode 666): chmod 600"), (0o604, "can be read by others (mode 604)")]
    {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("it is there");
        let (code, log) = finish(&mut keys(&job, &["list"]));
        assert!(code == 0 && log.contains("the file with the keys of clients state/client-keys.json"), "{log}");
        assert!(log.contains(expected), "{expected}: {log}");
    }
}

#[test]
fn two_keys_of_one_name_or_two_names_of_one_key_stop_the_start() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    told(&mut keys(&job, &["add", "ci"]));
    let file = job.path("state/client-keys.json");
    let text = std::fs::read_to_string(&file).expect("text");
    for (second, expected) in [("ci", "two keys have the name ci"), ("web", "ci and web have the same key")] {
        let mut twice: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let mut record = twice["keys"][0].clone();
        record["name"] = second.into();
        twice["keys"].as_array_mut().expect("a list").push(record);
        std::fs::write(&file, twice.to_string()).expect("writable");
        let (code, log) = finish(&mut serve(&job, &server, &["--state", "state"]));
        assert!(code == 2 && log.contains(expected), "{expected}: {log}");
    }
}

#[test]
fn what_a_client_has_used_of_its_limits_counts_after_a_restart() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let [used, fresh] = ["used", "fresh"].map(|name| told(&mut keys(&job, &["add", name, "--limit", "1 per 1h"])));
    let start = || Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    let mut gateway = start();
    assert_eq!(post_with(&gateway.url, &used).0, 200);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let gateway = start();
    let (status, text) = post_with(&gateway.url, &used);
    assert_eq!((status, text.contains("the key used: the request must wait")), (429, true), "{text}");
    assert_eq!(post_with(&gateway.url, &fresh).0, 200);
    let kept = std::fs::read_to_string(job.path("state/client-limits.json")).expect("a file");
    assert!(!kept.contains(&used[3..]), "no key is in it");
}

#[test]
fn a_second_gateway_on_one_state_is_refused_and_a_damaged_count_is_kept_and_told() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let key = told(&mut keys(&job, &["add", "ci", "--limit", "1 per 1h"]));
    let damaged = job.path("state/client-limits.json");
    std::fs::write(&damaged, "{\"half").expect("writable");
    let mut command = serve(&job, &server, &["--state", "state"]);
    let mut first = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    assert!(log.contains("what clients have used of the limits of their keys is lost"), "{log}");
    assert_eq!(std::fs::read_to_string(job.path("state/client-limits.json.bad")).expect("kept"), "{\"half");
    for (text, kept) in [("{}x", "client-limits.json.bad-2"), ("7", "client-limits.json.bad-3")] {
        first.signal(Signal::TERM);
        first.ended();
        std::fs::write(&damaged, text).expect("writable");
        first = Gateway::start(&mut command);
        let kept = std::fs::read_to_string(job.path("state").join(kept));
        assert_eq!(kept.expect("each has a name of its own"), text);
    }
    let (code, log) = finish(&mut serve(&job, &server, &["--state", "state"]));
    let words = format!("another gateway (process {} at 127.0.0.1:", first.child.id());
    assert!(code == 2 && log.contains(&words) && log.contains("name another folder with --state"), "{log}");
    assert_eq!(post_with(&first.url, &key).0, 200);
    first.child.kill().expect("it runs");
    first.child.ended();
    drop(Gateway::start(&mut serve(&job, &server, &["--state", "state"])));
    drop(Gateway::start(&mut serve(&job, &server, &["--state", "other"])));
}

#[test]
fn a_gateway_that_is_killed_again_and_again_forgets_no_token_that_a_client_used() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 290}});
    let (job, server) = (Job::new(0), Server::new(move |_| Reply::new(200, &usage)));
    let key = told(&mut keys(&job, &["add", "ci", "--limit", "2000 tokens per 1h"]));
    for _ in 0..4 {
        let mut gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
        for _ in 0..3 {
            let _ = send(&format!("{}/generic/v1/chat/completions", gateway.url), |client, url| {
                let body = json!({"model": "m", "max_tokens": 290, "messages": []}).to_string();
                client.post(url).bearer_auth(&key).body(body)
            });
        }
        gateway.child.kill().expect("it runs");
        gateway.child.ended();
    }
    assert_eq!(server.count(), 6, "300 tokens each");
}

#[test]
fn what_a_client_may_do_changes_without_another_key_and_what_it_used_stays() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let key = told(&mut keys(&job, &["add", "ci", "--limit", "1 per 1h", "--models", "m,n"]));
    let mut command = serve(&job, &server, &["--state", "state"]);
    let gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    assert_eq!(post_with(&gateway.url, &key).0, 200);
    assert_eq!(post_with(&gateway.url, &key).0, 429);
    told(&mut keys(&job, &["set", "ci", "--limit", "2 per 1h,9 concurrent", "--models", "all"]));
    let listed = told(&mut keys(&job, &["list"]));
    let (of, used) = listed.split_once("  used: ").expect("what it has used");
    assert!(of.ends_with("limits: 2 per 1h, 9 concurrent  models: all  priority: interactive"), "{listed}");
    assert!(used.starts_with("1 of 2 requests per 1h (as of 20"), "{listed}");
    gateway.signal(Signal::HUP);
    let expected = "the keys of clients were read again: changed: ci, limits: 2 per 1h, 9 concurrent  models: all  priority: interactive";
    while !std::fs::read_to_string(job.path("log")).expect("a log").contains(expected) {
        std::thread::yield_now();
    }
    assert_eq!([post_with(&gateway.url, &key).0, post_with(&gateway.url, &key).0], [200, 429], "one of two was used");
    told(&mut keys(&job, &["set", "ci", "--limit", "none", "--priority", "batch"]));
    let listed = told(&mut keys(&job, &["list"]));
    assert!(listed.ends_with("limits: none  models: all  priority: batch"), "{listed}");
    told(&mut keys(&job, &["set", "ci", "--limit", "5rpm", "--burst", "5"]));
    let listed = told(&mut keys(&job, &["list"]));
    assert!(
        listed.contains("limits: 5rpm, burst 5  models: all  priority: batch  used: 2 of 5 requests per 60s (as of"),
        "{listed}"
    );
    gateway.signal(Signal::HUP);
    while !std::fs::read_to_string(job.path("log")).expect("a log").contains("changed: ci, limits: 5rpm, burst 5  ") {
        std::thread::yield_now();
    }
    assert_eq!([(); 3].map(|()| post_with(&gateway.url, &key).0), [200; 3], "not one each 12 s");
    told(&mut keys(&job, &["set", "ci", "--limit", "1 per 1h"]));
    let listed = told(&mut keys(&job, &["list"]));
    assert!(
        listed.contains("limits: 1 per 1h  models: all  priority: batch  used: "),
        "a burst goes with its limit: {listed}"
    );
    for (args, expected) in [
        (
            &["set", "ci", "--burst", "5"][..],
            "ci: a burst of 5 needs a limit on requests over at most 60s, such as --limit 60rpm; 1h is longer",
        ),
        (
            &["set", "ci", "--limit", "1M tokens per 24h", "--burst", "5"],
            "ci: a burst of 5 needs a limit on requests over at most 60s, such as --limit 60rpm; there is none",
        ),
        (&["set", "ci", "--limit", "5rpm", "--burst", "6"], "a burst of 6: expected 1 to 5, for 5 requests per 60s"),
        (&["set", "ci"], "there is nothing to change: expected --limit, --burst, --models, --paths or --priority"),
        (&["set", "web", "--limit", "5rpm"], "has no key of the name \"web\""),
        (&["set", "ci", "--limit", "many"], "ci: \"many\" is no limit"),
        (&["set", "ci", "--models", "a,,b"], "\"\" is no model"),
    ] {
        let (code, log) = finish(&mut keys(&job, args));
        assert!(code == 2 && log.contains(expected), "{expected}: {log}");
    }
}

#[test]
fn a_key_may_be_for_some_paths() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    for wrong in ["v1", "/", "/generic/*", "/generic/v1?x", "all"] {
        let (code, log) = finish(&mut keys(&job, &["add", "ci", "--paths", wrong]));
        assert!(code == 2 && log.contains("is not the beginning of a path: expected / and the"), "{wrong}: {log}");
    }
    let key = told(&mut keys(&job, &["add", "ci", "--paths", "/generic/v1/things/, /other"]));
    assert!(
        told(&mut keys(&job, &["list"]))
            .ends_with("models: all  paths: /generic/v1/things/, /other  priority: interactive")
    );
    let log = File::create(job.path("log")).expect("writable");
    let gateway = Gateway::logging(&mut serve(&job, &server, &["--state", "state"]), log);
    let post = |path: &str| {
        let url = format!("{}/generic{path}", gateway.url);
        send(&url, |client, url| client.post(url).bearer_auth(&key).body("{}")).0
    };
    assert_eq!([post("/v1/things"), post("/v1/things/1"), post("/v1/thingsies")], [200, 200, 403]);
    told(&mut keys(&job, &["set", "ci", "--paths", "all"]));
    gateway.signal(Signal::HUP);
    while post("/v1/thingsies") != 200 {
        std::thread::yield_now();
    }
}

#[test]
fn what_a_client_used_stays_while_it_has_no_limits() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let key = told(&mut keys(&job, &["add", "ci", "--limit", "1 per 1h"]));
    let start = || {
        let log = File::create(job.path("log")).expect("writable");
        Gateway::logging(&mut serve(&job, &server, &["--state", "state"]), log)
    };
    let mut gateway = start();
    assert_eq!(post_with(&gateway.url, &key).0, 200);
    for restarts in [false, true] {
        let set = |gateway: &Gateway, limit: &str, words: &str| {
            told(&mut keys(&job, &["set", "ci", "--limit", limit]));
            gateway.signal(Signal::HUP);
            while !std::fs::read_to_string(job.path("log")).expect("a log").contains(words) {
                std::thread::yield_now();
            }
        };
        set(&gateway, "none", "changed: ci, limits: none");
        assert_eq!(post_with(&gateway.url, &key).0, 200, "nothing limits it");
        if restarts {
            gateway.signal(Signal::TERM);
            assert_eq!(gateway.ended(), Some(0));
            gateway = start();
        }
        set(&gateway, "1 per 1h", "changed: ci, limits: 1 per 1h");
        assert_eq!(post_with(&gateway.url, &key).0, 429, "after a restart: {restarts}");
        std::fs::write(job.path("log"), "").expect("writable");
    }
}

#[test]
fn blanks_behind_commas_are_no_part_of_limits_and_models() {
    let job = Job::new(0);
    told(&mut keys(&job, &["add", "ci", "--limit", "60rpm, 2M tokens per 24h", "--models", "gpt-4o-mini, gpt-5*"]));
    let listed = told(&mut keys(&job, &["list"]));
    let expected = "limits: 60rpm, 2M tokens per 24h  models: gpt-4o-mini, gpt-5*  priority: interactive";
    assert!(listed.ends_with(expected), "{listed}");
}

#[test]
fn an_address_that_others_reach_needs_keys_or_a_word() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let everywhere = || {
        let mut command = job.paceline();
        command.args(["serve", "--listen", "0.0.0.0:0", "--state", "state", "--base-url", &server.url()]);
        command
    };
    let local = |gateway: &Gateway| gateway.url.replace("0.0.0.0", "127.0.0.1");
    let (code, log) = finish(&mut everywhere());
    assert!(code == 2 && log.contains("others could spend your key there; expected keys of clients"), "{log}");
    {
        let gateway = Gateway::start(everywhere().arg("--allow-anyone"));
        assert_eq!(post_with(&local(&gateway), "any").0, 200);
    }
    let key = told(&mut keys(&job, &["add", "ci"]));
    let gateway = Gateway::start(&mut everywhere());
    assert_eq!([post_with(&local(&gateway), "any").0, post_with(&local(&gateway), &key).0], [401, 200]);
}

/// Writes a certificate of this machine and its key.
pub(crate) fn certify(job: &Job) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(job.path("tls.pem"), made.cert.pem()).expect("writable");
    std::fs::write(job.path("tls.key"), made.signing_key.serialize_pem()).expect("writable");
}

#[test]
fn clients_connect_with_tls_to_a_certificate_that_may_change() {
    let (job, server) = (Job::new(1), Server::new(|_| Reply::ok()));
    certify(&job);
    let tls = ["--tls-cert", "tls.pem", "--tls-key", "tls.key"];
    let mut command = serve(&job, &server, &tls);
    let gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    assert!(gateway.url.starts_with("https://127.0.0.1:"), "{}", gateway.url);
    let (status, text) = get(&format!("{}/healthz", gateway.url.replace("https://", "http://")));
    assert!(
        status == 400 && text.contains("this address speaks TLS, and the request came without: use https://"),
        "{text}"
    );
    let run = || {
        let url = format!("{}/generic", gateway.url);
        let flags = ["--base-url", &url, "--ca-file", "tls.pem", "--overwrite", "-q", "--max-wait", "0"];
        finish(job.paceline().args(["run", "in.jsonl", "-o", "out.jsonl"]).args(flags))
    };
    let (code, log) = run();
    assert_eq!(code, 0, "{log}");
    certify(&job);
    gateway.signal(Signal::HUP);
    while !job.text("log").contains("the certificate was read again, valid until 4096-01-01") {
        std::thread::yield_now();
    }
    let (code, log) = run();
    assert_eq!(code, 0, "the new certificate: {log}");
    let (code, log) = finish(job.paceline().args(["top", &gateway.url]));
    let expected = "the server's certificate is signed by an authority that is not trusted here; if it is right, name the certificate";
    assert!(code == 2 && log.contains("no safe connection to the gateway") && log.contains(expected), "{log}");
    let (code, log) = finish(job.paceline().args(["top", &gateway.url, "--ca-file", "tls.pem"]));
    assert_eq!(code, 0, "{log}");
    let whole = std::fs::read_to_string(job.path("tls.pem")).expect("text");
    std::fs::write(job.path("cut.pem"), &whole[..whole.len() / 2]).expect("writable");
    let (code, log) = finish(&mut serve(&job, &server, &["--tls-cert", "cut.pem", "--tls-key", "tls.key"]));
    let expected =
        "cut.pem: the file is cut off: its line -----END CERTIFICATE----- is missing; write the file anew, whole";
    assert!(code == 2 && log.contains(expected), "{log}");
    std::fs::write(job.path("tls.key"), "none").expect("writable");
    let (code, log) = finish(&mut serve(&job, &server, &tls));
    assert!(code == 2 && log.contains("tls.key: expected a private key in PEM, and there is none"), "{log}");
}

/// `openssl req -x509` makes such a certificate unless it is told otherwise.
#[test]
fn a_certificate_of_an_authority_as_a_servers_own_is_told_with_what_to_do() {
    let (job, server) = (Job::new(1), Server::new(|_| Reply::ok()));
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    std::fs::write(job.path("tls.pem"), params.self_signed(&key).expect("a certificate").pem()).expect("writable");
    std::fs::write(job.path("tls.key"), key.serialize_pem()).expect("writable");
    let tls = ["--tls-cert", "tls.pem", "--tls-key", "tls.key"];
    let what_to_do =
        "unless it is told -addext basicConstraints=critical,CA:FALSE; make the server's certificate anew with that";
    let gateway = Gateway::logging(&mut serve(&job, &server, &tls), File::create(job.path("log")).expect("writable"));
    let log = std::fs::read_to_string(job.path("log")).expect("a log");
    let warned = "tls.pem: this is the certificate of an authority (CA:TRUE), which many clients, such as paceline itself, refuse";
    assert!(log.contains(warned) && log.contains(what_to_do), "{log}");
    let check = ["serve", "check", "--base-url", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    let checked = told(job.paceline().args(check).args(tls));
    assert!(checked.contains(warned) && checked.contains("all else is well"), "{checked}");
    let (code, log) = finish(job.paceline().args(["top", &gateway.url, "--ca-file", "tls.pem"]));
    let expected = "the server shows the certificate of an authority (CA:TRUE) as its own, which is not trusted";
    assert!(code == 2 && log.contains(expected) && log.contains(what_to_do), "{log}");
}

#[test]
fn what_no_client_can_be_limited_in_and_what_looks_like_a_key_is_refused() {
    let job = Job::new(0);
    let (code, log) = finish(&mut keys(&job, &["add", "dan", "--limit", "5 dollars per 24h"]));
    assert!(code == 2 && log.contains("dan: nothing counts dollars for a client"), "{log}");
    let key = "sk-MARK-0123456789abcdef";
    let other = told(&mut keys(&job, &["add", "eve"]));
    for (arguments, key) in [(["add", key], key), (["revoke", key], key), (["revoke", &other], &other)] {
        let (code, log) = finish(&mut keys(&job, &arguments));
        assert!(code == 2 && !log.contains(key), "{log}");
    }
}
