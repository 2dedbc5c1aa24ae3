//! Writes a batch to all its collections concurrently, so that failures of one DSP do not affect the others.
//!
//! Each collection is written by a task of its own. A database is considered failing if it reports an error that concerns only
//! this database, or does not reply for a second after all other databases are done. The [breaker](super::super::breakers) of its DSP
//! then trips, and its cookies are deferred. A hanging task keeps waiting: its command is the only one in flight for that DSP.
//! The number of concurrent tasks is limited. While other collections wait, the limit rises by one after each second in which
//! no task ended.
//!
//! Before a database is considered hanging, the server must accept a write to the cursors. If the server does not reply to
//! it either, the whole server is down, and all tasks keep waiting.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use proto::units::DspId;
use tokio::{task::JoinHandle, time::timeout};

use super::{
    super::{
        MongodbStore,
        connection::{COMMAND_TIMEOUT, Connection},
        error_class::Failure,
    },
    command,
    write::LastReply,
};
use crate::{
    batch::Batch,
    store::{Cookies as _, StoreError, WriteOutcome},
};

/// Maximum time without a reply of a collection after all others are done, and maximum time of the server check. A command
/// has at most a thousand cookies, which take a slow server a tenth of this time.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Number of collections written concurrently while all of them make progress.
const WRITERS: usize = 4;

type TaskResult = (DspId, Result<WriteOutcome, Failure>);

/// The write of one batch.
struct BatchWrite<'a> {
    store: &'a MongodbStore,
    connection: &'a Connection,
    batch: &'a Arc<Batch>,
    waiting: VecDeque<(DspId, Vec<u32>)>,
    tasks: FuturesUnordered<JoinHandle<TaskResult>>,
    running: BTreeMap<DspId, RunningWrite>,
    done: WriteOutcome,
}

struct RunningWrite {
    indices: Vec<u32>,
    last_reply: LastReply,
    stop: tokio::task::AbortHandle,
}

/// The indices of a batch's cookies by DSP. Sorts on a blocking thread, because sorting takes milliseconds of CPU.
pub(in super::super) async fn by_dsp(
    batch: &Arc<Batch>,
) -> Result<BTreeMap<DspId, Vec<u32>>, StoreError> {
    let batch = Arc::clone(batch);
    let sorted = tokio::task::spawn_blocking(move || command::by_dsp(&batch)).await;
    sorted.map_err(|error| StoreError::Broken(format!("batch sort failed: {error}")))
}

impl MongodbStore {
    pub(super) async fn write_batch(&self, batch: &Arc<Batch>) -> Result<WriteOutcome, StoreError> {
        let connection = self.connection().await?;
        let receipt = self.server(connection).await?;
        let mut by_dsp = by_dsp(batch).await?;
        if !batch.deletions().is_empty() {
            self.keep_deletions(connection, batch, &mut by_dsp).await?;
        }
        let batch_write = BatchWrite {
            store: self,
            connection,
            batch,
            waiting: by_dsp.into_iter().collect(),
            tasks: FuturesUnordered::new(),
            running: BTreeMap::new(),
            done: WriteOutcome::default(),
        };
        let written = batch_write.run().await?;
        Ok(WriteOutcome { receipt, ..written })
    }
}

impl BatchWrite<'_> {
    /// Writes the cookies of each DSP.
    ///
    /// # Errors
    /// When the whole server fails. Running tasks are aborted, and the batch must be written again.
    async fn run(mut self) -> Result<WriteOutcome, StoreError> {
        let result = self.run_all().await;
        for running in self.running.values() {
            running.stop.abort();
        }
        result.map(|()| self.done)
    }

    async fn run_all(&mut self) -> Result<(), StoreError> {
        let mut writers = WRITERS;
        loop {
            while self.running.len() < writers
                && let Some((dsp_id, indices)) = self.waiting.pop_front()
            {
                self.start(dsp_id, indices);
            }
            if self.running.is_empty() {
                return Ok(());
            }
            match timeout(SILENCE_MAX, self.tasks.next()).await {
                Ok(Some(Ok((dsp_id, result)))) => self.finish(dsp_id, result).await?,
                Ok(Some(Err(error))) => {
                    return Err(StoreError::Broken(format!("batch write failed: {error}")));
                }
                Ok(None) => return Ok(()),
                Err(_) if !self.waiting.is_empty() => writers += 1,
                Err(_) => self.defer_hanging().await?,
            }
        }
    }

    fn start(&mut self, dsp_id: DspId, indices: Vec<u32>) {
        if let Some(why) = self.store.breakers.tripped(dsp_id) {
            return self.done.deferred(dsp_id, Some(why), indices);
        }
        if self.batch.is_deferred(dsp_id) || !self.store.dsps.lock().slots.contains(&dsp_id) {
            return self.done.deferred(dsp_id, None, indices);
        }
        let write = self
            .store
            .collection_write(self.connection, self.batch, dsp_id);
        let last_reply = write.last_reply.clone();
        let to_write = indices.clone();
        let writing = async move { (dsp_id, write.write(to_write).await) };
        let task = self.store.tasks.spawn(writing);
        let stop = task.abort_handle();
        self.tasks.push(task);
        let running = RunningWrite {
            indices,
            last_reply,
            stop,
        };
        self.running.insert(dsp_id, running);
    }

    async fn finish(
        &mut self,
        dsp_id: DspId,
        result: Result<WriteOutcome, Failure>,
    ) -> Result<(), StoreError> {
        let Some(running) = self.running.remove(&dsp_id) else {
            return Ok(());
        };
        match result {
            Ok(written) => self.done.merge(written),
            // This database did not reply for the whole command timeout.
            Err(Failure::Server(error)) if running.last_reply.silence() >= COMMAND_TIMEOUT => {
                if !self.store.is_server_available().await {
                    return Err(error);
                }
                self.defer(dsp_id, &error.to_string(), running.indices);
            }
            Err(Failure::Server(error)) => return Err(error),
            Err(Failure::Dsp(why)) => self.defer(dsp_id, &why, running.indices),
        }
        Ok(())
    }

    fn defer(&mut self, dsp_id: DspId, why: &str, indices: Vec<u32>) {
        let why = self.store.breakers.trip(dsp_id, why);
        self.done.deferred(dsp_id, Some(why), indices);
    }

    /// Defers the cookies of hanging databases, if the server itself is available.
    async fn defer_hanging(&mut self) -> Result<(), StoreError> {
        let is_silent = |running: &RunningWrite| running.last_reply.silence() >= SILENCE_MAX;
        if !self.running.values().all(is_silent) {
            return Ok(());
        }
        match timeout(SILENCE_MAX, self.store.ping()).await {
            Ok(result) => result?,
            Err(_) => return Ok(()),
        }
        for (dsp_id, running) in std::mem::take(&mut self.running) {
            if !is_silent(&running) {
                self.running.insert(dsp_id, running);
                continue;
            }
            let why = format!("no response for {SILENCE_MAX:?}, while other databases respond");
            self.store.breakers.add_hanging(dsp_id, running.stop);
            self.defer(dsp_id, &why, running.indices);
        }
        Ok(())
    }
}
