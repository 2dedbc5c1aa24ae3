use super::*;
use crate::contracts::file;

fn contracts() -> Contracts {
    file::parse("[dsp.17]\nname = 'Alpha'\nnames = ['alias']\n[dsp.18]\nname = 'beta'\n").unwrap()
}

#[track_caller]
fn check_error(body: &str, expected: &str) {
    let contracts = contracts();
    let error = Request::parse(body.as_bytes(), &contracts).unwrap_err();
    assert!(error.contains(expected), "{body}: {error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn all_members_are_read_and_others_ignored() {
    let contracts = contracts();
    let body = r#"{"uuid": "x", "account": 7, "bidders": ["a", "\u00fc"], "limit": -1, "coopSync": false, "gdpr": 1,
        "gdpr_consent": "CO", "us_privacy": "1YNN", "gpp": "DBA\u007e", "gpp_sid": "2,6", "debug": true, "filterSettings":
        {"iframe": {"bidders": "*", "filter": "exclude"}, "image": {"bidders": ["ALIAS", "x"], "filter": "include"}, "x": {}}}"#;
    let request = Request::parse(body.as_bytes(), &contracts).unwrap();
    assert_eq!(request.bidders, ["a", "ü"]);
    assert_eq!((request.limit, request.coop_sync), (Some(-1), Some(false)));
    assert!(request.debug);
    let signals = request.signals();
    assert_eq!((signals.gdpr, signals.gdpr_consent), ("1", "CO"));
    assert_eq!(
        (signals.us_privacy, signals.gpp, signals.gpp_sid),
        ("1YNN", "DBA~", "2,6")
    );
    let permitted = |filter: &Filter| [17, 18].map(|dsp| filter.permits(DspId(dsp)));
    assert_eq!(permitted(&request.image), [true, false]);
    assert_eq!(permitted(&request.iframe), [false, false]);
}

#[test]
fn members_that_are_absent_or_null_restrict_nothing() {
    let contracts = contracts();
    for body in [
        "{}",
        r#"{"bidders": null, "limit": null, "gdpr": null, "gpp": null, "filterSettings": null, "debug": null}"#,
        r#"{"bidders": [], "filterSettings": {"image": {}, "iframe": null}}"#,
        r#"{"filterSettings": {"image": {"filter": "include"}, "iframe": {"bidders": "*"}}}"#,
    ] {
        let request = Request::parse(body.as_bytes(), &contracts).unwrap();
        assert!(
            request.bidders.is_empty() && request.limit.is_none(),
            "{body}"
        );
        assert_eq!(request.signals().gdpr, "");
        for filter in [&request.image, &request.iframe] {
            assert!(filter.permits(DspId(17)), "{body}");
        }
    }
}

#[test]
fn filter_without_a_mode_includes_its_names() {
    let contracts = contracts();
    let body = r#"{"filterSettings": {"image": {"bidders": ["alpha"]}, "iframe": {"bidders": ["Beta"], "filter": "exclude"}}}"#;
    let request = Request::parse(body.as_bytes(), &contracts).unwrap();
    let permitted = |filter: &Filter| [17, 18, 19].map(|dsp| filter.permits(DspId(dsp)));
    assert_eq!(permitted(&request.image), [true, false, false]);
    assert_eq!(permitted(&request.iframe), [true, false, true]);
}

#[test]
fn invalid_bodies_are_rejected_with_a_reason() {
    for (body, expected) in [
        ("", "EOF"),
        ("[]", "an object"),
        ("[[\"a\"]]", "an object"),
        ("\"*\"", "an object"),
        ("{", "EOF"),
        ("{}{}", "trailing"),
        ("{\"limit\": 1.5}", "expected i64"),
        ("{\"limit\": \"5\"}", "invalid type"),
        ("{\"gdpr\": \"1\"}", "invalid type"),
        ("{\"gdpr\": 2}", "gdpr is neither 0 nor 1"),
        ("{\"gdpr\": -1}", "invalid value"),
        ("{\"gdpr\": true}", "invalid type"),
        ("{\"gpp\": 7}", "invalid type"),
        ("{\"gpp_sid\": [7]}", "invalid type"),
        ("{\"coopSync\": 1}", "invalid type"),
        ("{\"debug\": \"true\"}", "invalid type"),
        ("{\"bidders\": \"*\"}", "use an array"),
        ("{\"bidders\": [1]}", "invalid type"),
        ("{\"bidders\": {}}", "an array of names"),
        ("{\"limit\": 1, \"limit\": 2}", "duplicate"),
        ("{\"filterSettings\": []}", "an object"),
        ("{\"filterSettings\": {\"image\": [\"*\"]}}", "an object"),
        (
            "{\"filterSettings\": {\"image\": {\"bidders\": \"all\"}}}",
            "use \"*\"",
        ),
        (
            "{\"filterSettings\": {\"image\": {\"filter\": \"only\"}}}",
            "unknown variant",
        ),
        (
            r#"{"filterSettings": {"image": {"filter": "a\nb"}}}"#,
            "unknown variant `a b`",
        ),
    ] {
        check_error(body, expected);
    }
    let names = |count: usize| format!("{{\"bidders\": [{}]}}", vec!["\"a\""; count].join(","));
    let contracts = contracts();
    assert!(Request::parse(names(256).as_bytes(), &contracts).is_ok());
    check_error(&names(257), "too many names: the maximum is 256");
    check_error(&"[".repeat(10_000), "an object");
    let invalid = Request::parse(b"{\"gpp\": \"\xff\"}", &contracts);
    assert!(invalid.is_err());
}
