//! Nodes that send invalid pages, or that are this node itself.

use bytes::Bytes;
use consumer::copy::protocol::{
    COOKIES_PATH, FLOOR_HEADER, NEXT_HEADER, NODE_PATH, NodeState, encode,
};
use http::Response;
use http_body_util::Full;
use proto::{
    units::{DspId, Epoch, Sequence, UnixMicros},
    wire::{ChunkHeader, CookieRef, HEADROOM_BYTES, Record, put_cookie, seal},
};
use testkit::http_server::HttpServer;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::*;

fn micros_ago(seconds: u64) -> UnixMicros {
    let millis = millis_ago(Duration::from_secs(seconds));
    UnixMicros(u64::try_from(millis).unwrap_or_default() * 1000)
}

fn cookie<'a>(user_id: &'a str, buyer_uid: &'a str, age_micros: u64) -> CookieRef<'a> {
    CookieRef {
        user_id,
        dsp_id: DspId(7),
        buyer_uid,
        age_micros,
    }
}

/// A chunk with any header.
fn chunk(cookies: &[CookieRef<'_>], count: usize, accepted: UnixMicros) -> Result<Bytes> {
    let mut buffer = vec![0; HEADROOM_BYTES];
    for cookie in cookies {
        put_cookie(&mut buffer, cookie);
    }
    let header = ChunkHeader {
        epoch: Epoch(1),
        first_sequence: Sequence(1),
        count: u32::try_from(count)?,
        accepted,
    };
    let start = seal(&mut buffer, &header);
    Ok(Bytes::from(buffer).slice(start..))
}

/// A node whose only page of cookies has this body. `next` is the position in each response.
async fn fake_node(page: Bytes, next: Option<&'static str>) -> Result<HttpServer> {
    let listen = "127.0.0.1:0".parse()?;
    let server = HttpServer::start(listen, move |request| {
        let state = NodeState {
            // Any position of any producer.
            durable: [("producer".to_owned(), (u64::MAX, 0))].into(),
            ..NodeState::default()
        };
        let mut response = Response::builder().header(FLOOR_HEADER, "0");
        let body = match request.uri().path() {
            NODE_PATH => serde_json::to_vec(&state).unwrap_or_default().into(),
            COOKIES_PATH => {
                if let Some(next) = next {
                    response = response.header(NEXT_HEADER, next);
                }
                page.clone()
            }
            _ => Bytes::new(),
        };
        let response = response.body(Full::new(body)).unwrap_or_default();
        async { response }
    });
    Ok(server.await?)
}

/// Fills a node from a fake node, and then from one with a cookie of each of ten users.
async fn fill(
    page: Bytes,
    next: Option<&'static str>,
) -> Result<(Cluster, Consumer, [TempDir; 2])> {
    let dirs = [TempDir::new()?, TempDir::new()?];
    let cluster = Cluster::start(&embedded(dirs[0].path()), 10).await?;
    let fake = fake_node(page, next).await?;
    let from = format!("http://{},{}", fake.address, url(&cluster.source));
    let node = cluster
        .fill("new", &embedded(dirs[1].path()), &from, &[])
        .await?;
    wait_filled(&node).await?;
    Ok((cluster, node, dirs))
}

#[tokio::test]
async fn next_node_replaces_one_with_invalid_pages() -> Result<()> {
    let good = [cookie("fake", "b", 0)];
    for (page, next, why) in [
        (Bytes::from_static(b"<html>"), None, "invalid page"),
        // It lies about its counts.
        (
            chunk(&good, 5, micros_ago(60))?,
            None,
            "differs from the header",
        ),
        // It never ends.
        (
            chunk(&good, 1, micros_ago(60))?,
            Some("here"),
            "repeats the position",
        ),
        (Bytes::from(vec![0; 9 << 20]), None, "incomplete response"),
    ] {
        let (_cluster, node, _dirs) = fill(page, next).await?;
        for number in 0..10 {
            let both = json!({"7": format!("b-7-{number}"), "8": format!("b-8-{number}"), "9": format!("b-9-{number}")});
            node.wait_lookup(&user(number), both).await?;
        }
        let log = node.process.last_lines(100);
        ensure!(log.contains(why), "{why}: {log}");
    }
    Ok(())
}

#[tokio::test]
async fn rows_with_impossible_ids_or_times_are_refused_and_counted() -> Result<()> {
    let week = 7 * 24 * 3600 * 1_000_000;
    let long = "u".repeat(65);
    let now = micros_ago(0);
    let page = [
        // Another id rule, an age beyond the maximum, and a time in the future.
        chunk(
            &[
                cookie("a b", "b", 0),
                cookie(&long, "b", 0),
                cookie("aged", "b", 2 * week),
            ],
            3,
            now,
        )?,
        chunk(
            &[cookie("future", "b", 0)],
            1,
            UnixMicros(now.0 + 3_600_000_000),
        )?,
        // Older than the cookie that the real node has.
        chunk(
            &[cookie(&user(1), "older", 0), cookie("good", "b", 0)],
            2,
            micros_ago(7200),
        )?,
    ];
    let (_cluster, node, _dirs) = fill(page.concat().into(), None).await?;
    // The fake node ends normally, so the next is not needed.
    node.wait_lookup("good", json!({"7": "b"})).await?;
    let refused = ["aged", "future"].map(str::to_owned);
    node.check_unknown(refused.into_iter()).await?;
    let failed = node.metrics().await?;
    let failed = failed.count("consumer_failed_total", &[("reason", "malformed")]);
    ensure!(failed == 4, "{failed}");
    node.wait_ready_with_state("fewer here for 1 DSPs: DSP 7: 2 of 6")
        .await
}

#[tokio::test]
async fn older_cookie_of_another_node_never_replaces_a_newer_one() -> Result<()> {
    let dirs = [TempDir::new()?, TempDir::new()?];
    let cluster = Cluster::start(&embedded(dirs[0].path()), 10).await?;
    let users: Vec<String> = (0..10_000).map(user).collect();
    let page = |uid: &'static str, seconds| {
        let record = move |user| (Record::Set(cookie(user, uid, 0)), micros_ago(seconds));
        encode(users.iter().map(move |user| record(user)))
    };
    // The same users twice: first the newer ones.
    let page = [page("newer", 100), page("older", 200)].concat();
    let fake = fake_node(page.into(), None).await?;
    let from = format!("http://{}", fake.address);
    let node = cluster
        .fill("new", &embedded(dirs[1].path()), &from, &[])
        .await?;
    wait_filled(&node).await?;
    for number in (0..10_000).step_by(997) {
        node.wait_lookup(&user(number), json!({"7": "newer"}))
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn node_recognizes_itself() -> Result<()> {
    let dirs = [TempDir::new()?, TempDir::new()?];
    let cluster = Cluster::start(&embedded(dirs[0].path()), 10).await?;
    // Another address of the node.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let from = format!("http://{}", listener.local_addr()?);
    let node = cluster
        .fill("new", &embedded(dirs[1].path()), &from, &[])
        .await?;
    let admin = node.admin.clone();
    let _forwarding = JoinSet::from_iter([async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let Ok(mut server) = TcpStream::connect(&admin).await else {
                continue;
            };
            drop(copy_bidirectional(&mut client, &mut server).await);
        }
    }]);
    node.wait_ready_with_state("is that of this node itself")
        .await
}
