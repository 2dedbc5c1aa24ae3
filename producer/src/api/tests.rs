//! The OpenAPI file against the routes.

use axum::body::Body;
use http::{Method, Request, StatusCode};
use proto::limits::CHUNK_BYTES_DEFAULT;
use serde_json::{Value, json};

use super::*;
use crate::{
    edge::dsps::DspSeries,
    log,
    streams::subscribers::{Call, HERE, StreamStart, TooManySubscribers},
};

fn api() -> Api {
    let registry = Registry::new();
    let log = Log::new(log::Config {
        epoch: 7,
        bytes_max: 1 << 20,
        chunk_bytes: CHUNK_BYTES_DEFAULT,
        chunk_age: Duration::from_millis(10),
        idle_after: Duration::from_secs(1),
    });
    // Seals chunks, before which deletions may wait.
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(log::run_timers(log.clone()));
    let parts = Parts {
        producer_id: "p".to_owned(),
        log,
        shaping: None,
        dsps: Dsps::register(&registry, &DspSeries::default()).unwrap(),
        subscribers: Subscribers::new(Duration::from_secs(60), 10),
        draining: CancellationToken::new(),
        deletions: registry.add(producer::DELETIONS).unwrap(),
        config: Config {
            deletions_need: 0,
            requests_per_second: 1_000,
            rows_per_second: 1_000_000,
        },
    };
    Api::new(parts, None, &registry).unwrap()
}

async fn status(api: &Api, method: Method, path: &str) -> StatusCode {
    let request = Request::builder().method(method).uri(path);
    let response = api.router().oneshot(request.body(Body::empty()).unwrap());
    response.await.unwrap().status()
}

#[tokio::test]
async fn openapi_file_has_exactly_the_routes() {
    let api = api();
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 7);
    for (path, methods) in paths {
        let path = path
            .replace("{user}", "u")
            .replace("{dsp}", "17")
            .replace("{receipt}", "r");
        for method in [Method::GET, Method::POST, Method::DELETE, Method::PUT] {
            let is_listed = methods.get(method.as_str().to_ascii_lowercase()).is_some();
            let status = status(&api, method.clone(), &path).await;
            let is_routed = status != StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(is_routed, is_listed, "{method} {path}: {status}");
        }
    }
    assert_eq!(
        status(&api, Method::GET, "/v1/other").await,
        StatusCode::NOT_FOUND
    );
}

async fn post(api: &Api, path: &str, body: impl Into<Body>) -> (StatusCode, Value) {
    let request = Request::post(path).header("content-type", "application/x-ndjson");
    send(api, request.body(body.into()).unwrap()).await
}

async fn get(api: &Api, path: &str) -> (StatusCode, Value) {
    send(api, Request::get(path).body(Body::empty()).unwrap()).await
}

async fn send(api: &Api, request: Request<Body>) -> (StatusCode, Value) {
    let response = api.router().oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20)
        .await
        .unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn valid_rows_enter_the_log_and_invalid_ones_are_named() {
    let api = api();
    let now = runtime::unix_micros() / 1_000;
    let (day, future) = (24 * 3_600_000, now + 3_600_000);
    let rows = [
        r#"{"u":"u1","d":17,"b":"b1"}"#.to_owned(),
        format!(r#"{{"u":"u2","d":17,"b":"b2","t":{}}}"#, now - day),
        format!(r#"{{"u":"u3","d":17,"b":"b3","t":{future}}}"#),
        format!(r#"{{"u":"u4","d":17,"b":"b4","t":{}}}"#, now - 2 * day),
        r#"{"u":"u 5","d":17,"b":"b"}"#.to_owned(),
        r#"{"u":"u6","d":0,"b":"b"}"#.to_owned(),
        r#"{"u":"u7","d":17,"b":""}"#.to_owned(),
        r#"{"u":"u8","d":17,"b":"b","x":1}"#.to_owned(),
        "x".repeat(5_000),
        r#"{"u":"u10","d":17,"b":"b""#.to_owned(),
    ];
    let (status, summary) = post(&api, "/v1/cookies", rows.join("\n")).await;
    assert_eq!(status, StatusCode::MULTI_STATUS);
    assert_eq!(
        (&summary["accepted"], &summary["rejected"]),
        (&3.into(), &7.into())
    );
    let errors = summary["errors"].as_array().unwrap().iter();
    let reasons: Vec<_> = errors.map(|it| it["reason"].as_str().unwrap()).collect();
    let expected = [
        "too_old",
        "user_invalid",
        "dsp_invalid",
        "buyer_invalid",
        "malformed",
        "malformed",
        "malformed",
    ];
    assert_eq!(reasons, expected);
    assert_eq!(api.inner.parts.log.stats().appended, 3);
}

#[tokio::test]
async fn deletions_of_a_request_have_one_receipt() {
    let api = api();
    let rows = "{\"u\":\"a\"}\n{\"u\":\"b\",\"d\":3}\n{\"u\":\"\",\"d\":3}\n{\"u\":\"c\",\"d\":0}";
    let (status, body) = post(&api, "/v1/deletions", rows).await;
    assert_eq!(status, StatusCode::MULTI_STATUS, "{body}");
    assert_eq!(
        (&body["receipt"], &body["accepted"]),
        (&"p:7:1-2".into(), &2.into())
    );
    let (status, _) = post(&api, "/v1/deletions", "{}").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    api.inner.parts.draining.cancel();
    let (status, _) = post(&api, "/v1/deletions", rows).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn receipt_is_open_until_its_nodes_confirm_and_unknown_after_a_restart() {
    let api = api();
    let subscribers = &api.inner.parts.subscribers;
    let start = |_| StreamStart::fresh::<TooManySubscribers>(1);
    let lease = subscribers.join(Call::Subscribe, "node", HERE, start);
    let _lease = lease.unwrap();
    assert_eq!(
        status(&api, Method::DELETE, "/v1/users/u").await,
        StatusCode::ACCEPTED
    );
    let open = || {
        api.open_families()[1].get_metric()[0]
            .get_gauge()
            .get_value()
    };
    let expected = |confirmed, pending: &[&str], unknown: &[&str]| json!({"confirmed": confirmed, "pending": pending, "unknown": unknown});
    let (_, receipt) = get(&api, "/v1/receipts/p:7:1-1").await;
    assert_eq!(receipt["nodes"], expected(0, &["node"], &[]));
    assert_eq!((&receipt["done"], open()), (&json!(false), 1.0));
    subscribers.confirm("node", HERE, 1, 1).unwrap();
    let (_, receipt) = get(&api, "/v1/receipts/p:7:1-1").await;
    assert_eq!(receipt["nodes"], expected(1, &[], &[]));
    assert_eq!((&receipt["done"], open()), (&json!(true), 0.0));
    assert_eq!(receipt["action"], Value::Null);

    // Of the previous epoch: the node that has confirmed the same sequence counts no more.
    let (_, receipt) = get(&api, "/v1/receipts/p:6:1-1").await;
    assert_eq!(receipt["nodes"], expected(0, &[], &["node"]));
    assert_eq!(receipt["done"], false);
    let action = receipt["action"].as_str().unwrap();
    assert!(action.contains("restarted since"), "{action}");

    for (path, status, detail) in [
        ("q:7:1-1", 421, "request it from the API of q"),
        ("p:7:1-2", 404, "unknown receipt"),
        ("p:7", 404, "expected PRODUCER:EPOCH:FIRST-LAST"),
    ] {
        let (found, problem) = get(&api, &format!("/v1/receipts/{path}")).await;
        assert_eq!(
            (found.as_u16(), &problem["detail"]),
            (status, &json!(detail))
        );
    }
}

#[tokio::test]
async fn deletion_of_a_dsp_must_be_confirmed() {
    let api = api();
    for (path, expected) in [
        ("/v1/dsps/17", StatusCode::BAD_REQUEST),
        ("/v1/dsps/17?confirm=18", StatusCode::BAD_REQUEST),
        ("/v1/dsps/0?confirm=0", StatusCode::BAD_REQUEST),
        ("/v1/dsps/17?confirm=17", StatusCode::ACCEPTED),
    ] {
        assert_eq!(status(&api, Method::DELETE, path).await, expected, "{path}");
    }
}
