//! Connections that ask for nothing, on a set clock.

use std::net::Ipv4Addr;

use h2::client;
use runtime::metrics::Registry;
use tokio::{io::DuplexStream, task::JoinSet};

use super::*;
use crate::{security::guard::tests::guard, server::rates::Calls};

/// A connection that asks for tokens, and the client's end of it.
fn connect() -> (JoinSet<()>, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let calls = Calls::register(&Registry::new()).unwrap();
    let peer = Ipv4Addr::LOCALHOST.into();
    let connection = Connection {
        routes: Routes::default(),
        admission: Admission {
            calls: calls.of_connection(peer),
            guard: Some(Arc::new(guard("the-only-good-token\n"))),
            peer,
        },
        activity: Arc::default(),
        tasks: TaskTracker::new(),
        stopping: CancellationToken::new(),
    };
    let mut served = JoinSet::new();
    served.spawn(connection.run(ours));
    (served, theirs)
}

#[tokio::test(start_paused = true)]
async fn client_that_says_nothing_is_not_waited_for() {
    let began = Instant::now();
    let (mut served, _silent) = connect();
    served.join_next().await;
    assert_eq!(began.elapsed(), FIRST_CALL_WITHIN);
}

/// Calls every five seconds until the connection is over, or for a minute; returns how long that was.
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
async fn refused_calls_keep_no_connection() {
    let lived = call_again_and_again("Bearer none-that-is-taken").await;
    assert!(
        lived <= FIRST_CALL_WITHIN + Duration::from_secs(5),
        "{lived:?}"
    );
    let lived = call_again_and_again("Bearer the-only-good-token").await;
    assert_eq!(lived, Duration::from_secs(60));
}
