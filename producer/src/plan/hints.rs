//! Hints: what a browser knows about its recent syncs, in a cookie.
//!
//! A node may have a match that no producer can ask for, so the browser itself keeps the day of its last match with each DSP, or
//! the number of offers on one day without a match. Hints are neither secret nor signed: a browser that changes them changes only
//! which DSPs it is offered. `base64url(version, check, entries)`:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | version: 1 |
//! | 1 | first byte of the SHA-256 of the user id, so that hints do not survive a new user id (except 1 of 256) |
//! | 6 each | DSP id (big-endian), day since 1970 in UTC modulo 256, offers on that day; 0 offers: a match. By DSP id |

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use proto::units::DspId;
use ring::digest;

use crate::contracts::Contracts;

const VERSION: u8 = 1;

/// Maximum number of entries; 803 characters.
const ENTRIES_MAX: usize = 100;

const HEAD_BYTES: usize = 2;
const ENTRY_BYTES: usize = 6;

/// Maximum characters of hints.
const TEXT_BYTES_MAX: usize = (HEAD_BYTES + ENTRIES_MAX * ENTRY_BYTES).div_ceil(3) * 4;

/// Larger ages are those of a clock that is ahead.
const AGE_MAX: u8 = 199;

/// The hints of one browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hints {
    check: u8,
    /// By DSP id.
    entries: Vec<Hint>,
}

/// What is known about one DSP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hint {
    dsp_id: DspId,
    /// The day of the match, or of the offers.
    day: u8,
    /// 0 after a match.
    offers: u8,
}

impl Hint {
    /// The age in days.
    fn age(&self, day: u8) -> u8 {
        match day.wrapping_sub(self.day) {
            age @ ..=AGE_MAX => age,
            _ => 0,
        }
    }

    fn is_in_sync(&self, day: u8, refresh: Duration) -> bool {
        let age = Duration::from_secs(24 * 3600) * u32::from(self.age(day));
        self.offers == 0 && age < refresh
    }
}

impl Hints {
    /// No hints, for a browser with this user id.
    pub fn new(user_id: &str) -> Self {
        let hash = digest::digest(&digest::SHA256, user_id.as_bytes());
        Self {
            check: hash.as_ref()[0],
            entries: Vec::new(),
        }
    }

    /// Reads the hints of a browser with this user id. Invalid hints, and those of another user id, count as none.
    pub fn read(text: Option<&[u8]>, user_id: &str) -> Self {
        let mut hints = Self::new(user_id);
        let text = text.filter(|text| text.len() <= TEXT_BYTES_MAX);
        let bytes = text.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        let bytes = bytes.unwrap_or_default();
        let Some((head, entries)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return hints;
        };
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        let read = |&[a, b, c, d, day, offers]: &[u8; ENTRY_BYTES]| Hint {
            dsp_id: DspId(u32::from_be_bytes([a, b, c, d])),
            day,
            offers,
        };
        let entries: Vec<_> = entries.iter().map(read).collect();
        let is_ordered = entries.is_sorted_by(|a, b| a.dsp_id < b.dsp_id);
        if *head == [VERSION, hints.check] && rest.is_empty() && is_ordered {
            hints.entries = entries;
        }
        hints
    }

    fn of(&self, dsp_id: DspId) -> Option<&Hint> {
        let at = self.place(dsp_id).ok()?;
        self.entries.get(at)
    }

    fn place(&self, dsp_id: DspId) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&dsp_id, |it| it.dsp_id)
    }

    /// Whether the last match with a DSP is newer than its time of refresh.
    pub fn is_in_sync(&self, dsp_id: DspId, day: u8, refresh: Duration) -> bool {
        let hint = self.of(dsp_id);
        hint.is_some_and(|it| it.is_in_sync(day, refresh))
    }

    /// Whether the last match with any DSP is newer than its time of refresh.
    pub fn has_any_in_sync(&self, day: u8, contracts: &Contracts) -> bool {
        self.entries.iter().any(|it| {
            let sync = contracts.of(it.dsp_id).sync.as_ref();
            sync.is_some_and(|sync| it.is_in_sync(day, sync.refresh))
        })
    }

    /// How often a DSP was offered today without a match.
    pub fn offers(&self, dsp_id: DspId, day: u8) -> u8 {
        let today = self.of(dsp_id).filter(|it| it.age(day) == 0);
        today.map_or(0, |it| it.offers)
    }

    /// Counts an offer.
    pub fn offer(&mut self, dsp_id: DspId, day: u8) {
        let offers = self.offers(dsp_id, day).saturating_add(1);
        self.set(dsp_id, day, offers);
    }

    /// Notes a match; false if that of today was noted before.
    pub fn accept(&mut self, dsp_id: DspId, day: u8) -> bool {
        let noted = Hint {
            dsp_id,
            day,
            offers: 0,
        };
        let is_new = self.of(dsp_id) != Some(&noted);
        self.set(dsp_id, day, 0);
        is_new
    }

    fn set(&mut self, dsp_id: DspId, day: u8, offers: u8) {
        let hint = Hint {
            dsp_id,
            day,
            offers,
        };
        match self.place(dsp_id) {
            Ok(at) => self.entries[at] = hint,
            Err(at) => self.entries.insert(at, hint),
        }
    }

    /// The text without useless entries and, above the maximum, without the oldest.
    pub fn write(mut self, day: u8, contracts: &Contracts) -> String {
        self.entries.retain(|hint| {
            let sync = contracts.of(hint.dsp_id).sync.as_ref();
            let offered_today = hint.offers > 0 && hint.age(day) == 0;
            sync.is_some_and(|sync| offered_today || hint.is_in_sync(day, sync.refresh))
        });
        if self.entries.len() > ENTRIES_MAX {
            self.entries.sort_by_key(|it| it.age(day));
            self.entries.truncate(ENTRIES_MAX);
            self.entries.sort_by_key(|it| it.dsp_id);
        }
        let mut bytes = vec![VERSION, self.check];
        for Hint {
            dsp_id,
            day,
            offers,
        } in self.entries
        {
            bytes.extend_from_slice(&dsp_id.0.to_be_bytes());
            bytes.extend_from_slice(&[day, offers]);
        }
        URL_SAFE_NO_PAD.encode(bytes)
    }
}

#[cfg(test)]
mod tests;
