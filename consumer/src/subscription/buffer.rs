//! What was received and is not yet part of a batch: one queue for all producers, bounded in bytes.
//!
//! When it is full, [`BufferWriter::push`] waits, and with it the reading of the stream that pushed.

use std::sync::Arc;

use prometheus::IntGauge;
use proto::wire::ChunkRef;
use runtime::metrics::PeakGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::{
    batch::Cursor,
    ledger::Ledger,
    metrics::{self, gauge_value},
};

/// What an item costs beside its bytes: the queue's slot and the allocation that holds the bytes.
const ITEM_BYTES: usize = 256;

/// One thing received, in stream order.
#[derive(Debug)]
pub enum Item {
    /// A chunk of the named producer.
    Chunk(Arc<str>, ChunkRef),
    /// A producer got further without a cookie: by a gap, a new epoch, or a goodbye.
    Cursor(Cursor),
}

/// The receiving end has gone; nothing more can be pushed.
#[derive(Debug, thiserror::Error)]
#[error("the buffer is closed")]
pub struct Closed;

/// The end that subscriptions push into. The reader sees the end of the buffer when all of them are dropped.
#[derive(Debug, Clone)]
pub struct BufferWriter {
    items: mpsc::Sender<Held>,
    free: Arc<Semaphore>,
    bytes_max: usize,
    used: IntGauge,
    peak: PeakGauge,
    ledger: Ledger,
}

/// The end that the sink takes from.
#[derive(Debug)]
pub struct BufferReader {
    items: mpsc::Receiver<Held>,
    used: IntGauge,
}

/// An item and the room it takes until it is popped.
#[derive(Debug)]
struct Held {
    item: Item,
    bytes: usize,
    _room: OwnedSemaphorePermit,
}

/// A buffer of at most `bytes_max` bytes. An item larger than that takes all of it.
#[must_use]
pub fn buffer(bytes_max: usize, metrics: &metrics::Subscription) -> (BufferWriter, BufferReader) {
    // Never more items than bytes allow, so sending never waits once there is room.
    let (sender, receiver) = mpsc::channel((bytes_max / ITEM_BYTES).max(1));
    metrics
        .buffer_bytes_max
        .set(gauge_value(bytes_max.try_into().unwrap_or(u64::MAX)));
    let writer = BufferWriter {
        items: sender,
        free: Arc::new(Semaphore::new(bytes_max)),
        bytes_max,
        used: metrics.buffer_bytes.clone(),
        peak: metrics.buffer_bytes_peak.clone(),
        ledger: metrics.ledger.clone(),
    };
    let reader = BufferReader {
        items: receiver,
        used: metrics.buffer_bytes.clone(),
    };
    (writer, reader)
}

impl BufferWriter {
    /// Puts an item at the end, waiting for room; a chunk's cookies then count as received. Dropping the future before
    /// it is done leaves the item out.
    ///
    /// # Errors
    /// When the reader has gone.
    pub async fn push(&self, item: Item) -> Result<(), Closed> {
        let bytes = ITEM_BYTES
            + match &item {
                Item::Chunk(_, chunk) => chunk.body().len(),
                Item::Cursor(_) => 0,
            };
        let bytes = bytes.min(self.bytes_max);
        let permits = u32::try_from(bytes).map_err(|_| Closed)?;
        let held = Arc::clone(&self.free)
            .acquire_many_owned(permits)
            .await
            .map_err(|_| Closed)?;
        let slot = self.items.reserve().await.map_err(|_| Closed)?;
        if let Item::Chunk(_, chunk) = &item {
            self.ledger.received(chunk.header().count.into());
        }
        self.used.add(gauge_value(bytes as u64));
        self.peak.record();
        slot.send(Held {
            item,
            bytes,
            _room: held,
        });
        Ok(())
    }
}

impl BufferReader {
    /// Takes the oldest item; `None` at the end, when all writers are gone and everything was taken.
    pub async fn pop(&mut self) -> Option<Item> {
        let held = self.items.recv().await?;
        Some(self.release(held))
    }

    /// Takes the oldest item if there is one now.
    pub fn try_pop(&mut self) -> Option<Item> {
        let held = self.items.try_recv().ok()?;
        Some(self.release(held))
    }

    fn release(&self, held: Held) -> Item {
        self.used.sub(gauge_value(held.bytes as u64));
        held.item
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::metrics::Registry;
    use tokio::time::timeout;

    use super::*;
    use crate::{batch::tests::chunk, metrics::Metrics};

    #[tokio::test]
    async fn full_buffer_makes_the_pusher_wait_until_something_is_taken() {
        let metrics = Metrics::register(&Registry::new()).unwrap().subscription;
        let chunk = chunk(1, 1, &[("u", 1, "b")]);
        let item = || Item::Chunk("p".into(), chunk.clone());
        let cost = ITEM_BYTES + chunk.body().len();
        let (writer, mut reader) = buffer(2 * cost, &metrics);
        writer.push(item()).await.unwrap();
        writer.push(item()).await.unwrap();
        assert_eq!(metrics.buffer_bytes.get(), gauge_value(2 * cost as u64));

        let short = Duration::from_millis(20);
        assert!(timeout(short, writer.push(item())).await.is_err());
        assert_eq!(metrics.ledger.counts().received, 2, "not the one left out");
        assert!(reader.pop().await.is_some());
        writer.push(item()).await.unwrap();

        drop(writer);
        assert!(reader.pop().await.is_some());
        assert!(reader.pop().await.is_some());
        assert!(reader.pop().await.is_none());
        assert_eq!(metrics.buffer_bytes.get(), 0);
    }

    #[tokio::test]
    async fn item_larger_than_the_buffer_passes_alone() {
        let metrics = Metrics::register(&Registry::new()).unwrap().subscription;
        let (writer, mut reader) = buffer(64, &metrics);
        let item = || Item::Chunk("p".into(), chunk(1, 1, &[("u", 1, "b")]));
        writer.push(item()).await.unwrap();
        assert!(reader.pop().await.is_some());
        drop(reader);
        assert!(writer.push(item()).await.is_err());
    }
}
