//! GPP strings: a header that lists section ids, and the sections in the order of the list.
//!
//! `DBACNY~CPXx…~1YNN` contains the sections 2 and 6. Unknown sections are skipped, but their characters are checked.

use serde::Deserialize;

use super::bits::{self, Bits, Malformed};

/// The section of TCF consent in the EU.
pub(super) const TCF_EU: usize = 2;

/// The gate judges only sections with smaller ids, and so do the rules of DSPs.
const IDS_END: usize = 64;

/// Larger section ids are malformed, which bounds the bits of a header.
const ID_MAX: usize = 1023;

/// A longer list of section ids is malformed.
const SECTION_IDS_BYTES_MAX: usize = 256;

const HEADER_TYPE: u64 = 3;
const HEADER_VERSION: u64 = 1;

/// The known sections of a GPP string.
pub(super) struct Sections<'a> {
    text: &'a str,
    /// Start and end in the text by id; both 0 if the section is absent.
    spans: [(u16, u16); IDS_END],
}

impl<'a> Sections<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, Malformed> {
        bits::check_characters(text, b"~.")?;
        let mut parts = Parts {
            text,
            next: Some(0),
        };
        let (start, end) = parts.next()?;
        let header = Bits::of(&text[usize::from(start)..usize::from(end)]);
        if header.number(0, 6)? != HEADER_TYPE || header.number(6, 6)? != HEADER_VERSION {
            return Err(Malformed);
        }
        let mut sections = Self {
            text,
            spans: [(0, 0); IDS_END],
        };
        let count = header.number(12, 12)?;
        let (mut at, mut id) = (24, 0);
        for _ in 0..count {
            let is_range = header.bit(at)?;
            at += 1;
            let first = id + fibonacci(header, &mut at)?;
            id = first;
            if is_range {
                id += fibonacci(header, &mut at)?;
            }
            if id > ID_MAX {
                return Err(Malformed);
            }
            for id in first..=id {
                let (start, end) = parts.next()?;
                if start == end {
                    return Err(Malformed);
                }
                if let Some(span) = sections.spans.get_mut(id) {
                    *span = (start, end);
                }
            }
        }
        match parts.next {
            None => Ok(sections),
            Some(_) => Err(Malformed),
        }
    }

    /// The text of a known section; empty if it is absent.
    pub(super) fn section(&self, id: usize) -> &'a str {
        let (start, end) = self.spans.get(id).copied().unwrap_or_default();
        &self.text[usize::from(start)..usize::from(end)]
    }
}

/// Iterates over the parts between tildes.
struct Parts<'a> {
    text: &'a str,
    /// Start of the next part; `None` after the last.
    next: Option<usize>,
}

impl Parts<'_> {
    /// Start and end of the next part.
    fn next(&mut self) -> Result<(u16, u16), Malformed> {
        let start = self.next.take().ok_or(Malformed)?;
        let length = memchr::memchr(b'~', &self.text.as_bytes()[start..]);
        self.next = length.map(|length| start + length + 1);
        let end = length.map_or(self.text.len(), |length| start + length);
        let offset = |at| u16::try_from(at).map_err(|_| Malformed);
        Ok((offset(start)?, offset(end)?))
    }
}

/// Reads a number in Fibonacci coding: the bit for each Fibonacci number from 1 up, and a final 1.
fn fibonacci(bits: Bits<'_>, at: &mut usize) -> Result<usize, Malformed> {
    let (mut number, mut fibonacci, mut next) = (0, 1, 2);
    let mut previous = false;
    // The final 1 follows the bit of the largest number, which is less than twice the number before.
    while fibonacci <= 2 * ID_MAX {
        let bit = bits.bit(*at)?;
        *at += 1;
        if bit && previous {
            return Ok(number);
        }
        if bit {
            number += fibonacci;
        }
        previous = bit;
        (fibonacci, next) = (next, fibonacci + next);
    }
    Err(Malformed)
}

/// The section ids of `gpp_sid`. Ids above 63 count as unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<u32>")]
pub struct SectionIds {
    known: u64,
    is_present: bool,
}

impl SectionIds {
    /// Parses comma-separated ids. `-1` means that no section applies; `0` means that the client has not determined it yet,
    /// which counts as absent.
    pub(super) fn parse(text: &str) -> Result<Self, Malformed> {
        if text.len() > SECTION_IDS_BYTES_MAX {
            return Err(Malformed);
        }
        let mut ids = Self::default();
        for id in text.split_terminator(',') {
            let id: i16 = id.parse().map_err(|_| Malformed)?;
            match id {
                0 => continue,
                1..=63 => ids.known |= 1 << id,
                -1 | 64.. => {}
                _ => return Err(Malformed),
            }
            ids.is_present = true;
        }
        Ok(ids)
    }

    /// The known ids.
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (1..64).filter(move |&id| self.contains(id))
    }

    pub(super) fn is_empty(self) -> bool {
        !self.is_present
    }

    pub(super) fn contains(self, id: usize) -> bool {
        self.known >> id & 1 == 1
    }
}

impl TryFrom<Vec<u32>> for SectionIds {
    type Error = &'static str;

    fn try_from(ids: Vec<u32>) -> Result<Self, Self::Error> {
        let known = ids.iter().try_fold(0, |known, id| match id {
            1..=63 => Ok(known | 1 << id),
            _ => Err("invalid GPP section: use 1 to 63"),
        });
        Ok(Self {
            known: known?,
            is_present: !ids.is_empty(),
        })
    }
}
