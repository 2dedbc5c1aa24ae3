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
    engine::{Bucket, Engine, RETRY_PAUSE},
    mirror::{LeaseState, Mirror},
};

const BUCKET: Bucket = Bucket::Subscriptions;

/// Time between renewals.
const RENEWAL: Duration = Duration::from_secs(10);

/// Time after which a holder that cannot renew considers the lease lost; with [`RENEWAL`], less than [`LEASE`](crate::mirror::LEASE).
const GIVE_UP: Duration = Duration::from_secs(10);

/// An acquired lease. If it is not [released](Self::release), it is free only after it expires.
#[derive(Debug)]
pub struct Lease {
    /// Cancelled when the lease is lost or released.
    pub lost: CancellationToken,
    released: CancellationToken,
    /// One task, which ends when the lease is dropped.
    renewals: JoinSet<()>,
}

impl Lease {
    /// Acquires a lease that is free or whose holder is lost; `None` if another process has it.
    ///
    /// # Errors
    /// When the engine fails.
    pub async fn acquire<E: Engine>(
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
        let set = engine.compare_and_set(BUCKET, &key, value.clone(), expected);
        let Some(mut revision) = set.await? else {
            // A free lease may just have been acquired by another process, but nobody changes an expired one for long.
            if expected.is_some() {
                mirror.reload();
            }
            return Ok(None);
        };
        let mut lease = Self {
            lost: CancellationToken::new(),
            released: CancellationToken::new(),
            renewals: JoinSet::new(),
        };
        let (engine, released) = (engine.clone(), lease.released.clone());
        // Also cancelled by a panic.
        let lost = lease.lost.clone().drop_guard();
        lease.renewals.spawn(async move {
            let _lost = lost;
            while released.run_until_cancelled(sleep(RENEWAL)).await.is_some() {
                let renewal = renew(&engine, &key, &value, revision);
                let Some(newer) = timeout(GIVE_UP, renewal).await.ok().flatten() else {
                    tracing::warn!(key, "lease lost; another process may acquire it");
                    return;
                };
                revision = newer;
            }
            if let Err(error) = engine.delete(BUCKET, &key, Some(revision)).await {
                tracing::debug!(%error, key, "failed to release a lease; it will expire");
            }
        });
        Ok(Some(lease))
    }

    /// Frees the lease.
    pub async fn release(mut self) {
        self.released.cancel();
        drop(self.renewals.join_next().await);
    }
}

/// The new revision of a lease; `None` if it is lost. Retries after errors.
async fn renew<E: Engine>(engine: &E, key: &str, value: &Bytes, revision: u64) -> Option<u64> {
    loop {
        let set = engine.compare_and_set(BUCKET, key, value.clone(), Some(revision));
        let found = match set.await {
            Ok(Some(newer)) => return Some(newer),
            // An earlier renewal whose response was lost may have been written.
            Ok(None) => engine.get(BUCKET, key).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(found) => return Some(found.filter(|it| it.0 == *value)?.1),
            Err(error) => tracing::debug!(key, %error, "failed to renew a lease"),
        }
        sleep(RETRY_PAUSE).await;
    }
}
