//! NATS JetStream: three key-value buckets, a work queue for batches, and a stream for results. Uses only features that
//! nats-server 2.9 supports.

use std::{collections::HashSet, time::Duration};

use super::{ACK_WAIT, Bucket, Engine, Entry, MESSAGE_BYTES_MAX, Results, Settlement, Watch};
use anyhow::{Context as _, Result, anyhow, ensure};
use async_nats::{
    ConnectOptions,
    jetstream::{
        self, AckKind,
        consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull, push},
        kv,
        message::PublishMessage,
        stream::{self, DiscardPolicy, RetentionPolicy, StorageType},
    },
};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};

/// Stream of batches, and its subjects without the job.
const WORK_STREAM: &str = "REVALIDATOR_WORK";
const WORK: &str = "revalidator.work.";

/// Stream of results, and its subjects without the job.
const RESULTS_STREAM: &str = "REVALIDATOR_RESULTS";
const RESULTS: &str = "revalidator.results.";

/// Errors of reading the results, and of reading their size.
const READ: &str = "cannot read batch results from NATS";
const SIZE: &str = "cannot read the size of batch results from NATS";

const MESSAGE_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
const STREAM_BYTES_MAX: i64 = 1 << 30;

/// Longer than a job and its retention together, so that only deletion markers and keys of lost workers expire.
const KEY_AGE_MAX: Duration = Duration::from_secs(14 * 24 * 3600);
const BUCKET_BYTES_MAX: i64 = 256 << 20;
const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection whose streams and buckets exist.
#[derive(Debug, Clone)]
pub struct Nats {
    client: async_nats::Client,
    context: jetstream::Context,
    buckets: [kv::Store; 3],
    work: stream::Stream,
    results: stream::Stream,
}

/// Unsuitable settings of the server, or of an existing stream or bucket.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OtherSettings(String);

impl Nats {
    /// Connects to the servers at `urls`, separated by commas, and creates missing streams and buckets.
    ///
    /// # Errors
    /// When no server is available; [`OtherSettings`] if messages would be too large, or a stream has unexpected settings.
    pub async fn connect(urls: &str) -> Result<Self> {
        let options = ConnectOptions::new()
            .name("revalidator")
            .connection_timeout(TIMEOUT)
            .request_timeout(Some(TIMEOUT));
        let urls: Vec<&str> = urls.split(',').map(str::trim).collect();
        let client = options.connect(urls).await.context("connecting to NATS")?;
        let max = client.max_payload();
        ensure!(
            max >= MESSAGE_BYTES_MAX,
            OtherSettings(format!(
                "max_payload of the NATS server is {max} bytes; set it to at least {MESSAGE_BYTES_MAX}"
            ))
        );
        let mut context = jetstream::new(client.clone());
        context.set_timeout(TIMEOUT);
        let store = async |name| open_bucket(&context, name).await;
        let mut work = config(WORK_STREAM, format!("{WORK}*"));
        work.retention = RetentionPolicy::WorkQueue;
        let mut results = config(RESULTS_STREAM, format!("{RESULTS}*"));
        results.max_bytes = super::RESULT_BYTES_MAX.cast_signed();
        Ok(Self {
            buckets: [
                store("revalidator_jobs").await?,
                store("revalidator_subscriptions").await?,
                store("revalidator_matches").await?,
            ],
            work: open(&context, work).await?,
            results: open(&context, results).await?,
            client,
            context,
        })
    }

    /// Whether the connection is up now.
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

/// Settings of a stream.
fn config(name: &str, subjects: String) -> stream::Config {
    stream::Config {
        name: name.to_owned(),
        subjects: vec![subjects],
        discard: DiscardPolicy::New,
        max_messages: -1,
        max_messages_per_subject: -1,
        max_message_size: -1,
        max_bytes: STREAM_BYTES_MAX,
        max_age: MESSAGE_AGE_MAX,
        storage: StorageType::File,
        ..stream::Config::default()
    }
}

/// Opens a stream, or creates it if it is missing.
async fn open(context: &jetstream::Context, config: stream::Config) -> Result<stream::Stream> {
    let stream = context.get_or_create_stream(config.clone()).await;
    let stream = stream.with_context(|| format!("cannot open stream {}", config.name))?;
    check(&config, &stream.cached_info().config)?;
    Ok(stream)
}

/// Opens a bucket; if it is missing, creates its stream as the client would.
async fn open_bucket(context: &jetstream::Context, name: &str) -> Result<kv::Store> {
    let stream = stream::Config {
        max_messages_per_subject: 1,
        max_age: KEY_AGE_MAX,
        max_bytes: BUCKET_BYTES_MAX,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..config(&format!("KV_{name}"), format!("$KV.{name}.>"))
    };
    open(context, stream).await?;
    let store = context.get_key_value(name).await;
    store.with_context(|| format!("cannot open bucket {name}"))
}

/// Checks the settings of a stream that this program relies on. The operator may choose the number of replicas.
fn check(expected: &stream::Config, found: &stream::Config) -> Result<()> {
    let name = &expected.name;
    let (expected, found) = (
        serde_json::to_value(expected)?,
        serde_json::to_value(found)?,
    );
    const SETTINGS: &str = "subjects retention discard max_msgs max_msgs_per_subject max_msg_size max_bytes max_age storage";
    for setting in SETTINGS.split(' ') {
        let (expected, found) = (&expected[setting], &found[setting]);
        ensure!(
            expected == found,
            OtherSettings(format!(
                "stream {name} exists with other settings: {setting} is {found}, not {expected}; remove the stream, or use another account"
            ))
        );
    }
    Ok(())
}

impl Engine for Nats {
    type Batches = PullConsumer;
    type Delivery = jetstream::Message;

    async fn watch(&self, bucket: Bucket) -> Result<Watch> {
        let store = self.store(bucket);
        let stream = self.context.get_stream(&store.stream_name).await;
        let stream = stream.context("watch")?;
        let state = &stream.cached_info().state;
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
        Ok(Watch {
            current,
            entries: entries.boxed(),
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
        self.publish([WORK, job].concat(), id, payload).await
    }

    async fn batches(&self, job: &str, workers: u32) -> Result<PullConsumer> {
        let config = pull::Config {
            durable_name: Some(job.to_owned()),
            filter_subject: [WORK, job].concat(),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: workers.into(),
            ..pull::Config::default()
        };
        let consumer = self.work.get_or_create_consumer(job, config).await;
        consumer.context("consumer")
    }

    async fn next_batch(
        &self,
        batches: &PullConsumer,
        wait: Duration,
    ) -> Result<Option<(Bytes, jetstream::Message)>> {
        let batch = batches.batch().max_messages(1).expires(wait);
        let mut messages = batch.messages().await.context("cannot receive a batch")?;
        let message = messages.next().await.transpose();
        let message = message.map_err(|error| anyhow!("cannot receive a batch: {error}"))?;
        Ok(message.map(|it| (it.payload.clone(), it)))
    }

    async fn settle(&self, delivery: &jetstream::Message, settlement: Settlement) -> Result<()> {
        let settled = match settlement {
            // Confirmed, so that the batch is not delivered again if the connection is lost now.
            Settlement::Done => delivery.double_ack().await,
            Settlement::GiveBack => delivery.ack_with(AckKind::Nak(None)).await,
            Settlement::InProgress => delivery.ack_with(AckKind::Progress).await,
        };
        settled.map_err(|error| anyhow!("cannot acknowledge a batch: {error}"))
    }

    async fn send_result(&self, job: &str, id: &str, payload: Bytes) -> Result<()> {
        self.publish([RESULTS, job].concat(), id, payload).await
    }

    async fn results(&self, job: &str, from: u64) -> Result<Results> {
        let config = push::OrderedConfig {
            deliver_subject: self.client.new_inbox(),
            filter_subject: [RESULTS, job].concat(),
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: from.max(1),
            },
            ..push::OrderedConfig::default()
        };
        let consumer = self.results.create_consumer(config).await;
        let messages = consumer.context(READ)?.messages().await;
        let payloads = messages.context(READ)?.map(|message| {
            let message = message.context(READ)?;
            let info = message.info().map_err(|error| anyhow!("{READ}: {error}"))?;
            Ok((info.stream_sequence, message.payload.clone()))
        });
        Ok(payloads.boxed())
    }

    async fn result_bytes(&self) -> Result<u64> {
        let info = self.results.get_info().await;
        Ok(info.context(SIZE)?.state.bytes)
    }

    async fn jobs_with_messages(&self) -> Result<[HashSet<String>; 2]> {
        let jobs = async |stream: &stream::Stream, subject: &str| {
            let subjects = stream.info_with_subjects(format!("{subject}*")).await;
            let subjects = subjects.context("subjects")?.map_err(anyhow::Error::from);
            let job = |found: (String, usize)| found.0.replace(subject, "");
            subjects.map_ok(job).try_collect().await
        };
        Ok([
            jobs(&self.work, WORK).await?,
            jobs(&self.results, RESULTS).await?,
        ])
    }

    async fn purge(&self, job: &str, results: bool) -> Result<()> {
        if let Err(error) = self.work.delete_consumer(job).await {
            tracing::debug!(%error, "failed to delete the consumer of a job");
        }
        let purge = self.work.purge().filter([WORK, job].concat());
        purge.await.context("cannot remove messages")?;
        if results {
            let purge = self.results.purge().filter([RESULTS, job].concat());
            purge.await.context("cannot remove messages")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
        net::TcpListener,
        task::JoinSet,
    };

    use super::*;

    #[tokio::test]
    async fn server_with_small_messages_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (reader, mut writer) = stream.into_split();
            let info = b"INFO {\"version\":\"2.9.10\",\"max_payload\":500000}\r\n";
            writer.write_all(info).await.unwrap();
            let mut lines = BufReader::new(reader).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if line == "PING" {
                    writer.write_all(b"PONG\r\n").await.unwrap();
                }
            }
        });
        let url = format!("nats://{address}");
        let error = Box::pin(Nats::connect(&url)).await;
        let error = error.unwrap_err();
        let text = error.to_string();
        assert!(error.is::<OtherSettings>(), "{error:#}");
        assert!(text.contains("500000") && text.contains("716800"), "{text}");
    }
}
