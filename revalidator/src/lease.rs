//! Leases: keys that a holder renews. When it stops renewing, another process may acquire the lease.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{Bucket, Engine},
    mirror::{LeaseState, Mirror},
};

/// Time between renewals.
const RENEWAL: Duration = Duration::from_secs(10);

/// Time after which a holder that cannot renew considers the lease lost; with [`RENEWAL`], less than [`LEASE`](crate::mirror::LEASE).
const GIVE_UP: Duration = Duration::from_secs(10);

/// Pause after a failed renewal.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

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

    /// Cancelled when the lease is lost or released.
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
                tracing::debug!(%error, key = self.key, "failed to release a lease; it will expire");
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
    // Also cancelled by a panic.
    let _lost = lost.drop_guard();
    loop {
        if released.run_until_cancelled(sleep(RENEWAL)).await.is_none() {
            return Some(revision);
        }
        let renewal = async {
            loop {
                let bucket = Bucket::Subscriptions;
                let set = engine.compare_and_set(bucket, &key, value.clone(), Some(revision));
                match set.await {
                    Ok(Some(newer)) => return Some(newer),
                    // A renewal without a response may have been written.
                    Ok(None) => match engine.get(bucket, &key).await {
                        Ok(found) => return Some(found.filter(|it| it.0 == value)?.1),
                        Err(error) => tracing::debug!(key, %error, "failed to renew a lease"),
                    },
                    Err(error) => tracing::debug!(key, %error, "failed to renew a lease"),
                }
                sleep(RETRY_PAUSE).await;
            }
        };
        let Some(newer) = timeout(GIVE_UP, renewal).await.ok().flatten() else {
            tracing::warn!(key, "lease lost");
            return None;
        };
        revision = newer;
    }
}
