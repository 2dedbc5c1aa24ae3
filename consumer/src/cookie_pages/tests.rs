//! Tests of the pages of nodes with embedded stores.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use http::header::AUTHORIZATION;
use http_body_util::BodyExt as _;
use proto::units::{Epoch, Sequence};
use runtime::reload::NamedFile;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::{
    batch::{
        Cursor,
        tests::{batch, chunk},
    },
    clock,
    producers::{StreamGuard, StreamStart},
    store::{Cookies as _, PAGE_COOKIES_MAX, embedded::EmbeddedStore},
    ttl::Ttls,
};

const TOKEN: &str = "a-token-of-16-bytes";

/// A node with a producer whose stream is open.
struct Node {
    dir: TempDir,
    store: Arc<EmbeddedStore>,
    pages: CookiePages,
    stream: StreamGuard,
}

impl Node {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let tokens = dir.path().join("tokens");
        std::fs::write(&tokens, TOKEN).unwrap();
        let file = NamedFile::from_flag("--cookies-token-file", tokens.to_str().unwrap());
        let ttls = Ttls::new(Duration::from_secs(3600), BTreeMap::new());
        let store = EmbeddedStore::open(dir.path().join("store"), ttls, 1 << 20).await;
        let store = Arc::new(store.unwrap());
        let producers = Producers::default();
        producers.load(Vec::new());
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let address = producers.register(address, "http://here");
        let start = StreamStart {
            at: &at(0),
            newest: Sequence(0),
            previous: None,
        };
        let (stream, _) = address.open_stream(start);
        // Keeps the registration until the process exits.
        std::mem::forget(address);
        let pages = CookiePages {
            tokens: Some(Arc::new(
                Reloader::load(token::File::new(file.unwrap())).unwrap(),
            )),
            lookup: Arc::clone(&store) as _,
            deletions: Deletions::default(),
            producers,
            one: Semaphore::new(1),
            copies: Arc::clone(&store) as _,
            one_copy: Semaphore::new(1),
            process: 7,
        };
        Self {
            dir,
            store,
            pages,
            stream,
        }
    }

    /// Stores cookies accepted at this time. A cookie without a buyer uid is a deletion.
    async fn write(&self, accepted: UnixMicros, cookies: &[(&str, u32, &str)]) {
        let batch = Arc::new(batch(&[chunk(1, accepted.0, cookies)]));
        self.store.write(batch).await.unwrap();
    }

    /// Receives all cookies up to a sequence number and a time.
    fn receive(&mut self, sequence: u64, accepted: UnixMicros) {
        self.stream.advance(&at(sequence), Some(accepted));
    }

    fn commit(&self, sequence: u64) {
        self.pages.producers.record_commit(&[at(sequence)]);
    }

    async fn get(&self, token: &str, query: &str) -> (u16, String) {
        let reply = self.reply(token, &format!("{PATH}{query}")).await;
        let status = reply.status().as_u16();
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn reply(&self, token: &str, path: &str) -> Reply {
        let uri = path.parse().unwrap();
        let value = format!("Bearer {token}").parse().unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        self.pages.reply(&headers, &uri).await
    }

    /// The rows of a page, and its last line.
    async fn page(&self, query: &str) -> (Vec<Value>, Value) {
        let (status, body) = self.get(TOKEN, query).await;
        assert_eq!(status, 200, "{body}");
        let lines = body.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut lines: Vec<Value> = lines.collect();
        let end = lines.pop().unwrap();
        (lines, end)
    }
}

fn at(sequence: u64) -> Cursor {
    Cursor {
        producer: "p".into(),
        epoch: Epoch(7),
        sequence: Sequence(sequence),
        complete: false,
    }
}

fn minutes_ago(minutes: u64) -> UnixMicros {
    clock::now().before(minutes * 60_000_000)
}

/// Users of several pages, each with cookies of three DSPs.
async fn two_nodes(users: usize) -> ([Node; 2], UnixMicros) {
    let mut nodes = [Node::start().await, Node::start().await];
    let accepted = minutes_ago(10);
    let names: Vec<String> = (0..users).map(|user| format!("user-{user:05}")).collect();
    let cookies = |name| [(name, 6, "six"), (name, 7, "seven"), (name, 8, "eight")];
    let cookies: Vec<_> = names.iter().flat_map(|name| cookies(&**name)).collect();
    for node in &mut nodes {
        node.write(accepted, &cookies).await;
        node.receive(9, clock::now());
        node.commit(9);
    }
    (nodes, accepted)
}

#[tokio::test]
async fn another_node_continues_and_equal_times_cross_a_page() {
    let (nodes, accepted) = two_nodes(2 * PAGE_COOKIES_MAX + 10).await;
    let before = accepted.0 / 1000 + 1;
    let (mut users, mut next, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let query = format!("?dsp=7&before={before}{next}");
        let (rows, end) = nodes[pages % 2].page(&query).await;
        assert!(rows.len() <= PAGE_COOKIES_MAX);
        for row in &rows {
            assert_eq!(
                (&row["b"], &row["t"]),
                (&json!("seven"), &json!(accepted.0 / 1000))
            );
        }
        users.extend(rows.iter().map(|row| row["u"].to_string()));
        pages += 1;
        match end["next"].as_str() {
            Some(position) => next = format!("&next={position}"),
            None => break,
        }
    }
    assert_eq!(pages, 3);
    assert_eq!(users.len(), 2 * PAGE_COOKIES_MAX + 10);
    assert!(users.is_sorted() && users.windows(2).all(|pair| pair[0] != pair[1]));
    let (rows, _) = nodes[0]
        .page(&format!("?dsp=7&before={}", before - 1))
        .await;
    assert!(rows.is_empty(), "none is older");
}

#[tokio::test]
async fn page_of_a_dsp_without_cookies_reads_a_limited_number() {
    let mut node = Node::start().await;
    let users: Vec<_> = (0..25_000).map(|it| format!("user-{it:06}")).collect();
    for users in users.chunks(1_000) {
        let cookies: Vec<_> = users.iter().map(|it| (&**it, 1, "one")).collect();
        node.write(minutes_ago(10), &cookies).await;
    }
    node.receive(9, minutes_ago(2));
    node.commit(9);
    let (rows, end) = node.page("?dsp=9&before=1700000000000000").await;
    assert!(rows.is_empty());
    let next = end["next"].as_str().expect("there are others");
    assert!(users.iter().any(|it| it == next), "{next}");
}

#[tokio::test]
async fn expired_deleted_and_newer_cookies_are_left_out() {
    let mut node = Node::start().await;
    node.write(minutes_ago(70), &[("expired", 7, "b")]).await;
    let old = [("deleted", 7, "b"), ("old", 7, "b"), ("other", 8, "b")];
    node.write(minutes_ago(10), &old).await;
    node.write(minutes_ago(0), &[("new", 7, "b")]).await;
    node.receive(9, clock::now());
    node.commit(9);
    node.pages.deletions.add(&crate::deletions::Deletion {
        scope: proto::wire::Scope::Match(b"deleted".as_slice().into(), DspId(7)),
        until: minutes_ago(5),
    });
    // Cookies newer than the node's `as_of` are also excluded.
    let (rows, end) = node
        .page(&format!("?dsp=7&before={}", u64::MAX / 2000))
        .await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["u"], "old");
    let as_of = end["as_of"].as_u64().unwrap();
    assert!(as_of <= clock::now().before(CLOCK_MARGIN_MICROS).0 / 1000);
    assert!(as_of > minutes_ago(3).0 / 1000);
    assert!(end["next"].is_null());
}

#[tokio::test]
async fn invalid_requests_are_problems() {
    let mut node = Node::start().await;
    node.receive(9, clock::now());
    node.commit(9);
    let valid = "?dsp=7&before=1700000000000";
    for (token, query, expected) in [
        (TOKEN, valid, 200),
        (TOKEN, "?before=1&dsp=7&next=u%2F1", 200),
        ("another-token-16b", valid, 401),
        ("", valid, 401),
        (TOKEN, "", 400),
        (TOKEN, "?dsp=7", 400),
        (TOKEN, "?before=1", 400),
        (TOKEN, "?dsp=0&before=1", 400),
        (TOKEN, "?dsp=x&before=1", 400),
        (TOKEN, "?dsp=7&before=-1", 400),
        (TOKEN, "?dsp=7&before=1&limit=2", 400),
        (TOKEN, "?dsp=7&before=1&next=", 400),
        (TOKEN, "?dsp=7&before=1&next=a%20b", 400),
        (TOKEN, "?dsp=7&before=1&next=%ff", 400),
        (
            TOKEN,
            &format!("?dsp=7&before=1&next={}", "u".repeat(65)),
            400,
        ),
    ] {
        let (status, body) = node.get(token, query).await;
        assert_eq!(status, expected, "{query}: {body}");
    }
    let busy = node.pages.one.try_acquire().unwrap();
    assert_eq!(node.get(TOKEN, valid).await.0, 429);
    drop(busy);
    node.pages.tokens = None;
    assert_eq!(node.get(TOKEN, valid).await.0, 404);
}

#[tokio::test]
async fn node_that_is_not_complete_has_no_pages() {
    let mut node = Node::start().await;
    let query = "?dsp=7&before=1700000000000";
    let status = async |node: &Node| node.get(TOKEN, query).await.0;
    assert_eq!(status(&node).await, 503, "nothing was received");
    node.receive(5, minutes_ago(2));
    assert_eq!(status(&node).await, 503, "nothing is durable");
    node.commit(5);
    assert_eq!(status(&node).await, 200);
    node.pages
        .deletions
        .set_queued([(DspId(7), None)].into(), 1);
    assert_eq!(status(&node).await, 503, "the DSP is in the retry queue");
    node.pages
        .deletions
        .set_queued([(DspId(8), None)].into(), 1);
    assert_eq!(status(&node).await, 200);
    // A second address without a stream may lead to another producer.
    let other = SocketAddr::from(([127, 0, 0, 1], 2));
    let other = node.pages.producers.register(other, "http://there");
    assert_eq!(status(&node).await, 503);
    drop(other);
    assert_eq!(status(&node).await, 200);
    let Node {
        pages, stream, dir, ..
    } = node;
    drop(stream);
    assert_eq!(pages.producers.complete_until(), None);
    drop(dir);
}

#[tokio::test]
async fn time_of_a_page_is_that_of_the_slowest_producer() {
    let mut node = Node::start().await;
    let as_of = async |node: &Node| {
        let (_, end) = node.page("?dsp=7&before=1700000000000").await;
        end["as_of"].as_u64().unwrap() + CLOCK_MARGIN_MICROS / 1000
    };
    let received = minutes_ago(9);
    node.receive(5, received);
    node.commit(5);
    assert_eq!(as_of(&node).await, received.0 / 1000);
    let idle = minutes_ago(3);
    node.stream.caught_up(idle);
    assert_eq!(as_of(&node).await, idle.0 / 1000);
    // Position 5 is durable, and later cookies are not.
    node.receive(6, minutes_ago(2));
    node.commit(5);
    assert_eq!(as_of(&node).await, received.0 / 1000);
}

#[tokio::test]
async fn node_that_is_filled_reads_all_cookies_and_deletions_in_pages() {
    let users = crate::copy::protocol::PAGE_RECORDS_MAX / 3 + 10;
    let ([node, _], accepted) = two_nodes(users).await;
    let old: Vec<String> = (0..20_000).map(|user| format!("gone-{user:05}")).collect();
    for users in old.chunks(5_000) {
        let deletions: Vec<_> = users.iter().map(|user| (&**user, 0, "")).collect();
        node.write(accepted, &deletions).await;
    }
    node.pages
        .deletions
        .add(&crate::deletions::Deletion::floor(UnixMicros(5)));
    for (path, expected) in [(COOKIES_PATH, users * 3), (DELETIONS_PATH, old.len())] {
        let (mut records, mut next) = (Vec::new(), Some(String::new()));
        let mut pages = 0;
        while let Some(position) = next {
            let reply = node.reply(TOKEN, &format!("{path}?next={position}")).await;
            assert_eq!(reply.status(), 200);
            assert_eq!(reply.headers()[FLOOR_HEADER], "5");
            let header = reply.headers().get(NEXT_HEADER);
            next = header.map(|next| next.to_str().unwrap().to_owned());
            let body = reply.into_body().collect().await.unwrap().to_bytes();
            for chunk in crate::copy::protocol::decode(&body).unwrap() {
                for record in chunk.records() {
                    let record = record.unwrap();
                    assert_eq!(record.accepted(chunk.header().accepted), accepted);
                    records.push(format!("{:?}", record.with_age(0)));
                }
            }
            pages += 1;
        }
        assert!(pages > 1);
        records.sort();
        records.dedup();
        assert_eq!(records.len(), expected, "{path}");
    }
}

#[tokio::test]
async fn node_with_missing_records_is_not_copied() {
    let mut node = Node::start().await;
    let status = async |node: &Node, token, path| node.reply(token, path).await.status().as_u16();
    for path in [COOKIES_PATH, DELETIONS_PATH] {
        assert_eq!(status(&node, TOKEN, path).await, 200);
        assert_eq!(status(&node, "another-token-16b", path).await, 401);
        node.pages.deletions.begin_copy();
        assert_eq!(status(&node, TOKEN, path).await, 503, "it is being filled");
        node.pages.deletions.end_copy();
        node.pages
            .deletions
            .set_queued([(DspId(7), None)].into(), 1);
        assert_eq!(status(&node, TOKEN, path).await, 503, "a DSP is queued");
        node.pages.deletions.set_queued([].into(), 1);
    }
    assert_eq!(status(&node, TOKEN, "/v1/cookies/elsewhere").await, 404);
    assert_eq!(
        status(&node, TOKEN, &format!("{COOKIES_PATH}?next=%ff")).await,
        400
    );
    node.receive(9, clock::now());
    node.commit(9);
    let state = node.reply(TOKEN, NODE_PATH).await.into_body();
    let state = state.collect().await.unwrap().to_bytes();
    let state: NodeState = serde_json::from_slice(&state).unwrap();
    assert_eq!((state.process, &state.durable["p"]), (7, &(7, 9)));
}
