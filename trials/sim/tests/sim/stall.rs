//! Stalls a simulated producer, like a signal that pauses a process: no data passes its sockets, and the timers of its log do not fire.
//!
//! When the producer continues, tasks that wait for sockets run before the timers. In this order, the producer accepts the most
//! requests before a timer fires. Other timers, such as the timers of limits, are not stalled.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Mutex,
    task::{Context, Poll, Waker},
};

use crate::UNPOISONED;

/// The stall of one producer, shared by all its connections.
#[derive(Debug, Default)]
pub(crate) struct Stall(Mutex<StallState>);

#[derive(Debug, Default)]
struct StallState {
    is_stalled: bool,
    /// Tasks that wait for sockets, in order of arrival.
    sockets: Vec<Waker>,
    timers: Vec<Waker>,
}

impl Stall {
    pub(crate) fn begin(&self) {
        self.0.lock().expect(UNPOISONED).is_stalled = true;
    }

    pub(crate) fn end(&self) {
        let ended = std::mem::take(&mut *self.0.lock().expect(UNPOISONED));
        for waiting in ended.sockets.into_iter().chain(ended.timers) {
            waiting.wake();
        }
    }

    /// Ready unless the producer is stalled.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        self.poll_as(context, |state| &mut state.sockets)
    }

    /// Runs the timers of a log, except while the producer is stalled.
    pub(crate) async fn gate(&self, timers: impl Future<Output = ()>) {
        let mut timers = pin!(timers);
        poll_fn(|context| {
            std::task::ready!(self.poll_as(context, |state| &mut state.timers));
            timers.as_mut().poll(context)
        })
        .await;
    }

    fn poll_as(
        &self,
        context: &Context<'_>,
        waiting: impl Fn(&mut StallState) -> &mut Vec<Waker>,
    ) -> Poll<()> {
        let mut state = self.0.lock().expect(UNPOISONED);
        if !state.is_stalled {
            return Poll::Ready(());
        }
        waiting(&mut state).push(context.waker().clone());
        Poll::Pending
    }
}
