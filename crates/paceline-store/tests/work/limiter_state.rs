//! What limiters know, by account.

use crate::support::Bench;

pub(crate) async fn the_last_saved_limiter_state_counts(on: Bench) {
    assert_eq!(on.store.load_state("one").await.unwrap(), None);
    for (account, state) in [("one", "1"), ("other", "2"), ("one", "3")] {
        on.store.save_state(account, state).await.unwrap();
    }
    for (account, state) in [("one", Some("3")), ("other", Some("2")), ("a third", None)] {
        assert_eq!(on.store.load_state(account).await.unwrap().as_deref(), state, "{account}");
    }
}
