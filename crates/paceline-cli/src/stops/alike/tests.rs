use super::*;

fn of(status: u16) -> Alikeness {
    Alikeness { kind: (Some(status), None), unexpected: status == 200 }
}

/// Which of a host's items with these statuses stop it.
fn all(watch: &mut AlikeByScope<usize>, host: &str, first: usize, statuses: &[u16]) -> Vec<usize> {
    let host: Arc<str> = host.into();
    let failed = statuses.iter().enumerate();
    failed.filter_map(|(n, status)| watch.failed(&host, first + n, of(*status), None).map(|_| n)).collect()
}

#[test]
fn a_host_stops_at_its_first_items_and_later_at_what_is_like_a_ban() {
    let mut watch = AlikeByScope::new(3, true);
    assert_eq!(all(&mut watch, "a", 0, &[404; 4]), [2]);
    assert!(watch.are_first("a"));
    assert_eq!(all(&mut watch, "b", 0, &[404]), [0; 0], "each host by itself");
    watch.ended_otherwise(&"a".into(), None);
    for (first, ban) in [(10, 403), (20, 200)] {
        assert_eq!(all(&mut watch, "a", first, &[404, 404, 404, ban, ban, ban]), [5]);
        assert_eq!(watch.take("a", None), BTreeSet::from([first + 3, first + 4, first + 5]));
    }
    assert!(!watch.are_first("a"));
    assert_eq!(all(&mut watch, "a", 30, &[404; 16]), [14], "that many pages are not gone by themselves");
    assert_eq!(all(&mut AlikeByScope::new(0, true), "a", 0, &[403; 40]), [0; 0]);
    let again = (0..9).any(|_| watch.failed(&"b".into(), 7, of(404), None).is_some());
    assert!(!again, "one item that is tried again");
}

/// A ban of a host with five items left keeps them; pages that are forbidden one by one fail alone.
#[test]
fn a_host_stops_at_three_refusals_of_one_address_that_are_none_of_items() {
    let count = |watch: &mut AlikeByScope<usize>, address: fn(usize) -> String, status| {
        let failed = |n: &usize| watch.failed(&"a".into(), 100 + n, of(status), Some(&address(*n))).is_some();
        (0..19).find(failed).map(|n| n + 1)
    };
    let hook: fn(usize) -> String = |_| "https://a/hook".to_owned();
    let page: fn(usize) -> String = |n| format!("https://a/{n}");
    let new = || AlikeByScope::new(20, true);
    let mixed = || {
        let mut watch = new();
        watch.ended_otherwise(&"a".into(), None);
        watch
    };
    for status in [301, 308, 401, 403] {
        assert_eq!(count(&mut new(), hook, status), Some(3));
        assert_eq!(count(&mut mixed(), hook, status), Some(3));
        assert_eq!(count(&mut mixed(), page, status), None);
    }
    let event: fn(usize) -> String = |_| format!("https://a/in/{ITS_KEY}");
    let refuses_some = || {
        let mut watch = mixed();
        assert_eq!(watch.failed(&"a".into(), 0, of(403), Some(&event(0))), None);
        watch.ended_otherwise(&"a".into(), None);
        watch
    };
    assert_eq!((count(&mut new(), event, 403), count(&mut mixed(), event, 403)), (Some(3), Some(3)));
    assert_eq!(count(&mut refuses_some(), event, 403), None, "it refuses items one by one");
    assert_eq!(count(&mut refuses_some(), hook, 403), Some(3));
    assert_eq!(count(&mut mixed(), hook, 410), Some(3));
    assert_eq!(count(&mut new(), hook, 410), None, "a customer that was never there");
    assert_eq!(count(&mut mixed(), hook, 404), None, "it may be a bad item");
    let of_ten = || {
        let mut watch = AlikeByScope::new(10, true);
        watch.ended_otherwise(&"a".into(), None);
        watch
    };
    assert_eq!(count(&mut of_ten(), hook, 404), Some(10), "and ten in a row are none");
    assert_eq!((count(&mut of_ten(), event, 404), count(&mut of_ten(), page, 404)), (None, None));
    assert_eq!(count(&mut of_ten(), hook, 400), None);
    assert_eq!(count(&mut AlikeByScope::new(2, true), hook, 403), Some(2), "never more than is asked for");
    assert_eq!(count(&mut AlikeByScope::new(20, false), hook, 403), None, "no host");
}

#[test]
fn what_one_of_several_addresses_refuses_stops_it_alone() {
    let host: Arc<str> = "a".into();
    let at = |n: usize| format!("https://a/{n}");
    let fails = |watch: &mut AlikeByScope<usize>, item, address| watch.failed(&host, item, of(410), Some(&at(address)));
    let mut watch = AlikeByScope::of_addresses(20);
    [1, 2].into_iter().for_each(|address| watch.ended_otherwise(&host, Some(&at(address))));
    assert_eq!((fails(&mut watch, 0, 1), fails(&mut watch, 1, 1)), (None, None));
    watch.ended_otherwise(&host, Some(&at(2)));
    assert_eq!(fails(&mut watch, 2, 1), Some(Stops::Address), "what another takes tells nothing");
    assert_eq!(watch.take("a", Some(&at(1))), BTreeSet::from([0, 1, 2]));
    assert_eq!((fails(&mut watch, 3, 2), fails(&mut watch, 4, 2)), (None, None));
    watch.ended_otherwise(&host, Some(&at(2)));
    assert_eq!(fails(&mut watch, 5, 2), None, "it took one between");
    let mut one = AlikeByScope::of_addresses(20);
    one.ended_otherwise(&host, Some(&at(1)));
    assert_eq!((0..3).filter_map(|item| fails(&mut one, item, 1)).collect::<Vec<_>>(), [Stops::Scope(3)]);
    let mut all = AlikeByScope::of_addresses(20);
    let ban = (0..20).filter_map(|n| all.failed(&host, n, of(403), Some(&at(n))));
    assert_eq!(ban.collect::<Vec<_>>(), [Stops::Scope(20)], "refusals from several addresses");
}

#[test]
fn a_scope_that_is_no_host_stops_at_what_is_like_a_ban_alone() {
    let mut watch = AlikeByScope::new(3, false);
    assert_eq!(all(&mut watch, "a", 0, &[400; 40]), [0; 0]);
    assert_eq!(all(&mut watch, "a", 50, &[200, 200, 200]), [2]);
}
