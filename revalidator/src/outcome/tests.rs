//! Tests of the outcomes of responses: one test for each row of the table in docs/revalidator.md.

use super::*;

/// Settings of an application.
pub(super) fn settings(text: &str) -> AppSettings {
    toml::from_str(text).unwrap()
}

fn stored() -> Asset {
    Asset {
        url: "https://shop.example/a".to_owned(),
        hash: digest::digest(b"old"),
        e_tag: "\"1\"".to_owned(),
        last_modified: "Mon".to_owned(),
        ..Asset::default()
    }
}

fn response(status: u16, body: Body) -> Answer {
    Answer::Response(Response {
        status,
        body,
        ..Response::default()
    })
}

fn complete(text: &'static str) -> Body {
    Body::Complete(Bytes::from_static(text.as_bytes()))
}

fn outcome_of(answer: &Answer) -> Outcome {
    outcome(&settings(""), &stored(), answer, true, false).0
}

#[track_caller]
fn check(statuses: impl IntoIterator<Item = u16>, expected: Outcome) {
    for status in statuses {
        for body in [complete("other"), Body::Unread] {
            let found = outcome_of(&response(status, body));
            assert_eq!(found, expected, "{status}");
        }
    }
}

#[test]
fn not_modified_is_fresh_and_reports_new_validators() {
    let answer = Answer::Response(Response {
        status: 304,
        e_tag: "\"2\"".to_owned(),
        ..Response::default()
    });
    let (found, asset) = outcome(&settings(""), &stored(), &answer, true, false);
    assert_eq!(found, Outcome::Fresh);
    let expected = Asset {
        e_tag: "\"2\"".to_owned(),
        ..stored()
    };
    assert_eq!(asset, expected);
}

#[test]
fn not_modified_without_validators_has_failed() {
    let answer = response(304, Body::Unread);
    let (found, asset) = outcome(&settings(""), &stored(), &answer, false, false);
    assert_eq!((found, asset), (Outcome::Failed, stored()));
}

#[test]
fn equal_body_is_fresh_and_reports_new_validators() {
    let answer = Answer::Response(Response {
        status: 200,
        e_tag: "\"2\"".to_owned(),
        last_modified: "Tue".to_owned(),
        body: complete("old"),
        ..Response::default()
    });
    let (found, asset) = outcome(&settings(""), &stored(), &answer, true, false);
    assert_eq!(found, Outcome::Fresh);
    assert_eq!((&*asset.e_tag, &*asset.last_modified), ("\"2\"", "Tue"));
    assert_eq!(asset.hash, stored().hash);
}

#[test]
fn crc32_of_an_equal_body_is_replaced_by_the_new_digest() {
    let asset = Asset {
        hash: format!("{:08x}", crc32fast::hash(b"old")),
        ..stored()
    };
    let answer = response(200, complete("old"));
    let (found, asset) = outcome(&settings(""), &asset, &answer, true, false);
    assert_eq!((found, asset.hash), (Outcome::Fresh, stored().hash));
}

#[test]
fn other_body_is_changed_and_reports_its_digest() {
    let answer = response(200, complete("new"));
    let (found, asset) = outcome(&settings(""), &stored(), &answer, true, false);
    assert_eq!(found, Outcome::Changed);
    assert_eq!(asset.hash, digest::digest(b"new"));
    assert_eq!((&*asset.e_tag, &*asset.last_modified), ("", ""));
}

#[test]
fn equal_body_of_a_missing_object_is_changed() {
    let answer = response(200, complete("old"));
    let found = outcome(&settings(""), &stored(), &answer, false, true).0;
    assert_eq!(found, Outcome::Changed);
}

#[test]
fn long_validators_are_not_stored() {
    let answer = Answer::Response(Response {
        status: 200,
        e_tag: "x".repeat(VALIDATOR_BYTES_MAX + 1),
        last_modified: "x".repeat(VALIDATOR_BYTES_MAX),
        body: complete("new"),
        ..Response::default()
    });
    let asset = outcome(&settings(""), &stored(), &answer, true, false).1;
    assert_eq!((asset.e_tag.len(), asset.last_modified.len()), (0, 512));
}

#[test]
fn no_content_and_partial_content_are_unexpected() {
    check(204..=206, Outcome::Unexpected);
}

#[test]
fn empty_body_is_content_only_if_the_stored_one_is_empty() {
    let empty = response(200, complete(""));
    assert_eq!(outcome_of(&empty), Outcome::Unexpected);
    let asset = Asset {
        hash: digest::digest(b""),
        ..stored()
    };
    let found = outcome(&settings(""), &asset, &empty, true, false).0;
    assert_eq!(found, Outcome::Fresh);
}

#[test]
fn not_found_and_gone_are_gone() {
    check([404, 410], Outcome::Gone);
}

#[test]
fn rejected_credentials_are_refused() {
    check([401, 403, 407], Outcome::Refused);
}

#[test]
fn too_many_requests_are_throttled() {
    check([429], Outcome::Throttled);
}

#[test]
fn unavailable_is_throttled_only_with_retry_after() {
    check([503], Outcome::Failed);
    let answer = Answer::Response(Response {
        status: 503,
        limits: LimitHeaders {
            retry_after: Some("1".to_owned()),
            ..LimitHeaders::default()
        }
        .into(),
        ..Response::default()
    });
    assert_eq!(outcome_of(&answer), Outcome::Throttled);
}

#[test]
fn other_client_errors_and_redirects_are_unexpected() {
    check(
        [400, 402, 405, 406, 408, 409, 418, 451, 499],
        Outcome::Unexpected,
    );
    check(
        [300, 301, 302, 303, 307, 308, 100, 199],
        Outcome::Unexpected,
    );
}

#[test]
fn unusable_bodies_are_unexpected() {
    assert_eq!(
        outcome_of(&response(200, Body::Unusable)),
        Outcome::Unexpected
    );
}

#[test]
fn server_errors_have_failed() {
    check([500, 501, 502, 504, 599, 999], Outcome::Failed);
}

#[test]
fn missing_responses_and_cut_bodies_have_failed() {
    assert_eq!(outcome_of(&Answer::None), Outcome::Failed);
    assert_eq!(outcome_of(&response(200, Body::Cut)), Outcome::Failed);
}

#[test]
fn forbidden_url_is_unexpected() {
    assert_eq!(outcome_of(&Answer::Forbidden), Outcome::Unexpected);
}

#[test]
fn only_a_complete_success_changes_the_asset() {
    for status in (100..=999).filter(|it| !(200..300).contains(it) && *it != 304) {
        let answer = Answer::Response(Response {
            status,
            e_tag: "\"9\"".to_owned(),
            body: complete("error page"),
            ..Response::default()
        });
        let asset = outcome(&settings(""), &stored(), &answer, true, false).1;
        assert_eq!(asset, stored(), "{status}");
    }
}

#[test]
fn names_in_messages_and_metrics_are_equal() {
    let page = include_str!("../../../docs/metrics.md");
    let line = page
        .lines()
        .find(|it| it.contains("`revalidator_requests_total"));
    for outcome in [
        Outcome::Fresh,
        Outcome::Changed,
        Outcome::Gone,
        Outcome::Refused,
        Outcome::Throttled,
        Outcome::Failed,
        Outcome::Unexpected,
        Outcome::Malformed,
        Outcome::Removed,
    ] {
        let name = outcome.name();
        assert_eq!(serde_json::to_value(outcome).unwrap(), name);
        assert!(line.unwrap().contains(&name), "{name} is not documented");
    }
}
