//! Tests of user ids for new browsers.

use super::*;

/// The value of a header of a response.
#[track_caller]
fn header<'a>(exchange: &'a Exchange, name: &str) -> &'a str {
    let mut lines = exchange.head().lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("no {name}: {}", exchange.head()))
}

/// Checks that a browser is redirected to a location. Returns its new user id.
#[track_caller]
fn check_redirected(redirected: &Exchange, location: &str) -> String {
    assert_eq!(redirected.status(), "302 Found");
    assert_eq!(header(redirected, "location"), location);
    let cookie = header(redirected, "set-cookie").strip_prefix("uid=");
    let (user_id, attributes) = cookie.unwrap().split_once("; ").unwrap();
    let expected = "Max-Age=34560000; Path=/; Secure; HttpOnly; SameSite=None";
    assert_eq!(attributes, expected);
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    assert!(user_id.len() == 22 && user_id.bytes().all(is_base64url));
    user_id.to_owned()
}

#[test]
fn new_browser_is_recorded_when_it_returns_with_its_user_id() {
    let mut users = Vec::new();
    for path in ["/", "/sync"] {
        let producer = Producer::new(None, false, UidMode::Mint);
        let location = "?d=17&b=a%26b&x&cookiesync_bounce=1";
        for cookies in ["", "cookie: uid=; x=y\r\n"] {
            let request = format!("GET {path}?d=17&b=a%26b&x");
            let redirected = producer.exchange(&request, cookies);
            users.push(check_redirected(&redirected, location));
            assert!(redirected.recorded.is_empty());
        }
        let cookies = format!("cookie: uid={}\r\n", users[0]);
        let accepted = producer.exchange(&format!("GET {path}{location}"), &cookies);
        let recorded = format!("{} 17 a&b", users[0]);
        let counted = ["17 accepted", "17 uid_minted"];
        accepted.check("200 OK", &[&recorded], &counted);
        assert!(!accepted.head().contains("set-cookie"));
    }
    users.sort();
    users.dedup();
    assert_eq!(users.len(), 4);
}

#[test]
fn user_id_is_partitioned_if_so_configured() {
    let producer = Producer::new(None, false, UidMode::MintPartitioned);
    let redirected = producer.exchange("HEAD /?d=17&b=x", "");
    let cookie = header(&redirected, "set-cookie");
    assert!(cookie.ends_with("; SameSite=None; Partitioned"), "{cookie}");
}

#[test]
fn browser_that_does_not_keep_its_user_id_is_redirected_once() {
    let refused = Producer::new(None, false, UidMode::Mint)
        .exchange("GET /?d=17&b=x&cookiesync_bounce=1", "");
    refused.check("400 Bad Request", &[], &["17 uid_not_kept"]);
    assert!(
        refused
            .body()
            .starts_with(b"cookie uid (the user id) is missing after the redirect")
    );
    let with_answer = format!("[defaults]\nrefused = 'answer'\n{REDIRECT}");
    let producer = Producer::new(Some(&with_answer), false, UidMode::Mint);
    let refused = producer.exchange("GET /?cookiesync_bounce=1&d=17&b=x", "cookie: uid=\r\n");
    refused.check("204 No Content", &[], &["17 uid_not_kept"]);
    assert!(!refused.head().contains("set-cookie"));
}

#[test]
fn only_a_match_that_would_be_recorded_is_redirected() {
    let privacy = "[privacy]\nhost_vendor = 2\n[dsp.17]\n";
    let observing = "[privacy]\nmode = 'observe'\n[dsp.17]\n";
    for (contracts, query, cookies, status, counted) in [
        (
            "[dsp.17]",
            "d=17&b=$UID",
            "",
            "400 Bad Request",
            "17 uid_macro",
        ),
        (
            "[dsp.17]",
            "d=17&b=%%UID%%",
            "",
            "400 Bad Request",
            "17 uid_macro",
        ),
        (
            "[dsp.17]\nstate = 'blocked'",
            "d=17&b=x",
            "",
            "403 Forbidden",
            "17 dsp_blocked",
        ),
        ("[dsp.17]", "d=17", "", "400 Bad Request", "17 b_missing"),
        (
            "[dsp.17]",
            "d=17&b=%00",
            "",
            "400 Bad Request",
            "17 b_control",
        ),
        (
            "[dsp.17]",
            "d=17&b=x",
            "uid=a b",
            "400 Bad Request",
            "17 uid_invalid",
        ),
        (
            "[dsp.17]",
            "d=17&b=x",
            "cookiesync_optout=1",
            "200 OK",
            "17 opted_out",
        ),
        (
            privacy,
            "d=17&b=x&gdpr=1",
            "",
            "451 Unavailable For Legal Reasons",
            "17 privacy",
        ),
        // A user id would be stored on the device.
        (
            observing,
            "d=17&b=x&gdpr=1",
            "",
            "400 Bad Request",
            "17 uid_missing",
        ),
    ] {
        let producer = Producer::new(Some(contracts), false, UidMode::Mint);
        let headers = format!("cookie: {cookies}\r\n");
        let refused = producer.exchange(&format!("GET /?{query}"), &headers);
        assert_eq!(
            (refused.status(), refused.recorded.len()),
            (status, 0),
            "{query}"
        );
        assert_eq!(refused.counted[0], counted);
        assert!(!refused.head().contains("set-cookie"), "{}", refused.head());
    }
}

#[test]
fn redirect_of_the_contract_does_not_contain_the_marker() {
    let producer = Producer::new(Some(REDIRECT), false, UidMode::Mint);
    let cookies = "cookie: uid=u/1\r\n";
    let accepted = producer.exchange("GET /?d=17&b=x&gpp=DBAA&cookiesync_bounce=1", cookies);
    let location = header(&accepted, "location");
    assert!(location.starts_with("https://sync.example/done?u=u%2F1&x=x&"));
    assert!(!location.contains("bounce"), "{location}");
}

#[test]
fn script_of_a_listed_origin_may_follow_the_redirect() {
    let contract = "[dsp.17]\nanswer = 'json'\norigins = ['https://a.example']";
    let producer = Producer::new(Some(contract), false, UidMode::Mint);
    let redirected = producer.exchange("GET /?d=17&b=x", "origin: https://a.example\r\n");
    let origin = header(&redirected, "access-control-allow-origin");
    assert_eq!(origin, "https://a.example");
}
