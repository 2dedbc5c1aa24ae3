//! Tests of `/setuid`, with the cases of Prebid Server.

use super::*;

/// Consent strings: of 2021, to purpose 1 and vendor 2; without purpose 1; and of version 1.
const CONSENT: &str = "CPGWbY_PGWbY_GYAAAENABCAAIAAAAAAAAAAACEAAAAA";
const NO_PURPOSE: &str = "CPGWkCaPGWkCaApAAAENABCAAAAAAAAAAAAAABEAAAAA";
const VERSION_1: &str = "BONciguONcjGKADACHENAOLS1rAHDAFAAEAASABQAMwAeACEAFw";

/// Vendor 2 is the exchange and DSP 17.
const CONTRACTS: &str = "[privacy]
host_vendor = 2
[dsp.17]
name = 'pubMatic'
vendor = 2
answer = 'redirect'
redirect = 'https://sync.example/'
[dsp.42]
name = 'some DSP'
uid_pattern = '^[a-z]+$'
refused = 'answer'
[dsp.43]
";

/// The same names without a privacy check.
const WITHOUT_GATE: &str = "[dsp.17]\nname = 'pubMatic'\n";

fn set_uid(query: &str) -> Exchange {
    set_uid_with(CONTRACTS, query)
}

/// Sends a query after replacing names of consent strings with the strings.
fn set_uid_with(contracts: &str, query: &str) -> Exchange {
    let values = [
        ("CONSENT", CONSENT),
        ("NO_PURPOSE", NO_PURPOSE),
        ("VERSION_1", VERSION_1),
    ];
    let sent = values.iter().fold(query.to_owned(), |sent, (name, value)| {
        sent.replace(&format!("={name}"), &format!("={value}"))
            .replace(&format!("~{name}"), &format!("~{value}"))
    });
    let request = format!("GET /setuid?{sent}");
    exchange_with(contracts, &request, "cookie: uid=u/1\r\n")
}

#[track_caller]
fn check_status(contracts: &str, query: &str, status: u16, recorded: &str) {
    let exchange = set_uid_with(contracts, query);
    assert_eq!(exchange.status()[..3], status.to_string(), "{query}");
    let expected = Some(recorded).filter(|it| !it.is_empty());
    assert_eq!(exchange.recorded, Vec::from_iter(expected), "{query}");
}

#[test]
fn bidder_is_any_name_of_a_dsp() {
    let contracts = "[dsp.17]\nname = 'xandr'\nnames = ['AppNexus', 'adnxs']\n";
    for bidder in ["xandr", "appnexus", "ADNXS"] {
        check_status(
            contracts,
            &format!("bidder={bidder}&uid=1"),
            200,
            "u/1 17 1",
        );
    }
    check_status(contracts, "bidder=other&uid=1", 400, "");
}

#[test]
fn set_uid_has_the_status_codes_of_prebid_server() {
    for (query, status, recorded) in [
        ("bidder=pubmatic&uid=123", 200, "u/1 17 123"),
        ("bidder=PUBMATIC&uid=1%2623", 200, "u/1 17 1&23"),
        ("uid=abc&bidder=some%20dsp&account=any", 200, "u/1 42 abc"),
        ("bidder=pubmatic&uid=123&f=b", 200, "u/1 17 123"),
        ("bidder=pubmatic&uid=123&f=I&d=9", 200, "u/1 17 123"),
        ("bidder=pubmatic&uid=123&f=", 200, "u/1 17 123"),
        ("bidder=pubmatic&uid=123&f=x", 400, ""),
        ("bi%64der=pub%6Datic&u%69d=123&f=%69", 200, "u/1 17 123"),
        ("bidder=pubmatic&uid=123&gdp%72=1", 400, ""),
        ("bidder=pubmatic&uid=123&us%5Fprivacy=1YYN", 451, ""),
        ("bidder=pubmatic&uid=123&us_privacy=1YY%4E", 451, ""),
        ("bidder=pubmatic&uid=123&us_privacy=1YY%", 400, ""),
        ("bidder=&uid=123", 400, ""),
        ("uid=123", 400, ""),
        ("bidder=unknown&uid=123", 400, ""),
        ("bidder=43&uid=123", 400, ""),
        ("bidder=17&d=17&uid=123", 400, ""),
        ("bidder=%ff&uid=123", 400, ""),
        ("bidder=pubmatic&uid=123&gdpr=0", 200, "u/1 17 123"),
        (
            "bidder=pubmatic&uid=123&gdpr=0&gdpr_consent=malformed",
            200,
            "u/1 17 123",
        ),
        (
            "bidder=pubmatic&uid=123&gdpr_consent=malformed",
            200,
            "u/1 17 123",
        ),
        ("bidder=pubmatic&uid=123&gdpr=2", 400, ""),
        ("bidder=pubmatic&uid=123&gdpr=1", 400, ""),
        (
            "bidder=pubmatic&uid=123&gdpr=1&gdpr_consent=malformed",
            400,
            "",
        ),
        ("bidder=pubmatic&uid=123&gpp_sid=2", 400, ""),
        ("bidder=pubmatic&uid=123&gpp_sid=a", 400, ""),
        (
            "bidder=pubmatic&uid=123&gpp_sid=6&gdpr=1",
            200,
            "u/1 17 123",
        ),
        ("bidder=pubmatic&uid=123&gpp_sid=100,101", 200, "u/1 17 123"),
        ("bidder=pubmatic&uid=123&gpp=x", 400, ""),
        ("bidder=pubmatic&uid=123&us_privacy=1YYN", 451, ""),
        (
            "bidder=pubmatic&uid=123&gdpr=1&gdpr_consent=CONSENT",
            200,
            "u/1 17 123",
        ),
        (
            "bidder=pubmatic&uid=123&gpp_sid=2&gpp=DBABMA~CONSENT",
            200,
            "u/1 17 123",
        ),
        (
            "bidder=pubmatic&uid=123&gpp_sid=2,4&gpp=DBABMA~CONSENT",
            200,
            "u/1 17 123",
        ),
        (
            "bidder=pubmatic&uid=123&gpp_sid=2&gpp=DBABMA~CONSENT&gdpr_consent=NO_PURPOSE",
            200,
            "u/1 17 123",
        ),
        (
            "bidder=pubmatic&uid=123&gpp_sid=2&gpp=DBABMA~NO_PURPOSE&gdpr_consent=CONSENT",
            451,
            "",
        ),
        (
            "bidder=pubmatic&uid=123&gdpr=1&gdpr_consent=NO_PURPOSE",
            451,
            "",
        ),
        (
            "bidder=pubmatic&uid=123&gpp_sid=2,6&gdpr=0&gpp=DBABMA~NO_PURPOSE",
            451,
            "",
        ),
        ("bidder=some+dsp&uid=abc", 400, ""),
        (
            "bidder=some%20dsp&uid=abc&gdpr=1&gdpr_consent=CONSENT",
            451,
            "",
        ),
        (
            "bidder=pubmatic&uid=123&gdpr=1&gdpr_consent=VERSION_1",
            400,
            "",
        ),
        // Checks that Prebid Server does not have: those of the contract.
        ("bidder=pubmatic&uid=$UID", 400, ""),
        ("bidder=pubmatic&uid=%%UID%%", 400, ""),
        ("bidder=pubmatic&uid=%zz", 400, ""),
        ("bidder=some%20dsp&uid=ABC", 200, ""),
    ] {
        check_status(CONTRACTS, query, status, recorded);
    }
}

#[test]
fn without_a_gate_only_the_syntax_of_signals_is_checked() {
    for (query, status) in [
        ("gdpr=0", 200),
        ("gdpr=2", 400),
        ("gdpr=1", 400),
        ("gdpr_consent=malformed", 200),
        ("gdpr=1&gdpr_consent=malformed", 200),
        ("gdpr=1&gdpr_consent=NO_PURPOSE", 200),
        ("gpp_sid=a", 400),
        ("gpp_sid=2", 400),
        ("gpp_sid=2&gdpr=0", 400),
        ("gpp_sid=6&gdpr=1", 200),
        ("gpp=x", 400),
        ("gpp_sid=2&gpp=DBABMA~NO_PURPOSE", 200),
        ("us_privacy=1YYN", 200),
    ] {
        let recorded = if status == 200 { "u/1 17 123" } else { "" };
        let query = format!("bidder=pubmatic&uid=123&{query}");
        check_status(WITHOUT_GATE, &query, status, recorded);
    }
}

#[test]
fn the_configured_gate_decides() {
    let invalid = "bidder=pubmatic&uid=123&gdpr=1";
    let observed = format!("[privacy]\nmode = 'observe'\n{WITHOUT_GATE}");
    let accepted = set_uid_with(&observed, invalid);
    let counted = [
        "17 accepted",
        "would refuse: 17 privacy",
        "privacy: consent_missing",
    ];
    accepted.check("200 OK", &["u/1 17 123"], &counted);
    let refused = set_uid(invalid);
    let counted = ["17 privacy_invalid", "privacy: consent_missing"];
    refused.check("400 Bad Request", &[], &counted);
    let ignored = format!("[privacy]\nmalformed = 'ignore'\n{WITHOUT_GATE}");
    check_status(
        &ignored,
        "bidder=pubmatic&uid=123&gdpr=x",
        200,
        "u/1 17 123",
    );
    // The request does not state whether GDPR applies.
    let everywhere = format!("[privacy]\ngdpr_when_absent = 'yes'\n{WITHOUT_GATE}");
    check_status(&everywhere, "bidder=pubmatic&uid=123", 451, "");
}

#[test]
fn empty_uid_is_no_error_and_deletes_nothing() {
    let producer = Producer::new(Some(CONTRACTS), false, UidMode::Mint);
    for (query, cookies) in [
        ("bidder=pubmatic", "cookie: uid=u/1\r\n"),
        ("bidder=pubmatic&uid=", "cookie: uid=u/1\r\n"),
        ("bidder=pubmatic&uid=&f=i", ""),
    ] {
        let exchange = producer.exchange(&format!("GET /setuid?{query}"), cookies);
        assert_eq!((exchange.status(), exchange.recorded.len()), ("200 OK", 0));
        assert!(!exchange.head().contains("set-cookie"));
        assert_eq!(exchange.counted, ["17 b_empty"]);
    }
}

#[test]
fn the_first_error_decides_the_status() {
    let opted_out = "cookie: uid=u/1; cookiesync_optout=1\r\n";
    let request = "GET /setuid?bidder=unknown&f=x&gdpr=2";
    let exchange = exchange_with(CONTRACTS, request, opted_out);
    exchange.check("401 Unauthorized", &[], &["none opted_out"]);
    let unknown = set_uid("bidder=unknown&f=x&gdpr=2");
    unknown.check("400 Bad Request", &[], &["none unknown_dsp"]);
    assert_eq!(
        unknown.body(),
        b"parameter d (the DSP id) or bidder (its name) does not name a known DSP\n"
    );
    let format = set_uid("bidder=pubmatic&f=x&gdpr=2");
    format.check("400 Bad Request", &[], &["17 f_invalid"]);
    let signals = set_uid_with(WITHOUT_GATE, "bidder=pubmatic&gdpr=2&uid=$UID");
    signals.check("400 Bad Request", &[], &["17 privacy_invalid"]);
    let no_user = exchange_with(CONTRACTS, "GET /setuid?bidder=pubmatic&uid=x", "");
    no_user.check("400 Bad Request", &[], &["17 uid_missing"]);
}

#[test]
fn the_format_selects_the_response() {
    let pixel = set_uid("bidder=pubmatic&uid=123&f=i");
    assert!(
        pixel
            .head()
            .contains("\r\ncontent-type: image/png\r\ncontent-length: 68")
    );
    check_png(pixel.body());
    for query in ["bidder=pubmatic&uid=1&f=b", "bidder=pubmatic&uid=&f=b"] {
        let page = set_uid(query);
        assert!(
            page.head()
                .contains("\r\ncontent-type: text/html\r\ncontent-length: 0")
        );
        assert_eq!(page.body(), b"");
    }
    let text = set_uid("bidder=pubmatic&uid=123");
    assert!(!text.head().contains("content-type") && text.body().is_empty());
    let refused = set_uid("bidder=some%20dsp&uid=ABC&f=i");
    refused.check("200 OK", &[], &["42 uid_pattern"]);
    assert_eq!(refused.body(), pixel.body());
}

#[test]
fn set_uid_needs_contracts_with_names() {
    let cookies = "cookie: uid=u/1\r\n";
    for contracts in [None, Some("[dsp.17]")] {
        let producer = Producer::new(contracts, true, UidMode::Require);
        let unknown = producer.exchange("GET /setuid?bidder=17&uid=x", cookies);
        unknown.check("404 Not Found", &[], &[]);
    }
    let posted = exchange_with(CONTRACTS, "POST /setuid?bidder=pubmatic&uid=x", cookies);
    assert!(posted.status().starts_with("405"));
}

#[test]
fn new_browser_gets_a_user_id_from_set_uid() {
    let producer = Producer::new(Some(CONTRACTS), false, UidMode::Mint);
    let redirected = producer.exchange("GET /setuid?bidder=pubmatic&uid=123&f=i", "");
    let location = "\r\nlocation: ?bidder=pubmatic&uid=123&f=i&cookiesync_bounce=1\r\n";
    assert!(
        redirected.head().contains(location),
        "{}",
        redirected.head()
    );
}
