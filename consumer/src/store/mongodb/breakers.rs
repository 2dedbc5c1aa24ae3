//! A circuit breaker for each DSP's database.
//!
//! A breaker trips when a command fails because of that database, or hangs while other databases reply. Then only
//! [`retry`](crate::store::Store::retry) sends commands to the database, one at a time. The first success resets the breaker.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use proto::units::DspId;
use tokio::task::AbortHandle;

use crate::store::StoreError;

/// The breakers of all DSPs.
#[derive(Debug, Default)]
pub(super) struct Breakers(Mutex<BTreeMap<DspId, Breaker>>);

/// A breaker that tripped, or whose database has not replied yet.
#[derive(Debug, Default)]
struct Breaker {
    /// The error; `None` if the breaker has not tripped.
    why: Option<Arc<str>>,
    /// Tasks that still wait for replies.
    hanging: Vec<AbortHandle>,
}

impl Breakers {
    /// Why the breaker of a DSP has tripped, if it has.
    pub(super) fn tripped(&self, dsp_id: DspId) -> Option<Arc<str>> {
        self.0.lock().get(&dsp_id)?.why.clone()
    }

    pub(super) fn trip(&self, dsp_id: DspId, why: &str) -> Arc<str> {
        let mut all = self.0.lock();
        let breaker = all.entry(dsp_id).or_default();
        Arc::clone(breaker.why.insert(why.into()))
    }

    /// # Errors
    /// When no command may be sent, because an earlier one awaits its reply.
    pub(super) fn may_try(&self, dsp_id: DspId) -> Result<(), StoreError> {
        let all = self.0.lock();
        let mut hanging = all.get(&dsp_id).into_iter().flat_map(|it| &it.hanging);
        if hanging.all(AbortHandle::is_finished) {
            return Ok(());
        }
        let why = "no response to an earlier command yet";
        Err(StoreError::Unavailable(why.to_owned()))
    }

    /// Allows commands again.
    pub(super) fn reset(&self, dsp_id: DspId) {
        self.0.lock().remove(&dsp_id);
    }

    /// Adds a task that still waits for a reply.
    pub(super) fn add_hanging(&self, dsp_id: DspId, task: AbortHandle) {
        let mut all = self.0.lock();
        let hanging = &mut all.entry(dsp_id).or_default().hanging;
        hanging.retain(|task| !task.is_finished());
        hanging.push(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tripped_breaker_allows_a_retry_without_hanging_tasks_and_is_reset() {
        let breakers = Breakers::default();
        assert_eq!(breakers.tripped(DspId(7)), None);
        breakers.trip(DspId(7), "no right");
        let (reply, replied) = tokio::sync::oneshot::channel::<()>();
        let tasks = tokio_util::task::TaskTracker::new();
        let task = tasks.spawn(replied);
        breakers.add_hanging(DspId(7), task.abort_handle());
        assert_eq!(breakers.tripped(DspId(7)).as_deref(), Some("no right"));
        assert!(breakers.may_try(DspId(7)).is_err() && breakers.may_try(DspId(8)).is_ok());
        assert_eq!(breakers.tripped(DspId(8)), None);
        reply.send(()).unwrap();
        task.await.unwrap().unwrap();
        assert!(breakers.may_try(DspId(7)).is_ok() && breakers.tripped(DspId(7)).is_some());
        breakers.reset(DspId(7));
        assert_eq!(breakers.tripped(DspId(7)), None);
    }
}
