//! Cursors that wait for holes: a durable cursor must not pass an open hole, because a restarted consumer would not find it again. Does
//! no I/O.

use std::sync::Arc;

use proto::units::Sequence;

use super::hole::Hole;
use crate::batch::{Batch, Cursor, Progress};

/// Number of a hole, in order of opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoleId(pub u64);

/// Open holes, and the progress of their producers behind the first one.
#[derive(Debug, Default)]
pub struct HeldCursors {
    producers: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    producer: Arc<str>,
    /// In order of opening, which is that of the stream; each with the position before it.
    holes: Vec<(HoleId, Cursor)>,
    progress: Option<Progress>,
}

impl HeldCursors {
    /// The number of open holes.
    pub fn open_holes(&self) -> usize {
        self.producers.iter().map(|it| it.holes.len()).sum()
    }

    /// Opens a hole. Must be called before the cursor of a batch passes it.
    pub fn open(&mut self, id: HoleId, hole: &Hole) {
        let before = Cursor {
            producer: Arc::clone(&hole.producer),
            epoch: hole.epoch,
            sequence: Sequence(*hole.range.start()) - 1,
            complete: false,
        };
        let mut known = self.producers.iter_mut();
        match known.find(|it| it.producer == hole.producer) {
            Some(held) => held.holes.push((id, before)),
            None => self.producers.push(Held {
                producer: Arc::clone(&hole.producer),
                holes: vec![(id, before)],
                progress: None,
            }),
        }
    }

    /// Sets the cursors of a batch back to the first open hole of each producer. Must be called before the batch is written.
    pub fn hold(&mut self, batch: &mut Batch) {
        for held in &mut self.producers {
            let (_, before) = &held.holes[0];
            if let Some(mut progress) = batch.hold_back(before) {
                if let Some(earlier) = held.progress.take() {
                    progress.completed.splice(0..0, earlier.completed);
                }
                held.progress = Some(progress);
            }
        }
    }

    /// Closes a hole, whose recovered cookies are in this batch or in earlier ones.
    pub fn close(&mut self, id: HoleId, batch: &mut Batch) {
        for held in &mut self.producers {
            let open = held.holes.len();
            held.holes.retain(|(open, _)| *open != id);
            // `hold` sets it back again if another hole is open.
            if let Some(progress) = held.progress.take_if(|_| held.holes.len() < open) {
                batch.release(progress);
            }
        }
        self.producers.retain(|held| !held.holes.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use proto::units::Epoch;

    use super::*;
    use crate::batch::{BatchId, tests::empty};

    fn cursor(epoch: u64, sequence: u64) -> Cursor {
        Cursor {
            producer: "p".into(),
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            complete: false,
        }
    }

    /// Opens a hole of ten numbers.
    fn open(held: &mut HeldCursors, id: u64, epoch: u64, first: u64) -> HoleId {
        let hole = Hole {
            producer: "p".into(),
            epoch: Epoch(epoch),
            range: first..=first + 9,
            restart: None,
        };
        held.open(HoleId(id), &hole);
        HoleId(id)
    }

    /// The cursor of a batch that advances to `reached`, after `close`.
    #[track_caller]
    fn check(
        held: &mut HeldCursors,
        close: Option<HoleId>,
        reached: Option<(u64, u64)>,
        durable: Option<(u64, u64)>,
    ) -> Batch {
        let mut batch = empty(BatchId(0));
        if let Some((epoch, sequence)) = reached {
            batch.advance(&cursor(epoch, sequence));
        }
        if let Some(id) = close {
            held.close(id, &mut batch);
        }
        held.hold(&mut batch);
        let cursors: Vec<_> = batch.cursors().iter().map(Cursor::position).collect();
        let expected: Vec<_> = durable
            .map(|(epoch, sequence)| cursor(epoch, sequence).position())
            .into_iter()
            .collect();
        assert_eq!(cursors, expected);
        batch
    }

    #[test]
    fn cursor_waits_for_the_first_open_hole() {
        let mut held = HeldCursors::default();
        check(&mut held, None, Some((1, 10)), Some((1, 10)));
        let one = open(&mut held, 1, 1, 11);
        check(&mut held, None, Some((1, 30)), Some((1, 10)));
        let other = open(&mut held, 2, 1, 31);
        check(&mut held, None, Some((1, 50)), Some((1, 10)));
        check(&mut held, None, None, None);
        check(&mut held, Some(one), None, Some((1, 30)));
        let next_epoch = open(&mut held, 3, 2, 1);
        check(&mut held, None, Some((2, 70)), Some((1, 30)));
        check(&mut held, Some(next_epoch), None, Some((1, 30)));
        check(&mut held, Some(other), None, Some((2, 70)));
        check(&mut held, None, Some((2, 80)), Some((2, 80)));
    }

    #[test]
    fn newer_cursor_of_the_batch_wins() {
        let mut held = HeldCursors::default();
        let id = open(&mut held, 1, 1, 11);
        check(&mut held, None, Some((1, 30)), Some((1, 10)));
        check(&mut held, Some(id), Some((2, 5)), Some((2, 5)));
    }

    #[test]
    fn epoch_is_complete_when_its_holes_are_closed() {
        let mut held = HeldCursors::default();
        let id = open(&mut held, 1, 1, 11);
        for epoch in [1, 2] {
            let mut batch = empty(BatchId(0));
            batch.advance(&Cursor {
                complete: true,
                ..cursor(epoch, 20)
            });
            held.hold(&mut batch);
            assert!(batch.completed_epochs().is_empty());
        }
        let batch = check(&mut held, Some(id), None, Some((2, 20)));
        let completed = batch.completed_epochs().iter().map(|it| it.epoch.0);
        assert_eq!(completed.collect::<Vec<_>>(), [1, 2]);
    }
}
