//! A connection that is kept, and left alone for a while when there are no answers: a circuit breaker.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{Address, Link, ServerError};

/// How many calls may go unanswered before the server is left alone.
const MISSED_MAX: u32 = 3;

/// For how long it is.
const OPEN_FOR: Duration = Duration::from_secs(1);

/// The connection for exact limits, while there is one.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    link: watch::Sender<Option<Link>>,
    missed: AtomicU32,
    /// What the last connection ended with.
    lost: Mutex<Option<ServerError>>,
}

impl Breaker {
    /// Keeps a connection, for as long as it is waited for, to a server that answers within the budget.
    pub(crate) async fn run(
        &self,
        server: &Address,
        script: &'static str,
        group: &str,
        budget: Duration,
    ) {
        let mut is_told = false;
        loop {
            let error = match open(server, script, group, budget).await {
                Ok(link) => {
                    tracing::info!(%server, "sharing server available");
                    is_told = false;
                    let opened = Instant::now();
                    self.missed.store(0, Ordering::Relaxed);
                    self.link.send_replace(Some(link));
                    let error = self.lost().await;
                    // Not again and again: two nodes may each take the other for the one.
                    if matches!(error, ServerError::Moved) && opened.elapsed() >= OPEN_FOR {
                        continue;
                    }
                    error
                }
                Err(error) => error,
            };
            if !is_told {
                is_told = true;
                tracing::warn!(%server, %error, "sharing server unavailable");
            }
            sleep(OPEN_FOR).await;
        }
    }

    /// None while the server is left alone, or there is none.
    pub(crate) fn link(&self) -> Option<Link> {
        self.link.borrow().clone()
    }

    /// An answer came.
    pub(crate) fn heard(&self) {
        self.missed.store(0, Ordering::Relaxed);
    }

    /// One did not, and no other meanwhile. Of a connection that is over already this says nothing.
    pub(crate) fn missed(&self, link: &Link, error: ServerError) {
        self.link.send_if_modified(|current| {
            if !current.as_ref().is_some_and(|it| it.is(link)) {
                return false;
            }
            let missed = 1 + self.missed.fetch_add(1, Ordering::Relaxed);
            let is_over = missed >= MISSED_MAX || !error.may_be_of_call();
            if is_over {
                *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                *current = None;
            }
            is_over
        });
    }

    /// Why the connection is over, as soon as it is.
    async fn lost(&self) -> ServerError {
        let mut link = self.link.subscribe();
        drop(link.wait_for(Option::is_none).await);
        let lost = self
            .lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        lost.expect("it is set with the end")
    }
}

/// Each call to a server that answers later would be counted, and lost.
async fn open(
    server: &Address,
    script: &'static str,
    group: &str,
    budget: Duration,
) -> Result<Link, ServerError> {
    let link = Link::open(server, script, group, OPEN_FOR).await?;
    match timeout(budget, link.other_node_of(group)).await {
        Ok(Ok(None)) => Ok(link),
        Ok(Ok(Some(_))) => Err(ServerError::Moved),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(ServerError::Timeout(budget)),
    }
}
