//! Exact limits of a server that is there and answers few questions, or late: it is played here.

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

/// A call goes now; its limit has seven left.
const NOW: &[u8] = b"*8\r\n+now\r\n:5\r\n:5\r\n:0\r\n:0\r\n:7\r\n:5\r\n:6\r\n";

/// What no script answers.
const NONSENSE: &[u8] = b"*1\r\n+nonsense\r\n";

/// No time that passes in a test.
const LONG: Duration = Duration::from_secs(600);

/// What the server does.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// How many questions of a connection it answers, and what; none of those that come after them.
    answers: usize,
    answer: &'static [u8],
    /// When it begins to: so many have come.
    once: usize,
    /// How many times it answers a connection where the group is, which a `DEL` asks.
    dels: usize,
}

/// The way of one that answers no question.
const SILENT: Way = Way {
    answers: 0,
    answer: NOW,
    once: 0,
    dels: usize::MAX,
};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    connections: usize,
    questions: usize,
}

/// Who asks it. All ends with this.
struct Asker {
    exact: Arc<ExactLimits>,
    seen: watch::Receiver<Seen>,
    _tasks: JoinSet<()>,
}

impl Asker {
    async fn start(way: Way, budget: Duration) -> Self {
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
                connections.spawn(serve(stream, way, tell.clone()));
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
        until("there is a server", async || self.exact.is_connected()).await;
    }

    async fn until_asked(&self, questions: usize) {
        let mut seen = self.seen.clone();
        let asked = seen.wait_for(|it| it.questions >= questions);
        let asked = tokio::time::timeout(Duration::from_secs(120), asked).await;
        assert!(asked.is_ok(), "{:?}", self.seen.borrow());
    }

    /// One call, from now on.
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

async fn serve(stream: TcpStream, way: Way, tell: watch::Sender<Seen>) {
    let mut stream = BufReader::new(stream);
    let (mut asked, mut dels) = (0, 0);
    while let Some(name) = command(&mut stream).await {
        let answers = match name.as_str() {
            "EVALSHA" => {
                asked += 1;
                tell.send_modify(|seen| seen.questions += 1);
                let due = if asked == way.once { way.answers } else { 0 };
                way.answer.repeat(due)
            }
            "DEL" => {
                dels += 1;
                b":0\r\n".repeat(usize::from(dels <= way.dels))
            }
            _ => b"+OK\r\n".to_vec(),
        };
        if stream.write_all(&answers).await.is_err() {
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

/// The number of a line, behind its sign.
async fn head(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

#[tokio::test]
async fn server_that_answers_others_is_not_lost() {
    // The first is answered when three more are under way, which are not.
    let way = Way {
        answers: 1,
        once: 4,
        ..SILENT
    };
    let asker = Asker::start(way, LONG).await;
    asker.until_there().await;
    let (mut first, mut late) = (JoinSet::new(), JoinSet::new());
    asker.call(&mut first);
    asker.until_asked(1).await;
    (0..3).for_each(|_| asker.call(&mut late));
    let answer = first.join_next().await.unwrap().unwrap();
    assert_eq!(answer.unwrap().remaining[0].requests, 7);
    // From here on the clock goes on to whatever is waited for.
    tokio::time::pause();
    for answer in late.join_all().await {
        assert_eq!(answer, Err(ExactError::Busy));
    }
    assert!(asker.exact.is_connected());
    // And when none is answered any more, it is.
    let mut late = JoinSet::new();
    (0..3).for_each(|_| asker.call(&mut late));
    for answer in late.join_all().await {
        assert_eq!(answer, Err(ExactError::Unavailable));
    }
    assert!(!asker.exact.is_connected());
}

#[tokio::test]
async fn few_questions_are_under_way_and_who_finds_no_place_asked_nothing() {
    let asker = Asker::start(SILENT, LONG).await;
    asker.until_there().await;
    let mut calls = JoinSet::new();
    (0..100).for_each(|_| asker.call(&mut calls));
    asker.until_asked(16).await;
    tokio::time::pause();
    let answers = calls.join_all().await;
    let of = |why| answers.iter().filter(|it| **it == Err(why)).count();
    assert_eq!(
        (of(ExactError::Busy), of(ExactError::Unavailable)),
        (84, 16),
        "{answers:?}"
    );
    assert_eq!(asker.seen.borrow().questions, 16);
}

#[tokio::test]
async fn questions_whose_callers_went_away_keep_their_places_for_a_while() {
    let asker = Asker::start(SILENT, LONG).await;
    asker.until_there().await;
    let mut gone = JoinSet::new();
    (0..16).for_each(|_| asker.call(&mut gone));
    asker.until_asked(16).await;
    gone.shutdown().await;
    tokio::time::pause();
    for expected in [ExactError::Busy, ExactError::Unavailable] {
        let mut calls = JoinSet::new();
        asker.call(&mut calls);
        assert_eq!(calls.join_all().await, [Err(expected)]);
        tokio::time::sleep(LONG).await;
    }
}

#[tokio::test]
async fn answer_that_cannot_be_read_is_of_its_call_alone() {
    let way = Way {
        answers: 2,
        answer: NONSENSE,
        once: 2,
        ..SILENT
    };
    let asker = Asker::start(way, LONG).await;
    asker.until_there().await;
    let mut calls = JoinSet::new();
    (0..2).for_each(|_| asker.call(&mut calls));
    for answer in calls.join_all().await {
        assert_eq!(answer, Err(ExactError::Unavailable));
    }
    assert!(asker.exact.is_connected());
}

#[tokio::test]
async fn server_that_answers_later_than_the_budget_is_not_used() {
    // A connection is made in a second, of which the last answer is a part; then nothing comes.
    let way = Way { dels: 1, ..SILENT };
    let asker = Asker::start(way, Duration::from_millis(50)).await;
    until("it is tried again", async || {
        assert!(!asker.exact.is_connected());
        asker.seen.borrow().connections > 1
    })
    .await;
}
