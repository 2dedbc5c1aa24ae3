//! Interface to the message broker for [makers](crate::maker) and workers: two streams, and key-value buckets that can be watched and
//! changed with compare-and-set.
//!
//! Messages are delivered at least once. [`nats`] is the implementation; tests have a model with simulated time.

pub mod nats;

use std::{collections::HashSet, future::Future, time::Duration};

use anyhow::Result;
use bytes::Bytes;
use futures_util::stream::BoxStream;

/// A bucket of keys with values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// A [`JobStatus`](crate::messages::JobStatus) for each job id.
    Jobs,
    /// Keys `worker.<id>`, each with a [`Subscription`](crate::messages::Subscription), and leases.
    Subscriptions,
    /// A [`Note`](crate::matches::Note) for each match that a partner has confirmed, or that is missing there.
    Matches,
}

/// A version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its revision, which grows with each change in the bucket.
    pub revision: u64,
    /// Its value; `None` after a deletion.
    pub value: Option<Bytes>,
}

/// The current entries of a bucket, followed by its changes.
pub struct Watch {
    /// Revision of the last entry that existed when the watch began.
    pub current: u64,
    /// The entries. An error ends the watch.
    pub entries: BoxStream<'static, Result<Entry>>,
}

/// Results with their positions.
pub type Results = BoxStream<'static, Result<(u64, Bytes)>>;

/// A call to the broker.
pub trait Call<T>: Future<Output = Result<T>> + Send {}

impl<T, F: Future<Output = Result<T>> + Send> Call<T> for F {}

/// State of a batch, as a worker reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The batch is processed.
    Done,
    /// Another worker must process it.
    GiveBack,
    /// It is still being processed.
    InProgress,
}

/// Pause after an error of the broker.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Time after which an unsettled batch is delivered to another worker.
pub const ACK_WAIT: Duration = Duration::from_secs(30);

/// Maximum bytes of the results of all jobs.
pub const RESULT_BYTES_MAX: u64 = 4 << 30;

/// Bytes of results above which makers publish batches of the oldest job only.
pub const OPEN_RESULT_BYTES_MAX: u64 = RESULT_BYTES_MAX / 4 * 3;

/// Maximum bytes of a message. A result is larger than its batch, because it includes the new validators.
pub const MESSAGE_BYTES_MAX: usize = 700 << 10;

/// A connection to the broker.
pub trait Engine: Clone + Send + Sync + 'static {
    /// The batches of a job.
    type Batches: Send + Sync;

    /// A batch delivered to this worker. If the worker reports nothing about it for [`ACK_WAIT`], another worker receives it.
    type Delivery: Send + Sync;

    /// Watches a bucket.
    fn watch(&self, bucket: Bucket) -> impl Call<Watch>;

    /// Number of keys, including deleted ones. If it is less than the number of known keys, the broker has lost some.
    fn keys(&self, bucket: Bucket) -> impl Call<u64>;

    /// The value and revision of a key.
    fn get(&self, bucket: Bucket, key: &str) -> impl Call<Option<(Bytes, u64)>>;

    /// Writes a key, and returns its revision.
    fn put(&self, bucket: Bucket, key: &str, value: Bytes) -> impl Call<u64>;

    /// Writes a key if it has this revision; with `None`, if it does not exist. Returns the new revision, or `None` on a conflict.
    fn compare_and_set(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> impl Call<Option<u64>>;

    /// Deletes a key if it has this revision; with `None`, in any case.
    fn delete(&self, bucket: Bucket, key: &str, revision: Option<u64>) -> impl Call<()>;

    /// Publishes a batch of a job. Another one with the same id soon afterwards is discarded.
    fn send_batch(&self, job: &str, id: &str, payload: Bytes) -> impl Call<()>;

    /// The batches of a job, of which up to `workers` are processed at a time. A later call repairs a loss of the broker.
    fn batches(&self, job: &str, workers: u32) -> impl Call<Self::Batches>;

    /// The next batch with its message; `None` if there is none within `wait`.
    fn next_batch(
        &self,
        batches: &Self::Batches,
        wait: Duration,
    ) -> impl Call<Option<(Bytes, Self::Delivery)>>;

    /// Reports the state of a batch.
    fn settle(&self, delivery: &Self::Delivery, settlement: Settlement) -> impl Call<()>;

    /// Publishes the result of a batch.
    fn send_result(&self, job: &str, id: &str, payload: Bytes) -> impl Call<()>;

    /// Results of a job with their positions, from the position `from` on, in order of publication. Then waits for further results.
    fn results(&self, job: &str, from: u64) -> impl Call<Results>;

    /// Bytes of the results of all jobs, up to [`RESULT_BYTES_MAX`].
    fn result_bytes(&self) -> impl Call<u64>;

    /// Numbers of batches and of results of a job, read in this order. A batch without a result is included until it is settled.
    fn messages(&self, job: &str) -> impl Call<[u64; 2]>;

    /// Ids of all jobs that have batches, and of those that have results.
    fn jobs_with_messages(&self) -> impl Call<[HashSet<String>; 2]>;

    /// Removes the batches of a job; with `results`, also its results.
    fn purge(&self, job: &str, results: bool) -> impl Call<()>;
}
