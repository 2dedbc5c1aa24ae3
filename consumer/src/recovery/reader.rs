//! Reads one epoch of a producer from an archive: searches the place by binary search, then reads forward.

use proto::{
    archive::Events,
    limits::DELETION_HORIZON_MICROS,
    units::Sequence,
    wire::{ChunkRef, StreamMessage},
};

use super::{
    archive::{Archive, ArchiveError, Message},
    hole::{OpenHole, begin},
};
use crate::clock;

/// Maximum number of consecutive messages without a sequence number that a search skips.
const UNNUMBERED_MAX: usize = 16;

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

/// The last message that begins at or before the number `wanted`, or the first one: that at position `found`.
pub(super) async fn last_at(
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
            Some((position, number)) if number <= wanted => {
                (found, low) = (position, position + 1);
            }
            _ => high = middle,
        }
    }
    Ok(found)
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
