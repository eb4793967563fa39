//! How calls show who sends them, whom they trust, and which way they go.

use serde_json::json;

use crate::support::{Job, Reply, Server, finish, line};
use crate::tls::Authority;

#[test]
fn a_key_and_headers_are_sent_as_file_and_flags_say() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(1);
    let file = format!(
        "[upstream.mine]\nbase_url = '{}'\napi_key_env = 'MY_KEY'\nkey_header = 'X-API-Key'\nheaders = {{ X-Tenant = \
         'a', x-team = 'b' }}",
        server.url()
    );
    std::fs::write(job.path("paceline.toml"), file).expect("writable");
    let mut command = job.paceline();
    command.args(["run", "in.jsonl", "-o", "out.jsonl", "--header", "X-Team: c", "--header", "Accept:text/csv"]);
    let (code, log) = finish(command.env("MY_KEY", "0123456789"));
    assert_eq!(code, 0, "{log}");
    let headers = &server.arrivals()[0].headers;
    let sent = ["x-api-key", "x-tenant", "x-team", "accept"].map(|name| headers[name].to_str().expect("text"));
    assert_eq!(sent, ["0123456789", "a", "c", "text/csv"]);
    assert!(!headers.contains_key("authorization"));
}

#[test]
fn basic_credentials_are_encoded_and_never_stored() {
    let server = Server::new(|arrival| {
        Reply::new(
            200,
            &json!({"you": arrival.headers["authorization"].to_str().expect("text"), "are": "me:open-sesame"}),
        )
    });
    let job = Job::new(1);
    std::fs::write(job.path("key"), "me:open-sesame\n").expect("writable");
    let (code, log) = finish(job.run(&server).args(["--api-key-file", "key", "--key-scheme", "Basic"]));
    assert_eq!(code, 0, "{log}");
    assert_eq!(server.arrivals()[0].headers["authorization"], "Basic bWU6b3Blbi1zZXNhbWU=");
    assert_eq!(job.lines("out.jsonl")[0]["response"]["body"], json!({"you": "Basic [key]", "are": "[key]"}));
}

/// The variable is not read beside a header that authenticates, and on a loopback address none has to be set.
#[test]
fn a_refusal_names_what_was_refused_or_why_no_key_was_sent() {
    let server = Server::new(|_| Reply::error(401, "invalid_api_key"));
    let told = |flags: &[&str], key: &str| {
        let job = Job::new(1);
        let mut command = job.run(&server);
        command.args(["--upstream", "openai"]).args(flags).env("OPENAI_API_KEY", key);
        let (code, log) = finish(&mut command);
        assert_eq!(code, 3, "{log}");
        log
    };
    for (flags, key, expected) in [
        (
            &["--header", "Authorization: Bearer sk-wrong"][..],
            "sk-1234",
            "the header Authorization of --header was refused: check",
        ),
        (
            &[],
            "sk-1234",
            "the key in OPENAI_API_KEY, sent as `Authorization: Bearer ...`, was refused: check its value, and the header that carries it",
        ),
        (
            &["--key-header", "x-api-key"],
            "sk-1234",
            "the key in OPENAI_API_KEY, sent as `X-Api-Key: ...`, was refused: check its value, and the header",
        ),
        (&[], "", "OPENAI_API_KEY is not set, so no key was sent: set it"),
        (&["--header", "X-Session: me"], "", "the header X-Session of --header was refused: check"),
    ] {
        let log = told(flags, key);
        assert!(log.contains(expected) && !log.contains("name one with"), "{log}");
    }
}

#[test]
fn a_page_that_keeps_the_caller_out_is_quoted_and_may_be_a_ban() {
    let page = "<html><title>403</title><body>Your address has been banned for 24 hours.</body></html>";
    let server = Server::new(move |_| Reply::text(403, "text/html", page));
    let job = Job::new(1);
    let mut command = job.run(&server);
    let (code, log) = finish(command.args(["--api-key-env", "K", "--key-header", "x-ours"]).env("K", "the right one"));
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("Your address has been banned for 24 hours."), "{log}");
    let advice = "check what the key in K, sent as `X-Ours: ...`, is permitted to use, and whether the server keeps this machine out";
    assert!(log.contains(advice), "{log}");
}

#[test]
fn a_line_cannot_set_what_authenticates_and_is_told_where_that_is_set() {
    let server = Server::new(|_| Reply::ok());
    let line = |name: &str| json!({"custom_id": 1, "url": "/a", "body": {}, "headers": {name: "sesame"}}).to_string();
    let job = Job::with_input(&line("X-API-Key"));
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("cannot be set for one line; set it in paceline.toml") && !log.contains("sesame"), "{log}");
    // Which header carries the key, only the configuration knows.
    let job = Job::with_input(&line("X-Ours"));
    let mut command = job.run(&server);
    let (code, log) = finish(command.args(["--api-key-env", "K", "--key-header", "x-ours"]).env("K", "the right one"));
    assert_eq!(code, 0, "{log}");
    assert_eq!(server.arrivals()[0].headers["x-ours"], "the right one");
}

#[test]
fn flags_reach_requests_of_tasks_and_not_a_command() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(0);
    let (code, log) = finish(job.paceline().args(["tasks", "add", "--store", "w.db", r#"{"url":"/a","body":{}}"#]));
    assert_eq!(code, 0, "{log}");
    let (code, log) =
        finish(job.paceline().args(["tasks", "run", "--store", "w.db", "--key-scheme", "Basic", "--", "true"]));
    assert!(code == 2 && log.contains("--key-scheme applies to requests only"), "{log}");
    let mut command = job.paceline();
    command.args(["tasks", "run", "--store", "w.db", "--http", "--base-url", &server.url(), "--header", "x-team: c"]);
    let (code, log) = finish(&mut command);
    assert_eq!(code, 0, "{log}");
    assert_eq!(server.arrivals()[0].headers["x-team"], "c");
}

#[test]
fn a_private_authority_is_trusted_and_a_client_shows_its_certificate() {
    let authority = Authority::new();
    let server = Server::tls(authority.server("localhost", true), |_| Reply::ok());
    let job = Job::new(1);
    authority.put_into(&job);
    #[cfg(unix)]
    {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(job.path("client.key"), permissions).expect("ours");
    }
    let mut command = job.run(&server);
    command.args(["--ca-file", "ca.pem", "--client-cert", "client.pem", "--client-key", "client.key"]);
    let (code, log) = finish(&mut command);
    assert_eq!((code, server.count()), (0, 1), "{log}");
    assert!(log.contains("the client's key client.key can be read by others"), "{log}");
    std::fs::write(job.path("other.key"), authority.sign("another").key).expect("writable");
    let damaged = format!("{}\n{}", authority.pem, authority.pem.replacen("MII", "MIJ", 1));
    std::fs::write(job.path("damaged.pem"), damaged).expect("writable");
    for (flags, expected) in [
        (&["--ca-file", "damaged.pem"][..], "ca_file damaged.pem: no certificate (BEGIN CERTIFICATE) can be read"),
        (
            &["--client-cert", "client.pem", "--client-key", "other.key"],
            "client_cert client.pem and client_key other.key cannot be used together: the key belongs",
        ),
        (&["--ca-file", "client.key"], "no certificate (BEGIN CERTIFICATE) can be read; expected PEM"),
        (&["--ca-file", "missing.pem"], "ca_file missing.pem cannot be read"),
        (&["--client-cert", "client.pem"], "client_key is missing"),
        (&["--client-cert", "client.pem", "--client-key", "ca.pem"], "with a PRIVATE KEY"),
    ] {
        let (code, log) = finish(Job::new(1).run(&server).args(flags).current_dir(job.path("")));
        assert!(code == 2 && log.contains(expected), "{log}");
    }
}

#[test]
fn a_run_that_is_refused_for_its_certificates_leaves_no_job_behind() {
    let (job, server) = (Job::new(2), Server::new(|_| Reply::ok()));
    let (code, log) = finish(job.run(&server).args(["--ca-file", "missing.pem"]));
    assert!(code == 2 && log.contains("ca_file missing.pem cannot be read"), "{log}");
    for file in ["out.jsonl", "out.journal", "out.journal.lock"] {
        assert!(!job.path(file).exists(), "{file}: {log}");
    }
    std::fs::write(job.path("in.jsonl"), line("another")).expect("writable");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (0, 1), "another input is no change of a job: {log}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_proxy_that_is_named_is_used_and_none_is_none() {
    let proxy = Server::new(|_| Reply::ok());
    let run = |proxied: &str, variable: &str| {
        let job = Job::new(1);
        let mut command = job.paceline();
        command.args([
            "run",
            "in.jsonl",
            "-o",
            "out.jsonl",
            "--base-url",
            "http://api.invalid/v1",
            "--max-retries",
            "0",
        ]);
        command.args(["--timeout", "5s", "--max-wait", "10ms"]).env("http_proxy", variable);
        if !proxied.is_empty() {
            command.args(["--proxy", proxied]);
        }
        finish(&mut command)
    };
    let (code, log) = run(&proxy.url(), "");
    assert_eq!((code, proxy.count()), (0, 1), "{log}");
    assert_eq!(proxy.arrivals()[0].headers["host"], "api.invalid");
    let (code, log) = run("none", &proxy.url());
    assert!(code != 0 && proxy.count() == 1, "{log}");
    for (proxied, variable, expected) in [
        ("http://me:sesame@127.0.0.1:9", "", "http://api.invalid/v1 through the proxy http://[key]@127.0.0.1:9: "),
        ("", "http://127.0.0.1:9", "http://api.invalid/v1 (the variable http_proxy sets a proxy): "),
    ] {
        let (code, log) = run(proxied, variable);
        assert!(code == 3 && log.contains(expected) && !log.contains("sesame"), "{log}");
    }
}

/// The client would ignore the variable, and send the key without the proxy.
#[test]
fn a_proxy_of_the_environment_that_cannot_be_used_is_refused_before_the_first_request() {
    let run = |command: &str, name: &str, value: &str, flags: &[&str], also: (&str, &str)| {
        let job = Job::new(1);
        let files: &[&str] = if command == "run" { &["in.jsonl", "-o", "out.jsonl", "--max-wait", "1ms"] } else { &[] };
        let mut process = job.paceline();
        process.arg(command).args(files).args(flags).env(name, value).env(also.0, also.1);
        let (code, log) = finish(&mut process);
        (code, log, job.path("out.jsonl").exists())
    };
    let to = ["--base-url", "http://api.invalid/v1"];
    for value in ["htp://127.0.0.1:1", "garbage://", "ftp://127.0.0.1:1", "https//127.0.0.1:1", "socks5://127.0.0.1:1"]
    {
        for (command, name) in [("run", "HTTP_PROXY"), ("check", "http_proxy"), ("run", "ALL_PROXY")] {
            let (code, log, begun) = run(command, name, value, &to, ("A", ""));
            let expected = format!("the variable {name} = {value:?}: expected the address of a proxy such as http://");
            assert!(code == 2 && log.contains(&expected) && !begun, "{command}: {log}");
        }
    }
    let (code, log, _) = run("run", "HTTP_PROXY", "htp://me:sesame@proxy:1", &to, ("A", ""));
    assert!(code == 2 && log.contains("[key]@proxy:1") && !log.contains("sesame"), "{log}");
    // Where lines name their hosts, they may be https.
    let (code, log, _) = run("check", "HTTPS_PROXY", "htp://a", &[&to[..], &["--scope", "host"]].concat(), ("A", ""));
    assert!(code == 2 && log.contains("HTTPS_PROXY"), "{log}");
    for (name, flags, also) in [
        ("HTTPS_PROXY", &to[..], ("A", "")),
        ("HTTP_PROXY", &to, ("NO_PROXY", "api.invalid")),
        ("HTTP_PROXY", &["--base-url", "http://api.invalid/v1", "--proxy", "none"], ("A", "")),
        ("HTTP_PROXY", &["--base-url", "http://127.0.0.1:9/v1"], ("A", "")),
        ("HTTP_PROXY", &["--upstream", "mock"], ("A", "")),
    ] {
        let (code, log, _) = run("check", name, "htp://127.0.0.1:1", flags, also);
        assert_eq!(code, 0, "{name} {flags:?}: {log}");
    }
    let (code, log, _) = run("check", "HTTP_PROXY", "proxy:3128", &to, ("A", ""));
    assert!(code == 0 && !log.contains("expected"), "a proxy without its scheme speaks HTTP: {log}");
}

/// Its own name and password are missing, which no item can help: also under `--scope host`, where no key is sent.
#[test]
fn a_proxy_that_refuses_the_calls_stops_the_run_and_fails_no_item() {
    let proxy = Server::new(|_| Reply::text(407, "text/html", "who are you?"));
    for (address, flags) in [
        ("http://api.invalid/v1", &[][..]),
        ("http://api.invalid/v1", &["--scope", "host"]),
        ("https://api.invalid/v1", &[]),
    ] {
        let job = Job::new(3);
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "--base-url", address]);
        let (code, log) = finish(command.args(["--proxy", &proxy.url(), "--concurrency", "1"]).args(flags));
        assert_eq!(code, 3, "{log}");
        assert!(log.contains("the proxy asks for a name and a password (407)") && log.contains("--proxy"), "{log}");
        let summary = job.summary();
        assert_eq!((&summary["stopped"], &summary["deferred"]), (&json!("proxy"), &json!(3)), "{log}");
    }
}

/// As servers of companies do, which show the user whom they refuse.
#[test]
fn a_proxy_that_repeats_its_login_shows_it_to_no_file_and_no_log() {
    let (login, password) = ("u:proxypw777", "proxypw777");
    let encoded = "dTpwcm94eXB3Nzc3";
    let proxy =
        Server::new(move |_| Reply::text(403, "text/plain", format!("denied for user {login} (auth Basic {encoded})")));
    let address = proxy.url().replace("http://", &format!("http://{login}@"));
    let file = format!("[upstream.generic]\nproxy = \"{address}\"\n");
    for (flags, variable, config) in
        [(&["--proxy", &*address][..], "", ""), (&[], "http_proxy", ""), (&[], "HTTP_PROXY", ""), (&[], "", &file)]
    {
        for command in ["run", "tasks"] {
            let job = Job::new(1);
            std::fs::write(job.path("paceline.toml"), config).expect("writable");
            let mut process = job.paceline();
            process.args(match command {
                "run" => &["run", "in.jsonl", "-o", "out.jsonl", "--stop-after-same", "0"][..],
                _ => &["tasks", "run", "--http", "--store", "tasks.db"],
            });
            if command == "tasks" {
                let mut add = job.paceline();
                add.args(["tasks", "add", "--store", "tasks.db"]);
                let (code, log) = finish(add.arg(r#"{"method":"GET","url":"http://api.invalid/page"}"#));
                assert_eq!(code, 0, "{log}");
            }
            process
                .args(["--base-url", "http://api.invalid", "--scope", "host", "--max-wait", "1s", "-vv"])
                .args(flags);
            if !variable.is_empty() {
                process.env(variable, &address);
            }
            let before = proxy.count();
            let (_, log) = finish(&mut process);
            assert!(proxy.count() > before && log.contains("denied for user [key]"), "{command}: {log}");
            let files =
                std::fs::read_dir(job.path(".")).expect("a folder").flatten().filter(|file| file.path().is_file());
            let files = files.filter(|file| file.file_name() != "paceline.toml");
            let files =
                files.map(|file| String::from_utf8_lossy(&std::fs::read(file.path()).expect("a file")).into_owned());
            for text in files.chain([log]) {
                assert!(!text.contains(password) && !text.contains(encoded), "{command}: {text}");
            }
        }
    }
}

#[test]
fn a_proxy_that_refuses_to_connect_is_named_as_the_reason() {
    let proxy = Server::new(|_| Reply::text(403, "text/html", "blocked"));
    let job = Job::new(1);
    let mut command = job.paceline();
    command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", "https://api.invalid/v1", "--max-wait", "10ms"]);
    let (code, log) = finish(command.env("HTTPS_PROXY", proxy.url()));
    let expected = "the proxy refused to connect to the server; check the proxy (--proxy, ";
    assert!(code == 3 && log.contains(expected) && !log.contains("unsuccessful"), "{log}");
    assert!(log.contains("HTTPS_PROXY") && !log.contains("check the address"), "{log}");
}

#[test]
fn a_key_file_that_sets_a_variable_is_refused_and_a_key_with_an_equals_sign_is_sent() {
    let server = Server::new(|_| Reply::ok());
    let run = |content: &str| {
        let job = Job::new(1);
        std::fs::write(job.path("key"), content).expect("writable");
        finish(job.run(&server).args(["--api-key-file", "key"]))
    };
    for content in ["OPENAI_API_KEY=sesame", "export KEY=sesame\n", "KEY=\"sesame=\""] {
        let (code, log) = run(content);
        assert!(code == 2 && log.contains("expected the key alone") && !log.contains("sesame"), "{log}");
    }
    assert_eq!(server.count(), 0);
    for content in ["QUJD==", "ab=cd", "=a"] {
        let (code, log) = run(content);
        assert_eq!(code, 0, "{content}: {log}");
    }
}

#[test]
fn a_providers_own_variable_names_its_address_where_no_layer_does() {
    let (server, other) = (Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let run = |upstream: &str, variable: &str, flags: &[&str]| {
        let job = Job::new(1);
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--upstream", upstream]).args(flags);
        finish(command.env(variable, server.url()).env("OPENAI_API_KEY", "0123456789"))
    };
    let (code, log) = run("openai", "OPENAI_BASE_URL", &[]);
    assert_eq!((code, server.count()), (0, 1), "{log}");
    let (code, log) = run("groq", "GROQ_BASE_URL", &[]);
    assert_eq!((code, server.count()), (0, 2), "{log}");
    let (code, log) = run("openai", "OPENAI_BASE_URL", &["--base-url", &other.url()]);
    assert_eq!((code, server.count(), other.count()), (0, 2, 1), "{log}");
}

/// A slim container has no certificates of authorities: what needs none runs there, and what needs them says what to install.
#[test]
fn without_certificates_of_authorities_a_plain_server_on_this_machine_is_called() {
    let without_certificates = |job: &Job, server: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--api-key-env", "MY_KEY"]).args(server);
        finish(command.envs([
            ("MY_KEY", "0123456789"),
            ("SSL_CERT_FILE", "/nonexistent"),
            ("SSL_CERT_DIR", "/nonexistent"),
        ]))
    };
    let server = Server::new(|_| Reply::ok());
    let (code, log) = without_certificates(&Job::new(1), &["--base-url", &server.url()]);
    assert_eq!((code, server.count()), (0, 1), "{log}");
    let (code, log) = without_certificates(&Job::new(1), &["--upstream", "mock"]);
    assert_eq!(code, 0, "{log}");

    let (code, log) = without_certificates(&Job::new(1), &["--base-url", "https://api.example.com/v1"]);
    assert_eq!(code, 2, "{log}");
    assert!(
        log.contains("this machine has no certificates of authorities (") && log.contains("ca-certificates"),
        "{log}"
    );
}
