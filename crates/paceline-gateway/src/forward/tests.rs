use super::*;

type Forward<'a, Answer> =
    fn(&'a Gateway, &'a [Arc<Backend>], &'a Arc<Backend>, String, Request<RequestBody>) -> Answer;

fn size<Answer>(_: Forward<'_, Answer>) -> usize {
    size_of::<Answer>()
}

#[test]
fn a_request_on_its_way_takes_little_memory() {
    assert!(
        size(forward) <= 10 << 10,
        "it is copied where it begins, and each connection has room for one: {}",
        size(forward)
    );
}
