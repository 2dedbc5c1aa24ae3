//! A circuit breaker: keeps a connection, and pauses requests while the server does not respond.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{Address, Link, ServerError};

/// Number of failures that opens the breaker.
const FAILURES_MAX: u32 = 3;

/// How long the breaker stays open.
const OPEN_FOR: Duration = Duration::from_secs(1);

/// The connection for exact limits.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// The connection; without one, the error that ended the last connection.
    link: watch::Sender<(Option<Link>, String)>,
    failures: AtomicU32,
}

impl Breaker {
    /// Keeps a connection to a server that responds within the budget, until it is cancelled.
    pub(crate) async fn run(
        &self,
        server: &Address,
        script: &'static str,
        group: &str,
        budget: Duration,
    ) {
        let mut is_reported = false;
        loop {
            let error = match open(server, script, group, budget).await {
                Ok(link) => {
                    tracing::info!(%server, "sharing server available");
                    is_reported = false;
                    self.failures.store(0, Ordering::Relaxed);
                    self.link.send_replace((Some(link), String::new()));
                    self.wait_for_failure().await
                }
                Err(error) => error.to_string(),
            };
            if !is_reported {
                is_reported = true;
                tracing::warn!(%server, %error, "sharing server unavailable, retrying");
            }
            sleep(OPEN_FOR).await;
        }
    }

    /// The connection; `None` while the breaker is open.
    pub(crate) fn link(&self) -> Option<Link> {
        self.link.borrow().0.clone()
    }

    /// Records a reply.
    pub(crate) fn record_success(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Records a failed request, if no other call got a reply in the meantime. Ignored if the connection has already ended.
    pub(crate) fn record_failure(&self, link: &Link, error: &ServerError) {
        self.link.send_if_modified(|current| {
            if !current.0.as_ref().is_some_and(|it| it.is(link)) {
                return false;
            }
            let failures = 1 + self.failures.fetch_add(1, Ordering::Relaxed);
            let is_over = failures >= FAILURES_MAX || !error.may_concern_one_call();
            if is_over {
                *current = (None, error.to_string());
            }
            is_over
        });
    }

    /// Waits for the end of the connection and returns its error.
    async fn wait_for_failure(&self) -> String {
        let mut link = self.link.subscribe();
        let ended = link.wait_for(|(link, _)| link.is_none()).await;
        ended.map_or_else(|_| String::new(), |ended| ended.1.clone())
    }
}

/// Connects, and checks that the server responds within the budget. Otherwise calls would be counted although their replies are too late.
async fn open(
    server: &Address,
    script: &'static str,
    group: &str,
    budget: Duration,
) -> Result<Link, ServerError> {
    let link = Link::open(server, script, group, OPEN_FOR).await?;
    let checked = timeout(budget, link.check_writable(group)).await;
    checked.unwrap_or(Err(ServerError::Timeout(budget)))?;
    Ok(link)
}
