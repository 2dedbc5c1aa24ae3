//! Leases: keys that their holder renews, and that others may acquire when it no longer does.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{Bucket, Engine},
    mirror::{LeaseState, Mirror},
};

/// Time between renewals.
const RENEWAL: Duration = Duration::from_secs(10);

/// Time without a successful renewal after which the holder gives up; less than [`LEASE`](crate::mirror::LEASE).
const GIVE_UP: Duration = Duration::from_secs(20);

/// A held lease. [`release`](Self::release) it, or it is free only when it expires.
#[derive(Debug)]
pub struct Lease<E> {
    engine: E,
    key: String,
    lost: CancellationToken,
    released: CancellationToken,
    /// One task, which ends when the lease is dropped.
    renewals: JoinSet<Option<u64>>,
}

impl<E: Engine> Lease<E> {
    /// Acquires a lease that is free or whose holder is lost; `None` if another process has it.
    ///
    /// # Errors
    /// When the engine fails.
    pub async fn acquire(
        engine: &E,
        mirror: &Mirror,
        key: String,
        holder: &str,
    ) -> Result<Option<Self>> {
        let value = Bytes::from(holder.to_owned());
        let expected = match mirror.lease(&key) {
            LeaseState::Held => return Ok(None),
            LeaseState::Free => None,
            LeaseState::Lost(revision) => Some(revision),
        };
        let set = engine.compare_and_set(Bucket::Subscriptions, &key, value.clone(), expected);
        let Some(revision) = set.await? else {
            return Ok(None);
        };
        let (lost, released) = (CancellationToken::new(), CancellationToken::new());
        let mut renewals = JoinSet::new();
        renewals.spawn(renew(
            engine.clone(),
            key.clone(),
            value,
            revision,
            lost.clone(),
            released.clone(),
        ));
        Ok(Some(Self {
            engine: engine.clone(),
            key,
            lost,
            released,
            renewals,
        }))
    }

    /// Cancelled when the lease is lost.
    #[must_use]
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Frees the lease.
    pub async fn release(mut self) {
        self.released.cancel();
        if let Some(Ok(Some(revision))) = self.renewals.join_next().await {
            let freed = self
                .engine
                .delete(Bucket::Subscriptions, &self.key, Some(revision));
            if let Err(error) = freed.await {
                tracing::debug!(%error, key = self.key, "failed to release a lease; it expires");
            }
        }
    }
}

/// Renews a lease until it is released; returns its revision, or `None` if it is lost.
async fn renew<E: Engine>(
    engine: E,
    key: String,
    value: Bytes,
    mut revision: u64,
    lost: CancellationToken,
    released: CancellationToken,
) -> Option<u64> {
    let mut renewed = Instant::now();
    let mut pause = RENEWAL;
    loop {
        if released.run_until_cancelled(sleep(pause)).await.is_none() {
            return Some(revision);
        }
        let began = Instant::now();
        let renewal = async {
            let bucket = Bucket::Subscriptions;
            let set = engine.compare_and_set(bucket, &key, value.clone(), Some(revision));
            if let Some(newer) = set.await? {
                return Ok(Some(newer));
            }
            // A renewal without a response may have been written.
            let found = engine.get(bucket, &key).await?;
            anyhow::Ok(found.filter(|(found, _)| *found == value).map(|it| it.1))
        };
        let is_lost = match timeout(GIVE_UP / 4, renewal).await {
            Ok(Ok(Some(newer))) => {
                (revision, renewed, pause) = (newer, began, RENEWAL);
                false
            }
            Ok(Ok(None)) => true,
            failed => {
                tracing::debug!(key, ?failed, "lease not renewed");
                pause = Duration::from_secs(1);
                renewed.elapsed() >= GIVE_UP
            }
        };
        if is_lost {
            tracing::warn!(key, "lease lost");
            lost.cancel();
            return None;
        }
    }
}
