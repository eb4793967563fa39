//! Users of a Redis server that may not do all that a ledger needs: each hears so at the start, with the command.

use paceline::{Limiter, Quota};
use paceline_fleet::{Fleet, FleetConfig, FleetError};

use crate::redis_server::RedisServer;

/// What the client says; what the script says by itself is refused by the first request.
const SAID: [&str; 7] = ["multi", "exec", "info", "time", "script", "eval", "subscribe"];

#[tokio::test]
async fn a_user_that_lacks_a_right_is_refused_with_the_name_of_the_command() {
    let server = RedisServer::start(&[]);
    for missing in SAID {
        let user = format!("lacks-{missing}");
        let without = format!("-{missing}");
        server.command(&["ACL", "SETUSER", &user, "on", ">sesame", "~pl:*", "&pl:*", "+@all", &without]);
        let url = format!("{}?user={user}&pass=sesame", server.url());
        let limiter = Limiter::new(Quota::per_minute(60)).expect("a limit");
        let refused = Fleet::join(&limiter, FleetConfig::new(&url, missing)).await;
        let Err(FleetError::Refused { why, .. }) = &refused else { panic!("{missing}: {refused:?}") };
        assert!(why.contains("NOPERM") && why.contains(missing), "{missing}: {why}");
    }
}
