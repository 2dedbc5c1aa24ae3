//! Which DSPs' databases do not work now: a circuit breaker for each.
//!
//! A breaker trips when a command in a DSP's database fails for a reason of that database, or is not answered long after
//! all others were. From then on nothing is sent there but what [`retry`](crate::store::Store::retry) tries, one command
//! at a time; the first success resets it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::task::AbortHandle;

use super::lock;

/// The breakers of all DSPs.
#[derive(Debug, Default)]
pub(super) struct Breakers(Mutex<BTreeMap<u32, Breaker>>);

/// One that tripped, or whose DSP has yet to answer.
#[derive(Debug, Default)]
struct Breaker {
    /// What is wrong; nothing when it was reset.
    why: Option<Arc<str>>,
    /// What waits for answers that nobody else waits for any more.
    given_up: Vec<AbortHandle>,
}

impl Breakers {
    /// Why nothing is to be sent to a DSP's database, if so.
    pub(super) fn tripped(&self, dsp_id: u32) -> Option<Arc<str>> {
        self.all().get(&dsp_id)?.why.clone()
    }

    pub(super) fn trip(&self, dsp_id: u32, why: &str) -> Arc<str> {
        let mut all = self.all();
        let breaker = all.entry(dsp_id).or_default();
        Arc::clone(breaker.why.insert(why.into()))
    }

    /// Whether a command may be tried: none is unanswered.
    pub(super) fn may_try(&self, dsp_id: u32) -> bool {
        let all = self.all();
        all.get(&dsp_id)
            .is_none_or(|breaker| breaker.given_up.iter().all(AbortHandle::is_finished))
    }

    /// Lets commands through again.
    pub(super) fn reset(&self, dsp_id: u32) {
        self.all().remove(&dsp_id);
    }

    /// Notes a task whose commands are not waited for any more.
    pub(super) fn give_up(&self, dsp_id: u32, task: AbortHandle) {
        let mut all = self.all();
        let given_up = &mut all.entry(dsp_id).or_default().given_up;
        given_up.retain(|task| !task.is_finished());
        given_up.push(task);
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u32, Breaker>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_tripped_is_tried_when_nothing_is_unanswered_and_reset_by_success() {
        let breakers = Breakers::default();
        assert_eq!(breakers.tripped(7), None);
        breakers.trip(7, "no right");
        let (answer, answered) = tokio::sync::oneshot::channel::<()>();
        let tasks = tokio_util::task::TaskTracker::new();
        let task = tasks.spawn(answered);
        breakers.give_up(7, task.abort_handle());
        assert_eq!(breakers.tripped(7).as_deref(), Some("no right"));
        assert!(!breakers.may_try(7) && breakers.may_try(8));
        assert_eq!(breakers.tripped(8), None);
        answer.send(()).unwrap();
        task.await.unwrap().unwrap();
        assert!(breakers.may_try(7) && breakers.tripped(7).is_some());
        breakers.reset(7);
        assert_eq!(breakers.tripped(7), None);
    }
}
