//! A model of the broker for tests, in memory and with the clock of the test.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use revalidator::engine::{ACK_WAIT, Bucket, Engine, Entry, Results, Settlement, Watch};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep, timeout_at},
};

/// Time for which a stream discards messages with the same id, and maximum bytes of a message: the defaults of NATS.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

const STREAM_BYTES_MAX: usize = 1 << 30;

#[derive(Default)]
struct Keys {
    revision: u64,
    entries: BTreeMap<String, (u64, Option<Bytes>)>,
    watchers: Vec<mpsc::Sender<Entry>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Bytes)>,
    delivered: HashMap<u64, (Instant, Bytes)>,
    /// Number of purges, each of which deletes the consumer.
    purges: u64,
    changed: Arc<Notify>,
}

/// Message ids of a stream with their times.
#[derive(Default)]
struct Ids(HashMap<String, Instant>);

impl Ids {
    /// Whether the id is new within the window of the stream.
    fn is_new(&mut self, id: &str) -> bool {
        let now = Instant::now();
        let known = self
            .0
            .get(id)
            .is_some_and(|at| now - *at < DUPLICATE_WINDOW);
        if !known {
            self.0.insert(id.to_owned(), now);
        }
        !known
    }
}

struct State {
    keys: HashMap<Bucket, Keys>,
    work: HashMap<String, Queue>,
    results: HashMap<String, watch::Sender<Vec<Bytes>>>,
    result_bytes: usize,
    ids: [Ids; 2],
    next: u64,
    messages: u64,
    /// Time of the last call, and number of calls since it.
    at: (Option<Instant>, u64),
    is_down: bool,
    panics_in_results: bool,
    /// Bytes that are reported for each byte of results.
    result_size: u64,
    work_bytes_max: usize,
    /// Maximum milliseconds before the effect of a call, and before its response.
    latency: Option<(u64, fastrand::Rng)>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            keys: HashMap::default(),
            work: HashMap::default(),
            results: HashMap::default(),
            result_bytes: 0,
            ids: Default::default(),
            next: 0,
            messages: 0,
            at: (None, 0),
            is_down: false,
            panics_in_results: false,
            result_size: 0,
            work_bytes_max: STREAM_BYTES_MAX,
            latency: None,
        }
    }
}

impl State {
    fn count_call(&mut self) {
        self.messages += 1;
        let now = Some(Instant::now());
        match self.at {
            (at, count) if at == now => self.at.1 = count + 1,
            _ => self.at = (now, 0),
        }
        assert!(self.at.1 < CALLS_AT_ONCE_MAX, "calls without a pause");
    }

    fn work_bytes(&self) -> usize {
        let queues = self.work.values();
        let bytes = queues.map(|queue| {
            let waiting = queue.waiting.iter().map(|it| it.1.len());
            let delivered = queue.delivered.values().map(|it| it.1.len());
            waiting.chain(delivered).sum::<usize>()
        });
        bytes.sum()
    }
}

/// Maximum number of calls without any passing of time: more are a loop without a pause, which would never end in simulated time.
const CALLS_AT_ONCE_MAX: u64 = 50_000;

fn check_room(used: usize, max: usize, payload: &Bytes) -> Result<()> {
    ensure!(
        payload.len() <= PAYLOAD_BYTES_MAX,
        "maximum payload exceeded"
    );
    ensure!(used + payload.len() <= max, "maximum bytes exceeded");
    Ok(())
}

/// The broker; clones share it.
#[derive(Clone, Default)]
pub(crate) struct Model(Arc<Mutex<State>>);

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Time until a call has its effect, or until its response arrives.
    async fn wait(&self) {
        let millis = self
            .lock()
            .latency
            .as_mut()
            .map(|(max, random)| random.u64(0..=*max));
        if let Some(millis) = millis {
            sleep(Duration::from_millis(millis)).await;
        }
    }

    /// A call. It may have its effect although its response is lost.
    async fn call<T>(&self, effect: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.wait().await;
        let result = {
            let mut state = self.lock();
            ensure!(!state.is_down, "the broker is down");
            state.count_call();
            effect(&mut state)
        };
        self.wait().await;
        ensure!(!self.lock().is_down, "the broker is down");
        result
    }

    /// Makes all calls fail, and ends all watches; or makes calls work again.
    pub(crate) fn set_down(&self, is_down: bool) {
        let mut state = self.lock();
        state.is_down = is_down;
        if is_down {
            state
                .keys
                .values_mut()
                .for_each(|keys| keys.watchers.clear());
        }
    }

    /// Ends all watches of a bucket.
    pub(crate) fn end_watches(&self, bucket: Bucket) {
        if let Some(keys) = self.lock().keys.get_mut(&bucket) {
            keys.watchers.clear();
        }
    }

    /// Makes each call for results panic.
    pub(crate) fn panic_in_results(&self) {
        self.lock().panics_in_results = true;
    }

    /// Sets the maximum bytes of the stream of batches.
    pub(crate) fn set_work_bytes_max(&self, bytes: usize) {
        self.lock().work_bytes_max = bytes;
    }

    /// Delays the effects and responses of calls by up to this time.
    pub(crate) fn set_latency(&self, millis_max: u64, seed: u64) {
        self.lock().latency = Some((millis_max, fastrand::Rng::with_seed(seed)));
    }

    /// Sets the factor by which the model multiplies the bytes of results in its reports, to reach the limit of
    /// their stream.
    pub(crate) fn set_result_size(&self, size: u64) {
        self.lock().result_size = size;
    }

    /// Loses all keys of a bucket: `is_purged`, without a change that watches see; otherwise with its stream, which is created
    /// again.
    pub(crate) fn lose_keys(&self, bucket: Bucket, is_purged: bool) {
        let mut state = self.lock();
        let keys = state.keys.entry(bucket).or_default();
        match is_purged {
            true => keys.entries.clear(),
            false => *keys = Keys::default(),
        }
    }

    /// Loses the consumer of a job, and with `batches` also its batches.
    pub(crate) fn lose_consumer(&self, job: &str, batches: bool) {
        let mut state = self.lock();
        let queue = state.work.entry(job.to_owned()).or_default();
        let delivered = std::mem::take(&mut queue.delivered).into_iter();
        let delivered = delivered.map(|(id, (_, payload))| (id, payload));
        queue.waiting.extend(delivered);
        queue.purges += 1;
        if batches {
            queue.waiting.clear();
        }
    }

    /// Loses the results of a job; a reader is not notified.
    pub(crate) fn lose_results(&self, job: &str) {
        if let Some(results) = self.lock().results.get(job) {
            results.send_modify(Vec::clear);
        }
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.lock().messages
    }

    /// Batches of a job that no worker has acknowledged.
    pub(crate) fn unsettled(&self, job: &str) -> usize {
        let state = self.lock();
        state
            .work
            .get(job)
            .map_or(0, |it| it.waiting.len() + it.delivered.len())
    }

    /// Results of a job.
    pub(crate) fn all_results(&self, job: &str) -> Vec<Bytes> {
        let state = self.lock();
        state
            .results
            .get(job)
            .map_or_else(Vec::new, |it| it.borrow().clone())
    }
}

impl Keys {
    fn set(&mut self, key: &str, value: Option<Bytes>) -> u64 {
        self.revision += 1;
        let revision = self.revision;
        self.entries
            .insert(key.to_owned(), (revision, value.clone()));
        let entry = Entry {
            key: key.to_owned(),
            revision,
            value,
        };
        self.watchers
            .retain(|it| it.try_send(entry.clone()).is_ok());
        revision
    }
}

impl Engine for Model {
    type Batches = ModelBatches;
    type Delivery = ModelDelivery;

    async fn watch(&self, bucket: Bucket) -> Result<Watch> {
        self.wait().await;
        let mut state = self.lock();
        ensure!(!state.is_down, "the broker is down");
        state.messages += 1;
        let keys = state.keys.entry(bucket).or_default();
        let (sender, receiver) = mpsc::channel(100_000);
        let mut entries: Vec<_> = keys
            .entries
            .iter()
            .map(|(key, (revision, value))| Entry {
                key: key.clone(),
                revision: *revision,
                value: value.clone(),
            })
            .collect();
        entries.sort_by_key(|it| it.revision);
        keys.watchers.push(sender);
        let changes = stream::unfold(receiver, async |mut it| Some((it.recv().await?, it)));
        Ok(Watch {
            current: entries.last().map_or(0, |it| it.revision),
            entries: stream::iter(entries).chain(changes).map(Ok).boxed(),
        })
    }

    async fn keys(&self, bucket: Bucket) -> Result<u64> {
        self.call(|state| Ok(state.keys.entry(bucket).or_default().entries.len() as u64))
            .await
    }

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<(Bytes, u64)>> {
        let get = |state: &mut State| {
            let found = state.keys.entry(bucket).or_default().entries.get(key);
            Ok(found.and_then(|(revision, value)| Some((value.clone()?, *revision))))
        };
        self.call(get).await
    }

    async fn put(&self, bucket: Bucket, key: &str, value: Bytes) -> Result<u64> {
        let put = |state: &mut State| {
            let keys = state.keys.entry(bucket).or_default();
            Ok(keys.set(key, Some(value)))
        };
        self.call(put).await
    }

    async fn compare_and_set(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>> {
        let set = |state: &mut State| {
            let keys = state.keys.entry(bucket).or_default();
            let found = keys.entries.get(key);
            let is_expected = match revision {
                None => found.is_none_or(|(_, value)| value.is_none()),
                Some(revision) => found.is_some_and(|(found, _)| *found == revision),
            };
            Ok(is_expected.then(|| keys.set(key, Some(value))))
        };
        self.call(set).await
    }

    async fn delete(&self, bucket: Bucket, key: &str, revision: Option<u64>) -> Result<()> {
        let delete = |state: &mut State| {
            let keys = state.keys.entry(bucket).or_default();
            let found = keys.entries.get(key).map(|it| it.0);
            ensure!(revision.is_none() || found == revision, "wrong revision");
            keys.set(key, None);
            Ok(())
        };
        self.call(delete).await
    }

    async fn send_batch(&self, job: &str, id: &str, payload: Bytes) -> Result<()> {
        let send = |state: &mut State| {
            check_room(state.work_bytes(), state.work_bytes_max, &payload)?;
            state.next += 1;
            if state.ids[0].is_new(id) {
                let queue = state.work.entry(job.to_owned()).or_default();
                queue.waiting.push_back((state.next, payload));
                queue.changed.notify_waiters();
            }
            Ok(())
        };
        self.call(send).await
    }

    async fn batches(&self, job: &str, workers: u32) -> Result<ModelBatches> {
        let open = |state: &mut State| Ok(state.work.entry(job.to_owned()).or_default().purges);
        Ok(ModelBatches {
            job: job.to_owned(),
            workers: workers as usize,
            purges: self.call(open).await?,
        })
    }

    async fn next_batch(
        &self,
        batches: &ModelBatches,
        wait: Duration,
    ) -> Result<Option<(Bytes, ModelDelivery)>> {
        let end = Instant::now() + wait;
        let mut is_waiting = false;
        self.wait().await;
        loop {
            let (changed, wake) = {
                let mut state = self.lock();
                ensure!(!state.is_down, "the broker is down");
                state.messages += 1;
                let queue = state.work.entry(batches.job.clone()).or_default();
                // A request to a missing consumer has no response.
                let is_missing = queue.purges != batches.purges;
                ensure!(!is_missing || !is_waiting, "the consumer was deleted");
                is_waiting = true;
                let now = Instant::now();
                let expired: Vec<u64> = queue
                    .delivered
                    .iter()
                    .filter(|it| it.1.0 <= now)
                    .map(|it| *it.0)
                    .collect();
                for id in expired {
                    let (_, payload) = queue.delivered.remove(&id).unwrap();
                    queue.waiting.push_front((id, payload));
                }
                if !is_missing
                    && queue.delivered.len() < batches.workers
                    && let Some((id, payload)) = queue.waiting.pop_front()
                {
                    queue
                        .delivered
                        .insert(id, (now + ACK_WAIT, payload.clone()));
                    let job = batches.job.clone();
                    return Ok(Some((payload, ModelDelivery { job, id })));
                }
                let expiry = queue.delivered.values().map(|it| it.0).min();
                (
                    Arc::clone(&queue.changed).notified_owned(),
                    expiry.map_or(end, |it| it.min(end)),
                )
            };
            if timeout_at(wake, changed).await.is_err() && Instant::now() >= end {
                return Ok(None);
            }
        }
    }

    async fn settle(&self, delivery: &ModelDelivery, settlement: Settlement) -> Result<()> {
        let settle = |state: &mut State| {
            let queue = state.work.entry(delivery.job.clone()).or_default();
            let Some((until, payload)) = queue.delivered.remove(&delivery.id) else {
                return Ok(());
            };
            match settlement {
                Settlement::Done => {}
                Settlement::GiveBack => queue.waiting.push_front((delivery.id, payload)),
                Settlement::InProgress => {
                    let until = until.max(Instant::now() + ACK_WAIT);
                    queue.delivered.insert(delivery.id, (until, payload));
                }
            }
            queue.changed.notify_waiters();
            Ok(())
        };
        self.call(settle).await
    }

    async fn send_result(&self, job: &str, id: &str, payload: Bytes) -> Result<()> {
        let send = |state: &mut State| {
            check_room(state.result_bytes, STREAM_BYTES_MAX, &payload)?;
            if state.ids[1].is_new(id) {
                state.result_bytes += payload.len();
                let results = state.results.entry(job.to_owned()).or_default();
                results.send_modify(|it| it.push(payload));
            }
            Ok(())
        };
        self.call(send).await
    }

    async fn results(&self, job: &str, from: u64) -> Result<Results> {
        let panics = self.lock().panics_in_results;
        assert!(!panics, "on purpose");
        let subscribe =
            |state: &mut State| Ok(state.results.entry(job.to_owned()).or_default().subscribe());
        let results = self.call(subscribe).await?;
        let next = async |(mut results, index): (watch::Receiver<Vec<Bytes>>, usize)| {
            let found = results.wait_for(|it| it.len() > index).await.ok()?[index].clone();
            Some((Ok((index as u64, found)), (results, index + 1)))
        };
        Ok(stream::unfold((results, usize::try_from(from)?), next).boxed())
    }

    async fn result_bytes(&self) -> Result<u64> {
        let bytes = |state: &mut State| Ok(state.result_bytes as u64 * state.result_size);
        self.call(bytes).await
    }

    async fn messages(&self, job: &str) -> Result<[u64; 2]> {
        let count = |state: &mut State| {
            let batches = state.work.get(job);
            let batches = batches.map_or(0, |it| it.waiting.len() + it.delivered.len());
            let results = state.results.get(job);
            let results = results.map_or(0, |it| it.borrow().len());
            Ok([batches as u64, results as u64])
        };
        self.call(count).await
    }

    async fn jobs_with_messages(&self) -> Result<[HashSet<String>; 2]> {
        let jobs = |state: &mut State| {
            let is_empty = |it: &Queue| it.waiting.is_empty() && it.delivered.is_empty();
            let batches = state.work.iter().filter(|it| !is_empty(it.1));
            let results = state.results.iter().filter(|it| !it.1.borrow().is_empty());
            let results = results.map(|it| it.0.clone()).collect();
            Ok([batches.map(|it| it.0.clone()).collect(), results])
        };
        self.call(jobs).await
    }

    async fn purge(&self, job: &str, results: bool) -> Result<()> {
        let purge = |state: &mut State| {
            if let Some(queue) = state.work.get_mut(job) {
                queue.waiting.clear();
                queue.delivered.clear();
                queue.purges += 1;
                queue.changed.notify_waiters();
            }
            if results && let Some(removed) = state.results.remove(job) {
                let removed = removed.borrow().iter().map(Bytes::len).sum::<usize>();
                state.result_bytes -= removed;
            }
            Ok(())
        };
        self.call(purge).await
    }
}

pub(crate) struct ModelBatches {
    job: String,
    workers: usize,
    purges: u64,
}

pub(crate) struct ModelDelivery {
    job: String,
    id: u64,
}
