//! Tests of the effects of the privacy check.

use super::*;

/// A consent string of 2021, with consent to purpose 1 and vendor 2.
const CONSENT: &str = "CPGWbY_PGWbY_GYAAAENABCAAIAAAAAAAAAAACEAAAAA";
const NO_PURPOSE: &str = "CPGWkCaPGWkCaApAAAENABCAAAAAAAAAAAAAABEAAAAA";

#[test]
fn rule_that_only_observes_does_not_replace_the_privacy_check() {
    let contracts = "[privacy]\nhost_vendor = 2\n[dsp.17]\nvendor = 2\nstate = 'observe'\nrefuse_when = { gdpr = true }\n";
    let refused = exchange(contracts, "d=17&b=x&gdpr=1");
    assert_eq!(refused.status(), "451 Unavailable For Legal Reasons");
    let permitted = exchange(
        contracts,
        &format!("d=17&b=x&gdpr=1&gdpr_consent={CONSENT}"),
    );
    permitted.check(
        "200 OK",
        &["u/1 17 x"],
        &[
            "17 accepted",
            "would refuse: 17 privacy",
            "privacy: dsp_rule",
        ],
    );
}

/// Contracts with this mode, in which the exchange and DSP 17 are vendor 2.
fn contracts(mode: &str) -> String {
    format!("[privacy]\nmode = '{mode}'\nhost_vendor = 2\n{REDIRECT}vendor = 2\n")
}

fn query(consent: &str) -> String {
    format!("d=17&b=x&gdpr=1&gdpr_consent={consent}")
}

#[test]
fn match_with_consent_is_recorded_and_answered_as_usual() {
    for mode in ["enforce", "observe"] {
        let accepted = exchange(&contracts(mode), &query(CONSENT));
        let counted = ["17 accepted", "privacy: allowed"];
        accepted.check("302 Found", &["u/1 17 x"], &counted);
    }
}

#[test]
fn refused_match_is_answered_as_its_contract_says_and_not_recorded() {
    let refused = exchange(&contracts("enforce"), &query(NO_PURPOSE));
    let counted = ["17 privacy", "privacy: consent_purpose"];
    refused.check("451 Unavailable For Legal Reasons", &[], &counted);
    let reason = b"the privacy signals of this request do not permit the match\n";
    assert_eq!(refused.body(), reason);

    let with_answer = format!("{}refused = 'answer'\n", contracts("enforce"));
    let refused = exchange(&with_answer, &query(NO_PURPOSE));
    refused.check("204 No Content", &[], &counted);
    assert!(!refused.head().contains("location"), "{}", refused.head());
}

#[test]
fn observed_outcome_is_counted_and_the_match_is_recorded() {
    let accepted = exchange(&contracts("observe"), &query(NO_PURPOSE));
    let counted = [
        "17 accepted",
        "would refuse: 17 privacy",
        "privacy: consent_purpose",
    ];
    accepted.check("302 Found", &["u/1 17 x"], &counted);
}

#[test]
fn signals_have_no_effect_without_the_gate() {
    let headers = "cookie: uid=u/1\r\nSec-GPC: 1\r\n";
    for contracts in [REDIRECT, &contracts("off")] {
        let request = format!("GET /?{}&gpp=x&us_privacy=1YYN", query(NO_PURPOSE));
        let accepted = exchange_with(contracts, &request, headers);
        accepted.check("302 Found", &["u/1 17 x"], &["17 accepted"]);
    }
}

#[test]
fn dsp_without_a_vendor_id_has_no_consent() {
    let refused = exchange(&contracts("enforce"), &query(CONSENT).replace("17", "18"));
    let counted = ["other privacy", "privacy: consent_vendor_dsp"];
    refused.check("451 Unavailable For Legal Reasons", &[], &counted);
}

#[test]
fn rule_of_a_dsp_needs_no_gate_and_is_observed_with_its_contract() {
    let rule = "refuse_when = { gdpr = true, gpp_sid = [7] }\n";
    let counted = ["17 privacy", "privacy: dsp_rule"];
    for contracts in [
        format!("{REDIRECT}{rule}"),
        format!("{}{rule}", contracts("off")),
        format!("{}{rule}", contracts("observe")),
        format!("{}{rule}", contracts("enforce")),
        format!("[defaults]\n{rule}{REDIRECT}"),
    ] {
        for query in [query(CONSENT), "d=17&b=x&gpp_sid=6,%37".to_owned()] {
            let refused = exchange(&contracts, &query);
            refused.check("451 Unavailable For Legal Reasons", &[], &counted);
        }
    }
    let observed = format!("{REDIRECT}{rule}state = 'observe'\n");
    let counted = [
        "17 accepted",
        "would refuse: 17 privacy",
        "privacy: dsp_rule",
    ];
    exchange(&observed, &query(CONSENT)).check("302 Found", &["u/1 17 x"], &counted);
    let elsewhere = exchange(&format!("{REDIRECT}{rule}"), "d=17&b=x&gdpr=0");
    elsewhere.check(
        "302 Found",
        &["u/1 17 x"],
        &["17 accepted", "privacy: allowed"],
    );
}

#[test]
fn opt_out_cookie_decides_first_and_keeps_its_response() {
    let headers = "cookie: uid=u/1; cookiesync_optout=1\r\nSec-GPC: 1\r\n";
    for mode in ["enforce", "observe"] {
        let answered = exchange_with(&contracts(mode), "GET /?d=17&b=x&gdpr=x", headers);
        let counted = ["17 opted_out", "privacy: opted_out"];
        answered.check("204 No Content", &[], &counted);
    }
}

#[test]
fn opt_out_cookie_decides_without_the_opt_out_page() {
    let request = format!("GET /?{}", query(CONSENT));
    let cookies = "cookie: uid=u/1; cookiesync_optout=1\r\n";
    let exchange = |contracts: &str| {
        let producer = Producer::new(Some(contracts), false, UidMode::Require);
        producer.exchange(&request, cookies)
    };
    let answered = exchange(&contracts("enforce"));
    let counted = ["17 opted_out", "privacy: opted_out"];
    answered.check("204 No Content", &[], &counted);
    let accepted = exchange(REDIRECT);
    accepted.check("302 Found", &["u/1 17 x"], &["17 accepted"]);
}

#[test]
fn headers_are_signals() {
    let settings = "country_header = 'CF-IPCountry'\n";
    let contracts = contracts("enforce").replace("host_vendor", &format!("{settings}host_vendor"));
    for (header, outcome) in [
        ("SEC-gpc: 1", "gpc"),
        ("cf-ipcountry: DE", "consent_missing"),
    ] {
        let headers = format!("cookie: uid=u/1\r\n{header}\r\n");
        let refused = exchange_with(&contracts, "GET /?d=17&b=x", &headers);
        let counted = ["17 privacy", &format!("privacy: {outcome}")];
        refused.check("451 Unavailable For Legal Reasons", &[], &counted);
    }
}

#[test]
fn request_that_is_rejected_for_another_reason_is_not_decided() {
    let refused = exchange(&contracts("enforce"), "d=17&b=$UID&gdpr=1");
    refused.check("400 Bad Request", &[], &["17 uid_macro"]);
    let rejected = exchange(&contracts("enforce"), "d=17&gdpr=1");
    rejected.check("400 Bad Request", &[], &["17 b_missing"]);
}

#[test]
fn all_errors_of_the_settings_are_reported() {
    let text = "[privacy]
mode = 'enforced'
host_vendor = 70000
gdpr_when_abent = 'no'
purpose_one_treatment = ['Germany']
us = { sale = 'no' }
[defaults]
vendor = 7
[dsp.17]
vendor = 0
";
    let errors = file::parse(text).unwrap_err().0;
    for expected in [
        "line 2: privacy.mode: unknown value `enforced`, expected one of",
        "line 4: privacy: unknown key `gdpr_when_abent`, expected one of",
        "line 5: privacy.purpose_one_treatment",
        "line 6: privacy.us",
        "line 3: privacy.host_vendor",
        "line 8: defaults.vendor: is for one DSP: set it in [dsp.ID]",
        "line 10: dsp.17.vendor",
    ] {
        assert!(
            errors.iter().any(|error| error.starts_with(expected)),
            "{expected}: {errors:#?}"
        );
    }
    assert_eq!(errors.len(), 7, "{errors:#?}");
    assert!(file::parse("privacy = 1").is_err());
}

#[test]
fn the_plan_shows_all_settings_and_is_a_valid_file() {
    let text = r#"[privacy]
mode = "enforce"
host_vendor = 999
country_header = "cf-ipcountry"
gdpr_when_absent = "country"
disclosed_vendors = "by_date"
purpose_one_treatment = ["DE"]
gpc = "deny"
coppa = "ignore"
malformed = "deny"

[privacy.us]
sale = "deny"
sharing = "deny"
targeted = "deny"
without_sid = "all"
"#;
    let plan = file::parse(&format!("{text}[dsp.17]\nvendor = 755\n"))
        .unwrap()
        .to_string();
    assert!(plan.ends_with(text), "{plan}");
    assert!(
        plan.lines()
            .nth(1)
            .unwrap()
            .starts_with("17        -     755     allowed"),
        "{plan}"
    );
}
