//! Tests of streams against a model with the cookies of each epoch and each subscriber's next expected sequence number.
//!
//! Each call is tested from the bytes of its request to the bytes of its response, but without a connection.

mod client;

use std::{path::Path, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use prost::Message;
use proto::{
    units::{DspId, Epoch, Sequence},
    v1::{self, event::Event},
    wire::CookieRef,
};
use runtime::metrics::Registry;
use tonic::{Code, Status, body::Body};
use tower::Service;

use self::client::{CallKind, Client};
use super::{Refusals, StreamService, Streams};
use crate::{
    epoch_history,
    log::{
        self, AppendBatch, Log,
        tests::{now, seal},
    },
    streams::{
        Config, in_flight::StreamBudget, subscribers::Subscribers, times_to_live::TimesToLive,
    },
};

/// Bounds of the log and the subscribers.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    log_bytes_max: usize,
    queue_cookies_max: u64,
    rewind_bytes: usize,
}

/// One epoch of the producer, and the cookies appended in it.
struct Producer {
    epoch: u64,
    log: Log,
    service: StreamService,
    subscribers: Subscribers,
    times_to_live: TimesToLive,
    bounds: Bounds,
    /// Users and buyers by sequence number, from 1.
    appended: Vec<(String, String)>,
}

impl Producer {
    fn new(epoch: u64, bounds: Bounds) -> Self {
        let log = Log::new(log::Config {
            epoch: Epoch(epoch),
            bytes_max: bounds.log_bytes_max,
            chunk_bytes: 4096,
            chunk_age: Duration::from_secs(3600),
            idle_after: Duration::from_secs(3600),
        });
        let subscribers = Subscribers::new(Duration::from_secs(3600), 100);
        let registry = Registry::new();
        let (epoch_history, _) =
            epoch_history::begin(Path::new("/none"), "producer", Epoch(epoch), &registry).unwrap();
        let times_to_live = TimesToLive::default();
        let config = Config {
            log: log.clone(),
            subscribers: subscribers.clone(),
            budget: StreamBudget::register(&registry, u64::MAX).unwrap(),
            producer_id: "producer".to_owned(),
            queue_cookies_max: bounds.queue_cookies_max,
            rewind_bytes: bounds.rewind_bytes,
            epoch_history,
            times_to_live: times_to_live.clone(),
        };
        Self {
            epoch,
            service: StreamService::new(
                Streams::new(config),
                Refusals::register(&registry).unwrap(),
            ),
            subscribers,
            times_to_live,
            log,
            bounds,
            appended: Vec::new(),
        }
    }

    fn append(&mut self, cookies: usize, buyer_bytes: usize) {
        let mut batch = AppendBatch::default();
        for _ in 0..cookies {
            let sequence = self.appended.len() + 1;
            let user_id = format!("{}-{sequence}", self.epoch);
            let buyer_uid = "b".repeat((sequence + buyer_bytes) % 250 + 1);
            batch.push(&CookieRef {
                user_id: &user_id,
                dsp_id: DspId(7),
                buyer_uid: &buyer_uid,
                age_micros: 0,
            });
            self.appended.push((user_id, buyer_uid));
            if batch.is_full() {
                self.log.append(&mut batch).unwrap();
            }
        }
        self.log.append(&mut batch).unwrap();
    }

    /// Makes a call; returns the body of its response, or its error.
    fn call(&self, call: &str, message: &impl Message) -> Result<Body, Status> {
        let mut framed = BytesMut::new();
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.encoded_len()).unwrap());
        message.encode(&mut framed).unwrap();
        let response = self.send(call, framed.freeze());
        match Status::from_header_map(response.headers()) {
            Some(status) => Err(status),
            None => Ok(response.into_body()),
        }
    }

    /// Makes a call with this request body.
    fn send(&self, call: &str, body: Bytes) -> Response<Body> {
        let request = Request::post(format!("/cookiesync.v1.CookieStreamer/{call}"));
        let request = request.body(Body::new(Full::new(body))).unwrap();
        let response = now(self.service.clone().call(request));
        response.expect("the request is complete").unwrap()
    }
}

/// Calls need a runtime for their timeouts.
fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap()
}

#[derive(Debug, Clone)]
enum Action {
    Append {
        cookies: usize,
        buyer_bytes: usize,
    },
    Seal,
    /// Reads up to this many frames.
    Sample {
        client: usize,
        frames: usize,
    },
    /// Closes the stream.
    Leave {
        client: usize,
    },
    /// Opens a stream, perhaps while the previous one is still open.
    Join {
        client: usize,
        with_cursor: bool,
        oldest: bool,
    },
    /// Connects with a cursor beyond the log.
    JoinBeyondLog {
        client: usize,
    },
    /// Kills the producer and starts a new epoch.
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    let client = || 0..4_usize;
    prop_oneof![
        6 => (1..60_usize, 0..250_usize)
            .prop_map(|(cookies, buyer_bytes)| Action::Append { cookies, buyer_bytes }),
        3 => Just(Action::Seal),
        8 => (client(), 1..6_usize).prop_map(|(client, frames)| Action::Sample { client, frames }),
        2 => client().prop_map(|client| Action::Leave { client }),
        4 => (client(), any::<bool>(), any::<bool>())
            .prop_map(|(client, with_cursor, oldest)| Action::Join { client, with_cursor, oldest }),
        1 => client().prop_map(|client| Action::JoinBeyondLog { client }),
        1 => Just(Action::Restart),
    ]
}

fn run(actions: &[Action], bounds: Bounds) {
    let runtime = runtime();
    let _entered = runtime.enter();
    let mut producer = Producer::new(1, bounds);
    let mut clients = [
        Client::new("a", CallKind::Events),
        Client::new("b", CallKind::Events),
        Client::new("a", CallKind::Cookies),
        Client::new("c", CallKind::Cookies),
    ];
    for action in actions {
        match *action {
            Action::Append {
                cookies,
                buyer_bytes,
            } => producer.append(cookies, buyer_bytes),
            Action::Seal => seal(&producer.log),
            Action::Sample { client, frames } => clients[client].read(&producer, frames),
            Action::Leave { client } => clients[client].leave(),
            Action::Join {
                client,
                with_cursor,
                oldest,
            } => clients[client].join(&producer, with_cursor, oldest),
            Action::JoinBeyondLog { client } => clients[client].join_beyond_log(&producer),
            Action::Restart => {
                producer = Producer::new(producer.epoch + 1, bounds);
                clients.iter_mut().for_each(Client::producer_restarted);
            }
        }
    }
    producer.log.close();
    for client in &mut clients {
        client.read_to_the_end(&producer);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn each_subscriber_receives_every_sequence_once_or_an_exact_gap(
        actions in prop::collection::vec(action(), 1..80),
        log_bytes_max in 1_usize..80_000,
        queue_cookies_max in prop_oneof![1_u64..400, Just(u64::MAX)],
        rewind_bytes in prop_oneof![Just(0_usize), 1..20_000_usize],
    ) {
        run(&actions, Bounds { log_bytes_max, queue_cookies_max, rewind_bytes });
    }
}

#[test]
fn redelivery_without_a_cursor_within_the_maximum_lag_loses_nothing() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let bounds = Bounds {
        log_bytes_max: 1 << 20,
        queue_cookies_max: 100,
        rewind_bytes: 1 << 20,
    };
    for kind in [CallKind::Events, CallKind::Cookies] {
        let mut producer = Producer::new(1, bounds);
        let mut client = Client::new("a", kind);
        client.join(&producer, false, true);
        for _ in 0..10 {
            producer.append(90, 0);
            seal(&producer.log);
            client.read(&producer, 100);
        }
        // Reconnect twice, the second time without having read anything.
        for _ in 0..2 {
            client.leave();
            client.join(&producer, false, true);
        }
        client.read(&producer, 100);
        let totals = producer.subscribers.snapshot()[0].totals;
        assert_eq!(
            (totals.delivered, totals.redelivered),
            (900, 900),
            "{kind:?}"
        );
        assert_eq!((totals.lost_lag_limit, totals.undelivered), (0, 0));
    }
}

#[test]
fn call_with_an_incomplete_or_missing_message_is_rejected() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let producer = small_producer();
    for invalid in [&b""[..], b"\0\0\0\0\x02\x0a\x05", b"\0\0\0\0\x02\x0b\x0b"] {
        let response = producer.send("Subscribe", Bytes::from_static(invalid));
        let status = Status::from_header_map(response.headers()).expect("rejected");
        assert_eq!(status.code(), Code::InvalidArgument, "{invalid:?} {status}");
    }
    // Compressed messages are rejected with the accepted encoding.
    let response = producer.send("Subscribe", Bytes::from_static(b"\x01\0\0\0\x01g"));
    let status = Status::from_header_map(response.headers()).expect("rejected");
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(response.headers()["grpc-accept-encoding"], "identity");
    let empty = v1::SubscribeRequest::default();
    let status = producer.call("Subscribe", &empty).expect_err("rejected");
    assert_eq!(status.code(), Code::InvalidArgument);
}

fn small_producer() -> Producer {
    Producer::new(
        1,
        Bounds {
            log_bytes_max: 1,
            queue_cookies_max: 1,
            rewind_bytes: 0,
        },
    )
}

#[test]
fn confirmation_needs_an_open_stream_and_a_position_in_the_log() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let mut producer = small_producer();
    producer.append(3, 0);
    seal(&producer.log);
    let confirm = |name: &str, durable: Option<(&str, u64, u64)>, applied_sequence| {
        let durable = durable.map(|(producer_id, epoch, sequence)| v1::Cursor {
            producer_id: producer_id.to_owned(),
            epoch,
            sequence,
        });
        let request = v1::ConfirmRequest {
            subscriber: name.to_owned(),
            durable,
            applied_sequence,
        };
        let response = producer.call("Confirm", &request);
        response.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    let valid = Some(("producer", 1, 3));
    assert_eq!(confirm("a", valid, 2), Code::NotFound);
    let request = v1::SubscribeRequest {
        subscriber: "a".to_owned(),
        ..v1::SubscribeRequest::default()
    };
    let open = producer.call("Subscribe", &request).unwrap();
    for (name, durable, applied, expected) in [
        ("", valid, 2, Code::InvalidArgument),
        ("b", valid, 2, Code::NotFound),
        ("a", None, 0, Code::InvalidArgument),
        ("a", Some(("other", 1, 3)), 2, Code::FailedPrecondition),
        ("a", Some(("producer", 2, 3)), 2, Code::FailedPrecondition),
        ("a", Some(("producer", 1, 4)), 2, Code::InvalidArgument),
        ("a", valid, 4, Code::InvalidArgument),
    ] {
        assert_eq!(
            confirm(name, durable, applied),
            expected,
            "{name} {durable:?}"
        );
        assert_eq!(producer.subscribers.snapshot()[0].confirmed, None);
    }
    assert_eq!(confirm("a", valid, 2), Code::Ok);
    let confirmed = producer.subscribers.snapshot()[0].confirmed;
    assert_eq!(confirmed, Some([3, 2].map(Sequence)));
    drop(open);
    assert_eq!(confirm("a", valid, 3), Code::NotFound);
}

#[test]
fn open_streams_without_age_support_are_counted() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let producer = small_producer();
    let subscribe = |name: &str, supports_age| {
        let request = v1::SubscribeRequest {
            subscriber: name.to_owned(),
            supports_age,
            ..v1::SubscribeRequest::default()
        };
        producer.call("Subscribe", &request)
    };
    let get_cookies = |name: &str, supports_age| {
        let host = name.to_owned();
        let request = v1::GetCookiesRequest {
            host,
            supports_age,
            deletions: false,
        };
        producer.call("GetCookies", &request)
    };
    let without_age = || {
        let all = producer.subscribers.snapshot().into_iter();
        let without = all.filter(|it| it.connected && !it.supports_age);
        without.map(|it| it.name).collect::<Vec<_>>()
    };
    let new = [subscribe("new", true), get_cookies("new", true)];
    assert!(new.iter().all(Result::is_ok));
    assert_eq!(without_age(), [""; 0]);
    let (old, other) = (subscribe("old", false), get_cookies("other", false));
    assert!(old.is_ok() && other.is_ok());
    assert_eq!(without_age(), ["other", "old"]);
    let upgraded = subscribe("old", true);
    drop(old);
    assert!(upgraded.is_ok());
    assert_eq!(without_age(), ["other"]);
    assert!(subscribe("", false).is_err());
    drop(other);
    assert_eq!(without_age(), [""; 0]);
}

/// `Event` of a client that was generated before it had times to live.
#[derive(Clone, PartialEq, Message)]
struct OldEvent {
    #[prost(message, tag = "1")]
    hello: Option<v1::Hello>,
    #[prost(message, tag = "2")]
    chunk: Option<v1::Chunk>,
    #[prost(message, tag = "3")]
    gap: Option<v1::Gap>,
    #[prost(message, tag = "4")]
    heartbeat: Option<v1::Heartbeat>,
    #[prost(message, tag = "5")]
    goodbye: Option<v1::Goodbye>,
}

/// Reads all events that are ready; an old client finds no event in times to live.
fn ready_events(body: &mut Body) -> Vec<String> {
    let mut events = Vec::new();
    while let Some(frame) = now(body.frame()) {
        let frame = frame.expect("an open stream").unwrap();
        let message = frame.into_data().expect("data").split_off(5);
        let event = v1::Event::decode(message.clone()).unwrap().event;
        events.push(match event.expect("a known event") {
            Event::Hello(_) => "hello".to_owned(),
            Event::Chunk(chunk) => format!("chunk {}", chunk.first_sequence),
            Event::TimesToLive(times) => {
                assert_eq!(OldEvent::decode(message), Ok(OldEvent::default()));
                format!("{:?}", times.dsps.first().map(|dsp| dsp.seconds))
            }
            other => panic!("{other:?}"),
        });
    }
    events
}

#[test]
fn times_to_live_follow_the_hello_and_each_change_without_a_sequence() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let bounds = Bounds {
        log_bytes_max: 1 << 20,
        queue_cookies_max: 100,
        rewind_bytes: 0,
    };
    let mut producer = Producer::new(1, bounds);
    let times_to_live = producer.times_to_live.clone();
    let set = |seconds| {
        let dsp = |seconds| v1::DspTimeToLive { dsp_id: 7, seconds };
        times_to_live.set(v1::TimesToLive {
            dsps: Option::into_iter(seconds).map(dsp).collect(),
            other_seconds: 0,
        });
    };
    let subscribe = |producer: &Producer, subscriber: &str| {
        let request = v1::SubscribeRequest {
            subscriber: subscriber.to_owned(),
            ..v1::SubscribeRequest::default()
        };
        producer.call("Subscribe", &request).unwrap()
    };
    let cookie = |producer: &mut Producer| {
        producer.append(1, 1);
        seal(&producer.log);
    };
    set(None);
    let mut early = subscribe(&producer, "early");
    assert_eq!(ready_events(&mut early), ["hello"]);
    set(Some(60));
    cookie(&mut producer);
    assert_eq!(ready_events(&mut early), ["chunk 1", "Some(60)"]);
    set(Some(60));
    cookie(&mut producer);
    assert_eq!(ready_events(&mut early), ["chunk 2"], "unchanged");

    let mut late = subscribe(&producer, "late");
    assert_eq!(ready_events(&mut late), ["hello", "Some(60)"]);
    set(None);
    cookie(&mut producer);
    for stream in [&mut early, &mut late] {
        assert_eq!(ready_events(stream), ["chunk 3", "None"]);
    }
}
