//! Threads of a load. Each runs its connections on its own runtime. Threads share no state.

use std::{cell::RefCell, io, net, rc::Rc, time::Duration};

use anyhow::{Context, Result};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    net::TcpStream,
    runtime::{Builder, LocalOptions, LocalRuntime},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::{Connection, connect},
    history::History,
    pacer::Pacer,
    plan::{Plan, Task},
    recorder::Recorder,
    session::Session,
};

/// Connections that are opened concurrently.
const OPENING_MAX: usize = 64;

/// How long to wait for responses after the last request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Running threads.
pub(super) type Threads = JoinSet<Result<ThreadResult>>;

/// Results of a thread, and the histories of its connections.
pub(super) type ThreadResult = (Recorder, Vec<History>);

/// An open connection that is not assigned to a thread yet.
pub(super) type OpenConnection = (Task, net::TcpStream);

/// Opens all connections.
///
/// # Errors
/// A host cannot be resolved, or a connection cannot be opened.
pub(super) async fn open(plan: &Plan) -> Result<Vec<OpenConnection>> {
    let tasks = plan.tasks().await?;
    let opening = tasks.into_iter().map(async |task| {
        let stream = connect(task.address).await.and_then(TcpStream::into_std);
        let stream = stream.with_context(|| {
            let (address, connection) = (task.address, task.connection + 1);
            format!("failed to connect to {address} (connection {connection})")
        })?;
        Ok((task, stream))
    });
    let opened = stream::iter(opening).buffered(OPENING_MAX);
    opened.try_collect().await
}

/// Starts the threads.
pub(super) fn spawn(
    plan: &Plan,
    opened: Vec<OpenConnection>,
    started: Instant,
    stop: &CancellationToken,
) -> Threads {
    let threads = plan.threads.min(plan.connections).get();
    let mut shares: Vec<_> = (0..threads).map(|_| Vec::new()).collect();
    for (index, opened) in opened.into_iter().enumerate() {
        shares[index % threads].push(opened);
    }
    let mut running = JoinSet::new();
    for opened in shares {
        let (stop, rate) = (stop.clone(), plan.rate);
        running.spawn_blocking(move || {
            runtime()?.block_on(async {
                let pacer = Pacer::new(started, rate)?;
                run(opened, started, pacer, stop).await
            })
        });
    }
    running
}

fn runtime() -> io::Result<LocalRuntime> {
    // Yielding before parking lets more responses arrive, so that one wake-up serves several connections. On two cores shared
    // with the producer, CPU time fell from 0.85 to 0.47 µs per request, and the rate rose from 740 to 810 k/s.
    Builder::new_current_thread()
        .enable_all()
        .on_thread_park(std::thread::yield_now)
        .build_local(LocalOptions::default())
}

/// Runs the connections to their ends.
async fn run(
    opened: Vec<OpenConnection>,
    started: Instant,
    pacer: Pacer,
    stop: CancellationToken,
) -> Result<ThreadResult> {
    let pacer = Rc::new(pacer);
    let recorder = Rc::new(RefCell::new(Recorder::new(started)));
    let mut running = JoinSet::new();
    for (task, stream) in opened {
        let (stop, stream) = (stop.clone(), TcpStream::from_std(stream)?);
        let session = Session::new(task, started, Rc::clone(&pacer), Rc::clone(&recorder));
        let stream = Some(stream);
        let mut connection = Connection { stream, session };
        running.spawn_local(async move {
            tokio::select! {
                biased;
                () = connection.run() => {}
                () = stop.cancelled() => {}
            }
            connection.finish(RESPONSE_TIMEOUT).await
        });
    }
    let mut histories = Vec::with_capacity(running.len());
    loop {
        tokio::select! {
            connection = running.join_next() => match connection {
                Some(history) => histories.push(history?),
                None => break,
            },
            failed = pacer.run() => match failed? {},
        }
    }
    let recorder = Rc::into_inner(recorder).context("a connection is still using the recorder")?;
    Ok((recorder.into_inner(), histories))
}
