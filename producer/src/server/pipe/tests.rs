//! Tests of response bodies for slow, stalled and disconnected clients.

use std::{
    collections::VecDeque,
    future::pending,
    sync::atomic::{AtomicUsize, Ordering},
};

use h2::Reason;
use http::{Request, Response};
use http_body::Frame;
use runtime::metrics::Registry;
use tokio::{io::DuplexStream, task::JoinSet};

use super::*;
use crate::streams::{
    in_flight::{StreamBudget, SubscriberInFlight},
    subscribers::Call,
};

const FRAME_BYTES: usize = 1_000;
const FRAMES: usize = 20;
/// Two and a half frames.
const WINDOW_BYTES: u32 = 2_500;

/// A body that counts taken frames and polls. It ends after its trailers; without trailers it stays pending.
struct CountingBody {
    frames: VecDeque<Frame<Bytes>>,
    taken: Arc<AtomicUsize>,
    polls: Arc<AtomicUsize>,
}

impl CountingBody {
    /// The body, and its counters of frames and polls.
    fn body(
        frames: VecDeque<Frame<Bytes>>,
    ) -> (tonic::body::Body, Arc<AtomicUsize>, Arc<AtomicUsize>) {
        let (taken, polls) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let body = tonic::body::Body::new(Self {
            frames,
            taken: Arc::clone(&taken),
            polls: Arc::clone(&polls),
        });
        (body, taken, polls)
    }
}

fn in_flight() -> Arc<InFlight> {
    let budget = StreamBudget::register(&Registry::new(), u64::MAX).unwrap();
    budget.open(&Arc::new(SubscriberInFlight::new(Call::Subscribe, "a")))
}

impl Body for CountingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let Some(frame) = self.frames.pop_front() else {
            return Poll::Pending;
        };
        self.taken.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(frame)))
    }
}

struct Scene {
    taken: Arc<AtomicUsize>,
    polls: Arc<AtomicUsize>,
    in_flight: Arc<InFlight>,
    /// The response at the client.
    response: h2::RecvStream,
    /// Both ends of the connection.
    tasks: JoinSet<()>,
}

impl Scene {
    /// A response of [`FRAMES`] to a client that grants [`WINDOW_BYTES`] and reads nothing yet.
    async fn begin() -> Self {
        let mut frames: VecDeque<_> = (0..FRAMES)
            .map(|number| Frame::data(vec![u8::try_from(number).unwrap(); FRAME_BYTES].into()))
            .collect();
        frames.push_back(Frame::trailers(HeaderMap::new()));
        Self::with(frames).await
    }

    /// Like [`begin`](Self::begin), with these frames.
    async fn with(frames: VecDeque<Frame<Bytes>>) -> Self {
        let (body, taken, polls) = CountingBody::body(frames);
        let in_flight = in_flight();
        let (client, server) = tokio::io::duplex(1 << 20);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(server, body, Arc::clone(&in_flight)));
        let (mut calls, connection) = h2::client::Builder::new()
            .initial_window_size(WINDOW_BYTES)
            .handshake::<_, Bytes>(client)
            .await
            .unwrap();
        tasks.spawn(async move {
            connection.await.unwrap();
        });
        let request = Request::get("http://test/").body(()).unwrap();
        let (response, _) = calls.send_request(request, true).unwrap();
        let response = response.await.unwrap().into_body();
        let scene = Self {
            taken,
            polls,
            in_flight,
            response,
            tasks,
        };
        settle().await;
        scene
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// Responds to one call, then serves the connection until the client closes it.
async fn serve(stream: DuplexStream, body: tonic::body::Body, in_flight: Arc<InFlight>) {
    let mut connection = h2::server::Builder::new()
        .handshake::<_, Data>(stream)
        .await
        .unwrap();
    let (_, mut respond) = connection.accept().await.unwrap().unwrap();
    let out = respond.send_response(Response::new(()), false).unwrap();
    let mut running = std::pin::pin!(async {
        let disconnect = in_flight.disconnect().clone();
        let (_, mut sent) = Pipe::new(body, out, Some(in_flight), pending()).run().await;
        disconnect.cancelled().await;
        sent.send_reset(Reason::ENHANCE_YOUR_CALM);
        pending::<()>().await;
    });
    loop {
        tokio::select! {
            () = &mut running => {}
            call = connection.accept() => if call.is_none() {
                return;
            },
        }
    }
}

/// Lets the other tasks of this thread run until they all wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_frame_is_taken_before_capacity_and_counts_in_full() {
    let mut scene = Scene::begin().await;
    // Half of the third frame is sent, but it counts in full; the fourth waits for capacity.
    assert_eq!(
        (scene.taken(), scene.in_flight.bytes()),
        (4, 2 * FRAME_BYTES as u64)
    );
    let mut read = Vec::new();
    while let Some(data) = scene.response.data().await {
        let data = data.unwrap();
        let flow = scene.response.flow_control();
        flow.release_capacity(data.len()).unwrap();
        read.extend(data);
    }
    assert!(scene.response.trailers().await.unwrap().is_some());
    let numbers = (0..FRAMES).flat_map(|number| [number; FRAME_BYTES]);
    assert!(read.into_iter().map(usize::from).eq(numbers));
    assert_eq!((scene.taken(), scene.in_flight.bytes()), (FRAMES + 1, 0));
}

#[tokio::test]
async fn stalled_stream_is_reset_and_releases_its_bytes() {
    let mut scene = Scene::begin().await;
    scene.in_flight.disconnect().cancel();
    scene.in_flight.released().await;
    assert_eq!((scene.taken(), scene.in_flight.bytes()), (4, 0));
    let mut bytes = 0;
    let error = loop {
        match scene.response.data().await {
            Some(Ok(data)) => bytes += data.len(),
            Some(Err(error)) => break error,
            None => panic!("the response ended without an error"),
        }
    };
    // Data sent before the reset arrives.
    assert_eq!(bytes, WINDOW_BYTES as usize);
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn ended_stream_with_unwritten_bytes_can_be_disconnected() {
    let (client, server) = tokio::io::duplex(1 << 20);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut calls, connection) = h2::client::handshake(client).await.unwrap();
        let request = Request::get("http://test/").body(()).unwrap();
        let _response = calls.send_request(request, true).unwrap();
        connection.await.unwrap();
    });
    let mut connection = h2::server::Builder::new()
        .handshake::<_, Data>(server)
        .await
        .unwrap();
    let (_, mut respond) = connection.accept().await.unwrap().unwrap();
    let out = respond.send_response(Response::new(()), false).unwrap();
    let frames = [
        Frame::data(vec![1; FRAME_BYTES].into()),
        Frame::trailers(HeaderMap::new()),
    ];
    let (body, _, _) = CountingBody::body(frames.into());
    let in_flight = in_flight();
    // Nothing is written, because the connection is not polled.
    let (ended, mut sent) = Pipe::new(body, out, Some(Arc::clone(&in_flight)), pending())
        .run()
        .await;
    assert_eq!(
        (ended, in_flight.bytes()),
        (PipeEnd::Ended, FRAME_BYTES as u64)
    );
    sent.send_reset(Reason::ENHANCE_YOUR_CALM);
    in_flight.released().await;
}

#[tokio::test]
async fn stalled_stream_detects_a_disconnected_client() {
    let mut scene = Scene::begin().await;
    drop(scene.response);
    settle().await;
    assert_eq!(
        (scene.taken.load(Ordering::Relaxed), scene.in_flight.bytes()),
        (4, 0)
    );
    scene.tasks.shutdown().await;
}

#[tokio::test]
async fn stream_without_data_is_not_polled() {
    let scene = Scene::with([Frame::data(vec![1; 10].into())].into()).await;
    let polls = scene.polls.load(Ordering::Relaxed);
    settle().await;
    assert_eq!(scene.taken(), 1);
    assert_eq!(
        scene.polls.load(Ordering::Relaxed),
        polls,
        "the stream was polled"
    );
}

#[tokio::test]
async fn stream_without_data_reserves_none_of_the_shared_window() {
    const CONNECTION_WINDOW: usize = 65_535;
    let (client, server) = tokio::io::duplex(1 << 20);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connection = h2::server::Builder::new()
            .handshake::<_, Data>(server)
            .await
            .unwrap();
        let mut pipes = JoinSet::new();
        let many = (0..100).map(|_| Frame::data(vec![0; FRAME_BYTES].into()));
        for frames in [VecDeque::new(), many.collect()] {
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let out = respond.send_response(Response::new(()), false).unwrap();
            let (body, _, _) = CountingBody::body(frames);
            pipes.spawn(Pipe::new(body, out, None, pending()).run());
            // The first stream runs before the second one begins.
            settle().await;
        }
        while connection.accept().await.is_some() {}
    });
    let (mut calls, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .handshake::<_, Bytes>(client)
        .await
        .unwrap();
    tasks.spawn(async move { connection.await.unwrap() });
    let mut call = || {
        let request = Request::get("http://test/").body(()).unwrap();
        calls.send_request(request, true).unwrap().0
    };
    let (idle, busy) = (call(), call());
    let (_idle, mut busy) = (idle.await.unwrap(), busy.await.unwrap().into_body());
    // A client that extends its window only when it is used up would wait forever for the last byte.
    let mut received = 0;
    let read = async {
        while received < CONNECTION_WINDOW {
            received += busy.data().await.unwrap().unwrap().len();
        }
    };
    let all = tokio::time::timeout(std::time::Duration::from_secs(10), read).await;
    assert!(all.is_ok(), "{received} bytes");
}
