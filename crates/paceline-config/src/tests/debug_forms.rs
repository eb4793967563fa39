//! No value that is printed with `{:?}` holds a key or a password.

use super::*;

#[test]
fn no_debug_form_has_a_secret_wherever_a_user_may_write_one() {
    let file = "[upstream.a]
        base_url = 'https://api.example.com/v1'
        rpm = 60
        headers = { Authorization = 'Bearer sesame', x-auth = 'sesame' }
        proxy = 'http://me:sesame@proxy:3128'
        fleet = 'redis://me:sesame@127.0.0.1:9'";
    let flags = Overrides {
        upstream: Some("a".to_owned()),
        headers: vec!["Cookie: sesame".to_owned()],
        fleet: Some("redis://me:sesame@127.0.0.1:10".to_owned()),
        proxy: Some("http://me:sesame@proxy:3129".to_owned()),
        ..Overrides::default()
    };
    let also = Overrides {
        base_url: Some("https://me:sesame@a?key=sesame".to_owned()),
        api_key_env: Some("sesame".to_owned()),
        ..flags.clone()
    };
    let found = upstream(file, &[], flags.clone()).expect("all well");
    let below = upstream(file, &[], Overrides::default()).expect("all well");
    let printed = |value: &dyn std::fmt::Debug| format!("{value:?}\n{value:#?}");
    let parts: [(&str, &dyn std::fmt::Debug); 9] = [
        ("flags", &flags),
        ("wrong flags", &also),
        ("upstream", &found),
        ("upstream of the file", &below),
        ("access", &found.access),
        ("headers", &found.access.headers(Some("sesame")).expect("a key")),
        ("proxy", &found.access.proxy),
        ("fleet", &found.fleet),
        ("effective", &found.effective),
    ];
    for (name, value) in parts {
        assert!(!printed(value).contains("sesame"), "{name}: {}", printed(value));
    }
    let error = upstream(file, &[], also).expect_err("an address with a password");
    assert!(!printed(&error).contains("sesame"), "{error:?}");
}
