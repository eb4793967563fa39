//! Keys and certificates are exchanged for new ones: those of clients, that of an upstream, and what clients are shown.

use rustix::process::Signal;

use crate::serve::{Gateway, serve};
use crate::serve_keys::{keys, post_with, told};
use crate::support::{Job, Reply, Server};

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
