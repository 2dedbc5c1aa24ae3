//! Tests of the answers to requests under a contract.

use self::exchange::{Exchange, Producer, exchange, exchange_with};
use std::sync::Arc;

use super::mint::UidMode;
use crate::contracts::{Contracts, file};

mod cookie_sync;
mod exchange;
mod minting;
mod opting_out;
mod privacy;
mod scripts;
mod set_uid;

/// The contract of DSP 17 in the tests of requests, without a pattern.
const REDIRECT: &str = "[dsp.17]
name = 'example'
answer = 'redirect'
redirect = 'https://sync.example/done?u={UID}&x={DSP_UID}&gdpr={GDPR}&gdpr_consent={GDPR_CONSENT}&gpp={GPP}&gpp_sid={GPP_SID}'
";

/// Checks that DSP 17 with this contract refuses buyer uids, as sent, with and without an error status.
#[track_caller]
fn check_refused(contract: &str, sent: &str, status: &str, outcome: &str) {
    let counted = format!("17 {outcome}");
    let query = format!("d=17&b={sent}");
    let refused = exchange(&format!("[dsp.17]\n{contract}"), &query);
    refused.check(status, &[], &[&counted]);
    assert_eq!(
        refused.body().iter().filter(|&&byte| byte == b'\n').count(),
        1
    );
    let with_answer = format!("[defaults]\nrefused = 'answer'\n{REDIRECT}{contract}");
    let refused = exchange(&with_answer, &query);
    refused.check("204 No Content", &[], &[&counted]);
    assert_eq!(
        refused.head(),
        "HTTP/1.1 204 No Content\r\ncache-control: no-store"
    );
    assert_eq!(refused.body(), b"");
    let with_pixel =
        format!("[defaults]\nanswer = 'gif'\nrefused = 'answer'\n[dsp.17]\n{contract}");
    let refused = exchange(&with_pixel, &query);
    refused.check("200 OK", &[], &[&counted]);
    assert_eq!(refused.body().len(), 43);
}

/// Checks that a buyer uid, as sent, is recorded.
#[track_caller]
fn check_accepted(contract: &str, sent: &str, buyer_uid: &str) {
    let accepted = exchange(&format!("[dsp.17]\n{contract}"), &format!("d=17&b={sent}"));
    let recorded = format!("u/1 17 {buyer_uid}");
    accepted.check("200 OK", &[&recorded], &["17 accepted"]);
}

#[test]
fn valid_match_is_redirected_with_percent_encoded_values() {
    let query = "d=17&b=a%26b~&gdpr=1&gdpr_consent=CO%2bx&gpp=DBA~&gpp_sid=2,6";
    let accepted = exchange(REDIRECT, query);
    accepted.check("302 Found", &["u/1 17 a&b~"], &["17 accepted"]);
    let location = "https://sync.example/done?u=u%2F1&x=a%26b~&gdpr=1&gdpr_consent=CO%2Bx&gpp=DBA~&gpp_sid=2%2C6";
    let head = format!(
        "HTTP/1.1 302 Found\r\ncontent-length: 0\r\ncache-control: no-store\r\n\
         cross-origin-resource-policy: cross-origin\r\nlocation: {location}"
    );
    assert_eq!(accepted.head(), head);
    assert_eq!(accepted.body(), b"");
}

#[test]
fn redirect_that_would_be_too_long_is_answered_without_it() {
    let query = format!("d=17&b=x&gpp={}", "x".repeat(9_000));
    let accepted = exchange(REDIRECT, &query);
    accepted.check("204 No Content", &["u/1 17 x"], &["17 accepted"]);
}

#[test]
fn valid_match_is_answered_with_a_gif_png_nothing_or_json() {
    let no_store = "cache-control: no-store";
    for (answer, head, body) in [
        (
            "gif",
            "200 OK\r\ncontent-type: image/gif\r\ncontent-length: 43\r\n",
            43,
        ),
        (
            "png",
            "200 OK\r\ncontent-type: image/png\r\ncontent-length: 68\r\n",
            68,
        ),
        ("none", "204 No Content\r\n", 0),
        ("empty", "200 OK\r\ncontent-length: 0\r\n", 0),
        (
            "json",
            "200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\nvary: origin\r\n",
            11,
        ),
    ] {
        let contract = format!("[dsp.17]\nanswer = '{answer}'");
        let accepted = exchange(&contract, "d=17&b=x");
        accepted.check(
            head.split_once("\r\n").unwrap().0,
            &["u/1 17 x"],
            &["17 accepted"],
        );
        let embedded = match answer {
            "gif" | "png" => "\r\ncross-origin-resource-policy: cross-origin",
            _ => "",
        };
        assert_eq!(
            accepted.head(),
            format!("HTTP/1.1 {head}{no_store}{embedded}")
        );
        assert_eq!(accepted.body().len(), body);
        let of_head = exchange_with(&contract, "HEAD /?d=17&b=x", "cookie: uid=u/1\r\n");
        assert_eq!(
            (of_head.head(), of_head.body()),
            (accepted.head(), &b""[..])
        );
        match answer {
            "gif" => assert!(accepted.body().starts_with(b"GIF89a\x01\0\x01\0")),
            "png" => check_png(accepted.body()),
            "json" => assert_eq!(accepted.body(), b"{\"ok\":true}"),
            _ => {}
        }
    }
}

/// Checks the checksums of all chunks, and that the image is one transparent pixel.
#[track_caller]
fn check_png(png: &[u8]) {
    let mut rest = png.strip_prefix(b"\x89PNG\r\n\x1a\n").unwrap();
    let mut kinds = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        let (chunk, after) = after.split_at(4 + length);
        let (checksum, after) = after.split_first_chunk::<4>().unwrap();
        let mut expected = flate2::Crc::new();
        expected.update(chunk);
        assert_eq!(u32::from_be_bytes(*checksum), expected.sum());
        kinds.push(&chunk[..4]);
        if chunk.starts_with(b"IDAT") {
            let mut pixel = Vec::new();
            std::io::copy(&mut flate2::read::ZlibDecoder::new(&chunk[4..]), &mut pixel).unwrap();
            assert_eq!(pixel, [0, 0, 0], "filter, grey and alpha");
        }
        rest = after;
    }
    assert_eq!(kinds, [b"IHDR", b"IDAT", b"IEND"]);
}

/// Percent-encodes all but letters and digits.
fn encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[test]
fn macros_are_refused_raw_and_percent_encoded_once_and_twice() {
    let macros = [
        "$UID",
        "[UID]",
        "{UID}",
        "${USER_ID}",
        "%%UID%%",
        "<vsid>",
        "{{uid}}",
        "$$visitor_cookie$$",
    ];
    for uid in macros {
        for sent in [uid.to_owned(), encoded(uid), encoded(&encoded(uid))] {
            check_refused("", &sent, "400 Bad Request", "uid_macro");
        }
    }
    check_refused("", "%257BUID%257D", "400 Bad Request", "uid_macro");
    // The macro does not match this pattern either.
    check_refused(
        "uid_pattern = '^[a-z]{8}$'",
        "$UID",
        "400 Bad Request",
        "uid_macro",
    );
    check_refused(
        "uid_macro = ['MYID']",
        "MYID",
        "400 Bad Request",
        "uid_macro",
    );
}

#[test]
fn values_that_resemble_macros_are_accepted() {
    for uid in [
        "{6F9619FF-8B86-D011-B42D-00C04FC964FF}",
        "{AF9619FF-8B86-D011-B42D-00C04FC964FF}",
        "y-S8Fq5QZ1lwWKPeXdoZ9vSeZx47maINFrJeY53pDtokA2FlaPmwvrJg--",
    ] {
        check_accepted("", uid, uid);
        check_accepted("", &encoded(uid), uid);
    }
    let with_ampersand = "XlV6w9HM6LYAAHx2YJ4AAACZ&476";
    check_accepted("", &encoded(with_ampersand), with_ampersand);
}

#[test]
fn sentinels_are_refused() {
    for uid in [
        "0",
        "000",
        "-1",
        "null",
        "NULL",
        "undefined",
        "none",
        "nil",
        "NaN",
        "00000000-0000-0000-0000-000000000000",
        "00000000000000000000000000000000",
        "{00000000-0000-0000-0000-000000000000}",
        "[object Object]",
    ] {
        check_refused("", &encoded(uid), "400 Bad Request", "uid_sentinel");
    }
}

#[test]
fn placeholders_are_refused_without_a_contracts_file() {
    let producer = Producer::new(None, true, UidMode::Require);
    let exchange = |uid: &str| {
        let request = format!("GET /?d=17&b={uid}");
        producer.exchange(&request, "cookie: uid=u/1\r\n")
    };
    let placeholders = [
        ("$UID", "uid_macro"),
        ("%24%7BUSER_ID%7D", "uid_macro"),
        ("%%DEVICE_ID%%", "uid_macro"),
        ("null", "uid_sentinel"),
        ("%22null%22", "uid_sentinel"),
    ];
    for (uid, outcome) in placeholders {
        let refused = exchange(uid);
        assert_eq!(refused.status(), "400 Bad Request", "{uid}");
        assert_eq!(refused.counted.last().unwrap(), &format!("17 {outcome}"));
    }
    assert_eq!(exchange("a-1").status(), "200 OK");
    let accepting = Arc::new(Contracts::without_file(true));
    producer.edge.metrics.dsps.set_contracts(accepting);
    for (uid, recorded) in [("$UID", "$UID"), ("null", "null"), ("%22x%22", "\"x\"")] {
        let accepted = exchange(uid);
        let newest = accepted.recorded.last();
        assert_eq!(newest, Some(&format!("u/1 17 {recorded}")));
    }
    assert_eq!(exchange("%%DEVICE_ID%%").status(), "400 Bad Request");
}

#[test]
fn only_the_listed_classes_are_refused() {
    check_accepted("refuse = ['macro']", "null", "null");
    check_accepted("refuse = ['sentinel']", "$UID", "$UID");
    check_accepted("refuse = []", "[object%20Object]", "[object Object]");
    check_refused("refuse = ['macro']", "$UID", "400 Bad Request", "uid_macro");
}

#[test]
fn buyer_uid_beyond_the_maximum_of_its_dsp_is_refused() {
    check_accepted("uid_bytes_max = 5", "%41bcde", "Abcde");
    check_refused(
        "uid_bytes_max = 5",
        "abcdef",
        "400 Bad Request",
        "uid_too_long_for_dsp",
    );
}

#[test]
fn buyer_uid_that_does_not_match_the_pattern_is_refused() {
    let contract = "uid_pattern = '^[A-Za-z0-9_-]{8,64}$'";
    check_accepted(contract, "%61bcdefgh", "abcdefgh");
    check_refused(contract, "abcdefg", "400 Bad Request", "uid_pattern");
    check_refused(contract, "abcdefg.", "400 Bad Request", "uid_pattern");
}

#[test]
fn blocked_dsp_is_refused() {
    check_refused("state = 'blocked'", "x", "403 Forbidden", "dsp_blocked");
}

#[test]
fn unlisted_dsps_are_accepted_or_refused_and_counted_together() {
    let query = "d=99&b=x";
    let accepted = exchange("[dsp.17]", query);
    accepted.check("200 OK", &["u/1 99 x"], &["other accepted"]);
    let refused = exchange("unknown_dsps = 'refuse'\n[dsp.17]", query);
    refused.check("400 Bad Request", &[], &["other unknown_dsp"]);
    let text = "unknown_dsps = 'refuse'\n[defaults]\nanswer = 'none'\nrefused = 'answer'\n[dsp.17]";
    exchange(text, query).check("204 No Content", &[], &["other unknown_dsp"]);
    let by_default = exchange("[defaults]\nuid_bytes_max = 1\n[dsp.17]", "d=99&b=xy");
    by_default.check("400 Bad Request", &[], &["other uid_too_long_for_dsp"]);
}

#[test]
fn observed_refusals_are_recorded_and_counted() {
    let contract =
        "[dsp.17]\nstate = 'observe'\nanswer = 'none'\nuid_bytes_max = 4\nuid_pattern = '^x'";
    for (uid, reason) in [
        ("$UID", "uid_macro"),
        ("null", "uid_sentinel"),
        ("xxxxx", "uid_too_long_for_dsp"),
        ("abc", "uid_pattern"),
    ] {
        let observed = exchange(contract, &format!("d=17&b={uid}"));
        let counted = [
            "17 accepted".to_owned(),
            format!("would refuse: 17 {reason}"),
        ];
        observed.check(
            "204 No Content",
            &[&format!("u/1 17 {uid}")],
            &counted.each_ref().map(|it| &**it),
        );
    }
    let permitted = exchange(contract, "d=17&b=x");
    permitted.check("204 No Content", &["u/1 17 x"], &["17 accepted"]);
}

#[test]
fn invalid_requests_get_their_reason_whatever_the_contract_says() {
    let contract = "[defaults]\nrefused = 'answer'\nanswer = 'gif'\n[dsp.17]";
    let invalid = exchange(contract, "d=17&b=%zz");
    invalid.check("400 Bad Request", &[], &["17 b_encoding"]);
    let invalid = exchange_with(contract, "GET /?d=17&b=x", "");
    invalid.check("400 Bad Request", &[], &["17 uid_missing"]);
}
