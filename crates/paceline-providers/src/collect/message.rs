//! Anthropic's messages: blocks of content, each begun, continued and stopped.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// What the events of a stream add up to.
#[derive(Default)]
pub(super) struct Message {
    message: Map<String, Value>,
    blocks: BTreeMap<u64, Block>,
}

#[derive(Default)]
struct Block {
    content: Map<String, Value>,
    /// The input of a tool, which comes as pieces of JSON text.
    input: String,
}

impl Message {
    pub(super) fn take(&mut self, kind: &str, mut event: Value) {
        let index = event["index"].as_u64().unwrap_or(0);
        let mut part = |key: &str| event.get_mut(key).and_then(Value::as_object_mut).map(std::mem::take);
        match kind {
            "message_start" => self.message = part("message").unwrap_or_default(),
            "content_block_start" => {
                let content = part("content_block").unwrap_or_default();
                self.blocks.insert(index, Block { content, ..Block::default() });
            }
            "content_block_delta" => {
                self.blocks.entry(index).or_default().take(part("delta").unwrap_or_default());
            }
            "message_delta" => {
                self.message.extend(part("delta").unwrap_or_default());
                let usage = part("usage").unwrap_or_default().into_iter().filter(|(_, count)| !count.is_null());
                if let Value::Object(counts) = self.message.entry("usage").or_insert_with(|| json!({})) {
                    counts.extend(usage);
                }
            }
            _ => {}
        }
    }

    pub(super) fn into_object(self) -> Map<String, Value> {
        let mut message = self.message;
        if !self.blocks.is_empty() {
            message.insert("content".to_owned(), self.blocks.into_values().map(Block::into_value).collect());
        }
        message
    }
}

impl Block {
    /// Text, thinking and signatures continue the key of their own name.
    fn take(&mut self, delta: Map<String, Value>) {
        for (key, piece) in delta {
            match (&*key, piece) {
                ("type", _) => {}
                ("partial_json", Value::String(piece)) => self.input.push_str(&piece),
                ("citation", citation) => match self.content.entry("citations").or_insert(Value::Null) {
                    Value::Array(citations) => citations.push(citation),
                    none => *none = json!([citation]),
                },
                (_, piece) => match (self.content.entry(key).or_insert(Value::Null), piece) {
                    (Value::String(whole), Value::String(piece)) => whole.push_str(&piece),
                    (whole, piece) => *whole = piece,
                },
            }
        }
    }

    fn into_value(mut self) -> Value {
        if !self.input.is_empty() {
            // An input that the longest answer cut off is no JSON; its text is all there is.
            let input = serde_json::from_str(&self.input).unwrap_or(Value::String(self.input));
            self.content.insert("input".to_owned(), input);
        }
        Value::Object(self.content)
    }
}
