//! Tests with the published macros, and with random ids of common forms.

use super::*;

/// The distinct values of `userMacro` in `static/bidder-info` of Prebid Server (Go) at 0ba3523, one of them in a comment.
const PUBLISHED: [&str; 61] = [
    "#PMUID",
    "#{user.id}",
    "$$VRTCALUSER$$",
    "$$visitor_cookie$$",
    "$UID",
    "${BSW_UUID}",
    "${CRITEO_USER_ID}",
    "${UID}",
    "${USER_ID}",
    "${USER_TOKEN}",
    "${UUID}",
    "${VISITOR_ID}",
    "${uid}",
    "${userId}",
    "%%BLIS_USER_TOKEN%%",
    "%%JXUID%%",
    "%%VGUID%%",
    "%%YL_UID%%",
    "%USER_ID%",
    "%s",
    "33XUSERID33X",
    "<TUID>",
    "<vsid>",
    "@UUID@",
    "BUYERUID",
    "NTV_USER_ID",
    "SspCookieUserId",
    "[BUYER_USERID]",
    "[NMUID]",
    "[ODN_ID]",
    "[PBS_UID]",
    "[PDID]",
    "[RX_UUID]",
    "[TVUID]",
    "[UID]",
    "[USER_ID]",
    "[gusr]",
    "[io_cid]",
    "[ssb_sync_pid]",
    "[tvid]",
    "__ZUID__",
    "xxEMODO_IDxx",
    "{ID5UID}",
    "{IMPACTIFY_UID}",
    "{OPENX_ID}",
    "{PLL_USER_ID}",
    "{PUB_USER_ID}",
    "{UID}",
    "{USER_ID}",
    "{XID}",
    "{YANDEXUID}",
    "{amob_user_id}",
    "{muidn}",
    "{uid}",
    "{viewerid}",
    "{{OGURY_UID}}",
    "{{TPPXUID}}",
    "{{UID}}",
    "{{UUID}}",
    "{{VID}}",
    "{{uid}}",
];

/// Percent-encodes all but letters and digits.
fn encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[track_caller]
fn check(uids: &[&str], expected: Option<Flaw>) {
    for uid in uids {
        assert_eq!(flaw(uid, &[]), expected, "{uid}");
    }
}

#[test]
fn published_macros_are_found_also_percent_encoded() {
    for uid in PUBLISHED {
        check(&[uid, &encoded(uid)], Some(Flaw::Macro));
    }
}

#[test]
fn macros_are_found_by_their_form() {
    let macros = [
        "[a]",
        "[1]",
        "[a",
        "a{b}c",
        "(1)",
        "$1",
        "a$b",
        "%s%s",
        "%abc%",
        "%d",
        "%USERID",
        "{\"id\":\"x\"}",
        "{UID",
        "UID}",
        "[UID",
        "{UID;}",
        "{UID/X}",
        "{uid,x}",
        "{uid}123",
        "&{UID}",
        "$UID$UID",
        "prefix[UID]",
        "${user[\"id\"]}",
        "&lt;UID&gt;",
        "&amp;lt;UID&amp;gt;",
        "\u{ff5b}UID\u{ff5d}",
        "\u{ff04}UID",
        "\u{ff3b}UID\u{ff3d}",
        "__uid__",
        ":UID",
        ":UID:",
        "[user id: x-1.2]",
        "$a",
        "$$$a$",
        "%%a%%",
        "prefix-${a}",
        "prefix{{a}}suffix",
        "a%%b%%c",
        "%ABC%",
        "#ABC",
        "__ABC__",
        "%7bUID%7d",
        "a%24%7BUID%7D",
        "id_$(UID)",
        "a{{ user.id }}b",
        "a[[UID]]",
        "a<%=uid%>",
    ];
    check(&macros, Some(Flaw::Macro));
}

#[test]
fn delimiters_are_repeated_and_mixed() {
    let macros = [
        "{UID}",
        "{{ uid }}",
        "{{.UID}}",
        "{{{uid}}}",
        "{{- uid -}}",
        "{{ uid | upper }}",
        "{{ user['id'] }}",
        "{{+uid+}}",
        "{%UID%}",
        "{$UID}",
        "{$user.id}",
        "[ UID ]",
        "[[UID]]",
        "[%UID%]",
        "(UID)",
        "((uid))",
        "$(UID)",
        "$[UID]",
        "${{UID}}",
        "$$UID$$",
        "$uid",
        "%{UID}",
        "%(uid)s%",
        "%%UID%%",
        "%UID%",
        "#UID",
        "#UID#",
        "##UID##",
        "##uid##",
        "@UID",
        "@@UID@@",
        "@@uid@@",
        "@{UID}",
        "*UID*",
        "*|UID|*",
        "*|uid|*",
        "|UID|",
        "~UID~",
        "~~uid~~",
        "!UID!",
        "^UID^",
        "<<UID>>",
        "<%=uid%>",
        "<%= @uid %>",
        "<?= $uid ?>",
        "<!--UID-->",
        "\\{UID\\}",
    ];
    for text in macros {
        for quoted in [
            text.to_owned(),
            format!("\"{text}\""),
            format!("'{text}'"),
            format!(" {text} "),
            format!("\u{201c} {text}\u{201d}"),
            format!("`{text}"),
        ] {
            check(&[&quoted, &encoded(&quoted)], Some(Flaw::Macro));
        }
    }
}

#[test]
fn values_that_resemble_macros_are_ids() {
    let ids = [
        "{6F9619FF-8B86-D011-B42D-00C04FC964FF}",
        "{AF9619FF-8B86-D011-B42D-00C04FC964FF}",
        "%7BAF9619FF-8B86-D011-B42D-00C04FC964FF%7D",
        "{AF9619FF8B86D011B42D00C04FC964FF}",
        "y-S8Fq5QZ1lwWKPeXdoZ9vSeZx47maINFrJeY53pDtokA2FlaPmwvrJg--",
        "XlV6w9HM6LYAAHx2YJ4AAACZ&476",
        "__A1B2C3__",
        "*A1B2C3D4E5*",
        "#ABCDEF12",
        "ID5*ABCDEF*GHIJ",
        "_abc_",
        "#abc",
        "@abc@",
        "buyeruid",
        "\"{AF9619FF-8B86-D011-B42D-00C04FC964FF}\"",
        "a||b||c",
        "a#b#c",
        "~abc",
        "ab~",
        "%zz",
        "\u{20ac}",
        "%25",
        "--",
        "a+b--",
        "\u{1f36a}",
        "%uid",
        "100%",
        "*abc*",
        "ü",
        "'1",
        "a b",
    ];
    check(&ids, None);
}

#[test]
fn sentinels_are_found() {
    let sentinels = [
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
        "{00000000-0000-0000-0000-000000000000}",
        "00000000000000000000000000000000",
        "{00000000000000000000000000000000}",
        "[object Object]",
        "%5Bobject%20Object%5D",
        "N/A",
        "[object+Object]",
        "-0",
        "0.0",
        "0-0",
    ];
    check(
        &[
            "\"\"",
            "''",
            " ",
            "\u{a0}\u{ab}\u{bb}",
            "%22%22",
            "{}",
            "[]",
            "()",
            "<>",
            "{{}}",
            "${}",
            "[\"\"]",
            "$",
        ],
        Some(Flaw::Sentinel),
    );
    for text in sentinels {
        for (open, close) in [
            ("\"", "\""),
            ("'", "'"),
            ("`", ""),
            (" ", " "),
            ("", "\u{a0}"),
            ("(", ")"),
            ("[ ", " ]"),
            ("{", "}"),
            ("<", ">"),
            ("«", "»"),
            ("“", "”"),
            ("\"{", "}\""),
            ("*|", "|*"),
            ("+", ""),
            ("", "+"),
            ("", ";"),
            ("", ","),
            ("/", "/"),
            ("", "="),
            ("-", "-"),
            ("__", "__"),
            ("", "\t"),
            ("\u{200d}", "\u{2060}"),
            ("\u{ad}", "\u{202d}"),
            ("\u{2032}", "\u{2032}"),
            ("\u{ff02}", "\u{ff02}"),
            ("\u{300c}", "\u{300d}"),
            ("&quot;", "&quot;"),
        ] {
            let text = format!("{open}{text}{close}");
            check(&[&text], Some(Flaw::Sentinel));
            check(
                &[&encoded(&text), &encoded(&encoded(&text))],
                Some(Flaw::Sentinel),
            );
        }
    }
    check(&sentinels, Some(Flaw::Sentinel));
    let ids = [
        "01",
        "-10",
        "nullable",
        "00000000-0000-0000-0000-000000000001",
    ];
    check(&ids, None);
}

#[test]
fn macros_of_a_dsp_are_found_also_percent_encoded() {
    let macros = ["MY ID".to_owned()];
    assert_eq!(flaw("MY ID", &macros), Some(Flaw::Macro));
    assert_eq!(flaw("MY%20ID", &macros), Some(Flaw::Macro));
    assert_eq!(flaw("MY IDS", &macros), None);
}

#[test]
fn long_values_of_escapes_and_delimiters_are_examined() {
    // The raw value of a parameter can be as long as a request.
    for part in ["${", "%%1", "%25", "{{a", "$", "%"] {
        assert!(flaw(&part.repeat(16_000 / part.len()), &[]).is_some());
    }
}

/// An id of a form that DSPs use.
fn random_id(random: &mut fastrand::Rng) -> String {
    let text = |random: &mut fastrand::Rng, alphabet: &[u8], length: usize| -> String {
        let character = |_| char::from(alphabet[random.usize(..alphabet.len())]);
        (0..length).map(character).collect()
    };
    const ALPHANUMERIC: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const UPPER: &[u8] = b"0123456789ABCDEF";
    const LOWER: &[u8] = b"0123456789abcdef";
    let guid = |random: &mut fastrand::Rng, digits| {
        [8, 4, 4, 4, 12]
            .map(|length| text(random, digits, length))
            .join("-")
    };
    match random.u8(..7) {
        0 => text(random, ALPHANUMERIC, 22),
        1 => format!("{{{}}}", guid(random, UPPER)),
        2 => guid(random, LOWER),
        3 => format!("{}==", text(random, BASE64, 22)),
        4 => random.u64(1..).to_string(),
        5 => text(random, LOWER, 32),
        _ => format!(
            "{}-{}-{}",
            text(random, ALPHANUMERIC, 8),
            random.u8(..),
            text(random, UPPER, 4)
        ),
    }
}

#[track_caller]
fn check_random(count: usize) {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..count {
        let id = random_id(&mut random);
        assert_eq!(flaw(&id, &[]), None, "{id}");
    }
}

#[test]
fn random_ids_are_not_refused() {
    check_random(200_000);
}

#[test]
#[ignore = "takes a minute"]
fn ten_million_random_ids_are_not_refused() {
    check_random(10_000_000);
}
