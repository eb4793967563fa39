//! What limiters know, by account.

use crate::support::Bench;

pub(crate) async fn of_what_limiters_know_the_last_counts(on: Bench) {
    assert_eq!(on.store.kept_limiter("one").await.unwrap(), None);
    for (account, state) in [("one", "1"), ("other", "2"), ("one", "3")] {
        on.store.keep_limiter(account, state).await.unwrap();
    }
    for (account, state) in [("one", Some("3")), ("other", Some("2")), ("a third", None)] {
        assert_eq!(on.store.kept_limiter(account).await.unwrap().as_deref(), state, "{account}");
    }
}
