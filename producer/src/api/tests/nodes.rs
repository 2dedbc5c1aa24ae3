//! Tests of responses that depend on the confirmations of nodes.

use proto::units::Sequence;

use super::*;
use crate::streams::subscribers::{Call, HERE, Lease, StreamStart};

/// Opens a stream of this subscriber at the first cookie.
fn join(api: &Api, name: &str) -> Lease {
    let start = |_| StreamStart::fresh(Sequence(1));
    let subscribers = &api.inner.parts.subscribers;
    subscribers
        .join(Call::Subscribe, name, HERE, start)
        .unwrap()
}

#[tokio::test]
async fn receipt_is_open_until_its_nodes_confirm_and_unknown_after_a_restart() {
    let api = api();
    let subscribers = &api.inner.parts.subscribers;
    let _lease = join(&api, "node");
    assert_eq!(
        status(&api, Method::DELETE, "/v1/users/u").await,
        StatusCode::ACCEPTED
    );
    let expected = |confirmed, pending, unknown| json!({"confirmed": confirmed, "pending": pending, "unknown": unknown});
    let (_, receipt) = get(&api, "/v1/receipts/p:7:1-1").await;
    assert_eq!(receipt["nodes"], expected(0, 1, 0));
    let names = json!({"pending": ["node"], "unknown": []});
    assert_eq!(receipt["names"], names);
    assert_eq!(receipt["done"], false);
    subscribers
        .confirm("node", HERE, Sequence(1), Sequence(1))
        .unwrap();
    let (_, receipt) = get(&api, "/v1/receipts/p:7:1-1").await;
    assert_eq!(receipt["nodes"], expected(1, 0, 0));
    assert_eq!(receipt["done"], true);
    assert_eq!(receipt["action"], Value::Null);

    // The receipt is of the previous epoch, so the confirmation of the same sequence number no longer counts.
    let (_, receipt) = get(&api, "/v1/receipts/p:6:1-1").await;
    assert_eq!(receipt["nodes"], expected(0, 0, 1));
    assert_eq!(receipt["done"], false);
    let action = receipt["action"].as_str().unwrap();
    assert!(action.contains("restarted since"), "{action}");

    for (path, status, detail) in [
        ("q:7:1-1", 421, "request this receipt from the API of q"),
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
async fn reports_that_anyone_can_forge_are_shown_and_not_counted() {
    let api = api();
    let deleted = status(&api, Method::DELETE, "/v1/users/u").await;
    assert_eq!(deleted, StatusCode::ACCEPTED);
    assert!(api.inner.parts.subscribers.report_unverified("node"));
    let (_, receipt) = get(&api, "/v1/receipts/p:7:1-1").await;
    let nodes = json!({"confirmed": 0, "pending": 0, "unknown": 0, "reported": 1});
    assert_eq!(receipt["nodes"], nodes);
    assert_eq!(receipt["names"]["reported"], json!(["node"]));
    assert_eq!(receipt["done"], false);
}

/// Otherwise streams under invented names could evict a node and thus complete a pending receipt.
#[tokio::test]
async fn receipt_is_not_done_after_a_node_was_evicted() {
    let api = api();
    let subscribers = &api.inner.parts.subscribers;
    status(&api, Method::DELETE, "/v1/users/u").await;
    for number in 0..=4096 {
        let name = format!("{number:04}");
        let lease = join(&api, &name);
        // The first node does not carry out the deletion.
        let applied = u64::from(number > 0);
        subscribers
            .confirm(&name, HERE, Sequence(1), Sequence(applied))
            .unwrap();
        drop(lease);
    }
    let (_, receipt) = get(&api, "/v1/receipts/p:7:1-1").await;
    assert_eq!(receipt["nodes"]["unknown"], 1, "{receipt}");
    assert_eq!(receipt["done"], false);
}

#[tokio::test]
async fn bulk_requests_wait_for_nodes_and_not_for_other_readers() {
    let api = api();
    let subscribers = &api.inner.parts.subscribers;
    let lease = join(&api, "n");
    let bulk = async || post(&api, "/v1/cookies", r#"{"u":"u","d":1,"b":"b"}"#).await;
    let mut reader = api
        .inner
        .parts
        .inlet
        .log()
        .reader(Sequence(1), u64::MAX, Sequence(0));
    let mut chunk = async || loop {
        let delivery = reader.next().await;
        if matches!(delivery, Delivery::Chunk { .. }) {
            return delivery;
        }
    };
    assert_eq!(bulk().await.0, StatusCode::OK);
    let first = chunk().await;
    assert_eq!(bulk().await.0, StatusCode::OK);
    let second = chunk().await;
    subscribers
        .confirm("n", HERE, Sequence(0), Sequence(0))
        .unwrap();
    let (status, problem) = bulk().await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with("the slowest node lags"), "{detail}");
    lease.record(&first, 1, 1);
    assert_eq!(bulk().await.0, StatusCode::TOO_MANY_REQUESTS);
    lease.record(&second, 1, 1);
    assert_eq!(bulk().await.0, StatusCode::OK);
}

#[tokio::test]
async fn names_of_nodes_are_only_for_a_token_of_all_dsps() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let tokens = [
        "privacy 0123456789abcdef * delete",
        "partner fedcba9876543210 1,2 delete",
    ];
    std::fs::write(&file, tokens.join("\n")).unwrap();
    let named = NamedFile::from_flag("--api-tokens", &file.path().display().to_string());
    let tokens = Reloader::load(tokens::File::new(named.unwrap())).unwrap();
    let parts = api().inner.parts.clone();
    let api = Api::new(parts, Some(Arc::new(tokens)), &Registry::new()).unwrap();
    let send = async |method, path, token| {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("authorization", format!("Bearer {token}"));
        send(&api, request.body(Body::empty()).unwrap()).await
    };
    let _lease = join(&api, "n");
    let (status, deleted) = send(Method::DELETE, "/v1/users/u", "0123456789abcdef").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let path = format!("/v1/receipts/{}", deleted["receipt"].as_str().unwrap());
    for (token, names) in [
        ("0123456789abcdef", json!({"pending": ["n"], "unknown": []})),
        ("fedcba9876543210", Value::Null),
    ] {
        let (_, receipt) = send(Method::GET, &path, token).await;
        assert_eq!(
            (&receipt["nodes"]["pending"], &receipt["names"]),
            (&json!(1), &names)
        );
    }
}

#[tokio::test]
async fn receipt_does_not_wait_for_a_forgotten_node() {
    let api = api();
    let subscribers = &api.inner.parts.subscribers;
    let [gone, _here] = ["gone", "here"].map(|name| join(&api, name));
    for name in ["gone", "here"] {
        let confirmed = subscribers.confirm(name, HERE, Sequence(0), Sequence(0));
        confirmed.unwrap();
    }
    let forget = async |name| {
        let request = Request::delete(format!("/v1/nodes/{name}"));
        send(&api, request.body(Body::empty()).unwrap()).await
    };
    let (alive, problem) = forget("gone").await;
    assert_eq!(alive, StatusCode::CONFLICT);
    assert_eq!(problem["producer"], "p");
    drop(gone);
    status(&api, Method::DELETE, "/v1/users/u").await;
    let confirmed = subscribers.confirm("here", HERE, Sequence(1), Sequence(1));
    confirmed.unwrap();
    let (_, receipt) = get(&api, "/v1/receipts/p:7:1-1").await;
    assert_eq!(receipt["done"], false);
    let nodes = || {
        let nodes = subscribers.nodes(api.inner.parts.inlet.log());
        nodes
            .iter()
            .map(|it| it["node"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(nodes(), ["gone", "here"]);

    for was_known in [true, false] {
        let (forgotten, body) = forget("gone").await;
        assert_eq!(forgotten, StatusCode::OK);
        let expected = json!({"producer": "p", "node": "gone", "was_known": was_known});
        assert_eq!(body, expected);
    }
    let (_, receipt) = get(&api, "/v1/receipts/p:7:1-1").await;
    assert_eq!(receipt["done"], true);
    assert_eq!(nodes(), ["here"]);
}
