//! Tests of connections without calls and with rejected calls, on a paused clock.

use std::net::Ipv4Addr;

use h2::client;
use runtime::metrics::Registry;
use tokio::{io::DuplexStream, task::JoinSet};

use super::*;
use crate::{security::tokens::tests::token_check, server::calls::CallLimits};

/// Serves a connection that requires tokens; returns the client's end.
fn connect() -> (JoinSet<()>, DuplexStream) {
    let (server, client) = tokio::io::duplex(1 << 16);
    let limits = CallLimits::register(&Registry::new()).unwrap();
    let peer = Ipv4Addr::LOCALHOST.into();
    let tokens = Arc::new(token_check("the-only-good-token\n"));
    let connection = GrpcConnection {
        routes: Routes::default(),
        limits: limits.of_connection(peer, Some(tokens)),
        activity: Arc::default(),
        tasks: TaskTracker::new(),
        stopping: CancellationToken::new(),
    };
    let mut served = JoinSet::new();
    served.spawn(connection.run(server));
    (served, client)
}

#[tokio::test(start_paused = true)]
async fn client_without_calls_is_disconnected() {
    let began = Instant::now();
    let (mut served, _client) = connect();
    served.join_next().await;
    assert_eq!(began.elapsed(), FIRST_CALL_WITHIN);
}

/// Calls every five seconds until the connection is closed, for up to a minute; returns its duration.
async fn call_periodically(authorization: &str) -> Duration {
    let began = Instant::now();
    let (mut served, stream) = connect();
    let (mut calls, connection) = client::handshake(stream).await.unwrap();
    let mut client = JoinSet::new();
    client.spawn(connection);
    let calling = async {
        loop {
            calls = calls.ready().await?;
            let request = Request::builder()
                .method("POST")
                .uri("http://producer/a.service/Call")
                .header("authorization", authorization);
            let (response, _) = calls.send_request(request.body(()).unwrap(), true)?;
            response.await?;
            sleep(Duration::from_secs(5)).await;
        }
    };
    let ended: Result<Result<Infallible, h2::Error>, _> =
        timeout(Duration::from_secs(60), calling).await;
    if ended.is_ok() {
        served.join_next().await;
    }
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn rejected_calls_do_not_keep_a_connection_open() {
    let lived = call_periodically("Bearer an-invalid-token").await;
    assert!(
        lived <= FIRST_CALL_WITHIN + Duration::from_secs(5),
        "{lived:?}"
    );
    let lived = call_periodically("Bearer the-only-good-token").await;
    assert_eq!(lived, Duration::from_secs(60));
}
