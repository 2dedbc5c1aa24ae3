//! Reads one epoch of a producer from an archive: searches the place by binary search, then reads forward.

use proto::{
    archive::Events,
    limits::DELETION_HORIZON_MICROS,
    units::Sequence,
    wire::{ChunkRef, StreamMessage},
};

use super::{
    archive::{Archive, ArchiveError, Message},
    hole::{OpenHole, begin, next},
};
use crate::clock;

/// Maximum number of consecutive messages without a sequence number that a search skips.
const UNNUMBERED_MAX: usize = 16;

/// Maximum number of messages that were stored again which a search recognizes.
const REPEATED_MAX: usize = 8;

/// Missing numbers and their place in the archive.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) hole: OpenHole,
    /// The next position to read; `None` if it must be searched for.
    position: Option<u64>,
}

impl Reader {
    pub(super) fn new(hole: OpenHole) -> Self {
        Self {
            hole,
            position: None,
        }
    }

    /// The next messages; none if the archive has no more now. `last_position` may be some time old.
    ///
    /// # Errors
    /// If the archive cannot be read. Then the position is searched for again, because the stream may be another one.
    pub(super) async fn read(
        &mut self,
        archive: &mut dyn Archive,
        last_position: u64,
    ) -> Result<Vec<Message>, ArchiveError> {
        let subject = self.hole.origin().subject();
        let position = match self.position.take() {
            Some(position) => Some(position),
            None => self.search(archive, &subject, last_position).await?,
        };
        let Some(position) = position else {
            return Ok(Vec::new());
        };
        let messages = archive.read(&subject, position).await?;
        let last = messages.last().map(|message| message.position);
        self.position = Some(last.map_or(position, |last| last.saturating_add(1)));
        Ok(messages)
    }

    /// Takes the missing cookies from a message; `None` if the message is invalid, of another version or another epoch.
    pub(super) fn apply(&mut self, message: &Message) -> Option<Vec<ChunkRef>> {
        let accepted_min = clock::now().before(DELETION_HORIZON_MICROS);
        let mut parts = Vec::new();
        for event in events(message)? {
            parts.extend(self.hole.apply(event, accepted_min).ok()?);
        }
        Some(parts)
    }

    /// Searches for the last message that begins at or before the first missing number; `None` if the archive has nothing of this epoch.
    async fn search(
        &mut self,
        archive: &mut dyn Archive,
        subject: &str,
        last_position: u64,
    ) -> Result<Option<u64>, ArchiveError> {
        let Some((first, number)) = numbered(archive, subject, 0).await? else {
            return Ok(None);
        };
        self.hole.begins_at(number);
        let wanted = self.hole.first_missing().unwrap_or_default();
        let found = last_at(archive, subject, first, wanted, last_position);
        found.await.map(Some)
    }
}

/// The last message that begins at or before the number `wanted`, or the first one: that at position `first`.
///
/// A message that was stored again after later ones ends the search too late. It is recognized because it does not continue the last message
/// that the search finds before it; several in a row that continue one another are not.
pub(super) async fn last_at(
    archive: &mut dyn Archive,
    subject: &str,
    first: u64,
    wanted: Sequence,
    last_position: u64,
) -> Result<u64, ArchiveError> {
    let mut found = search(archive, subject, first, wanted, last_position).await?;
    for _ in 0..REPEATED_MAX {
        if found == first {
            break;
        }
        let earlier = search(archive, subject, first, wanted, found - 1).await?;
        let (_, after) = numbers(archive, subject, earlier).await?;
        if numbers(archive, subject, found).await?.0 == after {
            break;
        }
        found = earlier;
    }
    Ok(found)
}

/// A binary search for the last message that begins at or before the number `wanted`, as if all messages were in order.
async fn search(
    archive: &mut dyn Archive,
    subject: &str,
    mut found: u64,
    wanted: Sequence,
    last_position: u64,
) -> Result<u64, ArchiveError> {
    let (mut low, mut high) = (found + 1, last_position.saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        match numbered(archive, subject, middle).await? {
            Some((position, number)) if number <= wanted && position <= last_position => {
                (found, low) = (position, position + 1);
            }
            _ => high = middle,
        }
    }
    Ok(found)
}

/// The number that a message begins with, and the one after it; 0 if it has none.
async fn numbers(
    archive: &mut dyn Archive,
    subject: &str,
    position: u64,
) -> Result<(u64, u64), ArchiveError> {
    let message = archive.first(subject, position).await?;
    let events = message.and_then(|it| events(&it)).unwrap_or_default();
    let first = events.iter().find_map(begin).unwrap_or_default();
    let after = events.iter().filter_map(next).max().unwrap_or_default();
    Ok((first.0, after))
}

/// The first message from `position` on that has a sequence number.
pub(super) async fn numbered(
    archive: &mut dyn Archive,
    subject: &str,
    mut position: u64,
) -> Result<Option<(u64, Sequence)>, ArchiveError> {
    for _ in 0..UNNUMBERED_MAX {
        let Some(message) = archive.first(subject, position).await? else {
            return Ok(None);
        };
        let events = events(&message).unwrap_or_default();
        if let Some(number) = events.iter().find_map(begin) {
            return Ok(Some((message.position, number)));
        }
        position = message.position.saturating_add(1);
    }
    Ok(None)
}

/// The events of a message; `None` if it is invalid, or of another version.
pub(super) fn events(message: &Message) -> Option<Vec<StreamMessage>> {
    let events = Events::new(message.payload.clone());
    let known = events.filter(|event| !matches!(event, Ok(StreamMessage::Unknown)));
    let known: Vec<_> = known.collect::<Result<_, _>>().ok()?;
    (message.is_known_version && !known.is_empty()).then_some(known)
}
