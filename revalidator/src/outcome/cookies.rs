//! Determines the outcome of checking a match from the partner's response: 200 with `{"uid": "…"}`, or 204.

use proto::{
    ids::{check_buyer_uid, hygiene},
    limits::BUYER_UID_BYTES_MAX,
};
use serde_json::Value;

use super::{Body, Response};
use crate::{
    apps::NullMeans,
    digest,
    messages::{Asset, Outcome},
};

/// Returns the outcome, and the match with the uid to publish: a changed one, with `rewrite` any.
pub(super) fn uid(
    null_means: NullMeans,
    asset: &Asset,
    response: &Response,
    rewrite: bool,
) -> (Outcome, Asset) {
    let keep = |outcome| (outcome, asset.clone());
    let null = match null_means {
        NullMeans::Keep => Outcome::Unexpected,
        NullMeans::Gone => Outcome::Gone,
    };
    let body = match &response.body {
        _ if response.status == 204 => return keep(null),
        Body::Unusable => return keep(Outcome::Unexpected),
        Body::Cut | Body::Unread => return keep(Outcome::Failed),
        Body::Complete(body) => body,
    };
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let uid = match value.get("uid") {
        Some(Value::Null) => return keep(null),
        Some(Value::String(uid)) if is_uid(uid) => uid,
        _ => return keep(Outcome::Malformed),
    };
    let outcome = match digest::is_equal(&asset.hash, uid.as_bytes()) {
        true if !rewrite => return keep(Outcome::Fresh),
        true => Outcome::Fresh,
        false => Outcome::Changed,
    };
    let published = Asset {
        hash: digest::digest(uid.as_bytes()),
        uid: uid.clone(),
        ..asset.clone()
    };
    (outcome, published)
}

/// Whether a text is a valid buyer uid, and not a placeholder.
fn is_uid(uid: &str) -> bool {
    check_buyer_uid(uid, BUYER_UID_BYTES_MAX).is_ok() && hygiene::flaw(uid, &[]).is_none()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::{tests::settings, *};

    const KEPT: &[Outcome] = &[Outcome::Unexpected, Outcome::Malformed];

    fn outcome_of(null_means: &str, status: u16, body: &str, force: bool) -> (Outcome, Asset) {
        let settings = settings(&format!("cookies.null_means = {null_means:?}"));
        let asset = Asset {
            key: "u".to_owned(),
            hash: digest::digest(b"old"),
            ..Asset::default()
        };
        let answer = Answer::Response(Response {
            status,
            body: Body::Complete(Bytes::copy_from_slice(body.as_bytes())),
            ..Response::default()
        });
        outcome(&settings, &asset, &answer, false, force)
    }

    #[track_caller]
    fn check(body: &str, expected: Outcome) {
        let (outcome, _) = outcome_of("keep", 200, body, false);
        assert_eq!(outcome, expected, "{body}");
    }

    #[test]
    fn uid_is_compared_with_the_stored_one() {
        check(r#"{"uid":"old"}"#, Outcome::Fresh);
        let (outcome, asset) = outcome_of("keep", 200, r#"{"uid":"new","x":1}"#, false);
        assert_eq!((outcome, &*asset.uid), (Outcome::Changed, "new"));
        assert_eq!(asset.hash, digest::digest(b"new"));
        // It is published again.
        let (forced, asset) = outcome_of("keep", 200, r#"{"uid":"old"}"#, true);
        assert_eq!((forced, &*asset.uid), (Outcome::Fresh, "old"));
    }

    #[test]
    fn response_without_a_uid_keeps_the_match_unless_it_means_gone() {
        for (status, body) in [(200, r#"{"uid":null}"#), (204, "")] {
            let of = |null_means| outcome_of(null_means, status, body, false).0;
            assert!(KEPT.contains(&of("keep")), "{status}");
            assert_eq!(of("gone"), Outcome::Gone, "{status}");
        }
        assert_eq!(outcome_of("keep", 404, "", false).0, Outcome::Gone);
    }

    #[test]
    fn only_a_200_has_a_uid() {
        for status in [201, 202, 203, 205, 206, 207, 226, 299, 301] {
            let (outcome, asset) = outcome_of("gone", status, r#"{"uid":"new"}"#, true);
            assert_eq!(
                (outcome, &*asset.uid),
                (Outcome::Unexpected, ""),
                "{status}"
            );
        }
    }

    #[test]
    fn other_bodies_are_malformed() {
        let long = format!(r#"{{"uid":"{}"}}"#, "x".repeat(257));
        for body in [
            "",
            "{}",
            "[]",
            "null",
            "old",
            "<html>",
            r#"{"uid":7}"#,
            r#"{"uid":""}"#,
            r#"{"uid":"a\n"}"#,
            &long,
            r#"{"uid":"$UID"}"#,
            r#"{"uid":"[UID]"}"#,
            r#"{"uid":"{UID}"}"#,
            r#"{"uid":"${USER_ID}"}"#,
            r#"{"uid":"%%UID%%"}"#,
            r#"{"uid":"<vsid>"}"#,
            r#"{"uid":"{{uid}}"}"#,
            r#"{"uid":"$$visitor_cookie$$"}"#,
            r#"{"uid":"%7BUID%7D"}"#,
            r#"{"uid":"a${UID}b"}"#,
            r#"{"uid":"%s"}"#,
            r#"{"uid":"null"}"#,
            r#"{"uid":"__UID__"}"#,
        ] {
            check(body, Outcome::Malformed);
        }
        for uid in [
            "{AF9619FF-8B86-D011-B42D-00CF4FC964FF}",
            "1&a",
            "a%20b",
            "CAESE-x_",
        ] {
            check(&format!(r#"{{"uid":"{uid}"}}"#), Outcome::Changed);
        }
    }

    #[test]
    fn incomplete_bodies_are_retried_and_large_ones_kept() {
        let settings = settings("cookies.null_means = \"gone\"");
        let of = |body| {
            let answer = Answer::Response(Response {
                status: 200,
                body,
                ..Response::default()
            });
            outcome(&settings, &Asset::default(), &answer, false, false).0
        };
        assert_eq!(of(Body::Cut), Outcome::Failed);
        assert_eq!(of(Body::Unusable), Outcome::Unexpected);
    }
}
