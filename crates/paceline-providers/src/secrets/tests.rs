use super::*;

fn removed(header: &str, body: &str) -> String {
    let value = HeaderValue::from_str(header).unwrap();
    let kept = Secrets::of([&value]).removed_from(Bytes::copy_from_slice(body.as_bytes()));
    String::from_utf8(kept.to_vec()).unwrap()
}

#[test]
fn a_key_is_taken_out_wherever_it_stands() {
    let body = r#"{"a":"sk-secret","b":"Bearer sk-secret","c":"sk-secresk-secret!"}"#;
    let clean = r#"{"a":"[key]","b":"Bearer [key]","c":"sk-secre[key]!"}"#;
    assert_eq!(removed("Bearer sk-secret", body), clean);
    assert_eq!(removed("sk-secret", body), clean);
    assert_eq!(removed("Bearer sk-other1", body), body);
    assert_eq!(removed("test", "a test"), "a test", "too short to be one");
    assert_eq!(removed("my own key", "it is my own key"), "it is [key]", "a key may have blanks");
    assert_eq!(removed("Key abcdefgh", "Key abcdefgh"), "Key [key]");
    let said = "no: correct horse battery";
    assert_eq!(removed("Bearer correct horse battery", said), "no: [key]", "also behind a scheme");
    assert_eq!(removed("correct horse battery", said), "no: [key]");
}

#[test]
fn its_debug_form_has_no_key_in_letters_or_numbers() {
    let secrets = Secrets::of([&HeaderValue::from_static("Bearer sk-secret-of-mine")]);
    for printed in [format!("{secrets:?}"), format!("{secrets:#?}")] {
        let numbers = printed.split_whitespace().collect::<String>();
        assert!(printed.contains("spellings: "), "{printed}");
        assert!(!printed.contains("secret-of") && !numbers.contains("115,101,99"), "{printed}");
    }
}

#[test]
fn a_key_is_taken_out_in_whatever_spelling_it_is_repeated() {
    let key = "Bearer abcd/efgh/SECRET+1234";
    for (said, kept) in [
        (r#"{"m":"no: abcd\/efgh\/SECRET+1234"}"#, r#"{"m":"no: [key]"}"#),
        (r#"{"m":"no: abcd/efgh\/SECRET\u002B1234\n"}"#, r#"{"m":"no: [key]\n"}"#),
        (r#"{"m":"\u0061bcd/efgh/\u0053ECRET+1234."}"#, r#"{"m":"[key]."}"#),
        (r#"{"m":"{\"k\":\"\\u0061bcd\\\/efgh\\\/SECRET+1234\"}"}"#, r#"{"m":"{\"k\":\"[key]\"}"}"#),
        (r#"{"m":"a\\abcd\/efgh/SECRET+1234"}"#, r#"{"m":"a[key]"}"#),
        ("GET /?key=abcd%2Fefgh%2fSECRET%2B1234&n=1", "GET /?key=[key]&n=1"),
        ("/login?next=%2F%3Fk%3Dabcd%252Fefgh%252FSECRET%252B1234", "/login?next=%2F%3Fk%3D[key]"),
        ("YWJjZC9lZmdoL1NFQ1JFVCsxMjM0", "[key]"),
        (r#"{"m":"0x616263642f656667682f5345435245542b31323334."}"#, r#"{"m":"0x[key]."}"#),
        ("616263642F656667682F5345435245542B313233340a", "[key]0a"),
        ("<p>abcd&#x2F;efgh&#047;SECRET&#43;1234 &amp; more</p>", "<p>[key] &amp; more</p>"),
        (r#"{"m":"abcd\u0026#x2F;efgh&sol;SECRET&plus;1234"}"#, r#"{"m":"[key]"}"#),
        ("abcd&amp;#x2f;efgh&amp;amp;sol;SECRET&#X2B;1234", "[key]"),
        ("abcd&#x2F;efgh&#x2F;SECRET&#xFFFFFFFF2B;1234", "[key]&#xFFFFFFFF2B;1234"),
        (r"aaaa\/abcd\/efgh\/SECRET+123", r"aaaa\/[key]"),
    ] {
        assert_eq!(removed(key, said), kept, "{said}");
    }
    for said in
        [r"back\slash-key1", r"back\\slash-key1", "back%5Cslash-key1", "back%5cslash%2dkey1", "back%255Cslash-key1"]
    {
        assert_eq!(removed(r"Bearer back\slash-key1", said), "[key]", "{said}");
    }
    for (login, word) in [("u:", "a"), ("us:", "b"), ("use:", "c")] {
        let said = STANDARD.encode(format!("{login}abcd/efgh/SECRET+1234{word}"));
        let kept = removed(key, &said.replace('/', r"\/"));
        assert!(kept.contains("[key]") && kept.len() < 16, "{login}: {kept}");
    }
}

#[test]
fn a_key_that_holds_what_looks_like_an_escape_is_taken_out_in_whatever_spelling_it_is_repeated() {
    let percent = |text: &str| -> String {
        let encoded = text.bytes().map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        });
        encoded.collect()
    };
    let json = |text: &str| {
        let quoted = serde_json::to_string(text).unwrap();
        quoted[1..quoted.len() - 1].to_owned()
    };
    let html = |text: &str| text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    let numbered = |text: &str| text.replace('&', "&#38;").replace('%', "&#37;").replace('"', "&#x22;");
    let ascii = |text: &str| json(text).replace('&', r"\u0026").replace('%', r"\u0025").replace('"', r"\u0022");
    for key in [
        r#"sk-MARK8h-"abcdef%20"#,
        r#"sk-MARK8-"k/e+y%20"#,
        "sk-MARK8g-ab/c+dEf%3D%3D",
        "sk-MARK8c-abc%20def",
        "sk-MARK8i-abcdef%3D",
        r"sk-MARK8f-a\b\u0041c",
        r"sk-MARK8f-a\\b\x41c%5C",
        "sk-MARK8-a&quot;b&amp;c&#x22;",
        "%20%2520-secret-%25",
        r#"\"%22&quot;\u0022"#,
    ] {
        let spelled = [
            key.into(),
            json(key),
            json(key).replace('/', r"\/"),
            json(&json(key)),
            html(key),
            html(&html(key)),
            numbered(key),
            ascii(key),
            percent(key),
            percent(&percent(key)),
            percent(&json(key)),
            json(&percent(key)),
            json(&html(key)),
            html(&json(key)),
            numbered(&percent(key)),
            ascii(&percent(key)),
        ];
        for said in spelled {
            let kept = removed(key, &format!("it is ({said})!"));
            assert_eq!(kept, "it is ([key])!", "{key} as {said}");
        }
        // The last letters may stand for bytes behind it, too.
        assert!(removed(key, &STANDARD.encode(key)).len() <= "[key]A==".len(), "{key}");
    }
    assert_eq!(
        removed("sk-MARK8g-ab/c+dEf%3D%3D", "sk-MARK8g-ab\\/c+dEf=="),
        "[key]",
        "a server may decode what it is sent"
    );
    assert_eq!(removed("sk-abcdef%3D", "sk-abcdef%253d; sk-abcdef%25253D; sk-abcdef%2"), "[key]; [key]; sk-abcdef%2");
}

#[test]
fn of_basic_credentials_the_password_is_a_key() {
    let value = format!("Basic {}", STANDARD.encode("someone:open-sesame"));
    assert_eq!(removed(&value, "someone:open-sesame and open-sesame"), "[key] and [key]");
    assert_eq!(removed(&value, &value), "Basic [key]");
}

#[test]
fn what_is_json_stays_json() {
    let keys = ["n/secret-key", "/secret-key/", "u0041secret", "\"quoted\"-key", r"back\slash-key"];
    for key in keys {
        let escaped: String = key.bytes().map(|byte| format!("\\u{byte:04x}")).collect();
        let spelled = serde_json::to_string(key).unwrap();
        let php = spelled.replace('/', r"\/");
        for text in [spelled, php, format!("\"{escaped}\""), serde_json::to_string(&format!("\n{key}\n")).unwrap()] {
            let kept = removed(key, &text);
            let read: String = serde_json::from_str(&kept).unwrap_or_else(|error| panic!("{kept}: {error}"));
            assert!(read.contains("[key]") && !read.contains("slash-key"), "{key} in {text}: {kept}");
        }
    }
}

#[test]
fn headers_lose_them_too() {
    let (key, mut headers) = (HeaderValue::from_static("Bearer sk-secret"), HeaderMap::new());
    headers.insert("x-request-id", HeaderValue::from_static("of-sk-secret"));
    headers.insert("x-other", HeaderValue::from_static("7"));
    headers.insert("x-sk-secret-known", HeaderValue::from_static("yes"));
    Secrets::of([&key]).remove_from_headers(&mut headers);
    assert_eq!([&headers["x-request-id"], &headers["x-other"]], ["of-[key]", "7"]);
    assert_eq!(headers.len(), 2, "one with the key in its name");
    headers.insert("x-sk-aw3d9", HeaderValue::from_static("yes"));
    Secrets::of([&HeaderValue::from_static("sk-Aw3D9")]).remove_from_headers(&mut headers);
    assert_eq!(headers.len(), 2, "names have small letters alone");
}

#[test]
fn a_key_is_taken_out_of_a_text_of_wide_letters() {
    let secrets = Secrets::of([&HeaderValue::from_static("Bearer sk-secret-1")]);
    let said = |key: &str| format!("{{\"m\":\"ü {key} used\"}}");
    let wide = |text: &str, make: fn(char) -> Vec<u8>| text.chars().flat_map(make).collect::<Vec<u8>>();
    let forms: [fn(char) -> Vec<u8>; 4] = [
        |letter| (letter as u16).to_le_bytes().into(),
        |letter| (letter as u16).to_be_bytes().into(),
        |letter| (letter as u32).to_le_bytes().into(),
        |letter| (letter as u32).to_be_bytes().into(),
    ];
    for make in forms {
        let text = Bytes::from(wide(&said("sk-secret-1"), make));
        let kept = secrets.masked_in(text.clone(), true);
        let (before, after) = (wide("{\"m\":\"ü ", make), wide(" used\"}", make));
        assert!(kept.starts_with(&before) && kept.ends_with(&after) && kept.len() == text.len());
        assert!(!kept.windows(2).any(|two| two == b"sk") && !kept.contains(&b'1'), "{kept:?}");
        let half = &text[..before.len() + 9];
        assert!(secrets.begun_in(half) >= 6, "its rest is in the next part");
    }
}

#[test]
fn a_part_is_masked_at_its_length_and_its_end_may_be_the_beginning_of_a_key() {
    let secrets = Secrets::of([&HeaderValue::from_static("Bearer sk-secret-1")]);
    for (part, masked, begun) in [
        ("is sk-secret-1!", "is [key]******!", 0),
        ("{\"m\":\"\\u0073k-secret-1\"}", "{\"m\":\"[key]***********\"}", 0),
        ("no", "no", 0),
        ("is sk-sec", "is sk-sec", 6),
        ("is sk-secret-", "is sk-secret-", 10),
        ("kiosk", "kiosk", 2),
        ("s", "s", 1),
        ("is \\u0073k-sec", "is \\u0073k-sec", 11),
        ("is sk%2dsecret%2", "is sk%2dsecret%2", 13),
        ("sk-secret\\u", "sk-secret\\u", 11),
        ("is &#115", "is &#115", 5),
        ("is \\\\", "is \\\\", 2),
        ("sk-secret%2Da \\n", "sk-secret%2Da \\n", 0),
        ("a line\\nof words.", "a line\\nof words.", 0),
    ] {
        let kept = secrets.masked_in(Bytes::from_static(part.as_bytes()), false);
        assert_eq!((&*kept, kept.len()), (masked.as_bytes(), part.len()), "{part}");
        assert_eq!(secrets.begun_in(part.as_bytes()), begun, "{part}");
    }
    assert_eq!(Secrets::default().begun_in(b"s"), 0);
}

#[test]
fn a_key_that_comes_in_parts_is_taken_out_of_each() {
    let value = HeaderValue::from_static("Bearer abcd/efgh/SECRET+1234");
    let removed = |body: &str| {
        let kept = Secrets::of([&value]).removed_from_parts(Bytes::copy_from_slice(body.as_bytes()));
        String::from_utf8(kept.to_vec()).unwrap()
    };
    for (body, kept) in [
        (
            "data: {\"x\":{\"text\":\"is abcd/ef\"}}\r\n\r\ndata:{\"x\": {\"text\" : \"gh/SEC\"},\"n\":\"RET\"}\n\ndata: {\"x\":{\"text\":\"RET+1234 ok\"}}\n\n",
            "data: {\"x\":{\"text\":\"is [key]\"}}\r\n\r\ndata:{\"x\": {\"text\" : \"\"},\"n\":\"RET\"}\n\ndata: {\"x\":{\"text\":\" ok\"}}\n\n",
        ),
        (
            "event: part\nid: 1\ndata: abcd/efgh/SEC\n\nevent: part\ndata: RET+1234\n\n",
            "event: part\nid: 1\ndata: [key]\n\nevent: part\ndata: \n\n",
        ),
        ("{\"t\":\"abcd\\/efgh\"}\n{\"t\":\"\\/SECRET\\u002b1234\"}\n", "{\"t\":\"[key]\"}\n{\"t\":\"\"}\n"),
        ("{\"t\":\"abcd/efgh\"}\n{\"t\":\"/SECRET \"}\n", "{\"t\":\"abcd/efgh\"}\n{\"t\":\"/SECRET \"}\n"),
        ("{\"t\":\"abcd/efgh/SECRET+12\n{\"t\":\"\\", "{\"t\":\"abcd/efgh/SECRET+12\n{\"t\":\"\\"),
    ] {
        assert_eq!(removed(body), kept, "{body}");
    }
}

#[test]
fn a_hostile_body_takes_no_time_that_grows_faster_than_it() {
    for part in [
        r"\",
        "%25",
        r"abcd\\",
        r"\u0061bcd",
        r"\u005c",
        "a%2561",
        "amp;",
        "&amp;",
        "a&#x61;",
        "25",
        "%5C",
        r"\x5c",
        "abcd/efgh/SECx",
        "xefgh/SECRET+1234",
        r"xefgh\/SECRET+123\u0034",
        r"abcd\/efgh\/SECx",
    ] {
        let body = part.repeat((1 << 15) / part.len());
        for key in ["abcd/efgh/SECRET+1234", "%25%2525%25/&amp;&amp;", r"\u005c\%5C%5C/u005c"] {
            assert_eq!(removed(key, &body).len(), body.len(), "{key} in {part}");
        }
    }
    let long = "abcdefghij".repeat(99) + "klmnopqrst";
    let body = r"\u0061".to_owned() + &format!("{}x", &long[..900]).repeat(36);
    assert_eq!(removed(&long, &body).len(), body.len());
}

#[test]
fn the_login_of_an_address_is_a_value_that_calls_carry() {
    for (address, login) in [
        ("http://u:p%40ss@proxy:3128/", Some("Basic dTpwQHNz")),
        ("u:p@ss@proxy", Some("Basic dTpwQHNz")),
        ("https://u@proxy", Some("Basic dTo=")),
        ("http://proxy:3128", None),
        ("http://proxy/a@b", None),
        ("", None),
    ] {
        assert_eq!(login_of(address).as_ref().map(|value| value.to_str().expect("text")), login, "{address}");
    }
}
