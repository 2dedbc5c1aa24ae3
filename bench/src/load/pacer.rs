//! Wakes the connections of a thread when their next requests are due.
//!
//! The timer of the runtime is late by up to 2 ms. A timer of the kernel is late only by the time to wake the thread, so it is set
//! earlier by a *lead*, and the connection polls the clock in the meantime. Above [`PRECISE_RATE_MAX`], requests are grouped by the
//! millisecond, because a wake-up for each one would cost more than sending it.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    convert::Infallible,
    future::poll_fn,
    io,
    num::NonZeroU64,
    os::fd::OwnedFd,
    task::{Poll, Waker},
    time::Duration,
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::{io::unix::AsyncFd, time::Instant};

use super::recorder::nanos;

const SECOND_NANOS: u64 = 1_000_000_000;

/// Maximum rate at which each request is sent at its own time.
const PRECISE_RATE_MAX: u64 = 20_000;

/// Maximum lead.
const LEAD_NANOS_MAX: u64 = 100_000;

/// Fraction of the time between two requests up to which the lead is used, so that polling needs less than 10 % of a core.
const LEAD_SHARE: u64 = 10;

/// Interval of the groups of requests at higher rates.
const GROUP_NANOS: u64 = 1_000_000;

/// The timer of a thread.
pub(super) struct Pacer {
    started: Instant,
    timer: AsyncFd<OwnedFd>,
    /// Wake-up times are multiples of it.
    resolution: u64,
    lead: u64,
    queue: RefCell<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Wakers of connections, by wake-up time and number of the connection.
    waiting: BTreeMap<(u64, u64), Waker>,
    /// Wake-up time for which the timer is set.
    armed: Option<u64>,
}

impl Pacer {
    /// A timer for a load that began at `started`.
    pub(super) fn new(started: Instant, rate: Option<NonZeroU64>) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        #[expect(
            deprecated,
            reason = "the owned descriptor is never replaced; the successor is unsafe"
        )]
        let timer = AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)?;
        let (resolution, lead) = match rate {
            Some(rate) if rate.get() > PRECISE_RATE_MAX => (GROUP_NANOS, 0),
            Some(rate) => (1, LEAD_NANOS_MAX.min(SECOND_NANOS / rate / LEAD_SHARE)),
            None => (1, 0),
        };
        Ok(Self {
            started,
            timer,
            resolution,
            lead,
            queue: RefCell::default(),
        })
    }

    /// Waits until a request of a connection is due, in nanoseconds after the start. [`run`](Self::run) must run concurrently.
    pub(super) async fn wait(&self, due_nanos: u64, connection: u64) -> io::Result<()> {
        let at = due_nanos.checked_next_multiple_of(self.resolution);
        let at = at.unwrap_or(u64::MAX);
        poll_fn(|context| {
            let now = self.now_nanos();
            if now >= at {
                return Poll::Ready(Ok(()));
            }
            if now + self.lead >= at {
                // Responses and other connections come first.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut queue = self.queue.borrow_mut();
            let waker = context.waker().clone();
            queue.waiting.insert((at, connection), waker);
            match self.arm(&mut queue, now) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }

    /// Wakes connections. Cancel-safe.
    pub(super) async fn run(&self) -> io::Result<Infallible> {
        loop {
            self.timer.readable().await?.clear_ready();
            let now = self.now_nanos();
            let mut queue = self.queue.borrow_mut();
            while let Some(first) = queue.waiting.first_entry()
                && first.key().0 <= now + self.lead
            {
                first.remove().wake();
            }
            queue.armed = None;
            self.arm(&mut queue, now)?;
        }
    }

    /// Sets the timer to the first wake-up time.
    fn arm(&self, queue: &mut Queue, now: u64) -> io::Result<()> {
        let first = queue.waiting.keys().next().map(|(at, _)| *at);
        let Some(at) = first.filter(|at| queue.armed.is_none_or(|armed| *at < armed)) else {
            return Ok(());
        };
        // A time of zero would disable the timer.
        let wait = Duration::from_nanos(at.saturating_sub(now + self.lead).max(1));
        let timer = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(wait).map_err(io::Error::other)?,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)?;
        queue.armed = Some(at);
        Ok(())
    }

    fn now_nanos(&self) -> u64 {
        nanos(Instant::now().saturating_duration_since(self.started))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    /// How late it wakes them is a measurement: `bench load` reports it.
    #[tokio::test]
    async fn connections_are_woken_when_their_requests_are_due_and_not_before() {
        for rate in [1_000, PRECISE_RATE_MAX, 100_000] {
            let interval = SECOND_NANOS / rate;
            let pacer = Pacer::new(Instant::now(), NonZeroU64::new(rate)).unwrap();
            let connection = async |id: u64| {
                for number in 0..50 {
                    let due = (4 * number + id) * interval;
                    pacer.wait(due, id).await.unwrap();
                    assert!(pacer.now_nanos() >= due, "{rate} {id} {number}");
                }
            };
            tokio::select! {
                error = pacer.run() => panic!("{error:?}"),
                _ = join_all((0..4).map(connection)) => {}
            }
        }
    }
}
