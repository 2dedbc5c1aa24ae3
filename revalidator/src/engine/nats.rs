//! NATS JetStream: three key-value buckets, a work queue for batches, and a stream for results. Uses only features that
//! nats-server 2.9 supports.

use std::{collections::HashSet, future::Future, time::Duration};

use super::{ACK_WAIT, Bucket, Engine, Entry, MESSAGE_BYTES_MAX, Results, Settlement, Watch};
use anyhow::{Context as _, Result, anyhow, ensure};
use async_nats::jetstream::{
    self, AckKind,
    consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull, push},
    kv,
    message::PublishMessage,
    stream::{self, DiscardPolicy, RetentionPolicy, StorageType},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use runtime_nats::Servers;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

/// Stream of batches, and its subjects without the job.
const WORK_STREAM: &str = "REVALIDATOR_WORK";
const WORK: &str = "revalidator.work.";

/// Stream of results, and its subjects without the job.
const RESULTS_STREAM: &str = "REVALIDATOR_RESULTS";
const RESULTS: &str = "revalidator.results.";

/// The buckets, in the order of [`Bucket`].
const BUCKETS: [&str; 3] = [
    "revalidator_jobs",
    "revalidator_subscriptions",
    "revalidator_matches",
];

/// Errors of reading the results, and of reading their size.
const READ: &str = "cannot read batch results from NATS";
const SIZE: &str = "cannot read the size of batch results from NATS";

const MESSAGE_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
const STREAM_BYTES_MAX: i64 = 1 << 30;

/// Longer than a job and its retention together, so that only deletion markers and keys of lost workers expire.
const KEY_AGE_MAX: Duration = Duration::from_secs(14 * 24 * 3600);
const BUCKET_BYTES_MAX: i64 = 256 << 20;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two checks that the streams exist.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Time without a worker after which the server removes the consumer of a job. The next worker creates it again.
const CONSUMER_UNUSED_MAX: Duration = Duration::from_secs(3600);

/// A connection to a server that has the streams and buckets.
#[derive(Debug, Clone)]
pub struct Nats {
    client: async_nats::Client,
    context: jetstream::Context,
    buckets: [kv::Store; 3],
    work: stream::Stream,
    results: stream::Stream,
    streams: watch::Sender<Streams>,
}

/// Result of the last check of the streams.
#[derive(Debug, Default)]
struct Streams {
    /// Name and time of creation of each stream. They change if the server loses a stream.
    created: Vec<(String, String)>,
    error: Option<String>,
}

/// Unsuitable settings of the server, or of an existing stream or bucket.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OtherSettings(String);

impl Nats {
    /// Connects to a server, and creates missing streams and buckets.
    ///
    /// # Errors
    /// When no server is available; [`OtherSettings`] if messages would be too large, or a stream has unexpected settings.
    pub async fn connect(servers: &Servers) -> Result<Self> {
        let client = servers.connect("revalidator", TIMEOUT).await;
        let client = client.context("connecting to NATS")?;
        let max = client.max_payload();
        ensure!(
            max >= MESSAGE_BYTES_MAX,
            OtherSettings(format!(
                "max_payload of the NATS server is {max} bytes; set it to at least {MESSAGE_BYTES_MAX}"
            ))
        );
        let mut context = jetstream::new(client.clone());
        context.set_timeout(TIMEOUT);
        let created = open_all(&context).await?;
        let store = async |name| {
            let store = context.get_key_value(name).await;
            store.with_context(|| format!("cannot open bucket {name}"))
        };
        Ok(Self {
            buckets: [
                store(BUCKETS[0]).await?,
                store(BUCKETS[1]).await?,
                store(BUCKETS[2]).await?,
            ],
            work: context.get_stream(WORK_STREAM).await?,
            results: context.get_stream(RESULTS_STREAM).await?,
            client,
            context,
            streams: watch::Sender::new(Streams {
                created,
                error: None,
            }),
        })
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
    }

    /// Whether the server is available and has all streams.
    ///
    /// # Errors
    /// The reason why it is not.
    pub fn state(&self) -> Result<(), String> {
        if !self.is_connected() {
            return Err("disconnected; reconnecting".to_owned());
        }
        self.streams.borrow().error.clone().map_or(Ok(()), Err)
    }

    /// Until `stop`, checks all streams every `CHECK_INTERVAL`, and creates those that the server has lost. Watches and result streams
    /// then end, because their consumers belong to the lost streams. Logs when the connection is lost, and established again.
    pub async fn supervise(self, stop: CancellationToken) {
        let pause = || stop.run_until_cancelled(sleep(CHECK_INTERVAL));
        let mut was_connected = true;
        while pause().await.is_some() {
            let is_connected = self.is_connected();
            match (was_connected, is_connected) {
                (true, false) => tracing::warn!("connection to NATS lost; reconnecting"),
                (false, true) => tracing::info!("reconnected to NATS"),
                _ => {}
            }
            was_connected = is_connected;
            if is_connected {
                let found = open_all(&self.context).await;
                self.streams.send_modify(|it| it.update(found));
            }
        }
    }

    /// Completes when the server has lost a stream.
    fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut streams = self.streams.subscribe();
        let created = streams.borrow_and_update().created.clone();
        async move { drop(streams.wait_for(|it| it.created != created).await) }
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

impl Streams {
    /// Logs each change once. A loss is an error until the next check, as the contents are being restored.
    fn update(&mut self, found: Result<Vec<(String, String)>>) {
        let error = match found {
            Ok(created) if created == self.created => None,
            Ok(created) => {
                let lost = created.iter().filter(|it| !self.created.contains(it));
                let lost: Vec<_> = lost.map(|it| &*it.0).collect();
                let error = format!(
                    "NATS lost streams, which are created again: {}",
                    lost.join(" ")
                );
                self.created = created;
                Some(error)
            }
            Err(error) => Some(format!("streams unavailable: {error:#}")),
        };
        match &error {
            Some(error) if self.error.as_ref() != Some(error) => {
                tracing::error!(error, "NATS lost data, or its streams are unavailable");
            }
            None if self.error.is_some() => tracing::info!("all NATS streams are available again"),
            _ => {}
        }
        self.error = error;
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

/// Settings of all streams. Those of buckets have the settings that the client would choose.
fn configs() -> Vec<stream::Config> {
    let bucket = |name: &&str| stream::Config {
        max_messages_per_subject: 1,
        max_age: KEY_AGE_MAX,
        max_bytes: BUCKET_BYTES_MAX,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..config(&format!("KV_{name}"), format!("$KV.{name}.>"))
    };
    let mut configs: Vec<_> = BUCKETS.iter().map(bucket).collect();
    configs.push(stream::Config {
        retention: RetentionPolicy::WorkQueue,
        ..config(WORK_STREAM, format!("{WORK}*"))
    });
    configs.push(stream::Config {
        max_bytes: super::RESULT_BYTES_MAX.cast_signed(),
        ..config(RESULTS_STREAM, format!("{RESULTS}*"))
    });
    configs
}

/// Opens all streams, and creates missing ones. Returns their names and times of creation.
async fn open_all(context: &jetstream::Context) -> Result<Vec<(String, String)>> {
    let mut created = Vec::new();
    for config in configs() {
        let stream = context.get_or_create_stream(config.clone()).await;
        let stream = stream.with_context(|| format!("cannot open stream {}", config.name))?;
        let info = stream.cached_info();
        check(&config, &info.config)?;
        created.push((config.name, info.created.to_string()));
    }
    Ok(created)
}

/// Checks the settings of a stream that this program relies on. The operator may choose the number of replicas, and a larger maximum
/// size.
fn check(expected: &stream::Config, found: &stream::Config) -> Result<()> {
    let name = &expected.name;
    let (expected, found) = (
        serde_json::to_value(expected)?,
        serde_json::to_value(found)?,
    );
    const SETTINGS: &str = "subjects retention discard max_msgs max_msgs_per_subject max_msg_size max_bytes max_age storage";
    for setting in SETTINGS.split(' ') {
        let (expected, found) = (&expected[setting], &found[setting]);
        // A maximum of -1 is none.
        let is_larger = |it: &serde_json::Value| *it == -1 || it.as_i64() > expected.as_i64();
        ensure!(
            expected == found || setting == "max_bytes" && is_larger(found),
            OtherSettings(format!(
                "stream {name} exists with other settings: {setting} is {found}, not {expected}; remove the stream, or use another account"
            ))
        );
    }
    Ok(())
}

/// Matching subjects that have messages, and their numbers of messages.
async fn subjects(stream: &stream::Stream, filter: String) -> Result<Vec<(String, usize)>> {
    let subjects = stream.info_with_subjects(filter).await;
    let subjects = subjects.context("subjects")?;
    subjects.map_err(anyhow::Error::from).try_collect().await
}

impl Engine for Nats {
    type Batches = PullConsumer;
    type Delivery = jetstream::Message;

    async fn watch(&self, bucket: Bucket) -> Result<Watch> {
        let lost = self.lost();
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
            entries: entries.take_until(lost).boxed(),
        })
    }

    async fn keys(&self, bucket: Bucket) -> Result<u64> {
        let stream = self.context.get_stream(&self.store(bucket).stream_name);
        let stream = stream.await.context("keys")?;
        Ok(stream.cached_info().state.messages)
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
            inactive_threshold: CONSUMER_UNUSED_MAX,
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
        let lost = self.lost();
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
        Ok(payloads.take_until(lost).boxed())
    }

    async fn result_bytes(&self) -> Result<u64> {
        let info = self.results.get_info().await;
        Ok(info.context(SIZE)?.state.bytes)
    }

    async fn messages(&self, job: &str) -> Result<[u64; 2]> {
        let count = async |stream: &stream::Stream, subject: &str| {
            let found = subjects(stream, [subject, job].concat()).await?;
            anyhow::Ok(found.iter().map(|it| it.1 as u64).sum())
        };
        Ok([
            count(&self.work, WORK).await?,
            count(&self.results, RESULTS).await?,
        ])
    }

    async fn jobs_with_messages(&self) -> Result<[HashSet<String>; 2]> {
        let jobs = async |stream: &stream::Stream, subject: &str| {
            let found = subjects(stream, format!("{subject}*")).await?;
            let jobs = found.into_iter().map(|it| it.0.replace(subject, ""));
            anyhow::Ok(jobs.collect())
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

    use runtime::connect::credentials::NatsTlsArgs;
    use runtime::settings::ConfigErrors;

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
        let servers = Servers::check(
            &mut ConfigErrors::default(),
            "",
            &url,
            &NatsTlsArgs::default(),
        );
        let error = Box::pin(Nats::connect(&servers.unwrap())).await;
        let error = error.unwrap_err();
        let text = error.to_string();
        assert!(error.is::<OtherSettings>(), "{error:#}");
        assert!(text.contains("500000") && text.contains("716800"), "{text}");
    }
}
