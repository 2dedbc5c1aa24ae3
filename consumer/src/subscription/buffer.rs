//! The receive buffer: one queue for all producers, bounded in bytes.
//!
//! When the buffer is full, [`BufferWriter::push`] waits, so its caller stops reading from its stream.

use std::sync::Arc;

use prometheus::IntGauge;
use proto::wire::ChunkRef;
use runtime::metrics::PeakGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::restarts::Restart;
use crate::{
    batch::Cursor,
    ledger::Ledger,
    metrics::{self, gauge_value},
    recovery::Hole,
};

/// Overhead of an item in bytes, in addition to its size: its queue slot and allocation.
const ITEM_BYTES: usize = 256;

/// A received item, in stream order.
#[derive(Debug)]
pub enum Item {
    /// A chunk of a producer.
    Chunk(Arc<str>, ChunkRef),
    /// A chunk of an earlier epoch of a producer, which advances no cursor.
    Late(Arc<str>, ChunkRef),
    /// A chunk of another node, and the number of copied records up to its end.
    Copied(ChunkRef, u64),
    /// A new position without cookies: a gap, a new epoch, or a `Goodbye`.
    Cursor(Cursor),
    /// A hole to be recovered from an archive, and the position after it.
    Hole(Hole, Cursor),
}

impl Item {
    /// The item that begins a stream at `start`, perhaps after a restart. The loss is reported, or recovered if there is an archive.
    pub fn begin(
        restart: Option<Restart>,
        start: &Cursor,
        metrics: &metrics::Subscription,
        has_archive: bool,
    ) -> Self {
        match restart {
            Some(restart) if restart.may_lose() && has_archive => {
                return Self::Hole(Hole::restart(restart), start.clone());
            }
            Some(restart) => restart.report(metrics, 0),
            None => {}
        }
        Self::Cursor(start.clone())
    }
}

/// The reader was dropped.
#[derive(Debug, thiserror::Error)]
#[error("the buffer is closed")]
pub struct Closed;

/// The writing end, for subscriptions. The buffer ends when all writers are dropped.
#[derive(Debug, Clone)]
pub struct BufferWriter {
    items: mpsc::Sender<BufferedItem>,
    free: Arc<Semaphore>,
    bytes_max: usize,
    used: IntGauge,
    peak: PeakGauge,
    ledger: Ledger,
}

/// The reading end, for the sink.
#[derive(Debug)]
pub struct BufferReader {
    items: mpsc::Receiver<BufferedItem>,
    used: IntGauge,
}

/// An item with its reserved bytes.
type BufferedItem = (Item, OwnedSemaphorePermit);

/// A buffer of `bytes_max` bytes. A larger item uses all of it.
pub fn buffer(bytes_max: usize, metrics: &metrics::Subscription) -> (BufferWriter, BufferReader) {
    // The byte limit also limits the number of items, so sending never waits after the permit is acquired.
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
    /// Appends an item, and counts the cookies of a chunk as received. Waits for capacity. If the future is dropped before it
    /// completes, the item is not appended.
    ///
    /// # Errors
    /// When the reader was dropped.
    pub async fn push(&self, item: Item) -> Result<(), Closed> {
        let bytes = ITEM_BYTES
            + match &item {
                Item::Chunk(_, chunk) | Item::Late(_, chunk) | Item::Copied(chunk, _) => {
                    chunk.body().len()
                }
                Item::Cursor(_) | Item::Hole(..) => 0,
            };
        let bytes = bytes.min(self.bytes_max);
        let permits = u32::try_from(bytes).map_err(|_| Closed)?;
        let permit = Arc::clone(&self.free)
            .acquire_many_owned(permits)
            .await
            .map_err(|_| Closed)?;
        let slot = self.items.reserve().await.map_err(|_| Closed)?;
        if let Item::Chunk(_, chunk) | Item::Late(_, chunk) | Item::Copied(chunk, _) = &item {
            self.ledger.received(chunk.header().count.into());
        }
        self.used.add(gauge_value(bytes as u64));
        self.peak.record();
        slot.send((item, permit));
        Ok(())
    }
}

impl BufferReader {
    /// Removes the oldest item; `None` when all writers are dropped and the buffer is empty.
    pub async fn pop(&mut self) -> Option<Item> {
        let item = self.items.recv().await?;
        Some(self.release(item))
    }

    /// Removes the oldest item if there is one.
    pub fn try_pop(&mut self) -> Option<Item> {
        let item = self.items.try_recv().ok()?;
        Some(self.release(item))
    }

    /// Whether there is no item now.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn release(&self, (item, permit): BufferedItem) -> Item {
        self.used.sub(gauge_value(permit.num_permits() as u64));
        item
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
    async fn push_into_a_full_buffer_waits_for_a_pop() {
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
        assert_eq!(
            metrics.ledger.counts().received,
            2,
            "not the cancelled push"
        );
        assert!(reader.pop().await.is_some());
        writer.push(item()).await.unwrap();

        drop(writer);
        assert!(reader.pop().await.is_some());
        assert!(reader.pop().await.is_some());
        assert!(reader.pop().await.is_none());
        assert_eq!(metrics.buffer_bytes.get(), 0);
    }

    #[tokio::test]
    async fn item_larger_than_the_buffer_is_accepted() {
        let metrics = Metrics::register(&Registry::new()).unwrap().subscription;
        let (writer, mut reader) = buffer(64, &metrics);
        let item = || Item::Chunk("p".into(), chunk(1, 1, &[("u", 1, "b")]));
        writer.push(item()).await.unwrap();
        assert!(reader.pop().await.is_some());
        drop(reader);
        assert!(writer.push(item()).await.is_err());
    }
}
