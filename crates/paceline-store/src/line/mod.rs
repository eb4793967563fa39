//! Lines of results and errors in the shapes of the hosted batch services, each with a proof that it is whole.

#[cfg(test)]
mod tests;
mod verify;
mod write;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::item::End;
use crate::schema::hash;

pub(crate) use verify::{BEGINNING, VerifiedLine, verify_line};

/// The id that the user gave a request: text, or a number, echoed as it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CustomId {
    /// Text, the usual form.
    Text(String),
    /// A number, which some writers use.
    Number(serde_json::Number),
    /// `null`: the line has none that can be read, or that of a line before it. Only of lines that cannot be sent.
    Absent,
}

impl CustomId {
    /// That of a line that names none, by its number from 1.
    pub fn of_line(number: u64) -> Self {
        Self::Text(format!("line-{number}"))
    }

    /// The text that identifies the id. `7` and `"7"` are one id: many readers of results could not distinguish them either.
    pub(crate) fn key(&self) -> [u8; 16] {
        match self {
            Self::Text(text) => hash(text.as_bytes()),
            Self::Number(number) => hash(number.to_string().as_bytes()),
            // No hash of an id is all zeros but by an accident too rare to happen; recovery asks for it.
            Self::Absent => [0; 16],
        }
    }
}

impl From<&str> for CustomId {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl fmt::Display for CustomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.pad(text),
            Self::Number(number) => number.fmt(f),
            Self::Absent => f.pad("null"),
        }
    }
}

/// The content of a line.
#[derive(Clone, Copy, Debug)]
pub enum ResultBody<'a> {
    /// An HTTP response, whatever its status: an error of the provider stands in its body.
    Response {
        /// The status.
        status: u16,
        /// The provider's id of the call, empty if it gave none.
        request_id: &'a str,
        /// Header fields that are kept beside the body, as JSON; none leaves the key out. Anthropic's form has no place for them.
        headers: Option<&'a RawValue>,
        /// The body as it came. JSON keeps its numbers and order, without the space between; anything else becomes a
        /// JSON string.
        body: &'a [u8],
    },
    /// An HTTP response that is no success although its status does not say so, and why it is none.
    Unusable {
        /// The status.
        status: u16,
        /// As in [`Response`](Self::Response).
        request_id: &'a str,
        /// As in [`Response`](Self::Response).
        headers: Option<&'a RawValue>,
        /// As in [`Response`](Self::Response).
        body: &'a [u8],
        /// The error code.
        code: &'a str,
        /// The error message.
        message: &'a str,
    },
    /// A failure without a response. The codes `skipped` and `cancelled` mean those ends.
    Error {
        /// The error code.
        code: &'a str,
        /// The error message.
        message: &'a str,
    },
    /// What a fallback made of the item, because the API gave no answer. The line is marked `"source":"fallback"`, and has
    /// neither a status nor a response.
    Fallback {
        /// Why there is no answer, as a code.
        code: &'a str,
        /// The last failure.
        message: &'a str,
        /// Its result; anything but JSON becomes a JSON string.
        output: &'a [u8],
    },
    /// A line that cannot be sent.
    Refused {
        /// The error code.
        code: &'a str,
        /// The error message.
        message: &'a str,
        /// The line in the input, from 1.
        line: u64,
    },
}

/// The shape of a result line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineForm {
    /// OpenAI's Batch API: `{"custom_id", "response": {"status_code", "request_id", "body"}, "error"}`, with `headers` in the
    /// response where some are kept.
    #[default]
    OpenAi,
    /// Anthropic's Message Batches: `{"custom_id", "result": {"type": "succeeded", "message"}}`, or `"errored"` with an
    /// `error`.
    Anthropic,
}

/// The line of an item, but for the answer.
#[derive(Clone, Copy, Debug)]
pub struct ResultLine<'a> {
    /// The place of the item in the input, from 0.
    pub ordinal: u64,
    /// The number of the send that the line answers, from 1, all kinds counted.
    pub call: u32,
    /// The id that the user gave.
    pub custom_id: &'a CustomId,
    /// The user's metadata beside the answer; none leaves the key out.
    pub metadata: Option<&'a RawValue>,
    /// The shape.
    pub form: LineForm,
}

impl ResultLine<'_> {
    /// The line, with its line end.
    ///
    /// Its `id` is `pl-<ordinal>-<call>-<crc32>`, the checksum being that of the bytes that the answer has in this line
    /// (the body, message or error) and then those of the headers, of an error beside a body, and of the metadata.
    pub fn encode(&self, end: End, answer: &ResultBody<'_>) -> Vec<u8> {
        write::line(self, end, answer)
    }

    /// The line of an answer that ends nothing, because the user's expectation refused it, with its line end. It has
    /// [`LineForm::OpenAi`] whatever the form, and the number of the call as `attempt`.
    pub fn encode_refused(&self, answer: &ResultBody<'_>) -> Vec<u8> {
        write::refused_answer(self, answer)
    }
}

/// The line of an item in OpenAI's form and without metadata; see [`ResultLine`].
pub fn encode_line(ordinal: u64, call: u32, custom_id: &CustomId, answer: &ResultBody<'_>) -> Vec<u8> {
    // In this form the end of an item shows in the file that its line is in, not in the line.
    let line = ResultLine { ordinal, call, custom_id, metadata: None, form: LineForm::OpenAi };
    line.encode(End::Succeeded, answer)
}
