//! The binary event streams of AWS: frames of headers and a payload.
//!
//! A frame is its length, the length of its headers, a checksum, the headers, the payload and a checksum. What arrives over
//! TLS is intact, so the checksums are not looked at.

use serde_json::Value;

use super::twice::Twice;

/// The media type of such a stream.
pub(super) const MEDIA_TYPE: &str = "application/vnd.amazon.eventstream";

/// One frame.
#[derive(Debug, PartialEq)]
pub(super) struct Frame<'a> {
    /// The type of the event or of the exception.
    pub(super) name: &'a str,
    /// It is an exception.
    pub(super) failed: bool,
    /// Its payload; null where it is no JSON.
    pub(super) payload: Value,
}

/// Hands out the frames of a whole body.
///
/// # Errors
/// The body ends in the middle of a frame, or is none.
pub(super) fn each(mut bytes: &[u8], mut take: impl FnMut(Frame<'_>)) -> Result<(), Cut> {
    const PRELUDE: usize = 12;
    const CHECKSUM: usize = 4;
    while !bytes.is_empty() {
        let length = number(bytes)?;
        let headers = number(bytes.get(4..).ok_or(Cut)?)?;
        let frame = bytes.get(..length).filter(|frame| frame.len() >= PRELUDE + CHECKSUM).ok_or(Cut)?;
        let inside = &frame[PRELUDE..length - CHECKSUM];
        let (headers, payload) = inside.split_at_checked(headers).ok_or(Cut)?;
        take(Frame::read(headers, payload)?);
        bytes = &bytes[length..];
    }
    Ok(())
}

/// Where the first frame begins at that byte or behind it, or the one that is not whole yet; the end of what has no frames.
pub(super) fn frame_from(bytes: &[u8], at: usize) -> usize {
    let mut begins = 0;
    while begins < at {
        match number(&bytes[begins..]) {
            Ok(length) if length > 0 && length <= bytes.len() - begins => begins += length,
            Ok(length) if length > 0 => break,
            _ => return bytes.len(),
        }
    }
    begins
}

/// A body that is not whole.
#[derive(Debug, PartialEq)]
pub(super) struct Cut;

impl<'a> Frame<'a> {
    fn read(mut headers: &'a [u8], payload: &[u8]) -> Result<Self, Cut> {
        let mut frame = Frame { name: "", failed: false, payload: Value::Null };
        frame.payload = serde_json::from_slice(payload).map(|Twice(payload)| payload).unwrap_or_default();
        while !headers.is_empty() {
            let (name, value) = header(&mut headers)?;
            match name {
                b":event-type" | b":exception-type" | b":error-code" => frame.name = value,
                b":message-type" => frame.failed = value != "event",
                _ => {}
            }
        }
        Ok(frame)
    }
}

/// Takes a header off the front; a value that is no text comes out empty.
fn header<'a>(rest: &mut &'a [u8]) -> Result<(&'a [u8], &'a str), Cut> {
    const TEXT: u8 = 7;
    let length = usize::from(take(rest, 1)?[0]);
    let name = take(rest, length)?;
    let kind = take(rest, 1)?[0];
    let length = match kind {
        0 | 1 => 0,
        2 => 1,
        3 => 2,
        4 => 4,
        5 | 8 => 8,
        6 | TEXT => usize::from(u16::from_be_bytes(take(rest, 2)?.try_into().map_err(|_| Cut)?)),
        9 => 16,
        _ => return Err(Cut),
    };
    let value = take(rest, length)?;
    Ok((name, if kind == TEXT { std::str::from_utf8(value).unwrap_or_default() } else { "" }))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Cut> {
    let (taken, left) = rest.split_at_checked(length).ok_or(Cut)?;
    *rest = left;
    Ok(taken)
}

fn number(bytes: &[u8]) -> Result<usize, Cut> {
    let four = bytes.first_chunk().ok_or(Cut)?;
    usize::try_from(u32::from_be_bytes(*four)).map_err(|_| Cut)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Answer, Provider, Reading, read};
    use super::*;
    use http::{HeaderMap, HeaderValue};
    use paceline_core::{Class, Timestamp};
    use proptest::proptest;

    pub(in super::super) fn frame(kind: &str, name: &str, payload: &str) -> Vec<u8> {
        let place = if kind == "event" { ":event-type" } else { ":exception-type" };
        let mut headers = Vec::new();
        for (name, value) in [(":message-type", kind), (place, name), (":content-type", "application/json")] {
            headers.push(name.len() as u8);
            headers.extend(name.as_bytes());
            headers.push(7);
            headers.extend((value.len() as u16).to_be_bytes());
            headers.extend(value.as_bytes());
        }
        let length = (16 + headers.len() + payload.len()) as u32;
        let mut frame = [length.to_be_bytes(), (headers.len() as u32).to_be_bytes(), [0; 4]].concat();
        frame.extend(headers);
        frame.extend(payload.as_bytes());
        frame.extend([0; 4]);
        frame
    }

    fn reading(body: &[u8]) -> Reading {
        let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE))]);
        let answer = Answer { status: 200, headers: &headers, body, path: "/model/m/converse-stream" };
        read(Provider::Bedrock, &answer, Timestamp::from_millis(0))
    }

    #[test]
    fn a_stream_succeeds_with_its_end_and_fails_with_an_exception_or_without_either() {
        let start = frame("event", "messageStart", r#"{"role":"assistant"}"#);
        let delta = frame("event", "contentBlockDelta", r#"{"delta":{"text":"throttlingException"}}"#);
        let stop = frame("event", "messageStop", r#"{"stopReason":"end_turn"}"#);
        let usage = frame("event", "metadata", r#"{"usage":{"inputTokens":7,"outputTokens":3,"totalTokens":10}}"#);
        let whole = reading(&[&start[..], &delta, &stop, &usage].concat());
        assert_eq!((whole.class, whole.usage.map(|usage| usage.total())), (Class::Success, Some(10)));
        for (name, class) in [
            ("throttlingException", Class::Throttled),
            ("modelStreamErrorException", Class::Transient),
            ("internalServerException", Class::Transient),
            ("serviceUnavailableException", Class::Overloaded),
            ("validationException", Class::Invalid),
        ] {
            let failed = reading(&[&start[..], &delta, &frame("exception", name, r#"{"message":"no"}"#)].concat());
            assert_eq!((failed.class, failed.message.as_deref()), (class, Some("no")), "{name}");
        }
        let cut = [&start[..], &delta].concat();
        for cut in [&cut[..], &cut[..cut.len() - 3]] {
            let found = reading(cut);
            assert_eq!((found.class, found.code.as_deref()), (Class::Transient, Some("truncated")));
        }
    }

    #[test]
    fn a_long_stream_is_cut_between_its_frames() {
        let (first, second) = (frame("event", "contentBlockDelta", "{}"), frame("event", "messageStop", "{}"));
        let (all, half) = ([&first[..], &second].concat(), [&first[..], &second[..9]].concat());
        let (one, both) = (first.len(), all.len());
        assert_eq!([0, 1, one, one + 1].map(|at| frame_from(&all, at)), [0, one, one, both]);
        assert_eq!([1, one, one + 1].map(|at| frame_from(&half, at)), [one; 3], "the rest of the second comes");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes: Vec<u8>, at: proptest::sample::Index, byte: u8) {
            let _ = each(&bytes, |_| {});
            assert!(frame_from(&bytes, at.index(bytes.len() + 1)) <= bytes.len());
            let mut changed = frame("event", "messageStart", "{}");
            let at = at.index(changed.len());
            changed[at] = byte;
            let _ = each(&changed, |_| {});
        }
    }
}
