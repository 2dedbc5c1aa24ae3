//! The path of a request to the consumer's admin port.

use consumer::{lookup, store::discard::DiscardStore};
use futures_util::FutureExt;
use http::StatusCode;
use http_body_util::BodyExt;

/// A path, or what is none: a path of a user is answered, in JSON, that it is none or that nobody knows the user.
///
/// # Panics
/// When it is not.
pub fn lookup(bytes: &[u8]) {
    let Ok(path) = std::str::from_utf8(bytes) else {
        return;
    };
    let store = DiscardStore::default();
    let answer = lookup::page(&store, path).now_or_never();
    let answer = answer.expect("a store of nothing answers at once");
    let is_of_a_user = path.starts_with("/v1/users/");
    let Some(answer) = answer else {
        return assert!(!is_of_a_user);
    };
    assert!(is_of_a_user);
    let status = answer.status();
    let body = answer.into_body().collect().now_or_never();
    let Ok(body) = body.expect("it is whole");
    let body = body.to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    match status {
        StatusCode::NOT_FOUND => {
            let user_id = body["user_id"].as_str().expect("says who");
            assert!((1..=64).contains(&user_id.len()));
            assert!(user_id.bytes().all(|byte| byte.is_ascii_graphic()));
        }
        StatusCode::BAD_REQUEST => assert!(body["error"].is_string()),
        other => panic!("{other}"),
    }
}
