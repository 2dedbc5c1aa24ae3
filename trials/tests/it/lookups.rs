//! Tests of the lookup port with the real programs: HTTP, gRPC, tokens, and invalid requests.

mod bounds;
mod databases;

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use proto::v1::{LookupRequest, LookupResponse, lookup_client::LookupClient};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{admin, http::HttpClient, programs::free_address, scrape::names};
use tonic::{Code, Request, Status, transport::Channel};

use crate::harness::{Consumer, Producer, embedded};

const TOKEN: &str = "the-token-of-a-bidder";

/// A user id, and the beginning of the buyer uids, which must occur in no log and no metric.
const USER: &str = "secret-user";
const UID: &str = "secret-uid";

/// A consumer with a lookup port.
struct Node {
    producer: Producer,
    consumer: Consumer,
    lookup: String,
}

impl Node {
    /// Starts a producer, and a consumer that logs everything.
    async fn start(dir: &TempDir, store: &str, flags: &[&str]) -> Result<Self> {
        let producer = Producer::start(dir, &[]).await?;
        let lookup = free_address()?.to_string();
        let flags = [&["--lookup", &lookup, "--log-filter", "trace"], flags].concat();
        let consumer = Consumer::start(dir, "node", &[&producer], store, &flags).await?;
        Ok(Self {
            producer,
            consumer,
            lookup,
        })
    }

    /// Sends matches of [`USER`] and waits until they are stored.
    async fn accept(&self, dsps: &[u32]) -> Result<()> {
        let mut expected = serde_json::Map::new();
        for dsp_id in dsps {
            let uid = format!("{UID}-{dsp_id}");
            self.producer.accept(USER, *dsp_id, &uid).await?;
            expected.insert(dsp_id.to_string(), uid.into());
        }
        self.consumer.wait_lookup(USER, expected.into()).await
    }

    async fn http(&self) -> Result<HttpClient> {
        HttpClient::connect(&self.lookup).await
    }

    async fn post(&self, body: &Value) -> Result<(u16, Value)> {
        let (mut http, body) = (self.http().await?, body.to_string());
        let response = http.post("/v1/lookup", &[], &body).await?;
        Ok((response.status, serde_json::from_str(&response.body)?))
    }

    async fn grpc(&self) -> Result<LookupClient<Channel>> {
        Ok(LookupClient::connect(format!("http://{}", self.lookup)).await?)
    }

    /// Checks that no id occurs in the log or the metrics.
    async fn check_no_ids(&self) -> Result<()> {
        let log = fs::read_to_string(self.consumer.process.log())?;
        let metrics = admin::get(&self.consumer.admin, "/metrics").await?.body;
        for id in [USER, UID, TOKEN] {
            ensure!(!log.contains(id), "the log contains {id}");
            ensure!(!metrics.contains(id), "the metrics contain {id}");
        }
        Ok(())
    }
}

fn grpc_request(users: &[&str], dsps: &[u32]) -> LookupRequest {
    LookupRequest {
        user_ids: users.iter().map(ToString::to_string).collect(),
        dsp_ids: dsps.to_vec(),
    }
}

/// The buyer uids of a user in a response.
fn uids(response: &LookupResponse, user: usize) -> Vec<(u32, &str)> {
    let matches = response.users[user].matches.iter();
    matches.map(|it| (it.dsp_id, &*it.buyer_uid)).collect()
}

#[tokio::test]
async fn matches_are_returned_over_http_and_grpc_in_the_order_of_the_request() -> Result<()> {
    let dir = TempDir::new()?;
    let node = Node::start(&dir, &embedded(&dir.path().join("store")), &[]).await?;
    node.accept(&[17, 42]).await?;
    let users = json!(["unknown", USER, "in valid", USER]);
    let found = json!({"17": "secret-uid-17", "42": "secret-uid-42"});
    let request = json!({"users": users, "dsps": [42, 17, 5], "deadline_ms": 1000});
    let expected = json!({
        "complete": true,
        "users": [{}, found, {"error": "invalid"}, found],
        "unavailable": [],
    });
    // From the tree, then from memory.
    for _ in 0..2 {
        assert_eq!(node.post(&request).await?, (200, expected.clone()));
    }
    let mut grpc = node.grpc().await?;
    let mut call = Request::new(grpc_request(&[USER, "unknown", ""], &[17]));
    call.set_timeout(Duration::from_secs(1));
    let response = grpc.get(call).await?.into_inner();
    assert_eq!(uids(&response, 0), [(17, "secret-uid-17")]);
    let statuses: Vec<_> = response.users.iter().map(|it| it.status).collect();
    assert_eq!(
        (statuses, response.unavailable_dsps),
        (vec![0, 0, 1], vec![])
    );

    let mut http = node.http().await?;
    for (path, status, body) in [
        (
            "?dsps=17",
            200,
            json!({"user_id": USER, "buyer_uids": {"17": "secret-uid-17"}}),
        ),
        (
            "?dsps=17%2C42",
            200,
            json!({"user_id": USER, "buyer_uids": found}),
        ),
        (
            "?dsps=5",
            404,
            json!({"error": "unknown user", "user_id": USER}),
        ),
    ] {
        let response = http.get(&format!("/v1/users/{USER}{path}"), &[]).await?;
        assert_eq!(response.status, status, "{path}");
        assert_eq!(serde_json::from_str::<Value>(&response.body)?, body);
        ensure!(response.head.contains("\r\ncache-control: no-store\r\n"));
    }
    // Pipelined, and with a body in parts.
    let body = json!({"users": [USER], "dsps": [17]}).to_string();
    let post = format!(
        "POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let (first, rest) = body.split_at(10);
    http.send(format!("{post}{body}{post}{first}").as_bytes())
        .await?;
    assert_eq!(http.response().await?.status, 200);
    http.send(rest.as_bytes()).await?;
    let response = http.response().await?;
    ensure!(response.body.contains("secret-uid-17"), "{response:?}");

    let metrics = node.consumer.metrics().await?;
    let pairs =
        |dsp, outcome| metrics.count(names::LOOKUP_PAIRS, &[("dsp", dsp), ("outcome", outcome)]);
    assert_eq!((pairs("17", "hit"), pairs("17", "miss")), (7, 3));
    assert_eq!((pairs("42", "hit"), pairs("42", "miss")), (4, 2));
    assert_eq!((pairs("other", "hit"), pairs("other", "miss")), (0, 6));
    let grpc_ok = [("api", "grpc"), ("outcome", "ok")];
    assert_eq!(metrics.count(names::LOOKUPS, &grpc_ok), 1);
    node.check_no_ids().await
}

#[tokio::test]
async fn invalid_requests_are_rejected_with_a_reason() -> Result<()> {
    let dir = TempDir::new()?;
    let node = Node::start(&dir, &embedded(&dir.path().join("store")), &[]).await?;
    let many = |count: usize, what: &str| vec![what; count].join(",");
    let batch = |users: usize, dsps: usize| {
        format!(
            "{{\"users\":[{}],\"dsps\":[{}]}}",
            many(users, "\"u\""),
            many(dsps, "1")
        )
    };
    let long = " ".repeat(129 << 10);
    for (method, path, headers, body, status) in [
        ("POST", "/v1/lookup", "", "{", 400),
        ("POST", "/v1/lookup", "", &*batch(0, 1), 400),
        ("POST", "/v1/lookup", "", &*batch(1_001, 1), 413),
        ("POST", "/v1/lookup", "", &*batch(1, 257), 413),
        ("POST", "/v1/lookup", "", &*batch(201, 100), 413),
        ("POST", "/v1/lookup", "", &*long, 413),
        (
            "POST",
            "/v1/lookup",
            "transfer-encoding: chunked\r\n",
            "",
            411,
        ),
        ("POST", "/v1/lookup", "expect: 100-continue\r\n", "", 411),
        (
            "POST",
            "/v1/lookup",
            "content-encoding: gzip\r\n",
            "\u{1f}\u{8b}\u{8}",
            400,
        ),
        ("GET", "/v1/lookup", "", "", 405),
        ("POST", "/v1/users/u", "", "", 405),
        ("GET", "/v1/users/u?dsps=", "", "", 400),
        ("GET", "/v1/users/u?dsps=0", "", "", 400),
        ("GET", "/v1/users/u?dsp=1", "", "", 400),
        ("GET", "/v1/users/%00", "", "", 400),
        ("GET", "/metrics", "", "", 404),
        (
            "GET",
            "/v1/users/u",
            "sec-fetch-site: cross-site\r\n",
            "",
            421,
        ),
        ("GET", "/v1/users/u", "", "", 404),
    ] {
        let mut http = node.http().await?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        // The response may come before the whole body was sent.
        http.send(request.as_bytes()).await.ok();
        let response = http
            .response()
            .await
            .context(request.chars().take(80).collect::<String>())?;
        assert_eq!(
            response.status, status,
            "{method} {path} {headers}: {}",
            response.body
        );
        serde_json::from_str::<Value>(&response.body)?;
    }
    for request in [
        "GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n",
        "garbage\r\n\r\n",
    ] {
        let mut http = node.http().await?;
        http.send(request.as_bytes()).await?;
        let response = http.response().await?;
        ensure!(
            [400, 421].contains(&response.status) && response.closes(),
            "{response:?}"
        );
    }
    // Rejected requests whose body came in parts occupy no place.
    let mut open = Vec::new();
    for _ in 0..70 {
        let mut http = node.http().await?;
        let head = "POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{";
        http.send(head.as_bytes()).await?;
        http.send(b"}").await?;
        assert_eq!(http.response().await?.status, 404);
        open.push(http);
    }
    let mut http = node.http().await?;
    assert_eq!(http.get("/v1/users/another", &[]).await?.status, 404);
    let mut grpc = node.grpc().await?;
    let mut code = async |users: usize, dsps: &[u32]| {
        let request = grpc_request(&vec!["u"; users], dsps);
        grpc.get(request)
            .await
            .err()
            .map(|status: Status| status.code())
    };
    assert_eq!(code(0, &[1]).await, Some(Code::InvalidArgument));
    assert_eq!(code(1, &[0]).await, Some(Code::InvalidArgument));
    assert_eq!(code(1_001, &[1]).await, Some(Code::ResourceExhausted));
    assert_eq!(code(1, &[1; 257]).await, Some(Code::ResourceExhausted));
    assert_eq!(code(1, &[1]).await, None);
    let long = "u".repeat(140);
    let request = grpc_request(&vec![&*long; 1_000], &[1]);
    let status = node.grpc().await?.get(request).await.err();
    assert_eq!(status.map(|it| it.code()), Some(Code::ResourceExhausted));
    Ok(())
}

#[tokio::test]
async fn lookups_need_a_token_if_there_are_any() -> Result<()> {
    let dir = TempDir::new()?;
    let file = dir.path().join("tokens");
    fs::write(&file, TOKEN)?;
    let file = file.display().to_string();
    let node = Node::start(
        &dir,
        &embedded(&dir.path().join("store")),
        &["--lookup-token-file", &file],
    )
    .await?;
    node.accept(&[17]).await?;
    let (valid, other) = (
        format!("Bearer {TOKEN}"),
        "Bearer another-token-of-16".to_owned(),
    );
    let path = format!("/v1/users/{USER}");
    for (token, status) in [(None, 401), (Some(&other), 401), (Some(&valid), 200)] {
        let headers: Vec<_> = token
            .iter()
            .map(|it| ("authorization", it.as_str()))
            .collect();
        let response = node.http().await?.get(&path, &headers).await?;
        assert_eq!(response.status, status);
        let mut call = Request::new(grpc_request(&[USER], &[17]));
        if let Some(token) = token {
            call.metadata_mut().insert("authorization", token.parse()?);
        }
        let code = node.grpc().await?.get(call).await.err().map(|it| it.code());
        assert_eq!(code, (status == 401).then_some(Code::Unauthenticated));
    }
    node.check_no_ids().await
}
