//! Against a server that answers as the test decides.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use async_nats::jetstream::stream::Config;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::*;

/// Responses of a server; none closes the connection.
#[derive(Debug, Clone, Default)]
struct Responses {
    /// To a request for the stream.
    stream: Option<Value>,
    /// To a message; empty if no server is responsible for its subject.
    acknowledgement: Option<String>,
}

fn stream() -> Value {
    let config = Config {
        name: "COOKIES".to_owned(),
        subjects: vec!["cookies.>".to_owned()],
        max_bytes: 1 << 30,
        duplicate_window: Duration::from_secs(120),
        ..Config::default()
    };
    let state = json!({
        "messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0,
        "first_ts": "2026-01-01T00:00:00Z", "last_ts": "2026-01-01T00:00:00Z",
    });
    json!({"config": config, "created": "2026-01-01T00:00:00Z", "state": state})
}

/// Serves one connection with a subscription.
async fn serve(connection: TcpStream, responses: Responses) -> Option<()> {
    let mut connection = BufReader::new(connection);
    let info = json!({
        "server_id": "", "server_name": "", "host": "", "port": 0, "version": "2.10.0", "go": "", "proto": 1,
        "client_id": 1, "headers": true, "max_payload": 1 << 20,
    });
    let info = format!("INFO {info}\r\n");
    connection.write_all(info.as_bytes()).await.ok()?;
    let mut subscription = String::new();
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).await.ok()?;
        let words: Vec<_> = line.split_whitespace().collect();
        let response = match words[..] {
            [] => return None,
            ["PING"] => "PONG\r\n".to_owned(),
            ["SUB", _, id] => {
                id.clone_into(&mut subscription);
                continue;
            }
            ["PUB" | "HPUB", subject, reply, .., bytes] => {
                let mut payload = vec![0; bytes.parse::<usize>().ok()? + 2];
                connection.read_exact(&mut payload).await.ok()?;
                let response = if subject.starts_with("$JS") {
                    responses.stream.as_ref()?.to_string()
                } else {
                    responses.acknowledgement.clone()?
                };
                match response.len() {
                    0 => format!("HMSG {reply} {subscription} 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"),
                    bytes => format!("MSG {reply} {subscription} {bytes}\r\n{response}\r\n"),
                }
            }
            _ => continue,
        };
        connection.write_all(response.as_bytes()).await.ok()?;
    }
}

/// Publishes a message twice to a server with these responses. Returns the results, and the number of connections.
async fn publish(responses: Responses) -> ([Result<(), ArchiveError>; 2], usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}/COOKIES", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let _server = JoinSet::from_iter([async move {
        let mut serving = JoinSet::new();
        while let Ok((connection, _)) = listener.accept().await {
            count.fetch_add(1, Relaxed);
            serving.spawn(serve(connection, responses.clone()));
        }
    }]);
    let mut errors = ConfigErrors::default();
    let nats = Nats::check(&mut errors, &url, &NatsTlsArgs::default(), 1 << 10);
    let mut nats = nats.unwrap();
    let message = Message {
        subject: "cookies.a.1".to_owned(),
        id: "1".to_owned(),
        payload: Bytes::from_static(b"payload"),
    };
    let results = [nats.publish(&message).await, nats.publish(&message).await];
    (results, connections.load(Relaxed))
}

fn unavailable(error: &str) -> Result<(), ArchiveError> {
    Err(ArchiveError::Unavailable(error.to_owned()))
}

#[tokio::test]
async fn acknowledged_messages_share_a_connection() {
    let responses = Responses {
        stream: Some(stream()),
        acknowledgement: Some(r#"{"stream":"COOKIES","seq":1}"#.to_owned()),
    };
    assert_eq!(publish(responses).await, ([Ok(()), Ok(())], 1));
}

#[tokio::test]
async fn stream_without_a_leader_is_unavailable() {
    let responses = Responses {
        stream: Some(stream()),
        acknowledgement: Some(String::new()),
    };
    let error = "cannot publish to NATS: no stream found for given subject";
    let expected = [unavailable(error), unavailable(error)];
    assert_eq!(publish(responses).await.0, expected);
}

#[tokio::test]
async fn missing_stream_is_refused_but_not_a_temporary_error() {
    let publish_to = async |code: u16, error_code: u16| {
        let error = json!({"code": code, "err_code": error_code, "description": "reason"});
        let stream = Some(json!({ "error": error }));
        let ([result, _], _) = publish(Responses {
            stream,
            acknowledgement: None,
        })
        .await;
        result.unwrap_err()
    };
    assert!(matches!(publish_to(404, 10059).await, Refused(_)));
    assert!(matches!(
        publish_to(503, 10008).await,
        ArchiveError::Unavailable(_)
    ));
}

#[tokio::test]
async fn lost_connection_ends_the_attempt() {
    for stream in [None, Some(stream())] {
        let responses = Responses {
            stream,
            acknowledgement: None,
        };
        let (results, connections) = publish(responses).await;
        let error = unavailable("connection to NATS lost");
        assert_eq!(results, [error.clone(), error]);
        // One more for each attempt, before its client is dropped.
        assert!(connections <= 8, "{connections} connections");
    }
}
