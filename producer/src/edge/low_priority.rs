//! Threads of low priority, for connections whose requests are almost all rejected. While all cores are busy, the kernel preempts
//! them for other requests.
//!
//! A load balancer may send requests of several clients over one connection. There are as many of these threads as cores, so that a
//! connection with few valid requests still gets all the time that nobody else needs.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use tokio::runtime::{self, Runtime};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// Added to the niceness of the process. The kernel then gives the threads 1/68 of the time of a thread of niceness 0, and all time
/// that no other thread needs. With 10 (1/9), the median latency of other requests was 2.7 times as high.
const NICENESS: i32 = 19;

/// Number of requests of a connection after which its priority can change.
const WINDOW_REQUESTS: u64 = 1024;

/// The threads of one edge, which are started for the first connection of low priority. `None` if that failed.
#[derive(Debug)]
pub(super) struct LowPriorityThreads {
    threads: OnceLock<Option<Runtime>>,
    tasks: TaskTracker,
}

impl LowPriorityThreads {
    /// Runs connections in these tasks.
    pub(super) fn new(tasks: TaskTracker) -> Self {
        let threads = OnceLock::new();
        Self { threads, tasks }
    }

    /// Runs a connection to its end, on these threads while `is_low` is set.
    pub(super) async fn run(
        &self,
        connection: impl Future<Output = ()> + Send + 'static,
        is_low: Arc<AtomicBool>,
    ) {
        let mut connection = Box::pin(connection);
        while let Some(lowered) = run_while(connection, Arc::clone(&is_low), false).await {
            let Some(threads) = self.threads.get_or_init(start) else {
                return lowered.await;
            };
            let running = run_while(lowered, Arc::clone(&is_low), true);
            let running = threads.spawn(self.tasks.track_future(running));
            match AbortOnDropHandle::new(running).await {
                Ok(Some(raised)) => connection = raised,
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl Drop for LowPriorityThreads {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take().flatten() {
            threads.shutdown_background();
        }
    }
}

fn start() -> Option<Runtime> {
    let mut builder = runtime::Builder::new_multi_thread();
    builder.thread_name("low-priority").enable_time();
    builder.on_thread_start(|| {
        // On Linux, this applies to the calling thread only.
        if let Err(error) = rustix::process::nice(NICENESS) {
            tracing::warn!(%error, "failed to lower the priority of a thread");
        }
    });
    let started = builder.build();
    started
        .inspect_err(|error| tracing::warn!(%error, "failed to start threads of low priority"))
        .ok()
}

/// Runs a connection while its priority remains the same; returns it if it has not ended then.
async fn run_while<F: Future<Output = ()>>(
    mut connection: Pin<Box<F>>,
    is_low: Arc<AtomicBool>,
    low: bool,
) -> Option<Pin<Box<F>>> {
    let ended = poll_fn(|context| match connection.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending if is_low.load(Ordering::Relaxed) != low => Poll::Ready(false),
        Poll::Pending => Poll::Pending,
    });
    (!ended.await).then_some(connection)
}

/// Counts the requests of one connection, and decides about its priority.
#[derive(Debug, Default)]
pub(super) struct RejectedShare {
    requests: u64,
    rejected: u64,
    /// Whether at most one in sixteen requests of the last window was not rejected.
    pub(super) is_low: Arc<AtomicBool>,
}

impl RejectedShare {
    pub(super) fn add(&mut self, requests: u64, rejected: u64) {
        self.requests += requests;
        self.rejected += rejected;
        if self.requests >= WINDOW_REQUESTS {
            let is_low = 16 * self.rejected >= 15 * self.requests;
            self.is_low.store(is_low, Ordering::Relaxed);
            (self.requests, self.rejected) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use rustix::process::getpriority_process;
    use tokio::{sync::oneshot, task::yield_now, time::timeout};

    use super::*;

    #[tokio::test]
    async fn connection_changes_threads_with_its_share_of_rejected_requests() {
        let mut share = RejectedShare::default();
        let is_low = Arc::clone(&share.is_low);
        let (report, ended) = oneshot::channel();
        let connection = async move {
            let mut threads = Vec::new();
            for accepted in [
                WINDOW_REQUESTS,
                WINDOW_REQUESTS / 16,
                WINDOW_REQUESTS / 16 + 1,
            ] {
                share.add(WINDOW_REQUESTS, WINDOW_REQUESTS - accepted);
                yield_now().await;
                let is_low = thread::current().name() == Some("low-priority");
                threads.push((is_low, getpriority_process(None).unwrap()));
            }
            report.send(threads).unwrap();
        };
        let tasks = TaskTracker::new();
        LowPriorityThreads::new(tasks.clone())
            .run(connection, is_low)
            .await;
        let niceness = getpriority_process(None).unwrap();
        let lowered = (niceness + NICENESS).min(19);
        let expected = [(false, niceness), (true, lowered), (false, niceness)];
        assert_eq!(ended.await.unwrap(), expected);
    }

    #[tokio::test]
    async fn dropped_connection_of_low_priority_ends() {
        let is_low = Arc::new(AtomicBool::new(true));
        let (started, running) = oneshot::channel();
        let tasks = TaskTracker::new();
        let tracked = tasks.clone();
        let connection = async move {
            yield_now().await;
            started.send(tracked.len()).unwrap();
            std::future::pending::<()>().await;
        };
        let threads = LowPriorityThreads::new(tasks.clone());
        tokio::select! {
            () = threads.run(connection, is_low) => unreachable!("it is pending"),
            started = running => assert_eq!(started.unwrap(), 1),
        }
        tasks.close();
        timeout(Duration::from_secs(60), tasks.wait())
            .await
            .unwrap();
    }
}
