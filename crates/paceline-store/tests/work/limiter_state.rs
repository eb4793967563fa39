//! What limiters know: by account, and which scopes have answered.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::{ScopeAnswers, Timestamp};
use paceline_store::work::{NoteChange, NotedAnswers};

use crate::support::{Bench, S};

pub(crate) async fn the_last_saved_limiter_state_counts(on: Bench) {
    assert_eq!(on.store.load_state("one").await.unwrap(), None);
    for (account, state) in [("one", "1"), ("other", "2"), ("one", "3")] {
        on.store.save_state(account, state).await.unwrap();
    }
    for (account, state) in [("one", Some("3")), ("other", Some("2")), ("a third", None)] {
        assert_eq!(on.store.load_state(account).await.unwrap().as_deref(), state, "{account}");
    }
    a_text_that_workers_change_at_once_loses_no_word(&on).await;
    let before = on.store.now().await.unwrap();
    on.forward(60 * S).await;
    let passed = on.store.now().await.unwrap().saturating_since(before);
    assert!(
        (60 * S..90 * S).contains(&passed),
        "times that are kept in such texts go by the clock of the store: {passed:?}"
    );
}

/// Six workers that each add a word to one text, and begin anew where another was faster.
async fn a_text_that_workers_change_at_once_loses_no_word(on: &Bench) {
    let add = async |word: &str| {
        loop {
            let before = on.store.load_state("shared").await.unwrap();
            let text = before.clone().unwrap_or_default() + word;
            if on.store.replace_state("shared", before.as_deref(), &text).await.unwrap() {
                return;
            }
        }
    };
    tokio::join!(add("a"), add("b"), add("c"), add("d"), add("e"), add("f"));
    let mut words: Vec<char> = on.store.load_state("shared").await.unwrap().unwrap().chars().collect();
    words.sort_unstable();
    assert_eq!(words, ['a', 'b', 'c', 'd', 'e', 'f']);
    assert!(!on.store.replace_state("shared", None, "g").await.unwrap(), "there is one already");
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

/// Two workers that note the same scope at the same time lose nothing of each other.
pub(crate) async fn notes_about_scopes_are_changed_one_after_the_other(on: Bench) {
    let add = |word: &'static str| -> NoteChange {
        Arc::new(move |scope: &str, text: &str| if scope == "empty" { String::new() } else { format!("{text}{word}") })
    };
    let since = async |since| {
        let notes = on.store.notes(since).await.unwrap();
        notes.into_iter().map(|note| (note.scope.to_string(), note.text, note.noted)).collect::<Vec<_>>()
    };
    assert_eq!(since(Timestamp::from_millis(0)).await, []);
    let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect::<Vec<Arc<str>>>();
    for _ in 0..10 {
        let (one, other) = tokio::join!(
            on.store.change_notes(names(&["a", "b"]), add("1")),
            on.store.change_notes(names(&["b", "a"]), add("1"))
        );
        one.and(other).unwrap();
    }
    on.forward(S).await;
    on.store.change_notes(names(&["b", "empty"]), add("2")).await.unwrap();
    let all = since(Timestamp::from_millis(0)).await;
    let ones = "1".repeat(20);
    let texts: Vec<_> = all.iter().map(|(scope, text, _)| (scope.as_str(), text.clone())).collect();
    assert_eq!(texts[0], ("a", ones.clone()));
    assert!(texts.contains(&("b", format!("{ones}2"))) && texts.contains(&("empty", String::new())), "{texts:?}");
    assert_eq!(since(all[2].2).await.len(), 2, "what was noted before is known already");
    on.forward(S).await;
    let many: Vec<String> = (0..20_000).map(|n| format!("{n:05}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    on.store.change_notes(names(&many), add("3")).await.unwrap();
    let all = since(Timestamp::from_millis(0)).await;
    assert!(all.len() == 20_000 && !all.iter().any(|(scope, ..)| scope == "a"), "the last ones are kept");
}
