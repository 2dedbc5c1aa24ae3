//! Tests of the API, and of the OpenAPI file against its routes.

mod idempotency;
mod nodes;

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use http::{Method, Request, StatusCode};
use http_body::Frame;
use proto::{
    limits::CHUNK_BYTES_DEFAULT,
    units::{Epoch, Sequence},
};
use runtime::reload::NamedFile;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::{
    contracts::file::{self, File},
    log::{self, Delivery, Log},
};

fn api() -> Api {
    api_with(1_000_000, None)
}

/// An API with this maximum number of rows per second, and these DSP limits.
fn api_with(rows_per_second: usize, limits: Option<&str>) -> Api {
    let registry = Registry::new();
    let log = Log::new(log::Config {
        epoch: Epoch(7),
        bytes_max: 1 << 20,
        chunk_bytes: CHUNK_BYTES_DEFAULT,
        chunk_age: Duration::from_millis(10),
        idle_after: Duration::from_secs(1),
    });
    // Seals chunks, for which pending deletions wait.
    #[expect(
        clippy::disallowed_methods,
        reason = "the timers end with the test's runtime"
    )]
    tokio::spawn(log::run_timers(log.clone()));
    let parts = Parts {
        producer_id: "p".to_owned(),
        inlet: {
            let file = limits.map(|limits| {
                let file = tempfile::NamedTempFile::new().unwrap();
                std::fs::write(&file, limits).unwrap();
                let named = NamedFile::from_flag("--contracts", &file.path().display().to_string());
                Arc::new(Reloader::load(File::new(named.unwrap())).unwrap())
            });
            Inlet::start("", file, None, log).unwrap()
        },
        dsps: Dsps::register(&registry, None, Arc::default()).unwrap(),
        subscribers: Subscribers::new(Duration::from_secs(60), 10),
        node_reports: None,
        draining: CancellationToken::new(),
        limits: ApiLimits {
            deletion_confirmations: 0,
            api_requests_per_second: 1_000,
        },
        rows_per_second,
        // A node lags from its first unread sealed chunk on.
        lag_max: Duration::ZERO,
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
    assert_eq!(paths.len(), 8);
    for (path, methods) in paths {
        let path = path
            .replace("{user}", "u")
            .replace("{dsp}", "17")
            .replace("{receipt}", "r")
            .replace("{node}", "n");
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
    post_with(api, path, &[], body).await
}

async fn post_with(
    api: &Api,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> (StatusCode, Value) {
    let mut request = Request::post(path).header("content-type", "application/x-ndjson");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
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
    assert_eq!(api.inner.parts.inlet.log().stats().appended, 3);
}

#[tokio::test]
async fn observed_refusals_of_rows_are_counted() {
    let api = api();
    let parts = &api.inner.parts;
    let contracts = file::parse("[dsp.17]\nstate = 'observe'").unwrap();
    parts.dsps.set_contracts(Arc::new(contracts));
    let rows = r#"{"u":"u","d":17,"b":"$UID"}"#;
    let (status, _) = post(&api, "/v1/cookies", format!("{rows}\n").repeat(100)).await;
    assert_eq!(
        (status, parts.inlet.log().stats().appended),
        (StatusCode::OK, 100)
    );
    let families = api.inner.parts.dsps.families();
    let counted = families[1].get_metric()[0].get_counter().get_value();
    assert_eq!(counted, 100.0);
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
async fn path_that_is_not_utf8_is_a_problem() {
    let api = api();
    let (status, problem) = get(&api, "/v1/receipts/%ff").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let expected = json!("Bad Request");
    assert_eq!(
        (&problem["title"], &problem["type"]),
        (&expected, &Value::Null)
    );
}

#[tokio::test]
async fn deletion_of_a_dsp_must_be_confirmed() {
    let api = api();
    for (path, expected) in [
        ("/v1/users//dsps/17", StatusCode::BAD_REQUEST),
        ("/v1/users/", StatusCode::NOT_FOUND),
        ("/v1/users/%20/dsps/17", StatusCode::BAD_REQUEST),
        ("/v1/users/a%2Fb", StatusCode::ACCEPTED),
        ("/v1/users/a/b", StatusCode::NOT_FOUND),
        ("/v1/users/a/../../dsps/17", StatusCode::NOT_FOUND),
        ("/v1/users/a/dsps/%31%37", StatusCode::ACCEPTED),
        ("/v1/users/%00", StatusCode::BAD_REQUEST),
        ("/v1/dsps/17?confirm=17&confirm=18", StatusCode::BAD_REQUEST),
        ("/v1/dsps/17", StatusCode::BAD_REQUEST),
        ("/v1/dsps/17?confirm=18", StatusCode::BAD_REQUEST),
        ("/v1/dsps/0?confirm=0", StatusCode::BAD_REQUEST),
        ("/v1/dsps/17?confirm=17", StatusCode::ACCEPTED),
    ] {
        assert_eq!(status(&api, Method::DELETE, path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn cookies_above_the_limit_of_their_dsp_are_not_accepted() {
    let limits = r#"
        unknown = "unlimited"
        [limits.dsp]
        keys = [17]
        mode = "police"
        rules = [ { id = "rate", rate = "2/d" } ]
    "#;
    let api = api_with(1_000_000, Some(limits));
    let row = |user: u32, dsp| format!("{{\"u\":\"{user}\",\"d\":{dsp},\"b\":\"b\"}}\n");
    let rows: String = (0..10).map(|user| row(user, 17) + &row(user, 18)).collect();
    let (status, summary) = post(&api, "/v1/cookies", rows).await;
    assert_eq!(status, StatusCode::MULTI_STATUS, "{summary}");
    let accepted = api.inner.parts.inlet.log().stats().appended;
    assert!(accepted < 20);
    let expected = json!({"accepted": accepted, "dropped": 20 - accepted, "rejected": 0, "errors": [], "errors_omitted": 0});
    assert_eq!(summary, expected);
}

/// Otherwise a row would survive a deletion with the same time. Most rows wait in the queue of a limit.
#[tokio::test]
async fn row_with_a_time_never_looks_newer() {
    let limits = r#"
        unknown = "unlimited"
        [limits.dsp]
        keys = [17]
        mode = "shape"
        rules = [ { id = "rate", rate = "100/s" } ]
    "#;
    let api = api_with(1_000_000, Some(limits));
    let parts = &api.inner.parts;
    #[expect(
        clippy::disallowed_methods,
        reason = "the task ends with the test's runtime"
    )]
    tokio::spawn(parts.inlet.clone().run(parts.draining.clone()));
    let mut reader = parts.inlet.log().reader(Sequence(1), u64::MAX, Sequence(0));
    let now = runtime::unix_micros() / 1_000;
    for dsp in [17, 18] {
        for millis in now - 10..now {
            let row = format!(r#"{{"u":"{millis}","d":{dsp},"b":"b","t":{millis}}}"#);
            assert_eq!(post(&api, "/v1/cookies", row).await.0, StatusCode::OK);
        }
    }
    let mut count = 0;
    while count < 20 {
        let Delivery::Chunk { chunk, first } = reader.next().await else {
            panic!("no chunk");
        };
        let chunk = chunk.cookies_from(first);
        for record in chunk.records() {
            let cookie = record.unwrap().cookie().unwrap();
            let accepted = cookie.accepted(chunk.header().accepted);
            assert_eq!(format!("{}000", cookie.user_id), accepted.to_string());
            count += 1;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn rows_above_the_rate_of_a_token_wait_or_are_rejected() {
    let api = api_with(1_000, None);
    let appended = || api.inner.parts.inlet.log().stats().appended;
    let rows = |count| "{\"u\":\"u\",\"d\":1,\"b\":\"b\"}\n".repeat(count);
    let began = tokio::time::Instant::now();
    let (status, _) = post(&api, "/v1/cookies", rows(11_000)).await;
    assert_eq!((status, appended()), (StatusCode::OK, 11_000));
    // In paused time. The burst is 1,000 rows.
    assert!((9..=11).contains(&began.elapsed().as_secs()));

    let both = || post(&api, "/v1/cookies", rows(100_000));
    let ((status, one), (_, other)) = tokio::join!(both(), both());
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{one}");
    let accepted = |problem: &Value| problem["accepted"].as_u64().unwrap();
    assert_eq!(accepted(&one) + accepted(&other), appended() - 11_000);
    assert!(appended() <= 1_000 * (began.elapsed().as_secs() + 2));
    let request = Request::post("/v1/cookies").header("content-type", "application/x-ndjson");
    let request = request.body(Body::from(rows(100_000))).unwrap();
    let response = api.router().oneshot(request).await.unwrap();
    let header = |name| response.headers()[name].to_str().unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header("ratelimit-policy"), "\"rows\";q=1000;w=1");
    assert_eq!(
        header("ratelimit"),
        format!("\"rows\";r=0;t={}", header("retry-after"))
    );
}

#[tokio::test]
async fn unusual_rows_are_rejected_or_read_like_any_json() {
    let api = api();
    let deep = "[".repeat(4_000);
    for (row, expected) in [
        (r#" { "b" : "b" , "u" : "u" , "d" : 1 } "#, None),
        (r#"{"u":"\u0061","d":1,"b":"\ud83c\udf6a","t":null}"#, None),
        (r#"["u",1,"b",null]"#, Some("malformed")),
        (r#"{"u":"u","d":1,"b":"b"}{}"#, Some("malformed")),
        (r#"{"u":"u","d":1,"b":"b","b":"c"}"#, Some("malformed")),
        (r#"{"u":"u","u":"u","d":1,"b":"b"}"#, Some("malformed")),
        (r#"{"u":"u","d":1}"#, Some("malformed")),
        (r#"{"u":"u","d":1.0,"b":"b"}"#, Some("malformed")),
        (r#"{"u":"u","d":1e0,"b":"b"}"#, Some("malformed")),
        (r#"{"u":"u","d":01,"b":"b"}"#, Some("malformed")),
        (r#"{"u":"u","d":-1,"b":"b"}"#, Some("malformed")),
        (r#"{"u":"u","d":"1","b":"b"}"#, Some("malformed")),
        (r#"{"u":"u","d":4294967296,"b":"b"}"#, Some("malformed")),
        (r#"{"u":"u","d":1,"b":"b","t":-1}"#, Some("malformed")),
        (r#"{"u":"u","d":1,"b":"b","t":1e3}"#, Some("malformed")),
        (r#"{"u":"u","d":1,"b":"b","t":1}"#, Some("too_old")),
        // Far in the future, which counts as now.
        (r#"{"u":"u","d":1,"b":"b","t":18446744073709551615}"#, None),
        (
            r#"{"u":"u","d":1,"b":"b","t":18446744073709551616}"#,
            Some("malformed"),
        ),
        (r#"{"u":"u","d":1,"b":"\ud83c"}"#, Some("malformed")),
        (r#"{"u":"u","d":1,"b":"\u0000"}"#, Some("buyer_invalid")),
        ("{\"u\":\"u\",\"d\":1,\"b\":\"\t\"}", Some("malformed")),
        (&format!(r#"{{"u":{deep}"#), Some("malformed")),
        (&format!(r#"{{"x":{deep}"#), Some("malformed")),
        (&deep, Some("malformed")),
    ] {
        let appended = api.inner.parts.inlet.log().stats().appended;
        let (_, summary) = post(&api, "/v1/cookies", row.to_owned()).await;
        assert_eq!(summary["errors"][0]["reason"].as_str(), expected, "{row}");
        let added = api.inner.parts.inlet.log().stats().appended - appended;
        assert_eq!(added, u64::from(expected.is_none()), "{row}");
    }
    let invalid = b"{\"u\":\"u\",\"d\":1,\"b\":\"\xff\"}".to_vec();
    let (_, summary) = post(&api, "/v1/cookies", invalid).await;
    assert_eq!(summary["errors"][0]["reason"], "malformed");
}

/// A body whose parts come from a channel, one by one.
struct SlowBody(mpsc::Receiver<Bytes>);

impl SlowBody {
    fn channel() -> (mpsc::Sender<Bytes>, Body) {
        let (sender, receiver) = mpsc::channel(1);
        (sender, Body::new(Self(receiver)))
    }
}

impl http_body::Body for SlowBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.0.poll_recv(context);
        part.map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}

/// Otherwise the age of a row would be its age when it was read, and the row would look newer than it is.
#[tokio::test(start_paused = true)]
async fn rows_enter_the_log_before_more_of_the_body_arrives() {
    let api = api();
    for (path, row) in [
        (
            "/v1/cookies",
            "{\"u\":\"u\",\"d\":1,\"b\":\"b\"}\n{\"u\":\n",
        ),
        ("/v1/deletions", "{\"u\":\"u\"}\n{\"u\":\n"),
    ] {
        let appended = || api.inner.parts.inlet.log().stats().appended;
        let (parts, body) = SlowBody::channel();
        parts.try_send(Bytes::from_static(row.as_bytes())).unwrap();
        let before = appended();
        let in_log = async {
            while appended() == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            (status, response) = post(&api, path, body) => panic!("{path}: {status} {response}"),
            () = in_log => {}
        }
    }
    // Rows are counted even though the client closed the connections.
    let count = |reason: &str| api.inner.rows.with_label_values(&[reason]).get();
    assert_eq!((count("accepted"), count("malformed")), (2, 2));
    assert_eq!(api.inner.parts.inlet.deletions()["bulk"], 1);
}

#[tokio::test(start_paused = true)]
async fn body_that_arrives_byte_by_byte_times_out() {
    let api = api();
    let (parts, body) = SlowBody::channel();
    let sending = async {
        while parts.send(Bytes::from_static(b" ")).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let began = tokio::time::Instant::now();
    let (response, ()) = tokio::join!(post(&api, "/v1/cookies", body), sending);
    assert_eq!(response.0, StatusCode::REQUEST_TIMEOUT);
    // In paused time.
    assert!(began.elapsed() < Duration::from_secs(67));
}
