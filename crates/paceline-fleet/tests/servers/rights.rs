//! Users of a Redis server that may not do all that a ledger needs: each hears so at the start, with the command.

use paceline::{Limiter, Quota};
use paceline_fleet::{Fleet, FleetConfig, FleetError};

use crate::redis_server::RedisServer;

/// What the client says; what the script says by itself is refused by the first request.
const SAID: [&str; 8] = ["multi", "exec", "info", "time", "script", "eval", "publish", "subscribe"];

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
        assert!(why.contains("NOPERM") && why.contains(&format!("'{missing}")), "{missing}: {why}");
        assert!(why.contains(&format!("+{missing} ")), "{missing}: {why}");
    }
}

#[tokio::test]
async fn a_user_with_the_rights_of_the_page_is_enough_and_one_without_the_channel_is_told_them() {
    let server = RedisServer::start(&[]);
    let page = include_str!("../../../../docs/fleet.md");
    let line = page.lines().find_map(|line| line.strip_prefix("ACL SETUSER paceline on >PASSWORD ")).expect("the line");
    let script = include_str!("../../src/ledger.lua").split("call('").skip(1);
    for command in script.filter_map(|rest| rest.split('\'').next()) {
        let right = format!("+{}", command.to_lowercase());
        assert!(line.split(' ').any(|word| word == right), "the script says {command}");
    }
    for (user, channels) in [("enough", "&pl:*"), ("deaf", "&other")] {
        let rights = line.replace("&pl:*", channels);
        let mut words = vec!["ACL", "SETUSER", user, "on", ">sesame", "resetchannels", "-@all"];
        words.extend(rights.split(' '));
        server.command(&words);
        let url = format!("{}?user={user}&pass=sesame", server.url());
        let limiter = Limiter::new(Quota::per_minute(60)).expect("a limit");
        match Fleet::join(&limiter, FleetConfig::new(&url, user)).await {
            Ok(fleet) if user == "enough" => fleet.leave().await,
            Err(FleetError::Refused { why, .. }) if user == "deaf" => {
                assert!(why.contains("channel") && why.ends_with(line), "{why}");
            }
            other => panic!("{user}: {other:?}"),
        }
    }
}
