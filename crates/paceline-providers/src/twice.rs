//! JSON in which a key may stand twice: of two counts the larger stays, whichever a server means. Parsers differ in which of them
//! they believe.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Value};

/// Such JSON.
pub(super) struct Twice(pub(super) Value);

/// What stands under a key, where `later` does so beside it: of two numbers the larger, of two objects all that both have; of a
/// number and what is none both, so that it can be seen; else the later one.
pub(super) fn merge(value: &mut Value, later: Value) {
    match (value, later) {
        (Value::Number(number), Value::Number(later)) => {
            if later.as_f64() > number.as_f64() {
                *number = later;
            }
        }
        (Value::Object(members), Value::Object(later)) => {
            later.into_iter().for_each(|(key, later)| insert(members, key, later));
        }
        (_, Value::Null) => {}
        (Value::Array(both), later) if later.is_number() => both.push(later),
        (before, later) if before.is_number() || (later.is_number() && !before.is_null()) => {
            *before = Value::Array(vec![before.take(), later]);
        }
        (before, later) => *before = later,
    }
}

fn insert(members: &mut Map<String, Value>, key: String, later: Value) {
    match members.entry(key) {
        Entry::Vacant(entry) => drop(entry.insert(later)),
        Entry::Occupied(mut entry) => merge(entry.get_mut(), later),
    }
}

impl<'de> Deserialize<'de> for Twice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some((key, Twice(value))) = entries.next_entry()? {
            insert(&mut members, key, value);
        }
        Ok(Value::Object(members))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Twice(element)) = elements.next_element()? {
            all.push(element);
        }
        Ok(Value::Array(all))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_counts_under_one_key_the_larger_stays() {
        for (text, expected) in [
            (r#"{"a":[1,-2,2.5,"x",true,null]}"#, r#"{"a":[1,-2,2.5,"x",true,null]}"#),
            (r#"{"a":9,"a":1}"#, r#"{"a":9}"#),
            (r#"{"a":1,"b":2,"a":9}"#, r#"{"a":9,"b":2}"#),
            (r#"{"a":{"b":9},"a":{"b":1,"c":2}}"#, r#"{"a":{"b":9,"c":2}}"#),
            (r#"{"a":{"b":9},"a":null}"#, r#"{"a":{"b":9}}"#),
            (r#"{"a":null,"a":3}"#, r#"{"a":3}"#),
            (r#"{"a":9,"a":"1","a":10}"#, r#"{"a":[9,"1",10]}"#),
            (r#"{"a":"x","a":9}"#, r#"{"a":["x",9]}"#),
            (r#"{"a":"x","a":"y"}"#, r#"{"a":"y"}"#),
        ] {
            let Twice(found) = serde_json::from_str(text).expect("JSON");
            assert_eq!(found.to_string(), expected, "{text}");
        }
    }
}
