//! Tests of the privacy check, with examples of each signal.

use httparse::Header;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::edge::{
    query::{Query, Scratch},
    request,
};

mod hostile;
mod random_strings;

/// A string of 2021 with consent to purpose 1 and vendor 2.
const CONSENT: &str = "CPGWbY_PGWbY_GYAAAENABCAAIAAAAAAAAAAACEAAAAA";
/// Without consent to purpose 1.
const NO_PURPOSE: &str = "CPGWkCaPGWkCaApAAAENABCAAAAAAAAAAAAAABEAAAAA";
/// Without consent to any vendor.
const NO_VENDOR: &str = "CPGWkCaPGWkCaApAAAENABCAAIAAAAAAAAAAABAAAAAA";

/// The table with these keys, and vendor 2 for the exchange.
fn config(mut json: Value) -> Config {
    json.as_object_mut()
        .unwrap()
        .entry("host_vendor")
        .or_insert(json!(2));
    Config::deserialize(json).unwrap()
}

fn decide(config: &Config, query: &str, headers: &[(&str, &str)], dsp: u16) -> Outcome {
    let headers: Vec<_> = headers
        .iter()
        .map(|&(name, value)| Header {
            name,
            value: value.as_bytes(),
        })
        .collect();
    let mut scratch = Scratch::default();
    let signals = Query::parse(query, &mut scratch).signals;
    let signals = request::with_signals(signals, &headers, config.country_header.as_deref());
    config.decide(&signals, dsp.try_into().ok(), &RefuseWhen::default())
}

/// Which of these DSPs may store a match.
fn permits(config: &Config, query: &str, dsps: impl IntoIterator<Item = u16>) -> Vec<bool> {
    let mut scratch = Scratch::default();
    let signals = Query::parse(query, &mut scratch).signals;
    config.permits(&signals, dsps.into_iter().map(|dsp| dsp.try_into().ok()))
}

/// The DSP is vendor 2, too.
#[track_caller]
fn check(query: &str, expected: Outcome) {
    check_with(json!({}), query, &[], expected);
}

#[track_caller]
fn check_with(json: Value, query: &str, headers: &[(&str, &str)], expected: Outcome) {
    let outcome = decide(&config(json.clone()), query, headers, 2);
    assert_eq!(outcome, expected, "{json} {query} {headers:?}");
}

#[test]
fn strings_of_the_encoders_of_the_iab_are_judged_by_their_fields() {
    #[derive(Deserialize)]
    struct Vector<'a> {
        name: String,
        expected: &'a str,
        query: &'a str,
        dsp: u16,
        config: Config,
    }
    let mut outcomes = std::collections::BTreeMap::new();
    for line in include_str!("tests/vectors.jsonl").lines() {
        let Vector {
            name,
            expected,
            query,
            dsp,
            config,
        } = serde_json::from_str(line).unwrap();
        let outcome = decide(&config, query, &[], dsp);
        assert_eq!(
            Outcome::LABELS[outcome as usize],
            expected,
            "{name}: {query}"
        );
        *outcomes.entry(expected).or_insert(0) += 1;
    }
    assert_eq!(outcomes.len(), 9, "{outcomes:?}");
}

#[test]
fn consent_to_purpose_1_and_both_vendors_allows_a_match() {
    check(&format!("gdpr=1&gdpr_consent={CONSENT}"), Outcome::Allowed);
    check(
        &format!("d=1&gdpr_consent={CONSENT}&b=x&gdpr=1&gp&us"),
        Outcome::Allowed,
    );
    check(
        &format!("gdpr=1&gdpr_consent={NO_PURPOSE}"),
        Outcome::ConsentPurpose,
    );
    check(
        &format!("gdpr=1&gdpr_consent={NO_VENDOR}"),
        Outcome::ConsentVendorHost,
    );
    let of = |host: u16, dsp| {
        let config = config(json!({ "host_vendor": host }));
        decide(&config, &format!("gdpr=1&gdpr_consent={CONSENT}"), &[], dsp)
    };
    assert_eq!(of(2, 3), Outcome::ConsentVendorDsp);
    assert_eq!(of(3, 2), Outcome::ConsentVendorHost);
    assert_eq!(of(2, u16::MAX), Outcome::ConsentVendorDsp);
}

#[test]
fn a_party_without_a_vendor_id_has_no_consent() {
    let query = format!("gdpr=1&gdpr_consent={CONSENT}");
    let outcome = decide(&config(json!({})), &query, &[], 0);
    assert_eq!(outcome, Outcome::ConsentVendorDsp);
    let outcome = decide(&Config::default(), &query, &[], 2);
    assert_eq!(outcome, Outcome::ConsentVendorHost);
}

#[test]
fn other_versions_and_malformed_consent_are_distinguished() {
    let version_1 = "BONciguONcjGKADACHENAOLS1rAHDAFAAEAASABQAMwAeACEAFw";
    check(
        &format!("gdpr=1&gdpr_consent={version_1}"),
        Outcome::ConsentVersion,
    );
    for malformed in [
        "BON",
        "malformed",
        "C",
        ".",
        "%43",
        &CONSENT.replace('A', "%25"),
        &CONSENT[..40],
        &CONSENT.replace('P', "+"),
    ] {
        check(
            &format!("gdpr=1&gdpr_consent={malformed}"),
            Outcome::Malformed,
        );
    }
    // Characters that are not read count, too.
    for at in 0..=CONSENT.len() {
        for invalid in ["=", "+", "%2F", "%20", "%00", "%ff", "%zz", "~", "%C3%BC"] {
            let text = format!("{}{invalid}{}", &CONSENT[..at], &CONSENT[at..]);
            check(&format!("gdpr=1&gdpr_consent={text}"), Outcome::Malformed);
            check(&format!("gpp_sid=2&gpp=DBABMA~{text}"), Outcome::Malformed);
        }
    }
}

#[test]
fn segments_of_us_sections_are_not_lost() {
    let check = |segments: &str, expected| {
        check(&format!("gpp_sid=7&gpp=DBABL~{segments}"), expected);
    };
    check("BqqqqqqqqqA.QA", Outcome::Allowed);
    for cut in ["BqqqqqqqqqA.", ".QA", "BqqqqqqqqqA..QA"] {
        check(cut, Outcome::Malformed);
    }
    check(&format!("BqqqqqqqqqA{}", ".QA".repeat(7)), Outcome::Allowed);
    check(
        &format!("BqqqqqqqqqA{}", ".QA".repeat(8)),
        Outcome::Malformed,
    );
    for cut in ["Bqqqqqqqq", "Cqqqqqqqqqq"] {
        check(cut, Outcome::Malformed);
    }
    let gpp = gpp::Sections::parse("DBABKY~BAAA").unwrap();
    assert_eq!(gpp.section(28), "BAAA", "a rule can name it");
}

#[test]
fn escapes_change_no_decision() {
    for (query, expected) in [
        (format!("gdpr=1&gdpr_consent={CONSENT}"), Outcome::Allowed),
        (
            format!("gdpr=1&gdpr_consent={NO_PURPOSE}"),
            Outcome::ConsentPurpose,
        ),
        (
            format!("gdpr=1&gdpr_consent={NO_VENDOR}"),
            Outcome::ConsentVendorHost,
        ),
        (
            format!("gpp_sid=2&gpp=DBABMA~{NO_VENDOR}"),
            Outcome::ConsentVendorHost,
        ),
        ("us_privacy=1YYN".to_owned(), Outcome::UsOptOut),
        ("gpp_sid=2".to_owned(), Outcome::ConsentMissing),
        ("gdpr=1".to_owned(), Outcome::ConsentMissing),
    ] {
        check(&query, expected);
        for (at, byte) in query.bytes().enumerate() {
            if byte != b'=' && byte != b'&' {
                let escaped = format!("{}%{byte:02X}{}", &query[..at], &query[at + 1..]);
                check(&escaped, expected);
            }
        }
    }
}

#[test]
fn section_2_of_gpp_wins_over_gdpr() {
    for (consent, expected) in [
        (CONSENT, Outcome::Allowed),
        (NO_PURPOSE, Outcome::ConsentPurpose),
        (
            "CPXxRfAPXxRfAAfKABENB-CgAAAAAAAAAAYgAAAAAAAA",
            Outcome::ConsentPurpose,
        ),
    ] {
        check(
            &format!("gpp_sid=2,4&gdpr=0&gpp=DBABMA~{consent}"),
            expected,
        );
        check(
            &format!("gpp_sid=2%2c4&gdpr=0&gpp=DBABMA%7E{consent}"),
            expected,
        );
        // The string in `gdpr_consent` counts only without section 2.
        check(
            &format!("gpp_sid=2&gpp=DBABMA~{consent}&gdpr_consent={CONSENT}"),
            expected,
        );
        check(
            &format!("gpp_sid=2&gpp=DBABTA~1YNN&gdpr_consent={consent}"),
            expected,
        );
        check(&format!("gpp_sid=2&gdpr_consent={consent}"), expected);
    }
}

#[test]
fn gdpr_does_not_apply_if_gpp_sid_has_no_section_2() {
    for sid in ["6", "-1", "63", "64", "7,8", "0,6"] {
        check(&format!("gpp_sid={sid}&gdpr=1"), Outcome::Allowed);
    }
    for sid in ["", "0", "0,0"] {
        check(&format!("gpp_sid={sid}&gdpr=1"), Outcome::ConsentMissing);
    }
    for sid in [
        "x",
        "2;6",
        "2,,6",
        ",2",
        "-2",
        "2%2",
        "99999",
        &"1,".repeat(200),
    ] {
        check(&format!("gpp_sid={sid}&gdpr=0"), Outcome::Malformed);
    }
}

#[test]
fn gdpr_without_consent_is_consent_missing() {
    check("gdpr=1", Outcome::ConsentMissing);
    check("gdpr=1&gdpr_consent=", Outcome::ConsentMissing);
    check("gdpr=0", Outcome::Allowed);
    for malformed in ["2", "01", "true", "${GDPR}"] {
        check(&format!("gdpr={malformed}"), Outcome::Malformed);
    }
}

#[test]
fn the_first_value_of_a_repeated_parameter_counts_and_an_empty_one_is_absent() {
    check("gdpr=1&gdpr=0", Outcome::ConsentMissing);
    check("gdpr=0&gdpr=1", Outcome::Allowed);
    check("gdpr=&gdpr=1", Outcome::ConsentMissing);
    check(
        "gdpr=&gdpr_consent=&gpp=&gpp_sid=&us_privacy=",
        Outcome::Allowed,
    );
}

#[test]
fn gdpr_depends_on_the_setting_if_the_request_does_not_mention_it() {
    let with = |setting: &str, country: &str| {
        let json = json!({ "gdpr_when_absent": setting, "country_header": "CF-IPCountry" });
        decide(&config(json), "", &[("cf-ipcountry", country)], 2)
    };
    for (setting, country, applies) in [
        ("no", "DE", false),
        ("yes", "US", true),
        ("country", "DE", true),
        ("country", "US", false),
        ("country", "XX", false),
        ("country", "", false),
    ] {
        assert_eq!(
            with(setting, country) == Outcome::ConsentMissing,
            applies,
            "{setting} {country}"
        );
    }
    check_with(json!({}), "", &[("cf-ipcountry", "DE")], Outcome::Allowed);
    for countries in [["US", "DE"], ["DE", "US"], ["DE", ""]] {
        let json = json!({ "gdpr_when_absent": "country", "country_header": "cf-ipcountry" });
        let headers = countries.map(|country| ("cf-ipcountry", country));
        check_with(json, "", &headers, Outcome::ConsentMissing);
    }
}

#[test]
fn section_ids_are_read_from_the_header() {
    #[track_caller]
    fn check(header: &str, ids: &[usize]) {
        let names: Vec<_> = ids.iter().map(|id| format!("~section-{id}")).collect();
        let text = format!("{header}{}", names.concat());
        let sections =
            gpp::Sections::parse(&text).unwrap_or_else(|_| panic!("{text} is malformed"));
        for id in 0..28 {
            let expected = if ids.contains(&id) {
                format!("section-{id}")
            } else {
                String::new()
            };
            assert_eq!(sections.section(id), expected, "{header} {id}");
        }
        let fewer = text.rsplit_once('~').unwrap().0;
        for text in [
            fewer,
            &format!("{text}~x"),
            &format!("{fewer}~"),
            &format!("{text}~"),
        ] {
            assert!(gpp::Sections::parse(text).is_err(), "{text}");
        }
    }
    check("DBACNY", &[2, 6]);
    check("DBADNZg", &[2, 6, 8]);
    check("DBADMZg", &[2, 5, 7]);
    check("DBADDMw", &[5, 7, 9]);
    check("DBADLb", &[7, 8, 9]);
    check("DBABMA", &[2]);
    // A range, of 7 to 9.
    check(&random_strings::gpp_header(&[(7, 9)]), &[7, 8, 9]);
    check(
        &random_strings::gpp_header(&[(1, 27), (63, 63)]),
        &(1..28).chain([63]).collect::<Vec<_>>(),
    );
}

#[test]
fn unknown_sections_are_skipped() {
    for id in [27, 28, 63, 1023] {
        let header = random_strings::gpp_header(&[(2, 2), (id, id)]);
        for (consent, expected) in [
            (CONSENT, Outcome::Allowed),
            (NO_PURPOSE, Outcome::ConsentPurpose),
        ] {
            check(&format!("gpp_sid=2&gpp={header}~{consent}~BRUg"), expected);
            check(
                &format!("gpp_sid=2&gpp={header}%7e{consent}%7eBRUg.AAA"),
                expected,
            );
        }
    }
}

#[test]
fn malformed_gpp_strings_are_refused() {
    let too_large = random_strings::gpp_header(&[(2, 2), (1024, 1024)]);
    for gpp in [
        "DBABMA",
        "DBABMA~",
        "DBAA~x",
        "CBABMA~x",
        "DCABMA~x",
        "DBABMA%7F1YNN",
        "DB",
        "DBAB~x",
        "x",
        "~",
        "DBABAAAAAAAAAAAA~x",
        CONSENT,
        &format!("{too_large}~x~x"),
    ] {
        check(&format!("gpp={gpp}"), Outcome::Malformed);
        check_with(
            json!({ "malformed": "ignore" }),
            &format!("gpp={gpp}"),
            &[],
            Outcome::Allowed,
        );
    }
    check("gpp=DBAA", Outcome::Allowed);
}

#[test]
fn malformed_signals_count_as_absent_if_so_configured() {
    for (query, expected) in [
        ("gdpr=x", Outcome::Allowed),
        ("gpp_sid=x&gdpr=1", Outcome::ConsentMissing),
        ("gdpr=1&gdpr_consent=malformed", Outcome::ConsentMissing),
        ("gpp=x&us_privacy=1YYN", Outcome::UsOptOut),
        ("us_privacy=x", Outcome::Allowed),
        ("gpp=DBABLA~B", Outcome::Allowed),
    ] {
        check(query, Outcome::Malformed);
        check_with(json!({ "malformed": "ignore" }), query, &[], expected);
    }
}

#[test]
fn sections_24_to_27_may_begin_with_a_header_segment() {
    for (id, letter) in [(24, 'Y'), (25, 'Z'), (26, 'a'), (27, 'b')] {
        let header = random_strings::gpp_header(&[(id, id)]);
        for (section, expected) in [
            ("BRVg".to_owned(), Outcome::UsOptOut),
            ("BRWg".to_owned(), Outcome::Allowed),
            (format!("{letter}BAA.BRVg"), Outcome::UsOptOut),
            (format!("{letter}BAA.BRWQ"), Outcome::UsOptOut),
            (format!("{letter}BAA.BRWg"), Outcome::Allowed),
            (format!("{letter}BAA.BRWg."), Outcome::Malformed),
            (format!("{letter}BAA"), Outcome::Malformed),
        ] {
            check(&format!("gpp_sid={id}&gpp={header}~{section}"), expected);
        }
    }
    let header = random_strings::gpp_header(&[(24, 24)]);
    check(&format!("gpp={header}~YBAA.BRWg.YA"), Outcome::UsOptOut);
}

#[test]
fn us_privacy_opts_out_with_its_third_character() {
    for (text, expected) in [
        ("1YYN", Outcome::UsOptOut),
        ("1nyn", Outcome::UsOptOut),
        ("1YNY", Outcome::Allowed),
        ("1---", Outcome::Allowed),
        ("2YYN", Outcome::Malformed),
        ("1YY", Outcome::Malformed),
        ("1YYNN", Outcome::Malformed),
        ("1YXN", Outcome::Malformed),
    ] {
        check(&format!("us_privacy={text}"), expected);
        check(&format!("gpp_sid=6&gpp=DBABTA~{text}"), expected);
        check(
            &format!("gpp_sid=2&gdpr_consent={CONSENT}&gpp=DBABTA~{text}"),
            Outcome::Allowed,
        );
    }
    check_with(
        json!({ "us": { "sale": "ignore" } }),
        "us_privacy=1YYN",
        &[],
        Outcome::Allowed,
    );
}

#[test]
fn sec_gpc_counts_where_it_is_configured() {
    let gpc = |json: Value, query: &str, value: &str, country: &str| {
        let mut json = json;
        json["country_header"] = json!("x-country");
        decide(
            &config(json),
            query,
            &[("Sec-GPC", value), ("X-Country", country)],
            2,
        )
    };
    assert_eq!(gpc(json!({}), "gdpr=x", "1", "DE"), Outcome::Gpc);
    for value in ["", "0", "true", "1 ", "11"] {
        assert_eq!(
            gpc(json!({}), "gdpr=0", value, "US"),
            Outcome::Allowed,
            "{value}"
        );
    }
    for (query, country, expected) in [
        ("", "US", Outcome::Gpc),
        ("gpp_sid=x", "US", Outcome::Gpc),
        ("gpp_sid=8", "", Outcome::Gpc),
        ("gdpr=0", "DE", Outcome::Allowed),
        ("gpp_sid=2", "DE", Outcome::ConsentMissing),
    ] {
        assert_eq!(
            gpc(json!({ "gpc": "us" }), query, "1", country),
            expected,
            "{query}"
        );
    }
    assert_eq!(
        gpc(json!({ "gpc": "ignore" }), "", "1", "US"),
        Outcome::Allowed
    );
}

#[test]
fn the_first_reason_decides() {
    let steps = [
        ("coppa", "1", Outcome::Coppa),
        ("gpp", "x", Outcome::Malformed),
        ("gdpr", "1", Outcome::ConsentMissing),
        ("us_privacy", "1YYN", Outcome::UsOptOut),
    ];
    let config = config(json!({ "coppa": "deny" }));
    for first in 0..=steps.len() {
        let query: Vec<_> = steps[first..]
            .iter()
            .map(|(name, value, _)| format!("{name}={value}"))
            .collect();
        let expected = steps.get(first).map_or(Outcome::Allowed, |step| step.2);
        let query = query.join("&");
        assert_eq!(decide(&config, &query, &[], 2), expected);
        assert_eq!(
            decide(&config, &query, &[("sec-gpc", "1")], 2),
            Outcome::Gpc
        );
        let mut scratch = Scratch::default();
        let opted_out = Signals {
            opted_out: true,
            gpc: true,
            ..Query::parse(&query, &mut scratch).signals
        };
        assert_eq!(
            config.decide(&opted_out, None, &RefuseWhen::default()),
            Outcome::OptedOut
        );
    }
}

#[test]
fn coppa_counts_where_it_is_configured() {
    for (value, expected) in [
        ("1", Outcome::Coppa),
        ("%31", Outcome::Coppa),
        ("0", Outcome::Allowed),
        ("", Outcome::Allowed),
        ("2", Outcome::Malformed),
        ("1%", Outcome::Malformed),
        ("true", Outcome::Malformed),
    ] {
        let query = format!("coppa={value}");
        check_with(json!({ "coppa": "deny" }), &query, &[], expected);
        check(&query, Outcome::Allowed);
    }
}

#[test]
fn rule_of_a_dsp_counts_in_every_mode() {
    let of = |rule: Value, mode: &str, query: &str| {
        let config = config(json!({ "mode": mode }));
        let mut scratch = Scratch::default();
        let signals = Query::parse(query, &mut scratch).signals;
        config.decide(&signals, None, &RefuseWhen::deserialize(rule).unwrap())
    };
    for (rule, query, applies) in [
        (json!({ "gdpr": true }), "gdpr=1", true),
        (json!({ "gdpr": true }), "gpp_sid=2", true),
        (json!({ "gdpr": true }), "gdpr=x", true),
        (json!({ "gdpr": true }), "gdpr=0", false),
        (json!({ "gdpr": true }), "gpp_sid=7&gdpr=1", false),
        (json!({ "gpp_sid": [7, 40] }), "gpp_sid=6,7", true),
        (json!({ "gpp_sid": [7, 40] }), "gpp_sid=40", true),
        (json!({ "gpp_sid": [7, 40] }), "gpp_sid=7%zz", true),
        (
            json!({ "gpp_sid": [7, 40] }),
            "gpp_sid=6&gpp=DBABLA~BVVqAAAAAAA",
            false,
        ),
        (
            json!({ "gpp_sid": [7, 40] }),
            "gpp=DBABLA~BVVqAAAAAAA",
            true,
        ),
        (
            json!({ "gpp_sid": [8, 40] }),
            "gpp=DBABLA~BVVqAAAAAAA",
            false,
        ),
        (json!({ "gpp_sid": [2] }), "gdpr=1", false),
        (json!({}), "gdpr=1", false),
    ] {
        for mode in ["off", "enforce"] {
            let outcome = of(rule.clone(), mode, query);
            assert_eq!(
                outcome == Outcome::DspRule,
                applies,
                "{rule} {query} {mode}"
            );
        }
        let outcome = of(rule, "off", query);
        assert!(applies || outcome == Outcome::Allowed, "{query}");
    }
    for invalid in [
        json!({ "gpp_sid": [0] }),
        json!({ "gpp_sid": [64] }),
        json!({ "gpp": [7] }),
    ] {
        assert!(RefuseWhen::deserialize(invalid).is_err());
    }
}

#[test]
fn labels_are_distinct() {
    let labels: std::collections::BTreeSet<_> = Outcome::LABELS.into_iter().collect();
    assert_eq!(labels.len(), Outcome::LABELS.len());
    assert_eq!(Outcome::LABELS[Outcome::UsOptOut as usize], "us_opt_out");
    assert_eq!(Outcome::UsOptOut as usize + 1, Outcome::LABELS.len());
}
