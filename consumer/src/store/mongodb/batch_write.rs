//! One batch into all its collections, several at once, so that one DSP's trouble is not another's.
//!
//! Each collection is written by a task of its own. What fails for a reason of its database, and what has not answered a
//! second after all others, [trips](super::breakers) its DSP's breaker, and its cookies are not taken. What hangs is left
//! to its task, which goes on waiting: that is the one command that DSP may have in flight. A hanging task keeps its slot
//! for no longer than a second while others wait for one.
//!
//! Before a silence is taken for one DSP's, the server is asked to write where the cursors are: if it does not answer
//! either, the trouble is the server's, and everything waits on as it is.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{task::JoinHandle, time::timeout};

use super::{
    Inner,
    connection::{COMMAND_TIMEOUT, Connection},
    retry_policy::Failure,
    write::{CollectionWrite, LastReply},
};
use crate::{
    batch::Batch,
    store::{StoreError, WriteOutcome},
};

/// How long a collection may give no sign after all others are done, and how long the server may take to show that it
/// works. A command has at most a thousand cookies, which take a slow server a tenth of that.
const SILENCE_MAX: Duration = Duration::from_secs(1);

type Outcome = (u32, Result<WriteOutcome, Failure>);

/// The writing of one batch.
pub(super) struct BatchWrite<'a> {
    store: &'a Arc<Inner>,
    connection: &'a Connection,
    batch: &'a Arc<Batch>,
    waiting: VecDeque<(u32, Vec<u32>)>,
    tasks: FuturesUnordered<JoinHandle<Outcome>>,
    running: BTreeMap<u32, RunningWrite>,
    done: WriteOutcome,
}

struct RunningWrite {
    indices: Vec<u32>,
    /// When a command was last answered.
    answered: LastReply,
    stop: tokio::task::AbortHandle,
}

impl Inner {
    pub(super) async fn write_batch(
        self: Arc<Self>,
        batch: Arc<Batch>,
    ) -> Result<WriteOutcome, StoreError> {
        let connection = self.connection().await?;
        let receipt = self.server(connection).await?;
        let by_dsp = self.by_dsp(&batch).await?;
        let round = BatchWrite::new(&self, connection, &batch);
        let written = round.run(by_dsp).await?;
        Ok(WriteOutcome { receipt, ..written })
    }
}

impl<'a> BatchWrite<'a> {
    pub(super) fn new(
        store: &'a Arc<Inner>,
        connection: &'a Connection,
        batch: &'a Arc<Batch>,
    ) -> Self {
        Self {
            store,
            connection,
            batch,
            waiting: VecDeque::new(),
            tasks: FuturesUnordered::new(),
            running: BTreeMap::new(),
            done: WriteOutcome::default(),
        }
    }

    /// Writes the cookies of each DSP.
    ///
    /// # Errors
    /// When the whole server does not work. What runs is then given up: the batch is to be written again.
    pub(super) async fn run(
        mut self,
        by_dsp: BTreeMap<u32, Vec<u32>>,
    ) -> Result<WriteOutcome, StoreError> {
        self.waiting.extend(by_dsp);
        let result = self.run_all().await;
        for running in self.running.values() {
            running.stop.abort();
        }
        result.map(|()| self.done)
    }

    async fn run_all(&mut self) -> Result<(), StoreError> {
        let mut slots = self.store.options.writers;
        loop {
            while self.running.len() < slots
                && let Some((dsp_id, indices)) = self.waiting.pop_front()
            {
                self.begin(dsp_id, indices);
            }
            if self.running.is_empty() {
                return Ok(());
            }
            match timeout(SILENCE_MAX, self.tasks.next()).await {
                Ok(Some(Ok((dsp_id, result)))) => self.ended(dsp_id, result).await?,
                Ok(Some(Err(error))) => {
                    return Err(StoreError::Broken(format!("a task failed: {error}")));
                }
                Ok(None) => return Ok(()),
                Err(_) if !self.waiting.is_empty() => slots += 1,
                Err(_) => self.silent().await?,
            }
        }
    }

    fn begin(&mut self, dsp_id: u32, indices: Vec<u32>) {
        if let Some(why) = self.store.breakers.tripped(dsp_id) {
            return self.done.deferred(dsp_id, Some(why), indices);
        }
        if self.batch.is_deferred(dsp_id) || !self.store.has_slot(dsp_id) {
            return self.done.deferred(dsp_id, None, indices);
        }
        let answered = LastReply::now();
        let writing = CollectionWrite::new(
            Arc::clone(self.store),
            self.connection.clone(),
            Arc::clone(self.batch),
            dsp_id,
            answered.clone(),
        );
        let to_write = indices.clone();
        let writing = async move { (dsp_id, writing.write(to_write).await) };
        let task = self.store.tasks.spawn(writing);
        let stop = task.abort_handle();
        self.tasks.push(task);
        let running = RunningWrite {
            indices,
            answered,
            stop,
        };
        self.running.insert(dsp_id, running);
    }

    async fn ended(
        &mut self,
        dsp_id: u32,
        result: Result<WriteOutcome, Failure>,
    ) -> Result<(), StoreError> {
        let Some(running) = self.running.remove(&dsp_id) else {
            return Ok(());
        };
        match result {
            Ok(written) => self.done.merge(written),
            // It got no answer at all, and so long that others may have got theirs.
            Err(Failure::Server(error)) if running.answered.silence() >= COMMAND_TIMEOUT => {
                if !self.store.is_server_available().await {
                    return Err(error);
                }
                self.failed(dsp_id, &error.to_string(), running.indices);
            }
            Err(Failure::Server(error)) => return Err(error),
            Err(Failure::Dsp(why)) => self.failed(dsp_id, &why, running.indices),
        }
        Ok(())
    }

    fn failed(&mut self, dsp_id: u32, why: &str, indices: Vec<u32>) {
        let why = self.store.breakers.trip(dsp_id, why);
        self.done.deferred(dsp_id, Some(why), indices);
    }

    /// Nothing ended for a while, and nothing waits for a slot.
    async fn silent(&mut self) -> Result<(), StoreError> {
        let is_silent = |running: &RunningWrite| running.answered.silence() >= SILENCE_MAX;
        if !self.running.values().all(is_silent) {
            return Ok(());
        }
        match timeout(SILENCE_MAX, self.store.check_writable()).await {
            Ok(answer) => answer?,
            Err(_) => return Ok(()),
        }
        for (dsp_id, running) in std::mem::take(&mut self.running) {
            if !is_silent(&running) {
                self.running.insert(dsp_id, running);
                continue;
            }
            let why = format!("no answer for {SILENCE_MAX:?}, while the server answers others");
            self.store.breakers.give_up(dsp_id, running.stop);
            self.failed(dsp_id, &why, running.indices);
        }
        Ok(())
    }
}
