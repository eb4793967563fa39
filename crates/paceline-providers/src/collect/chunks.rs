//! Chat completions and completions: chunks of choices, each with a delta.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// What the chunks of a stream add up to.
#[derive(Default)]
pub(super) struct Chunks {
    /// What stands beside the choices.
    head: Map<String, Value>,
    choices: BTreeMap<u64, Map<String, Value>>,
}

/// A piece of another shape than what it should continue: what they are together is not known.
pub(super) struct Clash;

/// Random text that hides the length of a delta.
const PADDING: &str = "obfuscation";

impl Chunks {
    pub(super) fn take(&mut self, chunk: Value) -> Result<(), Clash> {
        let Value::Object(chunk) = chunk else { return Ok(()) };
        for (key, value) in chunk {
            match (&*key, value) {
                ("choices", Value::Array(choices)) => {
                    choices.into_iter().try_for_each(|choice| self.take_choice(choice))?;
                }
                ("choices" | "error" | PADDING, _) => {}
                // It comes last, with the whole count.
                ("usage", Value::Null) => {}
                ("usage", usage) => drop(self.head.insert(key, usage)),
                (_, value) => first(&mut self.head, key, value),
            }
        }
        Ok(())
    }

    fn take_choice(&mut self, choice: Value) -> Result<(), Clash> {
        let Value::Object(choice) = choice else { return Ok(()) };
        let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
        let whole = self.choices.entry(index).or_default();
        for (key, value) in choice {
            match &*key {
                "index" => {}
                "delta" => merge(whole.entry("message").or_insert_with(|| json!({})), value)?,
                "text" | "logprobs" => merge(whole.entry(key).or_insert(Value::Null), value)?,
                _ if value.is_null() => {}
                _ => drop(whole.insert(key, value)),
            }
        }
        Ok(())
    }

    /// Whether each choice that came has ended.
    pub(super) fn have_ended(&self) -> bool {
        let has_ended = |choice: &Map<String, Value>| choice.get("finish_reason").is_some_and(Value::is_string);
        !self.choices.is_empty() && self.choices.values().all(has_ended)
    }

    pub(super) fn into_object(self) -> Map<String, Value> {
        let mut object = self.head;
        let chat = self.choices.values().any(|choice| choice.contains_key("message"));
        if chat || object.get("object").is_some_and(|name| name == "chat.completion.chunk") {
            object.insert("object".to_owned(), "chat.completion".into());
        }
        let choices = self.choices.into_iter().map(|(index, choice)| finished(index, choice));
        object.insert("choices".to_owned(), choices.collect());
        object
    }
}

/// A choice with the keys that it has without `stream`, also where no delta named them.
fn finished(index: u64, mut choice: Map<String, Value>) -> Value {
    choice.insert("index".to_owned(), index.into());
    for key in ["finish_reason", "logprobs"] {
        choice.entry(key).or_insert(Value::Null);
    }
    if let Some(Value::Object(message)) = choice.get_mut("message") {
        message.entry("role").or_insert_with(|| "assistant".into());
        for key in ["content", "refusal"] {
            message.entry(key).or_insert(Value::Null);
        }
        // The place of a tool call within the message is given in deltas only.
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(call) = call {
                call.remove("index");
            }
        }
    }
    Value::Object(choice)
}

/// Keeps the first value that says something: some servers repeat these in each chunk, some leave the first ones blank.
fn first(whole: &mut Map<String, Value>, key: String, value: Value) {
    let known = whole.entry(key).or_insert(Value::Null);
    if known.is_null() || *known == "" || *known == 0 {
        *known = value;
    }
}

/// Strings of a delta that name something, and are whole where they first come; all others are continued.
const NAMES: [&str; 5] = ["format", "id", "name", "role", "type"];

/// Continues what has come with a piece of the same shape.
fn merge(whole: &mut Value, piece: Value) -> Result<(), Clash> {
    match (whole, piece) {
        (_, Value::Null) => {}
        (Value::Object(whole), Value::Object(piece)) => {
            for (key, piece) in piece {
                match NAMES.contains(&&*key) {
                    true => first(whole, key, piece),
                    false => merge(whole.entry(key).or_insert(Value::Null), piece)?,
                }
            }
        }
        (Value::Array(whole), Value::Array(piece)) => {
            piece.into_iter().try_for_each(|element| place(whole, element))?;
        }
        (Value::String(whole), Value::String(piece)) => whole.push_str(&piece),
        (Value::Number(whole), Value::Number(piece)) => *whole = piece,
        (Value::Bool(whole), Value::Bool(piece)) => *whole = piece,
        // The elements of a first list may continue each other.
        (whole @ Value::Null, list @ Value::Array(_)) => {
            *whole = json!([]);
            merge(whole, list)?;
        }
        (whole @ Value::Null, piece) => *whole = piece,
        _ => return Err(Clash),
    }
    Ok(())
}

/// Elements of one list that may come in any order. Longer lists must come in theirs: each one out of order moves all behind
/// it.
const SHUFFLED: usize = 1_024;

/// An element with an index continues the one with the same index; any other one follows those before it.
fn place(whole: &mut Vec<Value>, element: Value) -> Result<(), Clash> {
    let index = element["index"].as_u64();
    let before = |other: &Value| other["index"].as_u64() < index;
    let at = if index.is_some() { whole.partition_point(before) } else { whole.len() };
    let far = at < whole.len() && whole.len() > SHUFFLED;
    match whole.get_mut(at).filter(|other| other["index"].as_u64() == index) {
        Some(same) => merge(same, element)?,
        None if far => return Err(Clash),
        None => whole.insert(at, element),
    }
    Ok(())
}
