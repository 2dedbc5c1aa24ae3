//! NATS JetStream: three buckets, a work queue for batches, and a stream for results.
//!
//! Only features of nats-server 2.9 are used.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use async_nats::{
    ConnectOptions,
    jetstream::{
        self, AckKind,
        consumer::{AckPolicy, DeliverPolicy, pull, push},
        context::GetStreamErrorKind,
        kv,
        message::PublishMessage,
        stream::{self, DiscardPolicy, RetentionPolicy, StorageType},
    },
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::sleep;

use super::{ACK_WAIT, Batches, Bucket, Delivery, Engine, Entry, Results, Settlement, Watch};

/// Stream of batches; its subjects are `revalidator.work.<job>`.
pub const WORK_STREAM: &str = "REVALIDATOR_WORK";

/// Stream of results; its subjects are `revalidator.results.<job>`.
pub const RESULTS_STREAM: &str = "REVALIDATOR_RESULTS";

const MESSAGE_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
const STREAM_BYTES_MAX: i64 = 1 << 30;

/// Longer than any job and any ended job that is kept, so that only deletion markers and the keys of lost workers expire.
const KEY_AGE_MAX: Duration = Duration::from_secs(14 * 24 * 3600);
const BUCKET_BYTES_MAX: i64 = 256 << 20;
const TIMEOUT: Duration = Duration::from_secs(5);

/// How often a watch checks whether its bucket still exists.
const IDENTITY_CHECK: Duration = Duration::from_secs(10);

/// A connection whose streams and buckets exist.
#[derive(Debug, Clone)]
pub struct Nats {
    client: async_nats::Client,
    context: jetstream::Context,
    buckets: [kv::Store; 3],
    work: stream::Stream,
    results: stream::Stream,
}

/// A stream or bucket exists with other settings.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OtherSettings(String);

impl Nats {
    /// Connects to the servers at `urls`, separated by commas, and creates missing streams and buckets.
    ///
    /// # Errors
    /// When no server is available; [`OtherSettings`] if a stream has other settings.
    pub async fn connect(urls: &str) -> Result<Self> {
        let options = ConnectOptions::new()
            .name("revalidator")
            .connection_timeout(TIMEOUT)
            .request_timeout(Some(TIMEOUT));
        let urls: Vec<&str> = urls.split(',').map(str::trim).collect();
        let client = options.connect(urls).await.context("NATS")?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(TIMEOUT);
        let (buckets, work, results) = open_all(&context).await?;
        Ok(Self {
            client,
            context,
            buckets,
            work,
            results,
        })
    }

    /// Whether the connection is up now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
    }

    fn store(&self, bucket: Bucket) -> &kv::Store {
        &self.buckets[bucket as usize]
    }

    async fn publish(&self, subject: String, id: &str, payload: Bytes) -> Result<()> {
        let message = PublishMessage::build().payload(payload).message_id(id);
        let sent = self.context.send_publish(subject, message).await;
        sent.context("publish")?.await.context("publish")?;
        Ok(())
    }
}

/// Opens the buckets and the two streams, and creates those that are missing.
async fn open_all(
    context: &jetstream::Context,
) -> Result<([kv::Store; 3], stream::Stream, stream::Stream)> {
    let stream = async |name: &str, subjects: &str, change: fn(&mut stream::Config)| {
        let mut config = stream::Config {
            name: name.to_owned(),
            subjects: vec![subjects.to_owned()],
            discard: DiscardPolicy::New,
            max_bytes: STREAM_BYTES_MAX,
            max_age: MESSAGE_AGE_MAX,
            storage: StorageType::File,
            ..stream::Config::default()
        };
        change(&mut config);
        let stream = context.get_or_create_stream(config.clone()).await;
        let stream = stream.with_context(|| format!("cannot open stream {name}"))?;
        check(&config, &stream.cached_info().config)?;
        anyhow::Ok(stream)
    };
    // As the client would create them.
    let bucket = |config: &mut stream::Config| {
        config.max_messages_per_subject = 1;
        config.max_age = KEY_AGE_MAX;
        config.max_bytes = BUCKET_BYTES_MAX;
        (config.allow_rollup, config.deny_delete, config.allow_direct) = (true, true, true);
    };
    let store = async |name: &str| {
        stream(&format!("KV_{name}"), &format!("$KV.{name}.>"), bucket).await?;
        let store = context.get_key_value(name).await;
        store.with_context(|| format!("cannot open bucket {name}"))
    };
    let queue = |config: &mut stream::Config| config.retention = RetentionPolicy::WorkQueue;
    let sized = |it: &mut stream::Config| it.max_bytes = super::RESULT_BYTES_MAX.cast_signed();
    Ok((
        [
            store("revalidator_jobs").await?,
            store("revalidator_subscriptions").await?,
            store("revalidator_matches").await?,
        ],
        stream(WORK_STREAM, "revalidator.work.*", queue).await?,
        stream(RESULTS_STREAM, "revalidator.results.*", sized).await?,
    ))
}

/// Compares the settings of a stream that this program relies on. The number of replicas is the operator's.
fn check(expected: &stream::Config, found: &stream::Config) -> Result<()> {
    let name = &expected.name;
    let (expected, found) = (
        serde_json::to_value(expected)?,
        serde_json::to_value(found)?,
    );
    for setting in "subjects retention discard max_bytes max_age storage".split(' ') {
        let (expected, found) = (&expected[setting], &found[setting]);
        ensure!(
            expected == found,
            OtherSettings(format!(
                "stream {name} exists with other settings: {setting} is {found}, not {expected}; remove it, or use another NATS account"
            ))
        );
    }
    Ok(())
}

impl Engine for Nats {
    type Batches = NatsBatches;

    async fn watch(&self, bucket: Bucket) -> Result<Watch> {
        // The broker may have lost its data.
        let (buckets, ..) = open_all(&self.context).await?;
        let store = &buckets[bucket as usize];
        // As of now, because the bucket was opened now.
        let info = store.status().await.context("watch")?.info;
        let (state, created) = (info.state, info.created);
        let current = state.last_sequence * u64::from(state.messages > 0);
        let watch = store.watch_with_history(">").await.context("watch")?;
        let entries = watch.map(|entry| {
            let entry = entry.context("watch")?;
            let is_value = entry.operation == kv::Operation::Put;
            Ok(Entry {
                key: entry.key,
                revision: entry.revision,
                value: is_value.then_some(entry.value),
            })
        });
        // After a loss of the bucket, the client waits for a revision that never comes.
        let (context, name) = (self.context.clone(), store.stream_name.clone());
        let lost = async move {
            loop {
                sleep(IDENTITY_CHECK).await;
                match context.get_stream(&name).await {
                    Ok(found) if found.cached_info().created == created => {}
                    Err(error) if !matches!(error.kind(), GetStreamErrorKind::JetStream(_)) => {}
                    _ => return,
                }
            }
        };
        Ok(Watch {
            current,
            entries: entries.take_until(Box::pin(lost)).boxed(),
        })
    }

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<(Bytes, u64)>> {
        let entry = self.store(bucket).entry(key).await.context("read")?;
        let entry = entry.filter(|it| it.operation == kv::Operation::Put);
        Ok(entry.map(|it| (it.value, it.revision)))
    }

    async fn put(&self, bucket: Bucket, key: &str, value: Bytes) -> Result<u64> {
        self.store(bucket).put(key, value).await.context("write")
    }

    async fn compare_and_set(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>> {
        let store = self.store(bucket);
        let Some(revision) = revision else {
            return match store.create(key, value).await {
                Ok(revision) => Ok(Some(revision)),
                Err(error) if error.kind() == kv::CreateErrorKind::AlreadyExists => Ok(None),
                Err(error) => Err(error).context("create"),
            };
        };
        match store.update(key, value, revision).await {
            Ok(revision) => Ok(Some(revision)),
            Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => Ok(None),
            Err(error) => Err(error).context("update"),
        }
    }

    async fn delete(&self, bucket: Bucket, key: &str, revision: Option<u64>) -> Result<()> {
        let store = self.store(bucket);
        let deleted = store.delete_expect_revision(key, revision).await;
        deleted.context("delete")
    }

    async fn send_batch(&self, job: &str, id: &str, payload: Bytes) -> Result<()> {
        self.publish(work_subject(job), id, payload).await
    }

    async fn batches(&self, job: &str, workers: u32) -> Result<NatsBatches> {
        let config = pull::Config {
            durable_name: Some(job.to_owned()),
            filter_subject: work_subject(job),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: workers.into(),
            ..pull::Config::default()
        };
        let consumer = self.work.get_or_create_consumer(job, config).await;
        Ok(NatsBatches(consumer.context("consumer")?))
    }

    async fn send_result(&self, job: &str, id: &str, payload: Bytes) -> Result<()> {
        self.publish(result_subject(job), id, payload).await
    }

    async fn results(&self, job: &str, from: u64) -> Result<Results> {
        let config = push::OrderedConfig {
            deliver_subject: self.client.new_inbox(),
            filter_subject: result_subject(job),
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: from.max(1),
            },
            ..push::OrderedConfig::default()
        };
        let consumer = self.results.create_consumer(config).await;
        let messages = consumer.context("cannot read results")?.messages().await;
        let payloads = messages.context("cannot read results")?.map(|message| {
            let message = message.context("cannot read results")?;
            let info = message
                .info()
                .map_err(|error| anyhow!("cannot read results: {error}"))?;
            Ok((info.stream_sequence, message.payload.clone()))
        });
        Ok(payloads.boxed())
    }

    async fn result_bytes(&self) -> Result<u64> {
        let info = self.results.get_info().await;
        Ok(info.context("cannot read results")?.state.bytes)
    }

    async fn purge(&self, job: &str, results: bool) -> Result<()> {
        if let Err(error) = self.work.delete_consumer(job).await {
            tracing::debug!(%error, "failed to delete the consumer of a job");
        }
        let purge = self.work.purge().filter(work_subject(job));
        purge.await.context("cannot remove messages")?;
        if results {
            let purge = self.results.purge().filter(result_subject(job));
            purge.await.context("cannot remove messages")?;
        }
        Ok(())
    }
}

fn work_subject(job: &str) -> String {
    format!("revalidator.work.{job}")
}

fn result_subject(job: &str) -> String {
    format!("revalidator.results.{job}")
}

/// The pull consumer of a job.
#[derive(Debug)]
pub struct NatsBatches(jetstream::consumer::PullConsumer);

/// A message of the work queue.
#[derive(Debug)]
pub struct NatsDelivery(jetstream::Message);

impl Batches for NatsBatches {
    type Delivery = NatsDelivery;

    async fn next(&mut self, wait: Duration) -> Result<Option<NatsDelivery>> {
        let batch = self.0.batch().max_messages(1).expires(wait);
        let mut messages = batch.messages().await.context("cannot receive a batch")?;
        match messages.next().await {
            None => Ok(None),
            Some(Ok(message)) => Ok(Some(NatsDelivery(message))),
            Some(Err(error)) => bail!("cannot receive a batch: {error}"),
        }
    }
}

impl Delivery for NatsDelivery {
    fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    async fn settle(&self, settlement: Settlement) -> Result<()> {
        let settled = match settlement {
            // Confirmed, so that the batch is not delivered again if the connection is lost now.
            Settlement::Done => self.0.double_ack().await,
            Settlement::GiveBack => self.0.ack_with(AckKind::Nak(None)).await,
            Settlement::InProgress => self.0.ack_with(AckKind::Progress).await,
        };
        settled.map_err(|error| anyhow!("cannot acknowledge a batch: {error}"))
    }
}
