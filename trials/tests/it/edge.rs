//! Tests of the HTTP edge: responses to valid and invalid requests.

mod abuse;
mod browsers;
mod dsp_isolation;
mod fake_dsps;
mod hostile;
mod plans;
mod refusals;
pub(crate) mod security;
mod syncs;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use testkit::{http::HttpClient, scrape::names};

use crate::{
    harness::{Producer, sync_request},
    stream_client::{Subscription, from_oldest},
};

#[tokio::test]
async fn invalid_request_gets_400_naming_the_parameter_and_appends_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let long = |character: &str, count| character.repeat(count);
    let cases = [
        ("/?b=x", "uid=u", 400, "parameter d "),
        ("/?d=0&b=x", "uid=u", 400, "parameter d "),
        ("/?d=4294967296&b=x", "uid=u", 400, "parameter d "),
        ("/?d=-1&b=x", "uid=u", 400, "parameter d "),
        ("/?d=1&d=2&b=x", "uid=u", 400, "parameter d "),
        ("/?d=1", "uid=u", 400, "parameter b "),
        ("/?d=1&b=", "uid=u", 400, "parameter b "),
        ("/?d=1&b=x&b=y", "uid=u", 400, "parameter b "),
        ("/?d=1&b=%ff", "uid=u", 400, "parameter b "),
        ("/?d=1&b=%zz", "uid=u", 400, "parameter b "),
        ("/?d=1&b=a%00b", "uid=u", 400, "parameter b "),
        ("/?d=1&b=x", "other=u", 400, "cookie uid "),
        ("/?d=1&b=x", "uid=", 400, "cookie uid "),
        ("/?d=1&b=x", "uid=a b", 400, "cookie uid "),
        ("/?d=1&b=x", "uid=a,b", 400, "cookie uid "),
        ("/syncs?d=1&b=x", "uid=u", 404, ""),
        ("/favicon.ico", "uid=u", 404, ""),
    ]
    .map(|(target, cookie, status, body)| (target.to_owned(), cookie.to_owned(), status, body));
    let too_long = [
        (
            format!("/?d=1&b={}", long("x", 257)),
            "uid=u".to_owned(),
            400,
            "parameter b ",
        ),
        (
            "/?d=1&b=x".to_owned(),
            format!("uid={}", long("u", 65)),
            400,
            "cookie uid ",
        ),
    ];
    // All requests use one connection, which invalid parameters must not close.
    let mut connection = HttpClient::connect(&producer.http).await?;
    for (target, cookie, status, body) in cases.iter().chain(&too_long) {
        let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n");
        connection.send(request.as_bytes()).await?;
        let answer = connection.response().await?;
        assert_eq!(answer.status, *status, "{target} {cookie}: {answer:?}");
        ensure!(
            answer.body.starts_with(body) && answer.body.lines().count() == 1,
            "{target} {cookie}: {answer:?}"
        );
    }
    let metrics = producer.metrics().await?;
    assert_eq!(metrics.count(names::APPENDED, &[]), 0);
    let requests = (cases.len() + too_long.len()) as u64;
    assert_eq!(metrics.count(names::EDGE_REQUESTS, &[]), requests);
    for (outcome, count) in [
        ("accepted", 0),
        ("not_found", 2),
        ("d_missing", 1),
        ("d_invalid", 3),
        ("d_repeated", 1),
        ("b_too_long", 1),
        ("b_not_utf8", 1),
        ("uid_missing", 1),
        ("uid_invalid", 2),
    ] {
        let counted = metrics.count(names::EDGE_REQUESTS, &[("outcome", outcome)]);
        assert_eq!(counted, count, "{outcome}");
    }
    Ok(())
}

#[tokio::test]
async fn user_id_and_buyer_uid_are_delivered_byte_for_byte() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let long = "%C3%BC".repeat(128);
    let cases = [
        ("d=1&b=a%26b%3Dc%2Fd%2Be%25f", "uid=u1", "a&b=c/d+e%f"),
        ("d=1&b=a+b--", "a=b; uid=u2; c=d", "a+b--"),
        (
            "x=1&b=%E2%82%AC&y&d=1",
            "uid=!#$%&'()*+-./:<=>?@[]^_`{|}~",
            "€",
        ),
        (&format!("d=1&b={long}"), "uid=u4", &"ü".repeat(128)),
        ("d=1&b=%2525", "a=b\r\nCookie: uid=u5", "%25"),
    ];
    let mut connection = HttpClient::connect(&producer.http).await?;
    for (query, cookie, _) in &cases {
        let request = format!("GET /sync?{query} HTTP/1.1\r\nCookie: {cookie}\r\n\r\n");
        connection.send(request.as_bytes()).await?;
        let answer = connection.response().await?;
        assert_eq!((answer.status, &*answer.body), (200, ""), "{query}");
    }
    let mut stream = Subscription::open(&producer.grpc, from_oldest("reader")).await?;
    stream.read_to(cases.len() as u64).await?;
    for ((query, cookie, buyer_uid), read) in cases.iter().zip(&stream.cookies) {
        assert_eq!(read.buyer_uid, *buyer_uid, "{query}");
        let (_, user_id) = cookie.split_once("uid=").unwrap_or_default();
        let user_id = user_id.split("; c=d").next().unwrap_or_default();
        assert_eq!(read.user_id, user_id);
    }
    Ok(())
}

#[tokio::test]
async fn responses_to_complete_requests_do_not_wait_for_a_partial_one() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut connection = HttpClient::connect(&producer.http).await?;
    let three = format!(
        "{}{}{}",
        sync_request("a", 1, "x"),
        sync_request("b", 1, "x"),
        sync_request("c", 1, "x")
    );
    let (first, rest) = three.split_at(three.len() - 10);
    connection.send(first.as_bytes()).await?;
    for _ in 0..2 {
        assert_eq!(connection.response().await?.status, 200);
    }
    assert_eq!(producer.appended().await?, 2);
    connection.send(rest.as_bytes()).await?;
    assert_eq!(connection.response().await?.status, 200);
    assert_eq!(producer.appended().await?, 3);
    Ok(())
}

#[tokio::test]
async fn pipelined_responses_keep_order_and_a_malformed_request_closes_the_connection() -> Result<()>
{
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut connection = HttpClient::connect(&producer.http).await?;
    let requests = format!(
        "{}GET /?d=x&b=y HTTP/1.1\r\n\r\nGET /none HTTP/1.1\r\n\r\n{}no request\r\n\r\n{}",
        sync_request("a", 1, "x"),
        sync_request("b", 1, "x"),
        sync_request("never", 1, "read")
    );
    connection.send(requests.as_bytes()).await?;
    for (status, closes) in [
        (200, false),
        (400, false),
        (404, false),
        (200, false),
        (400, true),
    ] {
        let answer = connection.response().await?;
        assert_eq!(
            (answer.status, answer.closes()),
            (status, closes),
            "{answer:?}"
        );
    }
    connection.wait_ended().await?;
    assert_eq!(producer.appended().await?, 2);
    Ok(())
}

#[tokio::test]
async fn only_get_and_head_are_served_and_bodies_are_ignored() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut connection = HttpClient::connect(&producer.http).await?;
    // A request inside a body must not be parsed.
    let body = sync_request("smuggled", 1, "x").repeat(20);
    let length = body.len();
    let head =
        format!("POST /?d=1&b=x HTTP/1.1\r\nCookie: uid=u\r\nContent-Length: {length}\r\n\r\n");
    connection.send(format!("{head}{body}").as_bytes()).await?;
    let answer = connection.response().await?;
    assert_eq!((answer.status, answer.closes()), (405, false), "{answer:?}");
    assert!(
        answer.head.contains("\r\nallow: get, head\r\n"),
        "{answer:?}"
    );
    connection.send(b"GET /none HTTP/1.1\r\n\r\n").await?;
    assert_eq!(connection.response().await?.status, 404);

    // If the body is missing, the next bytes could be another client's request, so the connection closes.
    let mut late = HttpClient::connect(&producer.http).await?;
    late.send(head.as_bytes()).await?;
    let answer = late.response().await?;
    assert_eq!((answer.status, answer.closes()), (405, true), "{answer:?}");
    late.send(body.as_bytes()).await?;
    late.wait_ended().await?;
    assert_eq!(producer.appended().await?, 0);

    // The end of a chunked body is not parsed, so the connection closes.
    let post = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    connection.send(post.as_bytes()).await?;
    let answer = connection.response().await?;
    assert_eq!((answer.status, answer.closes()), (405, true), "{answer:?}");
    connection.wait_ended().await?;

    let mut connection = HttpClient::connect(&producer.http).await?;
    connection
        .send(b"PUT /?d=1&b=x HTTP/1.1\r\nCookie: uid=u\r\n\r\n")
        .await?;
    assert_eq!(connection.response().await?.status, 405);
    assert_eq!(producer.appended().await?, 0);

    // HEAD is GET without the body.
    connection.send(b"HEAD /?b=x HTTP/1.1\r\n\r\n").await?;
    let answer = connection.head_response().await?;
    assert_eq!(answer.status, 400);
    assert!(!answer.head.contains("content-length: 0\r\n"), "{answer:?}");
    connection
        .send(
            sync_request("u", 1, "x")
                .replacen("GET", "HEAD", 1)
                .as_bytes(),
        )
        .await?;
    assert_eq!(connection.head_response().await?.status, 200);
    assert_eq!(producer.appended().await?, 1);
    Ok(())
}

#[tokio::test]
async fn http_1_0_and_connection_close_requests_get_a_response_and_a_close() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    for (line, more) in [("HTTP/1.0", ""), ("HTTP/1.1", "Connection: close\r\n")] {
        let mut connection = HttpClient::connect(&producer.http).await?;
        let request = format!("GET /?d=1&b=x {line}\r\n{more}Cookie: uid=u\r\n\r\n");
        connection.send(request.as_bytes()).await?;
        let answer = connection.response().await?;
        assert_eq!((answer.status, answer.closes()), (200, true), "{answer:?}");
        connection.wait_ended().await?;
    }
    assert_eq!(producer.appended().await?, 2);
    Ok(())
}
