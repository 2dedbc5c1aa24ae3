//! Connections without calls and with refused ones, on a paused clock.

use std::net::Ipv4Addr;

use h2::client;
use runtime::metrics::Registry;
use tokio::{io::DuplexStream, task::JoinSet};

use super::*;
use crate::{security::tokens::tests::token_check, server::call_rates::CallLimits};

/// A connection that asks for tokens, and the client's end of it.
fn connect() -> (JoinSet<()>, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let limits = CallLimits::register(&Registry::new()).unwrap();
    let peer = Ipv4Addr::LOCALHOST.into();
    let tokens = Arc::new(token_check("the-only-good-token\n"));
    let connection = Connection {
        routes: Routes::default(),
        limits: limits.of_connection(peer, Some(tokens)),
        activity: Arc::default(),
        tasks: TaskTracker::new(),
        stopping: CancellationToken::new(),
    };
    let mut served = JoinSet::new();
    served.spawn(connection.run(ours));
    (served, theirs)
}

#[tokio::test(start_paused = true)]
async fn silent_client_is_disconnected() {
    let began = Instant::now();
    let (mut served, _silent) = connect();
    served.join_next().await;
    assert_eq!(began.elapsed(), FIRST_CALL_WITHIN);
}

/// Calls every five seconds until the connection is closed, for a minute at most; returns how long it lasted.
async fn call_again_and_again(authorization: &str) -> Duration {
    let began = Instant::now();
    let (mut served, theirs) = connect();
    let (mut calls, connection) = client::handshake(theirs).await.unwrap();
    let mut client = JoinSet::new();
    client.spawn(connection);
    let calling = async {
        loop {
            calls = calls.ready().await?;
            let request = Request::builder()
                .method("POST")
                .uri("http://producer/a.service/Call")
                .header("authorization", authorization);
            let (answer, _) = calls.send_request(request.body(()).unwrap(), true)?;
            answer.await?;
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
async fn refused_calls_do_not_keep_a_connection_open() {
    let lived = call_again_and_again("Bearer none-that-is-taken").await;
    assert!(
        lived <= FIRST_CALL_WITHIN + Duration::from_secs(5),
        "{lived:?}"
    );
    let lived = call_again_and_again("Bearer the-only-good-token").await;
    assert_eq!(lived, Duration::from_secs(60));
}
