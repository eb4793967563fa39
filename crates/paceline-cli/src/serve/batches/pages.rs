//! Lists in pages, as clients ask for them.

use serde::{Deserialize, Serialize};

use super::error::ApiError;

/// Which part of a list a client wants.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PageQuery {
    limit: Option<String>,
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
    /// That part of a list whose oldest entry is the first: the newest first, unless the query asks for another order. `place`:
    /// by what its entries are in order, their times and ids; `gone`: the time of one that is not there any more, by its id.
    pub(super) fn of<T>(
        &self,
        mut all: Vec<T>,
        most: usize,
        usual: usize,
        place: impl Fn(&T) -> (i64, &str),
        gone: impl Fn(&str) -> Option<i64>,
    ) -> Result<Page<T>, ApiError> {
        let limit = match &self.limit {
            None => usual,
            Some(text) => {
                let limit = text.parse().ok().filter(|limit| (1..=most).contains(limit));
                limit.ok_or_else(|| ApiError::invalid("limit", format!("{text}: expected 1 to {most}")))?
            }
        };
        let is_rising = match self.order.as_deref() {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(ApiError::invalid("order", "expected asc or desc")),
        };
        if let Some(after) = &self.after {
            let there = all.iter().map(&place).find(|(_, id)| id == after).map(|(at, _)| at);
            let at = there
                .or_else(|| gone(after))
                .ok_or_else(|| ApiError::invalid("after", "expected an id of the list"))?;
            all.retain(|entry| match is_rising {
                true => place(entry) > (at, after),
                false => place(entry) < (at, after),
            });
        }
        if !is_rising {
            all.reverse();
        }
        let has_more = all.len() > limit;
        all.truncate(limit);
        let named = |entry: Option<&T>| entry.map(|entry| place(entry).1.to_owned());
        let (first_id, last_id) = (named(all.first()), named(all.last()));
        Ok(Page { object: "list", data: all, first_id, last_id, has_more })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_page_by_page() {
        let all: Vec<(i64, String)> = (0..5).map(|number| (number / 2, format!("b{number}"))).collect();
        let page = |limit: Option<usize>, after: Option<&str>, order: Option<&str>| {
            let query = PageQuery {
                limit: limit.map(|limit| limit.to_string()),
                after: after.map(Into::into),
                order: order.map(Into::into),
                purpose: None,
            };
            let gone = |id: &str| (id == "b11").then_some(0);
            let page = query.of(all.clone(), 100, 20, |(at, id)| (*at, id), gone);
            let ids = |page: &Page<(i64, String)>| page.data.iter().map(|(_, id)| &**id).collect::<Vec<_>>().join(" ");
            page.map(|page| (ids(&page), page.has_more, page.last_id))
        };
        let (newest, last) = ("b4 b3".to_owned(), Some("b3".to_owned()));
        assert_eq!(page(Some(2), None, None), Ok((newest, true, last)));
        assert_eq!(page(Some(2), Some("b3"), None), Ok(("b2 b1".to_owned(), true, Some("b1".to_owned()))));
        assert_eq!(page(Some(2), Some("b1"), None), Ok(("b0".to_owned(), false, Some("b0".to_owned()))));
        assert_eq!(page(None, Some("b11"), None), Ok(("b1 b0".to_owned(), false, Some("b0".to_owned()))), "it is gone");
        assert_eq!(page(Some(1), Some("b11"), Some("asc")), Ok(("b2".to_owned(), true, Some("b2".to_owned()))));
        assert_eq!(page(None, Some("b4"), Some("asc")), Ok((String::new(), false, None)));
        for (limit, after, order) in
            [(Some(0), None, None), (Some(101), None, None), (None, Some("x"), None), (None, None, Some("up"))]
        {
            assert!(page(limit, after, order).is_err(), "{limit:?} {after:?} {order:?}");
        }
    }
}
