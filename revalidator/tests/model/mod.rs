//! A model of the broker, in memory and with the clock of the test.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use anyhow::{Result, bail};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use revalidator::engine::{
    ACK_WAIT, Batches, Bucket, Delivery, Engine, Entry, Results, Settlement, Watch,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, timeout_at},
};

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
    ids: HashSet<String>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    keys: HashMap<Bucket, Keys>,
    work: HashMap<String, Queue>,
    results: HashMap<String, watch::Sender<Vec<Bytes>>>,
    next: u64,
    messages: u64,
    is_down: bool,
}

/// The broker; clones share it.
#[derive(Clone, Default)]
pub(crate) struct Model(Arc<Mutex<State>>);

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn up(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        if state.is_down {
            bail!("the broker is down");
        }
        state.messages += 1;
        Ok(state)
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

    /// Calls so far.
    pub(crate) fn messages(&self) -> u64 {
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

    async fn watch(&self, bucket: Bucket) -> Result<Watch> {
        let mut state = self.up()?;
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

    async fn get(&self, bucket: Bucket, key: &str) -> Result<Option<(Bytes, u64)>> {
        let mut state = self.up()?;
        let found = state
            .keys
            .entry(bucket)
            .or_default()
            .entries
            .get(key)
            .cloned();
        Ok(found.and_then(|(revision, value)| Some((value?, revision))))
    }

    async fn put(&self, bucket: Bucket, key: &str, value: Bytes) -> Result<u64> {
        Ok(self
            .up()?
            .keys
            .entry(bucket)
            .or_default()
            .set(key, Some(value)))
    }

    async fn compare_and_set(
        &self,
        bucket: Bucket,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>> {
        let mut state = self.up()?;
        let keys = state.keys.entry(bucket).or_default();
        let found = keys.entries.get(key);
        let is_expected = match revision {
            None => found.is_none_or(|(_, value)| value.is_none()),
            Some(revision) => found.is_some_and(|(found, _)| *found == revision),
        };
        Ok(is_expected.then(|| keys.set(key, Some(value))))
    }

    async fn delete(&self, bucket: Bucket, key: &str, revision: Option<u64>) -> Result<()> {
        let mut state = self.up()?;
        let keys = state.keys.entry(bucket).or_default();
        let found = keys.entries.get(key).map(|it| it.0);
        if revision.is_some() && found != revision {
            bail!("wrong revision");
        }
        keys.set(key, None);
        Ok(())
    }

    async fn send_batch(&self, job: &str, id: &str, payload: Bytes) -> Result<()> {
        let mut state = self.up()?;
        state.next += 1;
        let next = state.next;
        let queue = state.work.entry(job.to_owned()).or_default();
        if queue.ids.insert(id.to_owned()) {
            queue.waiting.push_back((next, payload));
            queue.changed.notify_waiters();
        }
        Ok(())
    }

    async fn batches(&self, job: &str, workers: u32) -> Result<ModelBatches> {
        self.up()?.work.entry(job.to_owned()).or_default();
        Ok(ModelBatches {
            model: self.clone(),
            job: job.to_owned(),
            workers: workers as usize,
        })
    }

    async fn send_result(&self, job: &str, _: &str, payload: Bytes) -> Result<()> {
        let mut state = self.up()?;
        let results = state.results.entry(job.to_owned()).or_default();
        results.send_modify(|it| it.push(payload));
        Ok(())
    }

    async fn results(&self, job: &str, from: u64) -> Result<Results> {
        let mut state = self.up()?;
        let results = state.results.entry(job.to_owned()).or_default().subscribe();
        let next = async |(mut results, index): (watch::Receiver<Vec<Bytes>>, usize)| {
            let found = results.wait_for(|it| it.len() > index).await.ok()?[index].clone();
            Some((Ok((index as u64, found)), (results, index + 1)))
        };
        Ok(stream::unfold((results, usize::try_from(from)?), next).boxed())
    }

    async fn purge(&self, job: &str, results: bool) -> Result<()> {
        let mut state = self.up()?;
        if let Some(queue) = state.work.get_mut(job) {
            queue.waiting.clear();
            queue.delivered.clear();
        }
        if results {
            state.results.remove(job);
        }
        Ok(())
    }
}

pub(crate) struct ModelBatches {
    model: Model,
    job: String,
    workers: usize,
}

pub(crate) struct ModelDelivery {
    model: Model,
    job: String,
    id: u64,
    payload: Bytes,
}

impl Batches for ModelBatches {
    type Delivery = ModelDelivery;

    async fn next(&mut self, wait: Duration) -> Result<Option<ModelDelivery>> {
        let end = Instant::now() + wait;
        loop {
            let (changed, wake) = {
                let mut state = self.model.up()?;
                let queue = state.work.entry(self.job.clone()).or_default();
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
                if queue.delivered.len() < self.workers
                    && let Some((id, payload)) = queue.waiting.pop_front()
                {
                    queue
                        .delivered
                        .insert(id, (now + ACK_WAIT, payload.clone()));
                    return Ok(Some(ModelDelivery {
                        model: self.model.clone(),
                        job: self.job.clone(),
                        id,
                        payload,
                    }));
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
}

impl Delivery for ModelDelivery {
    fn payload(&self) -> &Bytes {
        &self.payload
    }

    async fn settle(&self, settlement: Settlement) -> Result<()> {
        let mut state = self.model.up()?;
        let queue = state.work.entry(self.job.clone()).or_default();
        let Some((until, payload)) = queue.delivered.remove(&self.id) else {
            return Ok(());
        };
        match settlement {
            Settlement::Done => {}
            Settlement::GiveBack => queue.waiting.push_front((self.id, payload)),
            Settlement::InProgress => {
                let until = until.max(Instant::now() + ACK_WAIT);
                queue.delivered.insert(self.id, (until, payload));
            }
        }
        queue.changed.notify_waiters();
        Ok(())
    }
}
