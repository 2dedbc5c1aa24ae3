//! A producer that stands still, like a process that was stopped by a signal: it reads and writes nothing, and the timers
//! of its log do not fire. When it continues, everything that waited for its sockets runs before these timers, which is
//! one of the orders in which a runtime may wake its tasks, and the one in which most is accepted before a timer.
//!
//! Its other timers, such as those of its limits, run meanwhile.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Mutex,
    task::{Context, Poll, Waker},
};

use crate::UNPOISONED;

/// Whether one producer stands still; shared by all its connections.
#[derive(Debug, Default)]
pub(crate) struct Stall(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    stands_still: bool,
    /// What waits for sockets, in the order of arrival.
    sockets: Vec<Waker>,
    timers: Vec<Waker>,
}

impl Stall {
    pub(crate) fn begin(&self) {
        self.0.lock().expect(UNPOISONED).stands_still = true;
    }

    pub(crate) fn end(&self) {
        let ended = std::mem::take(&mut *self.0.lock().expect(UNPOISONED));
        for waiting in ended.sockets.into_iter().chain(ended.timers) {
            waiting.wake();
        }
    }

    /// Ready unless the producer stands still.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        self.poll_as(context, |state| &mut state.sockets)
    }

    /// Runs the timers of a log, but not while the producer stands still.
    pub(crate) async fn hold(&self, timers: impl Future<Output = ()>) {
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
        waiting: impl Fn(&mut State) -> &mut Vec<Waker>,
    ) -> Poll<()> {
        let mut state = self.0.lock().expect(UNPOISONED);
        if !state.stands_still {
            return Poll::Ready(());
        }
        waiting(&mut state).push(context.waker().clone());
        Poll::Pending
    }
}
