//! Lists in pages, as clients ask for them.

use serde::{Deserialize, Serialize};

use super::error::ApiError;

/// Which part of a list a client wants.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PageQuery {
    limit: Option<usize>,
    after: Option<String>,
    order: Option<String>,
    pub(super) purpose: Option<String>,
}

/// A part of a list.
#[derive(Debug, Serialize)]
pub(super) struct Page<T> {
    object: &'static str,
    data: Vec<T>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl PageQuery {
    /// That part of a list whose oldest entry is the first: the newest first, unless the query asks for another order.
    pub(super) fn of<T>(
        &self,
        mut all: Vec<T>,
        most: usize,
        usual: usize,
        id: impl Fn(&T) -> &str,
    ) -> Result<Page<T>, ApiError> {
        let limit = self.limit.unwrap_or(usual);
        if !(1..=most).contains(&limit) {
            return Err(ApiError::invalid("limit", format!("{limit}: expected 1 to {most}")));
        }
        match self.order.as_deref() {
            None | Some("desc") => all.reverse(),
            Some("asc") => {}
            Some(_) => return Err(ApiError::invalid("order", "expected asc or desc")),
        }
        if let Some(after) = &self.after {
            let place = all.iter().position(|entry| id(entry) == after);
            let place = place.ok_or_else(|| ApiError::invalid("after", "expected an id of the list"))?;
            all.drain(..=place);
        }
        let has_more = all.len() > limit;
        all.truncate(limit);
        let named = |entry: Option<&T>| entry.map(|entry| id(entry).to_owned());
        let (first_id, last_id) = (named(all.first()), named(all.last()));
        Ok(Page { object: "list", data: all, first_id, last_id, has_more })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_page_by_page() {
        let all: Vec<String> = (0..5).map(|number| format!("b{number}")).collect();
        let page = |limit, after: Option<&str>, order: Option<&str>| {
            let query = PageQuery { limit, after: after.map(Into::into), order: order.map(Into::into), purpose: None };
            query.of(all.clone(), 100, 20, |id| id).map(|page| (page.data.join(" "), page.has_more, page.last_id))
        };
        let (newest, last) = ("b4 b3".to_owned(), Some("b3".to_owned()));
        assert_eq!(page(Some(2), None, None), Ok((newest, true, last)));
        assert_eq!(page(Some(2), Some("b3"), None), Ok(("b2 b1".to_owned(), true, Some("b1".to_owned()))));
        assert_eq!(page(Some(2), Some("b1"), None), Ok(("b0".to_owned(), false, Some("b0".to_owned()))));
        assert_eq!(page(None, Some("b4"), Some("asc")), Ok((String::new(), false, None)));
        for (limit, after, order) in
            [(Some(0), None, None), (Some(101), None, None), (None, Some("x"), None), (None, None, Some("up"))]
        {
            assert!(page(limit, after, order).is_err(), "{limit:?} {after:?} {order:?}");
        }
    }
}
