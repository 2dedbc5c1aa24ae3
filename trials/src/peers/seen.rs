//! What a subscriber saw: counted without a lock by its one task, read by the task that reports it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bench::cpu::CpuTime;
use bytes::Bytes;
use proto::wire::ChunkRef;
use runtime::unix_micros;
use serde::{Deserialize, Serialize};

use super::message::{LANES, split_lane, walk, walk_chunk};

/// How many messages share one look at the clock when they are small.
const MESSAGES_PER_CLOCK: u64 = 16;

/// What one subscriber saw so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    received: AtomicU64,
    repeated: AtomicU64,
    missing: AtomicU64,
    told_lost: AtomicU64,
    disconnects: AtomicU64,
    unreadable: AtomicU64,
    messages: AtomicU64,
    first_unix_micros: AtomicU64,
    last_unix_micros: AtomicU64,
    lanes: [Lane; LANES],
}

/// How far the sequences of one publishing connection have come.
#[derive(Debug, Default)]
struct Lane {
    next_sequence: AtomicU64,
    has_begun: AtomicBool,
}

impl Seen {
    /// A message arrived.
    pub(super) fn message(&self, message: Bytes) {
        match walk(message).map(|(sequence, count)| (split_lane(sequence), count)) {
            Some(((lane, first), count)) if lane < LANES => {
                self.walked(&self.lanes[lane], first, count);
            }
            _ => self.unreadable(),
        }
    }

    /// A chunk of ours arrived; a producer has one sequence for all.
    pub(super) fn chunk(&self, chunk: &ChunkRef) {
        match walk_chunk(chunk) {
            Some((first, count)) => self.walked(&self.lanes[0], first, count),
            None => self.unreadable(),
        }
    }

    /// A cookie arrived that has no sequence: should it come again, nobody can tell, and it counts as another one.
    pub(super) fn cookie(&self) {
        self.arrived(1);
        add(&self.received, 1);
    }

    /// Our producer said that these will not come.
    pub(super) fn told_lost(&self, first_sequence: u64, count: u64) {
        add(&self.told_lost, count);
        let lane = &self.lanes[0];
        lane.next_sequence.store(first_sequence + count, Relaxed);
        lane.has_begun.store(true, Relaxed);
    }

    /// The connection ended.
    pub(super) fn disconnected(&self) {
        add(&self.disconnects, 1);
    }

    pub(super) fn unreadable(&self) {
        add(&self.unreadable, 1);
    }

    fn walked(&self, lane: &Lane, first: u64, count: u32) {
        let count = u64::from(count);
        self.arrived(count);
        add(&self.received, count);
        let next = lane.next_sequence.load(Relaxed);
        let end = first + count;
        if !lane.has_begun.swap(true, Relaxed) {
            lane.next_sequence.store(end, Relaxed);
            return;
        }
        add(&self.missing, first.saturating_sub(next));
        add(&self.repeated, next.min(end).saturating_sub(first));
        lane.next_sequence.store(next.max(end), Relaxed);
    }

    fn arrived(&self, cookies: u64) {
        let messages = self.messages.load(Relaxed);
        if cookies >= MESSAGES_PER_CLOCK || messages.is_multiple_of(MESSAGES_PER_CLOCK) {
            let now = unix_micros();
            if messages == 0 {
                self.first_unix_micros.store(now, Relaxed);
            }
            self.last_unix_micros.store(now, Relaxed);
        }
        self.messages.store(messages + 1, Relaxed);
    }
}

fn add(count: &AtomicU64, more: u64) {
    if more > 0 {
        count.fetch_add(more, Relaxed);
    }
}

/// What all subscribers of a process saw so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ReaderLine {
    /// When this was written.
    pub(super) unix_micros: u64,
    /// Cookies, repeated ones included.
    pub(super) received: u64,
    /// Messages that could be read.
    pub(super) messages: u64,
    /// Cookies that came again, as far as they have sequences.
    pub(super) repeated: u64,
    /// Cookies whose sequences were passed over in silence.
    pub(super) missing: u64,
    /// Cookies that the peer declared lost.
    pub(super) told_lost: u64,
    /// Connections that ended.
    pub(super) disconnects: u64,
    /// Messages that could not be read.
    pub(super) unreadable: u64,
    /// When the first message came; 0 when none did.
    pub(super) first_unix_micros: u64,
    /// When the last one came.
    pub(super) last_unix_micros: u64,
    /// CPU time of the process since all subscribers were ready.
    pub(super) cpu_seconds: f64,
}

impl ReaderLine {
    pub(super) fn of<'a>(
        all: impl Iterator<Item = &'a Seen> + Clone,
        cpu_before: &CpuTime,
    ) -> Self {
        let sum = |field: fn(&Seen) -> &AtomicU64| -> u64 {
            all.clone().map(|seen| field(seen).load(Relaxed)).sum()
        };
        let first = all.clone().map(|seen| seen.first_unix_micros.load(Relaxed));
        let last = all.clone().map(|seen| seen.last_unix_micros.load(Relaxed));
        let cpu = CpuTime::of_this_process().since(cpu_before);
        Self {
            unix_micros: unix_micros(),
            received: sum(|seen| &seen.received),
            messages: sum(|seen| &seen.messages),
            repeated: sum(|seen| &seen.repeated),
            missing: sum(|seen| &seen.missing),
            told_lost: sum(|seen| &seen.told_lost),
            disconnects: sum(|seen| &seen.disconnects),
            unreadable: sum(|seen| &seen.unreadable),
            first_unix_micros: first.filter(|micros| *micros > 0).min().unwrap_or(0),
            last_unix_micros: last.max().unwrap_or(0),
            cpu_seconds: cpu.total().as_secs_f64(),
        }
    }

    /// From the first message to the last; 0 when the clock was set back between them.
    pub(super) fn seconds(&self) -> f64 {
        let micros = self.last_unix_micros.saturating_sub(self.first_unix_micros);
        micros as f64 / 1e6
    }

    /// Distinct cookies; of those without a sequence, all.
    pub(super) fn delivered(&self) -> u64 {
        self.received.saturating_sub(self.repeated)
    }
}

#[cfg(test)]
mod tests {
    use bench::traffic::Traffic;

    use super::*;
    use crate::peers::message::Messages;

    #[test]
    fn every_way_to_miss_is_told_apart() {
        let mut messages = Messages::new(Traffic::new(1, None), 10, 0);
        let made: Vec<_> = (0..6).map(|_| messages.make()).collect();
        let seen = Seen::default();
        for index in [0, 1, 1, 3] {
            seen.message(made[index].clone());
        }
        seen.told_lost(40, 10);
        seen.message(made[5].clone());
        seen.message(Bytes::from_static(b"?"));
        seen.disconnected();
        let line = ReaderLine::of([&seen].into_iter(), &CpuTime::default());
        assert_eq!(
            (line.received, line.repeated, line.delivered()),
            (50, 10, 40)
        );
        assert_eq!((line.missing, line.told_lost), (10, 10));
        assert_eq!((line.disconnects, line.unreadable), (1, 1));
        assert!(line.first_unix_micros > 0 && line.last_unix_micros >= line.first_unix_micros);
    }

    #[test]
    fn lanes_may_overtake_each_other() {
        let made = |lane| Messages::new(Traffic::new(1, None), 10, lane);
        let (mut a, mut b) = (made(0), made(LANES as u64 - 1));
        let [first, second, third, fourth] = [a.make(), b.make(), a.make(), b.make()];
        let seen = Seen::default();
        for message in [second, fourth, first, third] {
            seen.message(message);
        }
        let stray = made(LANES as u64).make();
        seen.message(stray);
        let line = ReaderLine::of([&seen].into_iter(), &CpuTime::default());
        assert_eq!((line.delivered(), line.messages), (40, 4));
        assert_eq!((line.missing, line.repeated, line.unreadable), (0, 0, 1));
    }

    #[test]
    fn a_clock_set_back_leaves_no_time() {
        let line = ReaderLine {
            first_unix_micros: 9_000_000,
            last_unix_micros: 1,
            ..ReaderLine::default()
        };
        assert_eq!(line.seconds().to_bits(), 0);
    }
}
