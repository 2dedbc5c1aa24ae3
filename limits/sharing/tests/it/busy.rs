//! Tests of exact limits with a fake server that replies late, or only to some requests.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use limits::Algorithm;
use limits_sharing::{
    Address,
    exact::{Config, ExactDecision, ExactError, ExactLimits, ExactRule, Operation, RuleRequest},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::server::until;

/// Reply: the call is made now; seven requests remain.
const NOW: &[u8] = b"*8\r\n+now\r\n:5\r\n:5\r\n:0\r\n:0\r\n:7\r\n:5\r\n:6\r\n";

/// A malformed reply.
const NONSENSE: &[u8] = b"*1\r\n+nonsense\r\n";

/// Longer than any test runs.
const LONG: Duration = Duration::from_secs(600);

/// The behavior of the server.
#[derive(Debug, Clone, Copy)]
struct Behavior {
    /// Number of replies on a connection, and their content.
    replies: usize,
    reply: &'static [u8],
    /// Number of requests after which it replies.
    once: usize,
    /// Number of replies to `DEL` on a connection, with which a client finds its group.
    dels: usize,
}

/// A server that replies to no request.
const SILENT: Behavior = Behavior {
    replies: 0,
    reply: NOW,
    once: 0,
    dels: usize::MAX,
};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    connections: usize,
    requests: usize,
}

/// A client of the server. All tasks end when it is dropped.
struct Client {
    exact: Arc<ExactLimits>,
    seen: watch::Receiver<Seen>,
    _tasks: JoinSet<()>,
}

impl Client {
    async fn start(behavior: Behavior, budget: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let exact = Arc::new(ExactLimits::new(Config {
            server: address(listener.local_addr().unwrap()),
            group: "test".to_owned(),
            budget,
        }));
        let (tell, seen) = watch::channel(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                tell.send_modify(|seen| seen.connections += 1);
                connections.spawn(serve(stream, behavior, tell.clone()));
            }
        });
        let running = Arc::clone(&exact);
        tasks.spawn(async move { running.run(CancellationToken::new()).await });
        Self {
            exact,
            seen,
            _tasks: tasks,
        }
    }

    async fn until_there(&self) {
        until("the server is connected", async || {
            self.exact.is_connected()
        })
        .await;
    }

    async fn until_requests(&self, requests: usize) {
        let mut seen = self.seen.clone();
        let received = seen.wait_for(|it| it.requests >= requests);
        let received = tokio::time::timeout(Duration::from_secs(120), received).await;
        assert!(received.is_ok(), "{:?}", self.seen.borrow());
    }

    /// Starts one call.
    fn call(&self, calls: &mut JoinSet<Result<ExactDecision, ExactError>>) {
        let exact = Arc::clone(&self.exact);
        calls.spawn(async move {
            let limit = Algorithm::token_bucket("1/s", 8).unwrap();
            let ask = RuleRequest {
                name: Arc::from("a"),
                rule: ExactRule::new(&limit.into()).unwrap(),
                key: Arc::from("k"),
                requests: 1,
            };
            exact.decide(&[ask], Operation::Peek, Duration::ZERO).await
        });
    }
}

fn address(at: SocketAddr) -> Address {
    Address::parse(&format!("redis://{at}")).unwrap()
}

async fn serve(stream: TcpStream, behavior: Behavior, tell: watch::Sender<Seen>) {
    let mut stream = BufReader::new(stream);
    let (mut received, mut dels) = (0, 0);
    while let Some(name) = command(&mut stream).await {
        let replies = match name.as_str() {
            "EVALSHA" => {
                received += 1;
                tell.send_modify(|seen| seen.requests += 1);
                let due = if received == behavior.once {
                    behavior.replies
                } else {
                    0
                };
                behavior.reply.repeat(due)
            }
            "DEL" => {
                dels += 1;
                b":0\r\n".repeat(usize::from(dels <= behavior.dels))
            }
            _ => b"+OK\r\n".to_vec(),
        };
        if stream.write_all(&replies).await.is_err() {
            return;
        }
    }
}

/// The name of the next command.
async fn command(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let parts = head(stream).await?;
    let mut name = None;
    for _ in 0..parts {
        let mut part = vec![0; head(stream).await? + 2];
        stream.read_exact(&mut part).await.ok()?;
        part.truncate(part.len() - 2);
        name.get_or_insert(part);
    }
    String::from_utf8(name?).ok()
}

/// The number in a line, after its type character.
async fn head(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

#[tokio::test]
async fn server_that_replies_to_other_calls_stays_connected() {
    // The first request gets a reply once three more are in flight.
    let behavior = Behavior {
        replies: 1,
        once: 4,
        ..SILENT
    };
    let client = Client::start(behavior, LONG).await;
    client.until_there().await;
    let (mut first, mut late) = (JoinSet::new(), JoinSet::new());
    client.call(&mut first);
    client.until_requests(1).await;
    (0..3).for_each(|_| client.call(&mut late));
    let reply = first.join_next().await.unwrap().unwrap();
    assert_eq!(reply.unwrap().remaining[0].requests, 7);
    // From here on, the clock advances to the next timer.
    tokio::time::pause();
    for reply in late.join_all().await {
        assert_eq!(reply, Err(ExactError::Busy));
    }
    assert!(client.exact.is_connected());
    // Without any reply, the server counts as unavailable.
    let mut late = JoinSet::new();
    (0..3).for_each(|_| client.call(&mut late));
    for reply in late.join_all().await {
        assert_eq!(reply, Err(ExactError::Unavailable));
    }
    assert!(!client.exact.is_connected());
}

#[tokio::test]
async fn requests_in_flight_are_bounded() {
    let client = Client::start(SILENT, LONG).await;
    client.until_there().await;
    let mut calls = JoinSet::new();
    (0..100).for_each(|_| client.call(&mut calls));
    client.until_requests(16).await;
    tokio::time::pause();
    let replies = calls.join_all().await;
    let of = |why| replies.iter().filter(|it| **it == Err(why)).count();
    assert_eq!(
        (of(ExactError::Busy), of(ExactError::Unavailable)),
        (84, 16),
        "{replies:?}"
    );
    assert_eq!(client.seen.borrow().requests, 16);
}

#[tokio::test]
async fn abandoned_requests_keep_their_permits_until_the_budget_ends() {
    let client = Client::start(SILENT, LONG).await;
    client.until_there().await;
    let mut gone = JoinSet::new();
    (0..16).for_each(|_| client.call(&mut gone));
    client.until_requests(16).await;
    gone.shutdown().await;
    tokio::time::pause();
    for expected in [ExactError::Busy, ExactError::Unavailable] {
        let mut calls = JoinSet::new();
        client.call(&mut calls);
        assert_eq!(calls.join_all().await, [Err(expected)]);
        tokio::time::sleep(LONG).await;
    }
}

#[tokio::test]
async fn malformed_reply_fails_only_its_own_call() {
    let behavior = Behavior {
        replies: 2,
        reply: NONSENSE,
        once: 2,
        ..SILENT
    };
    let client = Client::start(behavior, LONG).await;
    client.until_there().await;
    let mut calls = JoinSet::new();
    (0..2).for_each(|_| client.call(&mut calls));
    for reply in calls.join_all().await {
        assert_eq!(reply, Err(ExactError::Unavailable));
    }
    assert!(client.exact.is_connected());
}

#[tokio::test]
async fn server_slower_than_the_budget_is_not_used() {
    // Connecting may take a second, but the last reply comes after the budget.
    let behavior = Behavior { dels: 1, ..SILENT };
    let client = Client::start(behavior, Duration::from_millis(50)).await;
    until("the client reconnects", async || {
        assert!(!client.exact.is_connected());
        client.seen.borrow().connections > 1
    })
    .await;
}
