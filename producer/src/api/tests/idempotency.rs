//! Tests of repeated requests.

use std::task::Waker;

use super::*;

#[tokio::test]
async fn repeated_key_gets_the_first_response_of_its_path_only() {
    let api = api();
    let key = [("idempotency-key", "monday")];
    let rows = r#"{"u":"a","d":1,"b":"b"}"#;
    let first = post_with(&api, "/v1/cookies", &key, rows).await;
    assert_eq!(first.0, StatusCode::OK);
    assert_eq!(post_with(&api, "/v1/cookies", &key, rows).await, first);
    let appended = || api.inner.parts.inlet.log().stats().appended;
    assert_eq!(appended(), 1);
    let (status, deleted) = post_with(&api, "/v1/deletions", &key, r#"{"u":"a"}"#).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{deleted}");
    assert_eq!(appended(), 2);
}

#[tokio::test]
async fn repeated_key_with_another_body_is_rejected() {
    let api = api();
    let key = [("idempotency-key", "monday")];
    let rows = |user: &str| format!("{{\"u\":\"{user}\",\"d\":1,\"b\":\"b\"}}");
    let (status, _) = post_with(&api, "/v1/cookies", &key, rows("a")).await;
    assert_eq!(status, StatusCode::OK);
    let (status, problem) = post_with(&api, "/v1/cookies", &key, rows("b")).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    assert_eq!(api.inner.parts.inlet.log().stats().appended, 1);
    // The first request, whose body arrives in parts.
    let (parts, body) = SlowBody::channel();
    let sending = async {
        for byte in rows("a").into_bytes() {
            parts.send(Bytes::from(vec![byte])).await.unwrap();
        }
        drop(parts);
    };
    let (repeated, ()) = tokio::join!(post_with(&api, "/v1/cookies", &key, body), sending);
    assert_eq!(repeated.0, StatusCode::OK, "{}", repeated.1);
    assert_eq!(api.inner.parts.inlet.log().stats().appended, 1);
}

#[tokio::test]
async fn oldest_responses_of_a_client_are_evicted_when_it_has_too_many() {
    let api = api_with(1_000_000, None);
    let invalid = "x\n".repeat(100);
    let send = async |key: usize| {
        let key = [("idempotency-key", &*format!("{key:0128}"))];
        post_with(&api, "/v1/cookies", &key, invalid.clone())
            .await
            .0
    };
    let rejected = || {
        let rows = &api.inner.rows;
        rows.with_label_values(&["malformed"]).get()
    };
    // The oldest request stays in progress.
    let key = [("idempotency-key", "slow")];
    let (_parts, body) = SlowBody::channel();
    let mut slow = std::pin::pin!(post_with(&api, "/v1/cookies", &key, body));
    let mut context = Context::from_waker(Waker::noop());
    assert!(slow.as_mut().poll(&mut context).is_pending());
    for key in 0..400 {
        assert_eq!(send(key).await, StatusCode::MULTI_STATUS);
    }
    let (status, problem) = post_with(&api, "/v1/cookies", &key, "").await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    assert_eq!(rejected(), 40_000);
    // The last one is repeated; the first one is processed again.
    send(399).await;
    assert_eq!(rejected(), 40_000);
    send(0).await;
    assert_eq!(rejected(), 40_100);
}
