//! How a path is spelt: what stands for `..` in any coding that a server undoes, and what servers read differently.

use percent_encoding::percent_decode_str;

use crate::query::MOST_DECODED;

/// What servers that normalize names take for dots and slashes, beside wide letters: the compatibility decompositions of
/// Unicode (NFKC; UnicodeData.txt, `Decomposition_Mapping`).
const LOOK_ALIKES: [(u32, &[u8]); 5] =
    [(0x2024, b"."), (0x2025, b".."), (0xFE30, b".."), (0xFE52, b"."), (0xFE68, b"\\")];

/// Whether a path has no part that some server takes for `.` or `..`, and so stays in its folder: also percent-encoded, and again
/// where another server before it has decoded once; as `%u002e`; in UTF-8 of more bytes than it takes, as a wide letter, or
/// another that normalizes to it; and with blanks, controls or a parameter beside it.
pub(crate) fn stays_inside(path: &str) -> bool {
    let is_plain = |path: &[u8]| !path.split(|byte| matches!(byte, b'/' | b'\\')).any(resolves);
    if path.is_ascii() && !path.contains('%') {
        return is_plain(path.as_bytes());
    }
    let mut path = path.as_bytes().to_vec();
    for _ in 0..MOST_DECODED {
        let decoded = decoded(&path);
        if !is_plain(&path) || !is_plain(&decoded) {
            return false;
        }
        if decoded == path {
            return true;
        }
        path = decoded;
    }
    false
}

/// Whether every server reads a path alike, so that its beginning says whose it is.
///
/// # Errors
/// What of it some read in another way.
pub(crate) fn check(path: &str) -> Result<(), &'static str> {
    let is_encoded = |behind: &str| number::<2>(behind.as_bytes()).is_some();
    if !path.split('%').skip(1).all(is_encoded) {
        return Err("a % without two hexadecimal digits behind it (the sign itself is %25)");
    }
    let mut path = path.to_owned();
    for _ in 0..MOST_DECODED {
        if path.contains('\\') {
            return Err("a backslash, which some servers take for a slash");
        }
        if path.chars().any(char::is_control) {
            return Err("a control character, which some servers leave out");
        }
        let Ok(decoded) = percent_decode_str(&path).decode_utf8() else {
            return Err("percent-encoded bytes that are no UTF-8");
        };
        if *decoded == *path {
            return Ok(());
        }
        path = decoded.into_owned();
    }
    Err("a part that is percent-encoded many times over")
}

/// Whether a server may take that part of a path for `.` or `..`.
fn resolves(part: &[u8]) -> bool {
    let is_blank = |byte: &&u8| byte.is_ascii_control() || **byte == b' ';
    let end = part.iter().position(|byte| matches!(byte, b';' | b'?' | b'#'));
    let part = part[..end.unwrap_or(part.len())].iter().skip_while(is_blank);
    is_dots(part.clone().take_while(|byte| !is_blank(byte))) || is_dots(part.filter(|byte| !is_blank(byte)))
}

fn is_dots<'a>(mut letters: impl Iterator<Item = &'a u8>) -> bool {
    let first = [letters.next(), letters.next(), letters.next()];
    matches!(first, [Some(b'.'), None, _] | [Some(b'.'), Some(b'.'), None])
}

/// What a lenient server makes of a path that it decodes once.
fn decoded(path: &[u8]) -> Vec<u8> {
    let (mut left, mut rest) = (Vec::with_capacity(path.len()), path);
    while let Some(first) = rest.first() {
        let wide = rest.strip_prefix(b"%u").or_else(|| rest.strip_prefix(b"%U")).and_then(number::<4>);
        let byte = rest.strip_prefix(b"%").and_then(number::<2>);
        let length = match (wide, byte) {
            (Some(wide), _) => {
                let letter = char::from_u32(wide).unwrap_or(char::REPLACEMENT_CHARACTER);
                left.extend(letter.encode_utf8(&mut [0; 4]).bytes());
                6
            }
            (None, Some(byte)) => {
                left.push(byte as u8);
                3
            }
            (None, None) => {
                left.push(*first);
                1
            }
        };
        rest = &rest[length..];
    }
    in_ascii(&left)
}

/// The number that a text begins with, of so many hexadecimal digits.
fn number<const DIGITS: usize>(text: &[u8]) -> Option<u32> {
    let digits = text.first_chunk::<DIGITS>()?;
    digits.iter().try_fold(0, |number, digit| Some((number << 4) | char::from(*digit).to_digit(16)?))
}

/// Whether a letter goes where names are trimmed or normalized: a blank of Unicode, a control, or what no one sees.
fn is_unseen(letter: u32) -> bool {
    matches!(letter, 0xAD | 0x34F | 0x180E | 0x200B..=0x200F | 0x202A..=0x202E | 0x2060..=0x206F | 0xFE00..=0xFE0F | 0xFEFF)
        || char::from_u32(letter).is_some_and(|letter| letter.is_whitespace() || letter.is_control())
}

/// With letters of ASCII in the place of those that some decoders take for them: of too many bytes, wide ones, and look-alikes.
fn in_ascii(text: &[u8]) -> Vec<u8> {
    let (mut left, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, behind)) = rest.split_first() {
        let more = match first {
            0xC0..=0xDF => 1,
            0xE0..=0xEF => 2,
            0xF0..=0xF7 => 3,
            0xF8..=0xFB => 4,
            0xFC..=0xFD => 5,
            _ => 0,
        };
        let bytes = behind.get(..more).filter(|_| more > 0);
        let letter = bytes.map(|bytes| {
            let begins = u32::from(first & (0x3F >> more));
            bytes.iter().fold(begins, |letter, byte| (letter << 6) | u32::from(byte & 0x3F))
        });
        let goes_on = |byte: &u8| byte & 0xC0 == 0x80;
        let is_whole = bytes.is_some_and(|bytes| bytes.iter().all(goes_on));
        // A dot or a slash behind a byte that only begins a letter is one for other servers.
        let hides =
            |letter: u32| bytes.into_iter().flatten().any(|byte| b"./\\".contains(byte) && u32::from(*byte) != letter);
        if let Some((_, dots)) = LOOK_ALIKES.iter().find(|(known, _)| is_whole && letter == Some(*known)) {
            left.extend_from_slice(dots);
            rest = &rest[1 + more..];
            continue;
        }
        let (letter, length) = match letter {
            Some(letter @ 0..=0x7F) if !hides(letter) => (letter as u8, 1 + more),
            Some(wide @ 0xFF01..=0xFF5E) if is_whole => ((wide - 0xFEE0) as u8, 1 + more),
            Some(unseen) if is_whole && is_unseen(unseen) => (b' ', 1 + more),
            // The blank of Latin-1.
            None if *first == 0xA0 => (b' ', 1),
            _ => (*first, 1),
        };
        left.push(letter);
        rest = &rest[length..];
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spelling_of_a_dot_segment_stays_inside() {
        let dots = [
            ".",
            "..",
            "%2e",
            "%2e%2e",
            ".%2e",
            "%2E.",
            "%252e%252e",
            "%2525252e.",
            "%c0%ae%c0%ae",
            "%c0%2e.",
            "%25c0%25ae.",
            "%e0%80%ae.",
            "%f0%80%80%ae%2e",
            "%u002e%u002e",
            "%U002E.",
            "%25u002e.",
            "%ef%bc%8e.",
            "%uff0e%uFF0E",
            "%09..",
            "..%09",
            "..%00x",
            "%20..",
            "..%20x",
            ".%09.",
            ".%0d%0a.",
            "%2509..",
            "..;",
            "..;a=b",
            "..%3ba",
            "..%3fx",
            "..%23",
        ];
        for dots in dots {
            for path in [format!("/v1/{dots}/admin"), format!("/v1/{dots}"), format!("/{dots}/v1")] {
                assert!(!stays_inside(&path), "{path}");
            }
        }
        for path in [
            "/v1/..\\admin",
            "/v1/..%5cadmin",
            "/v1/..%2fadmin",
            "/v1/..%c0%afadmin",
            "/v1/..%255cadmin",
            "/v1/..%u2215x/..",
            "/v1/x%c1%2f%2e%2e",
            "/v1/x%ef%bc%2f%2e%2e/admin",
            "/v1/x%e2@%2f%2e%2e/admin",
            "/v1/..\u{ff0f}admin",
            "/v1/..%ef%bc%8fadmin",
            "/v1/..%ef%bc%bcadmin",
            "/v1/..\u{fe68}admin",
            "/v1/..%ef%b9%a8admin",
        ] {
            assert!(!stays_inside(path), "{path}");
        }
    }

    #[test]
    fn no_letter_that_normalizes_to_dots_and_no_blank_beside_them_stays_inside() {
        let dots = [
            "\u{2025}",
            ".\u{2024}",
            "\u{fe30}",
            "\u{fe52}\u{ff0e}",
            "%e2%80%a4%E2%80%A4",
            "%e2%80%a5",
            "%ef%b8%b0",
            "%ef%b9%92.",
            "%u2025",
            "%25e2%2580%25a5",
            "..\u{a0}",
            "\u{3000}..",
            ".\u{200b}.",
            "..%c2%a0x",
            "%e2%80%89..",
            "..%e3%80%80",
            "..%a0",
            ".%c2%ad.",
            "%ef%bb%bf..",
        ];
        for dots in dots {
            for path in [format!("/v1/{dots}/admin"), format!("/v1/{dots}"), format!("/{dots}/v1")] {
                assert!(!stays_inside(&path), "{path}");
            }
        }
    }

    #[test]
    fn a_path_that_is_fine_is_taken_whatever_it_has_encoded() {
        let fine = [
            "/v1/chat/completions",
            "/v1/a%2Fb",
            "/v1//x",
            "/v1/a..b/...",
            "/v1/a%20b",
            "/v1/%C3%A9t%C3%A9",
            "/v1/100%25",
            "/v1/100%2525",
            "/models/m:generateContent",
            "/v1/a;b=c/x",
            "/v1/%E4%B8%AD",
            "/v1/.well-known/x",
            "/v1/été",
            "/v1/\u{2026}/a\u{2025}b",
            "/v1/..%C3%A0/%E4%B8%A0",
            "/v1/..\u{2044}..",
        ];
        for path in fine {
            assert!(stays_inside(path), "{path}");
            assert_eq!(check(path), Ok(()), "{path}");
        }
        assert!(stays_inside("/v1/100%/%zz") && stays_inside("/v1/a%5cb") && stays_inside("/v1/%ff"));
    }

    #[test]
    fn what_servers_read_differently_is_named() {
        for (path, expected) in [
            ("/v1/a\\b", "a backslash"),
            ("/v1/a%5cb", "a backslash"),
            ("/v1/a%255Cb", "a backslash"),
            ("/v1/a%00", "a control"),
            ("/v1/a%0d%0aX", "a control"),
            ("/v1/a%2509", "a control"),
            ("/v1/%7f", "a control"),
            ("/v1/%c2%85", "a control"),
            ("/v1/%ff", "percent-encoded bytes"),
            ("/v1/%c0%ae", "percent-encoded bytes"),
            ("/v1/%25c0%25ae", "percent-encoded bytes"),
            ("/v1/100%", "a % without"),
            ("/v1/%zz", "a % without"),
            ("/v1/%u002e", "a % without"),
            ("/v1/%25252525252525252541", "a part"),
        ] {
            let found = check(path).expect_err(path);
            assert!(found.starts_with(expected), "{path}: {found}");
        }
    }
}
