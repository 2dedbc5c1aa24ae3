//! The threads of a load. Each runs its share of the connections on a runtime of its own and hands in what it saw once a
//! second; while they run, no two of them share anything.

use std::{cell::RefCell, io, net, rc::Rc, time::Duration};

use anyhow::{Context, Result};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    net::TcpStream,
    runtime::{Builder, LocalOptions, LocalRuntime},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::{Connection, connect},
    history::History,
    plan::{Plan, Task},
    recorder::{Interval, Recorder},
    thread_time::{CpuShares, ThreadTime},
};

/// Connections that are opened at once.
const OPENING_MAX: usize = 64;

/// How long answers are waited for after the last request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Parts of seconds that wait to be put together, for each thread.
const INTERVALS_QUEUED_MAX: usize = 4;

/// The threads, from their first request to their last answer.
pub(super) struct Threads {
    workers: JoinSet<Result<ThreadResult>>,
    /// What they saw, each second by second; the number says which of them.
    pub(super) intervals: mpsc::Receiver<(usize, Box<Interval>)>,
}

/// What a thread tells at its end: how busy it was while it sent, as far as that is known, and of its connections.
pub(super) type ThreadResult = (Option<CpuShares>, Vec<History>);

/// A connection before any thread has it.
pub(super) type OpenConnection = (Task, net::TcpStream);

/// What a thread is given.
struct Worker {
    thread: usize,
    opened: Vec<OpenConnection>,
    started: Instant,
    intervals: mpsc::Sender<(usize, Box<Interval>)>,
    stop: CancellationToken,
}

/// Opens all connections.
///
/// # Errors
/// When one cannot be opened, or there is nowhere to connect to.
pub(super) async fn open(plan: &Plan) -> Result<Vec<OpenConnection>> {
    let tasks = plan.tasks().await?;
    let opening = tasks.into_iter().map(async |task| {
        let stream = connect(task.address).await.and_then(TcpStream::into_std);
        let stream = stream.with_context(|| {
            let (address, connection) = (task.address, task.connection + 1);
            format!("cannot connect to {address} (connection {connection})")
        })?;
        Ok((task, stream))
    });
    let opened = stream::iter(opening).buffered(OPENING_MAX);
    opened.try_collect().await
}

impl Threads {
    /// Starts them; they send from now on.
    pub(super) fn spawn(
        plan: &Plan,
        opened: Vec<OpenConnection>,
        started: Instant,
        stop: &CancellationToken,
    ) -> Self {
        let threads = plan.threads_used();
        let (parts_tx, intervals) = mpsc::channel(INTERVALS_QUEUED_MAX * threads);
        let mut shares: Vec<_> = (0..threads).map(|_| Vec::new()).collect();
        for (index, opened) in opened.into_iter().enumerate() {
            shares[index % threads].push(opened);
        }
        let mut workers = JoinSet::new();
        for (thread, opened) in shares.into_iter().enumerate() {
            let worker = Worker {
                thread,
                opened,
                started,
                intervals: parts_tx.clone(),
                stop: stop.clone(),
            };
            workers.spawn_blocking(move || runtime()?.block_on(worker.run()));
        }
        Self { workers, intervals }
    }

    /// The result of one that has ended; `None` when there is no more.
    pub(super) async fn join_next(&mut self) -> Option<Result<ThreadResult>> {
        let joined = self.workers.join_next().await?;
        Some(joined.map_err(Into::into).flatten())
    }
}

fn runtime() -> io::Result<LocalRuntime> {
    // Giving the processor away before waiting lets more answers arrive, so that one wake-up serves
    // several connections: 0.85 → 0.47 µs of CPU a request here, and 740 → 810 k/s, on two cores
    // shared with the producer.
    Builder::new_current_thread()
        .enable_all()
        .on_thread_park(std::thread::yield_now)
        .build_local(LocalOptions::default())
}

impl Worker {
    /// Runs the connections to their ends, and meanwhile hands in each second.
    async fn run(self) -> Result<ThreadResult> {
        let time = ThreadTime::now();
        let recorder = Rc::new(RefCell::new(Recorder::new(self.started)));
        let mut running = JoinSet::new();
        for (task, stream) in self.opened {
            let (stop, stream) = (self.stop.clone(), TcpStream::from_std(stream)?);
            let mut connection = Connection::new(task, stream, self.started, Rc::clone(&recorder));
            running.spawn_local(async move {
                tokio::select! {
                    biased;
                    () = connection.run() => {}
                    () = stop.cancelled() => {}
                }
                connection.finish(ANSWER_TIMEOUT).await
            });
        }
        let mut histories = Vec::with_capacity(running.len());
        let mut seconds = (1..).map(|second| self.started + Duration::from_secs(second));
        let mut next = seconds.next().unwrap_or(self.started);
        // After the end of the sending, how busy it is tells no longer whether it could have sent more.
        let shares = || time.as_ref().and_then(ThreadTime::shares);
        let mut sending = None;
        loop {
            tokio::select! {
                connection = running.join_next() => match connection {
                    Some(history) => histories.push(history?),
                    None => break,
                },
                () = self.stop.cancelled(), if sending.is_none() => sending = Some(shares()),
                () = sleep_until(next) => {
                    next = seconds.next().unwrap_or(next);
                    let finished = {
                        let mut recorder = recorder.borrow_mut();
                        let now = recorder.now_nanos();
                        recorder.roll(now);
                        recorder.take_finished()
                    };
                    for part in finished {
                        self.intervals.send((self.thread, Box::new(part))).await?;
                    }
                }
            }
        }
        let recorder = Rc::into_inner(recorder).context("a connection outlived its end")?;
        let recorder = recorder.into_inner();
        let now = recorder.now_nanos();
        for part in recorder.finish(now) {
            self.intervals.send((self.thread, Box::new(part))).await?;
        }
        Ok((sending.unwrap_or_else(shares), histories))
    }
}
