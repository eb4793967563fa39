//! What the body of a request holds: texts, and parts that are no text, such as pictures.

use memchr::{memchr, memchr_iter, memchr2};

/// What a body holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prompt {
    /// Characters of all that is there as text, the form around it included.
    pub(super) characters: u64,
    /// The same in quarters of a token, as its scripts let guess: see [`quarters_of`].
    pub(super) quarters: u64,
    /// Those of the texts alone, without the form around them; all of them where nothing is told apart.
    pub(super) of_texts: u64,
    /// The same in bytes.
    pub(super) bytes: u64,
    /// Parts that are no text: pictures, sounds and files, and what the server adds by itself, such as an earlier conversation.
    /// One part may count twice, and then each like it does.
    pub(super) parts: u64,
}

/// The types of such parts: `{"type":"image_url","image_url":{"url":"https://..."}}`.
const TYPES: [&[u8]; 14] = [
    b"image",
    b"image_url",
    b"input_image",
    b"document",
    b"document_url",
    b"file",
    b"input_file",
    b"audio",
    b"audio_url",
    b"input_audio",
    b"video",
    b"video_url",
    b"input_video",
    b"container_upload",
];

/// How the types of tools begin whose results the server adds to the prompt.
const TOOLS: [&[u8]; 6] = [b"web_search", b"web_fetch", b"file_search", b"code_interpreter", b"code_execution", b"mcp"];

/// Members whose text names what the server adds: `"previous_response_id":"resp_1"`.
const NAMED: [&[u8]; 4] = [b"previous_response_id", b"conversation", b"cachedContent", b"cached_content"];

/// Members whose object is such a part, as Gemini's, or names what is added: `"inlineData":{"mimeType":"image/png"}`.
const HOLDERS: [&[u8]; 6] = [b"inlineData", b"inline_data", b"fileData", b"file_data", b"conversation", b"prompt"];

/// Bedrock's: `"image":{"format":"png","source":{"bytes":"..."}}`.
const OF_BEDROCK: [&[u8]; 3] = [b"image", b"document", b"video"];

/// Members whose text may be encoded bytes.
const ENCODED: [&[u8]; 3] = [b"data", b"bytes", b"file_data"];

/// Ollama's list of encoded pictures.
const PICTURES: &[u8] = b"images";

/// Members whose text is form as well.
const FORM: [&[u8]; 3] = [b"model", b"role", b"type"];

impl Prompt {
    /// A body of so many bytes that is not read: as if it were text, and all of it ASCII.
    pub(super) const fn of_unread(bytes: u64) -> Self {
        Self { characters: bytes, quarters: bytes, of_texts: bytes, bytes, parts: 0 }
    }

    /// What that body holds. It need not be JSON.
    pub(super) fn of(body: &[u8]) -> Self {
        let (mut parts, mut encoded) = (0, Encoded::default());
        let (mut key, mut in_list) = (&b""[..], false);
        // The bytes of the texts, and of the last one, which is none where a colon follows.
        let (mut texts, mut last, mut rest) = (0, 0, Texts(body));
        for Text { before, text } in rest.by_ref() {
            let (is_value, opens) = (before == b":", Opens::of(before));
            texts += if before.starts_with(b":") { 0 } else { last };
            let is_part = match opens {
                Some(Opens::Object) => {
                    HOLDERS.contains(&key) || OF_BEDROCK.contains(&key) && [&b"format"[..], b"source"].contains(&text)
                }
                Some(Opens::List) => key == PICTURES,
                None if is_value && key == b"type" => {
                    TYPES.contains(&text) || TOOLS.iter().any(|tool| text.starts_with(tool))
                }
                None => is_value && NAMED.contains(&key),
            };
            parts += u64::from(is_part);
            let may_be_encoded =
                is_value && ENCODED.contains(&key) || is_part && key == PICTURES || in_list && before == b",";
            in_list = false;
            last = if is_value && FORM.contains(&key) { 0 } else { text.len() as u64 };
            if is_data_url(text) || may_be_encoded && is_encoded(text) {
                encoded.add(text);
                in_list = !is_value;
                last = 0;
            }
            key = text;
        }
        texts += if rest.0.trim_ascii_start().starts_with(b":") { 0 } else { last };
        let characters = body.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        let [quarters, bytes] = [quarters_of(body), body.len() as u64].map(|all| all.saturating_sub(encoded.bytes));
        // The form is of ASCII.
        let of_texts = quarters.saturating_sub(bytes.saturating_sub(texts));
        Self {
            characters: (characters as u64).saturating_sub(encoded.bytes),
            quarters,
            of_texts: if texts == 0 { quarters } else { of_texts },
            bytes,
            parts: u64::max(parts, encoded.texts),
        }
    }
}

/// The tokens of a text before any answer has told them, in quarters. A tokenizer joins about four letters of English, two of
/// scripts such as Cyrillic, Greek or Arabic, hardly any of Chinese, Japanese, Korean, Hindi or Thai, and splits emoji: the
/// length of a character in UTF-8 tells these apart. A character that JSON escapes, as `\u4e2d`, counts as itself.
pub(super) fn quarters_of(text: &[u8]) -> u64 {
    let of_byte = |byte: &u8| match byte {
        0..=0x7F => 1,
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 4,
        0xF0.. => 8,
        _ => 0,
    };
    let all = if text.is_ascii() { text.len() as u64 } else { text.iter().map(of_byte).sum() };
    let (mut quarters, mut end) = (all, 0);
    for at in memchr_iter(ESCAPE[0], text).filter(|at| text[*at..].starts_with(ESCAPE)) {
        let digits =
            text.get(at + ESCAPE.len()..at + ESCAPED).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let unit = digits.and_then(|digits| u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        if let Some(unit) = unit.filter(|_| at >= end) {
            end = at + ESCAPED;
            // An emoji is written as two of the last kind.
            quarters = quarters - ESCAPED as u64 + [1, 2, 4][usize::from(unit >= 0x80) + usize::from(unit >= 0x800)];
        }
    }
    quarters
}

/// How the escape of a character in JSON begins.
const ESCAPE: &[u8] = b"\\u";

/// The length of such an escape, `\u4e2d`.
const ESCAPED: usize = 6;

/// Encoded bytes: a picture costs its tokens by size and not by its encoding.
#[derive(Default)]
struct Encoded {
    texts: u64,
    bytes: u64,
}

impl Encoded {
    const fn add(&mut self, text: &[u8]) {
        self.texts += 1;
        self.bytes += text.len() as u64;
    }
}

/// What the form between a key and the next text begins.
enum Opens {
    Object,
    List,
}

impl Opens {
    fn of(form: &[u8]) -> Option<Self> {
        match form.strip_prefix(b":")?.trim_ascii() {
            b"{" => Some(Self::Object),
            b"[" => Some(Self::List),
            _ => None,
        }
    }
}

/// A text of JSON as it is written, without its quotes, and the form before it, trimmed.
pub(super) struct Text<'a> {
    pub(super) before: &'a [u8],
    pub(super) text: &'a [u8],
}

/// The texts of a body that is JSON; of any other what stands between quotes.
pub(super) struct Texts<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Texts<'a> {
    type Item = Text<'a>;

    fn next(&mut self) -> Option<Text<'a>> {
        let start = memchr(b'"', self.0)?;
        let (before, inside) = (self.0[..start].trim_ascii(), &self.0[start + 1..]);
        let mut end = 0;
        loop {
            match memchr2(b'"', b'\\', &inside[end..]) {
                None => {
                    end = inside.len();
                    break;
                }
                Some(at) if inside[end + at] == b'"' => {
                    end += at;
                    break;
                }
                // Whatever stands behind a backslash ends nothing.
                Some(at) => end = inside.len().min(end + at + 2),
            }
        }
        self.0 = inside.get(end + 1..).unwrap_or_default();
        Some(Text { before, text: &inside[..end] })
    }
}

/// What stands before the data of a `data:` URL.
const MARK: &[u8] = b";base64,";

fn is_data_url(text: &[u8]) -> bool {
    text.starts_with(b"data:") && text[..text.len().min(100)].windows(MARK.len()).any(|part| part == MARK)
}

/// Shorter ones are counted as text: no picture has so few bytes, and a text without a blank seldom has more.
const LEAST_ENCODED: usize = 100;

fn is_encoded(text: &[u8]) -> bool {
    let is_of_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(byte);
    text.len() >= LEAST_ENCODED && text[..LEAST_ENCODED].iter().all(is_of_base64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(body: &str) -> u64 {
        Prompt::of(body.as_bytes()).parts
    }

    #[test]
    fn parts_that_are_no_text_are_found_where_each_api_has_them() {
        for (body, expected) in [
            (r#"{"type":"image_url","image_url":{"url":"https://x/a.png"}}"#, 1),
            (r#"{ "type" : "input_image" , "image_url" : "https://x/a.png" }"#, 1),
            (r#"{"type":"input_audio","input_audio":{"data":"QUJD","format":"wav"}}"#, 1),
            (r#"{"type":"input_file","file_id":"file-1"}"#, 1),
            (r#"{"type":"document","source":{"type":"url","url":"https://x/a.pdf"}}"#, 1),
            (r#"{"parts":[{"inlineData":{"mimeType":"image/png","data":"QUJD"}},{"text":"what?"}]}"#, 1),
            (r#"{"file_data": {"file_uri":"gs://x"}}"#, 1),
            (r#"{"content":[{"image":{"format":"png","source":{"bytes":"QUJD"}}}]}"#, 1),
            (r#"{"model":"llava","images":["QUJD"],"prompt":"what?"}"#, 1),
            (r#"{"previous_response_id":"resp_1","input":"and then?"}"#, 1),
            (r#"{"conversation":{"id":"conv_1"},"input":"and then?"}"#, 1),
            (r#"{"tools":[{"type":"web_search_20250305","name":"web_search"}]}"#, 1),
            (r#"{"url":"data:image/png;base64,QUJD"}"#, 1),
            (r#"{"previous_response_id":null,"images":[]}"#, 0),
            (r#"{"messages":[{"role":"user","content":"\"type\":\"image_url\""}]}"#, 0),
            (r#"{"properties":{"image":{"type":"string"},"type":{"type":"string"}}}"#, 0),
            (r#"{"prompt":["a","b"],"model":"m"}"#, 0),
            ("no JSON, but \"type\":\"text\" and one \" too many", 0),
            ("\"\\", 0),
            ("", 0),
        ] {
            assert_eq!(parts(body), expected, "{body}");
        }
    }

    #[test]
    fn encoded_bytes_are_no_text_wherever_they_stand_and_text_without_blanks_is() {
        let data = "iVBORw0KGgo".repeat(1_000);
        for around in [
            |data: &str| format!(r#"{{"url":"data:image/png;base64,{data}"}}"#),
            |data: &str| format!(r#"{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}"#),
            |data: &str| format!(r#"{{"inlineData":{{"data":"{data}","mimeType":"image/png"}}}}"#),
            |data: &str| format!(r#"{{"images":["{data}", "{data}"]}}"#),
        ] {
            let (whole, short) = (Prompt::of(around(&data).as_bytes()), Prompt::of(around(&data[..200]).as_bytes()));
            assert_eq!((whole.characters, whole.bytes), (short.characters, short.bytes), "{}", around("..."));
            assert!(whole.parts > 0 && whole.characters < 100, "{whole:?}");
        }
        for text in [
            format!(r#"{{"role":"user","content":"{data}"}}"#),
            format!(r#"{{"type":"text","data":"{}"}}"#, "a few words and ".repeat(1_000)),
        ] {
            let found = Prompt { of_texts: text.len() as u64, ..Prompt::of(text.as_bytes()) };
            assert_eq!(found, Prompt::of_unread(text.len() as u64));
        }
    }

    #[test]
    fn the_form_around_texts_is_told_apart() {
        for (body, texts) in [
            (
                r#"{"model":"m","messages":[{"role":"user","content":"four"},{"content":["five5", "six666"]}],"n":1}"#,
                15,
            ),
            (
                r#"{"contents":[{"role":"user","parts":[{"text":"\u4e2d"}]}],"generationConfig":{"maxOutputTokens":5}}"#,
                4,
            ),
            (r#"{"messages":[{"content":[{"type":"text","text":"four"}],"role":"user"}],"seed": 1}"#, 4),
            (r#"["four"]"#, 4),
            (r#"{"input":[[1,2,3]],"model":"m"}"#, 31),
            ("no JSON", 7),
        ] {
            assert_eq!(Prompt::of(body.as_bytes()).of_texts, texts, "{body}");
        }
    }

    #[test]
    fn tokens_are_guessed_by_the_script_and_an_escape_is_its_character() {
        let quarters = |text: &str| Prompt::of(text.as_bytes()).quarters;
        for (text, escaped, expected) in [
            ("good", r"\u0067ood", 4),
            ("é я ع", r"\u00e9 \u044f \u0639", 8),
            ("服务器", r"\u670d\u52a1\u5668", 12),
            ("サーバ 서버 सर्वर ไทย", "", 55),
            ("😀", r"\ud83d\ude00", 8),
            (r"\u12", r"\u12", 4),
            (r"\u+123 \u\u4e2d", r"\u+123 \u中", 13),
        ] {
            assert_eq!(quarters(text), expected, "{text}");
            assert!(escaped.is_empty() || quarters(escaped) == expected, "{escaped}: {}", quarters(escaped));
        }
    }
}
