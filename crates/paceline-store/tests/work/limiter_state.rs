//! What limiters know: by account, and which scopes have answered.

use std::time::Duration;

use paceline_core::{ScopeAnswers, Timestamp};
use paceline_store::work::NotedAnswers;

use crate::support::{Bench, S};

pub(crate) async fn the_last_saved_limiter_state_counts(on: Bench) {
    assert_eq!(on.store.load_state("one").await.unwrap(), None);
    for (account, state) in [("one", "1"), ("other", "2"), ("one", "3")] {
        on.store.save_state(account, state).await.unwrap();
    }
    for (account, state) in [("one", Some("3")), ("other", Some("2")), ("a third", None)] {
        assert_eq!(on.store.load_state(account).await.unwrap().as_deref(), state, "{account}");
    }
}

pub(crate) async fn what_is_known_of_answers_outlives_a_worker_and_reaches_the_others(on: Bench) {
    let known = |scope: &str, answers| NotedAnswers { scope: scope.into(), answers, noted: Timestamp::from_millis(0) };
    let came = |millis| ScopeAnswers::Came { slowest: Duration::from_millis(millis) };
    let since = async |since| {
        let noted = on.store.answers(since).await.unwrap();
        noted.into_iter().map(|noted| ((noted.scope.to_string(), noted.answers), noted.noted)).collect::<Vec<_>>()
    };
    assert_eq!(since(Timestamp::from_millis(0)).await, []);
    on.store.note_answers(vec![known("a", came(20)), known("b", ScopeAnswers::Missing)]).await.unwrap();
    on.forward(S).await;
    on.store.note_answers(vec![known("b", came(30))]).await.unwrap();
    let all = since(Timestamp::from_millis(0)).await;
    let (scopes, times): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    assert_eq!(scopes, [("a".to_owned(), came(20)), ("b".to_owned(), came(30))]);
    assert_eq!(since(times[1]).await.len(), 1, "what was noted before is known already");
    on.forward(S).await;
    on.store.note_answers((0..20_000).map(|n| known(&format!("{n:05}"), came(n))).collect()).await.unwrap();
    let all = since(Timestamp::from_millis(0)).await;
    assert_eq!(all.len(), 20_000, "the last ones are kept");
    assert!(!all.iter().any(|((scope, _), _)| scope == "a"));
}
