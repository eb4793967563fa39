use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use crate::secrets::Secrets;

/// 37 letters.
const KEY: &str = "sk-UPSTREAMSECRET-oa-0123456789abcdef";

fn secrets(key: &str) -> Secrets {
    Secrets::of([&HeaderValue::from_str(key).unwrap()])
}

fn removed(key: &str, text: &str) -> String {
    secrets(key).removed_from_text(text.to_owned())
}

#[test]
fn half_of_a_key_and_no_less_is_taken_out_where_it_is_cut_off() {
    for (len, is_hidden) in [(8, false), (12, false), (18, false), (19, true), (30, true), (36, true), (37, true)] {
        let cut = &KEY[..len];
        for (before, behind) in [("", ""), ("{\"m\":\"you sent ", "\"}"), ("key=", "..."), ("'", "'"), ("\\n", "\\n")] {
            let expected = format!("{before}{}{behind}", if is_hidden { "[key]" } else { cut });
            assert_eq!(removed(KEY, &format!("{before}{cut}{behind}")), expected, "{len}");
        }
        let another = format!("{cut}x");
        assert_eq!(removed(KEY, &another), if len == 37 { "[key]x" } else { &another }, "another key begins so");
    }
    assert_eq!(
        removed("Bearer abcdefghijklmnop", "abcdefghijk; abcdefghijkl"),
        "abcdefghijk; [key]",
        "of 16 letters 12"
    );
    assert_eq!(removed("sk-secret-1", "sk-secret-"), "sk-secret-", "of 11 letters all");
    let twice = format!("{} {KEY} {}x {}", &KEY[..20], &KEY[..20], &KEY[..36]);
    assert_eq!(removed(KEY, &twice), format!("[key] [key] {}x [key]", &KEY[..20]));
}

#[test]
fn so_is_one_whose_beginning_is_cut_off_and_one_in_whose_place_is_its_middle() {
    for (from, to, is_hidden) in
        [(19, 37, false), (18, 37, true), (9, 37, true), (1, 37, true), (9, 27, false), (9, 28, true), (2, 35, true)]
    {
        let cut = &KEY[from..to];
        for (before, behind) in [
            ("", ""),
            ("{\"m\":\"you sent ...", "...\"}"),
            ("key=", "."),
            ("****", "****"),
            ("\\n", "\\n"),
            ("\\\\t", " "),
            (r"\u0022", r"\u0022"),
            ("%22", "%22"),
            ("%2522", "%2522"),
            ("&quot;", "&quot;"),
            (r"\x20", " "),
        ] {
            let expected = format!("{before}{}{behind}", if is_hidden { "[key]" } else { cut });
            assert_eq!(removed(KEY, &format!("{before}{cut}{behind}")), expected, "{from} to {to}");
        }
        for another in [format!("x{cut}"), format!(r"\u0078{cut}"), format!("%78{cut}")] {
            assert_eq!(removed(KEY, &another), another, "another key ends so");
        }
        let behind = format!("{cut}x");
        let is_end = to == 37 && is_hidden;
        assert_eq!(removed(KEY, &behind), if is_end { "[key]x" } else { &behind }, "another key goes on so");
    }
    assert_eq!(
        removed("Bearer abcdefghijklmnop", "fghijklmnop; efghijklmnop"),
        "fghijklmnop; [key]",
        "of 16 letters 12"
    );
    assert_eq!(removed("sk-secret-1", "k-secret-1"), "k-secret-1", "of 11 letters all");
    for before in ["%20", r"\u0020", "%2520", r"\\x20"] {
        let kept = removed("abcdef0ghijklmnopqrstuvw", &format!("{before}ghijklmnopqrstuvw"));
        assert_eq!(kept, format!("{before}[key]"), "its 0 is the key's, too");
    }
    let path = "https://h/services/T0123456/B0123456/abcdefghijkl";
    assert_eq!(removed(path, "x/B0123456/abcdefghijkl"), "x/B0123456/abcdefghijkl", "less than a half");
    assert_eq!(removed(path, "x/T0123456/B0123456/abcdefghijkl"), "x/[key]", "a word of it begins behind a sign");
    let twice = format!("{} {KEY} {}x x{}", &KEY[9..], &KEY[9..], &KEY[9..]);
    assert_eq!(removed(KEY, &twice), format!("[key] [key] [key]x x{}", &KEY[9..]));
}

#[test]
fn so_is_one_in_another_spelling() {
    let key = "sk-abcd/efgh/ijkl/mnop/qrst";
    for cut in [
        r"sk-abcd\/efgh\/ijkl\/mn",
        r"sk-abcd/efgh/ijkl\/mn",
        "sk-abcd%2Fefgh%2Fijkl%2fmn",
        r"\u0073k-abcd/efgh/ijkl/mn",
        "736b2d616263642f656667682f696a6b6c2f6d6e",
        "c2stYWJjZC9lZmdoL2lqa2wv",
    ] {
        assert_eq!(removed(key, &format!("sent {cut}; no")), "sent [key]; no");
        assert_eq!(removed(key, cut), "[key]");
    }
    for cut in [
        r"fgh\/ijkl\/mnop\/qrst",
        r"fgh/ijkl\/mnop/qrst",
        r"fgh\\/ijkl\\/mnop\\\/qrst",
        "fgh%2Fijkl%2fmnop%2Fqrst",
        "fgh%252Fijkl%252fmnop%252Fqrst",
        "fgh&#x2F;ijkl&amp;sol;mnop&#47;qrst",
        r"\u0066gh/ijkl/mnop/qrs\u0074",
        r"\\u0066gh\\u002fijkl/mnop\/qrst",
        "%66gh%2Fijkl/mnop/qrst",
        "6667682f696a6b6c2f6d6e6f702f71727374",
        "6667682F696A6B6C2F6D6E6F702F71727374",
        "ZWZnaC9pamtsL21ub3AvcXJz",
    ] {
        for before in ["...", "sent '", r"\n", r"\u000a", "%0A"] {
            assert_eq!(removed(key, &format!("{before}{cut}")), format!("{before}[key]"));
            assert_eq!(removed(key, &format!("{before}{cut}; no")), format!("{before}[key]; no"));
        }
    }
    let middle = r"...bcd\/efgh\/ijkl\/m...";
    assert_eq!(removed(key, middle), "...[key]...");
    let json = serde_json::to_string("\n/ijkl/mnop/qrst\"\n").unwrap().replace('/', r"\/");
    assert_eq!(removed(key, &json), r#""\n[key]\"\n""#, "JSON stays JSON");
    assert_eq!(removed(key, r"sk-abcd\/ef and sk-abcd\/efgh\/ijklm"), r"sk-abcd\/ef and sk-abcd\/efgh\/ijklm");
    let wide: Vec<u8> = KEY[..30].encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(secrets(KEY).removed_from(wide.into()), "[key]");
    for order in [u16::to_le_bytes, u16::to_be_bytes] {
        let wide = |text: &str| text.encode_utf16().flat_map(order).collect::<Vec<u8>>();
        let kept = secrets(KEY).masked_in(wide(&format!("...{}", &KEY[9..])).into(), true);
        assert!(String::from_utf8_lossy(&kept).replace('\0', "").starts_with("...[key]***"), "{kept:?}");
        let another = Bytes::from(wide(&format!("x{}", &KEY[9..])));
        assert_eq!(secrets(KEY).masked_in(another.clone(), true), another);
    }
}

#[test]
fn fields_lose_it_too() {
    let mut headers = HeaderMap::new();
    headers.insert("x-sent", HeaderValue::from_str(&format!("{}...", &KEY[..30])).unwrap());
    headers.insert("x-tail", HeaderValue::from_str(&format!("...{}", &KEY[10..])).unwrap());
    headers.insert("x-hint", HeaderValue::from_static("sk-UPSTR...cdef"));
    secrets(KEY).remove_from_headers(&mut headers);
    let [sent, tail, hint] = ["x-sent", "x-tail", "x-hint"].map(|name| &headers[name]);
    assert_eq!([sent, tail, hint], ["[key]...", "...[key]", "sk-UPSTR...cdef"]);
}

#[test]
fn a_field_with_one_in_its_name_is_left_out_in_whatever_spelling() {
    let small = KEY.to_ascii_lowercase();
    let percent = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let (whole, base64) = (percent(KEY), STANDARD.encode(KEY).replace('=', ""));
    let mixed = small.replace('s', "%73").replace('-', "%2d");
    for name in [
        &whole,
        &whole.replace('%', "%25"),
        &mixed,
        &base64,
        &percent(&small[10..]),
        &small[..20],
        &small[10..],
        &small[9..30],
        &small[10..].replace('a', "%41"),
    ] {
        for name in [format!("x-{name}"), name.to_owned(), format!("x-{name}-y")] {
            let mut headers = HeaderMap::new();
            headers.insert(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static("1"));
            headers.insert("x-sk-upstr-cdef", HeaderValue::from_static("1"));
            secrets(KEY).remove_from_headers(&mut headers);
            assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-sk-upstr-cdef"], "{name}");
        }
    }
}

fn login(login: &str) -> String {
    format!("Basic {}", STANDARD.encode(login))
}

#[test]
fn of_a_login_the_user_name_stays() {
    for (name, password) in [
        ("AC0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"),
        ("wordpress-administrator@example.com", "abcd EFGH 1234 ijkl MNOP 6789"),
        ("wordpress%2Dadministrator%40example.com", "abcd EFGH 1234 ijkl MNOP 6789"),
    ] {
        let header = login(&format!("{name}:{password}"));
        let hexadecimal: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        for kept in [
            format!(r#"{{"account_sid":"{name}","uri":"\/Accounts\/{name}.json"}}"#),
            format!("{name}:"),
            format!("{name}:{}", &password[..11]),
            name.replace('@', "%40"),
            name.replace('-', r"\u002d").replace('0', r"\u0030"),
            STANDARD.encode(name),
            hexadecimal,
        ] {
            assert_eq!(removed(&header, &kept), kept);
        }
        for len in [12, 13, password.len()] {
            let cut = format!("{name}:{}", &password[..len]);
            assert_eq!(removed(&header, &format!("no: '{cut}'")), "no: '[key]'");
            assert_eq!(removed(&header, &cut.replace('a', r"\u0061").replace(':', r"\u003a")), "[key]");
            assert_eq!(removed(&header, &header[..6 + cut.len() * 4 / 3]), "Basic [key]");
        }
        assert_eq!(removed(&header, &format!("{name}, {password}")), format!("{name}, [key]"));
        for kept in [&name[3..], &name[1..name.len() - 1], &password[password.len() - 11..]] {
            assert_eq!(removed(&header, kept), kept);
            assert_eq!(removed(&header, &STANDARD.encode(kept)), STANDARD.encode(kept));
        }
        assert_eq!(removed(&header, &format!("...{}", &password[13..])), "...[key]");
        assert_eq!(removed(&header, &format!("...{}:{password}", &name[9..])), "...[key]");
    }
}

#[test]
fn of_one_with_the_key_as_its_name_the_name_goes() {
    for name in ["sk_live_0123456789abcdef01234567", "0123456789abcdef0123456789abcdef"] {
        for password in ["", "x", "api_tok", "api_token"] {
            let header = login(&format!("{name}:{password}"));
            for cut in [name, &name[..24]] {
                assert_eq!(removed(&header, &format!("'{cut}' is wrong")), "'[key]' is wrong", "{password}");
            }
        }
    }
}

#[test]
fn at_the_end_of_a_part_the_rest_may_come() {
    let (secrets, part) = (secrets(KEY), Bytes::from(format!("is {}", &KEY[..30])));
    assert_eq!(secrets.masked_in(part.clone(), false), part);
    assert_eq!(secrets.begun_in(&part), 30);
    assert_eq!(secrets.masked_in(part, true), format!("is [key]{}", "*".repeat(25)));
    let inside = Bytes::from(format!("is {}\n", &KEY[..30]));
    assert_eq!(secrets.masked_in(inside, false), format!("is [key]{}\n", "*".repeat(25)));
}

#[test]
fn what_may_become_the_end_of_a_key_waits_for_the_next_part() {
    let secrets = secrets(KEY);
    for (part, begun) in [
        ("is ...REAM", 4),
        ("is ...REAMSECRET-oa-012345", 20),
        ("...REAM\n", 0),
        ("...REAM\"}", 0),
        ("xREAM", 0),
        (r"\nREAM", 4),
        (r"\nxREAM", 0),
        (r"is R\u0045AM", 9),
        (r"is R\u0045AM\", 10),
        (r"is R\u0045AM\u00", 13),
        ("is 123456789ab", 0),
        ("data: {\"content\":\"The\"}\n\n", 0),
    ] {
        assert_eq!(secrets.begun_in(part.as_bytes()), begun, "{part}");
        assert_eq!(secrets.masked_in(Bytes::from(part.to_owned()), false), part);
    }
    let cut = format!("is ...{}", &KEY[10..]).replace('A', r"\u0041");
    for text in [format!("is ...{} ok", &KEY[10..]), format!("{cut}\n"), format!("{cut}, {KEY}")] {
        let whole = secrets.masked_in(text.clone().into(), true);
        assert!(whole.starts_with(b"is ...[key]***"), "{whole:?}");
        for at in 1..text.len() {
            let mut first = secrets.masked_in(text[..at].to_owned().into(), false);
            let held = first.split_off(first.len() - secrets.begun_in(&first));
            let second = secrets.masked_in([&held, &text.as_bytes()[at..]].concat().into(), true);
            let came = [first, second].concat();
            // The mark may stand in two parts.
            let stars = |text: &[u8]| String::from_utf8_lossy(text).replace("[key]", "*****");
            assert_eq!(stars(&came), stars(&whole), "cut at {at}");
        }
    }
}
