//! A consumer process for tests, with functions that wait for results of lookups and for metrics.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    admin,
    http::HttpClient,
    programs::{Process, free_address},
    scrape::{Samples, names},
};
use tokio::time::{Instant, sleep};

use super::{
    Producer, StoreContents, TIMEOUT, ledger::FinalLedgerCheck, owned, programs, wait_until,
};

/// A consumer process on a free port.
pub(crate) struct Consumer {
    /// Dropped before the process.
    _ledger: FinalLedgerCheck,
    pub(crate) process: Process,
    pub(crate) admin: String,
}

/// Cookies received by a consumer that have an outcome.
pub(crate) fn settled(metrics: &Samples) -> u64 {
    let outcomes = [
        names::WRITTEN,
        names::SUPERSEDED,
        names::STALE,
        names::DELETIONS,
        names::DELETED_ON_ARRIVAL,
        names::SUPPRESSED,
        names::FAILED,
    ];
    outcomes.iter().map(|name| metrics.count(name, &[])).sum()
}

impl Consumer {
    /// Starts a consumer of `producers` that writes to `store`, with its log in `dir`, and waits until it is ready.
    pub(crate) async fn start(
        dir: &TempDir,
        name: &str,
        producers: &[&Producer],
        store: &str,
        flags: &[&str],
    ) -> Result<Self> {
        let urls: Vec<_> = producers
            .iter()
            .map(|producer| producer.grpc.as_str())
            .collect();
        let mut consumer = Self::spawn(dir, name, &urls, store, flags).await?;
        consumer.wait_ready().await?;
        Ok(consumer)
    }

    /// Like [`start`](Self::start), without waiting.
    pub(crate) async fn spawn(
        dir: &TempDir,
        name: &str,
        producers: &[&str],
        store: &str,
        flags: &[&str],
    ) -> Result<Self> {
        let admin = free_address()?.to_string();
        let mut args = owned(&["--admin", &admin, "--name", name, "--store", store]);
        for producer in producers {
            args.extend(owned(&["--producer", producer]));
        }
        args.extend(owned(flags));
        let program = &programs().await?.consumer;
        let log = dir.path().join(format!("consumer-{name}.log"));
        let process = Process::start("the consumer", program, &args, &log)?;
        Ok(Self::from_process(process, admin))
    }

    /// The consumer that runs as `process`.
    pub(crate) fn from_process(process: Process, admin: String) -> Self {
        Self {
            _ledger: FinalLedgerCheck {
                admin: admin.clone(),
                log: process.log().to_owned(),
            },
            process,
            admin,
        }
    }

    /// Waits until the consumer is ready after a restart of its process.
    pub(crate) async fn wait_ready(&mut self) -> Result<()> {
        self.process.wait_ready(&self.admin, TIMEOUT).await
    }

    /// Waits until `/readyz` reports that the consumer is not ready, with a reason that contains `reason`.
    pub(crate) async fn wait_not_ready(&self, reason: &str) -> Result<()> {
        let what = format!("{} is not ready because of {reason:?}", self.admin);
        wait_until(TIMEOUT, &what, async || {
            // The port may not be open yet.
            let readiness = admin::readiness(&self.admin).await.ok();
            Ok(readiness
                .is_some_and(|readiness| readiness.is_err_and(|reasons| reasons.contains(reason))))
        })
        .await
    }

    /// Waits until the consumer is ready, and `/readyz` reports a component state that contains `state`.
    pub(crate) async fn wait_ready_with_state(&self, state: &str) -> Result<()> {
        let what = format!("{} is ready with state {state:?}", self.admin);
        wait_until(TIMEOUT, &what, async || {
            let answer = admin::get(&self.admin, "/readyz").await?;
            Ok(answer.status == 200 && answer.body.contains(state))
        })
        .await
    }

    /// Waits until the lookup of `user_id` returns exactly these buyer uids, by DSP.
    pub(crate) async fn wait_lookup(&self, user_id: &str, buyer_uids: Value) -> Result<()> {
        let expected = serde_json::json!({"user_id": user_id, "buyer_uids": buyer_uids});
        let path = format!("/v1/users/{user_id}");
        let what = format!("{} returns {expected}", self.admin);
        wait_until(TIMEOUT, &what, || async {
            let answer = admin::get(&self.admin, &path).await?;
            Ok(answer.status == 200 && serde_json::from_str::<Value>(&answer.body)? == expected)
        })
        .await
    }

    /// Waits until the consumer has written at least `cookies` cookies.
    pub(crate) async fn wait_written(&self, cookies: u64) -> Result<()> {
        let what = format!("{} has written {cookies} cookies", self.admin);
        wait_until(TIMEOUT, &what, async || {
            Ok(self.metrics().await?.count(names::WRITTEN, &[]) >= cookies)
        })
        .await
    }

    /// Waits until exactly `accepted` cookies have an outcome in this process; fails if there are more.
    pub(crate) async fn wait_settled(&self, accepted: u64) -> Result<()> {
        let what = format!("{} has settled {accepted} cookies", self.admin);
        wait_until(TIMEOUT, &what, async || {
            let settled = settled(&self.metrics().await?);
            ensure!(
                settled <= accepted,
                "{settled} cookies have an outcome, but only {accepted} were accepted"
            );
            Ok(settled == accepted)
        })
        .await
    }

    /// Waits until the lookup of each user returns exactly its buyer uids in `contents`.
    pub(crate) async fn wait_lookups(&self, contents: &StoreContents) -> Result<()> {
        /// Number of connections. Most of the time of a lookup is a round trip to the store.
        const CONNECTIONS: usize = 4;
        let mut parts = vec![Vec::new(); CONNECTIONS];
        for (at, user) in contents.iter().enumerate() {
            parts[at % CONNECTIONS].push(user);
        }
        let lookups = parts.into_iter().map(|part| self.wait_lookups_of(part));
        try_join_all(lookups).await?;
        Ok(())
    }

    /// Looks up these users on one connection, one after the other.
    async fn wait_lookups_of(&self, users: Vec<(&String, &BTreeMap<u32, String>)>) -> Result<()> {
        let mut client = HttpClient::connect(&self.admin).await?;
        let deadline = Instant::now() + TIMEOUT;
        for (user_id, buyer_uids) in users {
            let path = format!("/v1/users/{user_id}");
            let expected = serde_json::json!({"user_id": user_id, "buyer_uids": buyer_uids});
            loop {
                let answer = client.get(&path, &[]).await?;
                let found: Value = serde_json::from_str(&answer.body)?;
                if answer.status == 200 && found == expected {
                    break;
                }
                ensure!(Instant::now() < deadline, "{found} instead of {expected}");
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Fails if the lookup of any of these users succeeds.
    pub(crate) async fn check_unknown(&self, users: impl Iterator<Item = String>) -> Result<()> {
        let mut client = HttpClient::connect(&self.admin).await?;
        for user in users {
            let answer = client.get(&format!("/v1/users/{user}"), &[]).await?;
            ensure!(answer.status == 404, "{user}: {answer:?}");
        }
        Ok(())
    }

    pub(crate) async fn metrics(&self) -> Result<Samples> {
        admin::metrics(&self.admin).await
    }

    /// Number of cookies that the consumer counts as lost.
    pub(crate) async fn lost(&self) -> Result<u64> {
        Ok(self.metrics().await?.count(names::LOST, &[]))
    }
}

/// The `--store` argument for an embedded store in `dir`.
pub(crate) fn embedded(dir: &Path) -> String {
    format!("embedded:{}", dir.display())
}
