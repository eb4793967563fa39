//! What the body of a prompt names that the provider keeps, or calls: conversations, stores of files, containers, other servers.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::models::plain;
use super::outline::Text;

/// Members of a body, in small letters and without what stands between them, and of its tools: each with the last part of the
/// path under which such a thing is asked for. Of an object its `id` is the name.
const MEMBERS: [(&str, &str); 4] = [
    ("conversation", "conversations"),
    ("conversationid", "conversations"),
    ("container", "containers"),
    ("mcpservers", "mcp"),
];
const OF_TOOLS: [(&str, &str); 4] = [
    ("vectorstoreids", "vector_stores"),
    ("filesearchstorenames", "file_search_stores"),
    ("container", "containers"),
    ("serverurl", "mcp"),
];

/// Members of tools in which a client writes what it likes: the names of its own parameters.
const SCHEMAS: [&str; 3] = ["parameters", "inputschema", "function"];

/// The last parts of the paths under which a provider keeps what that body names, in order, each once: `conversations`,
/// `vector_stores`, `file_search_stores`, `containers`; and `mcp`, where it names a server that is to be called.
///
/// ```
/// use paceline_providers::kept_named;
/// let body = br#"{"conversation":"conv_1","tools":[{"type":"file_search","vector_store_ids":["vs_1"]}]}"#;
/// assert_eq!(kept_named(body), ["conversations", "vector_stores"]);
/// assert!(kept_named(br#"{"tools":[{"type":"code_interpreter","container":{"type":"auto"}}]}"#).is_empty());
/// ```
pub fn kept_named(body: &[u8]) -> Vec<&'static str> {
    let mut found = Found(BTreeSet::new());
    // What no server reads to its end names nothing.
    let _ = serde_json::Deserializer::from_slice(body).deserialize_any(&mut found);
    found.0.into_iter().collect()
}

struct Found(BTreeSet<&'static str>);

impl Found {
    fn see(&mut self, members: &[(&str, &'static str)], key: &str, value: &Value) {
        let names = |value: &Value| value.is_string() || value["id"].is_string() || value["url"].is_string();
        let is_named = names(value) || value.as_array().is_some_and(|all| all.iter().any(names));
        let of_it = members.iter().filter(|(known, _)| *known == key && is_named);
        self.0.extend(of_it.map(|(_, folder)| *folder));
    }

    fn see_tools(&mut self, tools: &Value) {
        match tools {
            Value::Array(all) => all.iter().for_each(|one| self.see_tools(one)),
            Value::Object(members) => members.iter().for_each(|(key, value)| {
                let key = plain(key);
                self.see(&OF_TOOLS, &key, value);
                if !SCHEMAS.contains(&&*key) {
                    self.see_tools(value);
                }
            }),
            _ => {}
        }
    }
}

impl<'de> Visitor<'de> for &mut Found {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(Text(key)) = entries.next_key()? {
            let key = plain(&key);
            match &*key {
                "tools" => self.see_tools(&entries.next_value()?),
                key if MEMBERS.iter().any(|(known, _)| *known == key) => {
                    self.see(&MEMBERS, key, &entries.next_value()?)
                }
                _ => drop(entries.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_provider_keeps_is_found_where_servers_read_it() {
        for (body, expected) in [
            (r#"{"conversation":{"id":"conv_1"}}"#, &["conversations"][..]),
            (r#"{"conversati\u006fn":"conv_1"}"#, &["conversations"]),
            (r#"{"conversation":null,"Conversation_Id":"c"}"#, &["conversations"]),
            (r#"{"conversation":"a","conversation":null}"#, &["conversations"]),
            (r#"{"container":"container_1"}"#, &["containers"]),
            (r#"{"container":{"id":"container_1","skills":[]}}"#, &["containers"]),
            (r#"{"container":{"skills":[{"skill_id":"xlsx"}]}}"#, &[]),
            (r#"{"mcp_servers":[{"type":"url","url":"https://x","name":"x"}]}"#, &["mcp"]),
            (r#"{"tools":[{"type":"mcp","server_label":"x","server_url":"https://x"}]}"#, &["mcp"]),
            (r#"{"tools":[{"type":"code_interpreter","container":"cntr_1"}]}"#, &["containers"]),
            (
                r#"{"tools":[{"file_search":{"file_search_store_names":["fileSearchStores/a"]}}]}"#,
                &["file_search_stores"],
            ),
            (r#"{"tools":[{"type":"file_search","vector_store_ids":[]}]}"#, &[]),
            (
                r#"{"tools":[{"type":"function","function":{"parameters":{"properties":{"container":{"id":"x"}}}}}]}"#,
                &[],
            ),
            (r#"{"tools":[{"name":"docker","input_schema":{"properties":{"server_url":{"id":"x"}}}}]}"#, &[]),
            (r#"{"messages":[{"content":[{"type":"tool_use","input":{"container":"nginx","server_url":"u"}}]}]}"#, &[]),
            (r#"{"metadata":{"conversation":"a"},"input":"conversation"}"#, &[]),
            ("no JSON", &[]),
        ] {
            assert_eq!(kept_named(body.as_bytes()), expected, "{body}");
        }
    }
}
