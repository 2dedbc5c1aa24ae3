//! TCF 2 consent strings: whether the exchange and DSPs may store a match.
//!
//! A string consists of a core segment and optional segments, separated by dots. Offsets are in bits. Purpose 1 is
//! "store and/or access information on a device", and only consent permits it.

use std::num::NonZeroU16;

use super::{
    bits::{self, Bits, Malformed},
    config::{Config, DisclosedVendors},
    outcome::Outcome,
};

/// Bits of the shortest core of version 1. A shorter text is not a consent string of any version.
const CORE_BITS_MIN: usize = 173;

const VERSION: u64 = 2;

// Offsets in the core segment.
const CREATED: usize = 6;
const LAST_UPDATED: usize = 42;
const PURPOSE_1_CONSENT: usize = 152;
const PURPOSE_ONE_TREATMENT: usize = 200;
const PUBLISHER_COUNTRY: usize = 201;
const VENDOR_CONSENTS: usize = 213;

/// 2026-03-01T00:00:00Z in tenths of a second. Strings since then must disclose vendors (TCF 2.3).
const DISCLOSURE_SINCE: u64 = 17_723_232_000;

/// Type of the segment of disclosed vendors.
const DISCLOSED: u64 = 1;

/// Encoders fill their last byte, or the last four characters, with zeros.
const PADDED_BITS: usize = 24;

/// A restriction of purpose 1 (six bits) of type 0, "not allowed" (two bits).
const PURPOSE_1_NOT_ALLOWED: u64 = 1 << 2;

/// A vendor, and the outcome for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vendor {
    /// 0 for a party that is not a vendor: it is never listed.
    id: u16,
    /// The outcome so far.
    pub(super) outcome: Outcome,
}

impl Vendor {
    pub(super) fn new(id: Option<NonZeroU16>) -> Self {
        Self {
            id: id.map_or(0, NonZeroU16::get),
            outcome: Outcome::ConsentVendorDsp,
        }
    }

    pub(super) fn is_permitted(&self) -> bool {
        self.outcome == Outcome::Allowed
    }
}

/// A list that changes the outcome of vendors from the first value to the second.
type Change = (Outcome, Outcome);

/// Judges a string for the exchange, the first vendor, and for DSPs, which are refused if the exchange is. Each list is read once; its
/// entries are compared with all of them.
pub(super) fn judge(text: &str, config: &Config, vendors: &mut [Vendor]) -> Result<(), Malformed> {
    bits::check_characters(text, b"..")?;
    let mut segments = bits::segments(text);
    let core = segments.next().ok_or(Malformed)?;
    core.bit(CORE_BITS_MIN - 1)?;
    if core.number(0, 6)? != VERSION {
        set_all(vendors, Outcome::ConsentVersion);
        return Ok(());
    }
    if !core.bit(PURPOSE_1_CONSENT)? && !is_treated(core, config)? {
        set_all(vendors, Outcome::ConsentPurpose);
        return Ok(());
    }
    let consents = (Outcome::ConsentVendorDsp, Outcome::Allowed);
    let consents_end = vendors_in(core, VENDOR_CONSENTS, vendors, consents)?;
    if !permits_any(vendors, Outcome::ConsentVendorHost) {
        return Ok(());
    }
    let interests_end = vendors_end(core, consents_end)?;
    restrict(core, interests_end, vendors)?;
    let must_disclose = match config.disclosed_vendors {
        DisclosedVendors::Always => true,
        DisclosedVendors::Never => false,
        DisclosedVendors::ByDate => {
            let newest = core
                .number(CREATED, 36)?
                .max(core.number(LAST_UPDATED, 36)?);
            newest >= DISCLOSURE_SINCE
        }
    };
    if permits_any(vendors, Outcome::ConsentRestricted) && must_disclose {
        require_disclosure(segments, vendors)?;
        permits_any(vendors, Outcome::ConsentUndisclosed);
    }
    Ok(())
}

pub(super) fn set_all(vendors: &mut [Vendor], outcome: Outcome) {
    for vendor in vendors {
        vendor.outcome = outcome;
    }
}

/// Whether the exchange and any DSP are permitted so far. Sets the outcome of all if the exchange is not.
fn permits_any(vendors: &mut [Vendor], of_exchange: Outcome) -> bool {
    if vendors.first().is_some_and(Vendor::is_permitted) {
        return vendors.iter().skip(1).any(Vendor::is_permitted);
    }
    set_all(vendors, of_exchange);
    false
}

/// Whether the publisher's country does not require consent to purpose 1 ("purpose one treatment").
fn is_treated(core: Bits<'_>, config: &Config) -> Result<bool, Malformed> {
    if config.purpose_one_treatment.is_empty() || !core.bit(PURPOSE_ONE_TREATMENT)? {
        return Ok(false);
    }
    let country = core.number(PUBLISHER_COUNTRY, 12)?;
    let mut treated = config.purpose_one_treatment.iter();
    Ok(treated.any(|treated| treated.tcf_number() == country))
}

/// Reads the restrictions, whose count the format requires even if it is 0: without it, a string that was cut would look like
/// one without restrictions. After a restriction of the exchange, or of all DSPs, the rest does not matter.
fn restrict(core: Bits<'_>, at: usize, vendors: &mut [Vendor]) -> Result<(), Malformed> {
    let count = core.number(at, 12)?;
    let mut at = at + 12;
    for _ in 0..count {
        let restriction = core.number(at, 8)?;
        at += 8;
        if restriction != PURPOSE_1_NOT_ALLOWED {
            at = ranges_end(core, at)?;
            continue;
        }
        let restricted = (Outcome::Allowed, Outcome::ConsentRestricted);
        at = ranges(core, at, vendors, restricted)?;
        if !permits_any(vendors, Outcome::ConsentRestricted) {
            return Ok(());
        }
    }
    let padding = core.len().checked_sub(at).ok_or(Malformed)?;
    if padding >= PADDED_BITS || core.number(at, padding)? != 0 {
        return Err(Malformed);
    }
    Ok(())
}

fn require_disclosure<'a>(
    segments: impl Iterator<Item = Bits<'a>>,
    vendors: &mut [Vendor],
) -> Result<(), Malformed> {
    for vendor in vendors.iter_mut() {
        if vendor.outcome == Outcome::Allowed {
            vendor.outcome = Outcome::ConsentUndisclosed;
        }
    }
    for segment in segments.filter(|segment| segment.len() > 0) {
        if segment.number(0, 3)? == DISCLOSED {
            let disclosed = (Outcome::ConsentUndisclosed, Outcome::Allowed);
            vendors_in(segment, 3, vendors, disclosed)?;
            break;
        }
    }
    Ok(())
}

/// Reads a list of vendors, a bit field or ranges. Returns the offset of its end.
fn vendors_in(
    bits: Bits<'_>,
    at: usize,
    vendors: &mut [Vendor],
    change: Change,
) -> Result<usize, Malformed> {
    let vendor_max = usize::try_from(bits.number(at, 16)?).map_err(|_| Malformed)?;
    let at = at + 17;
    if bits.bit(at - 1)? {
        return ranges(bits, at, vendors, change);
    }
    let end = at + vendor_max;
    if end > bits.len() {
        return Err(Malformed);
    }
    for vendor in vendors.iter_mut().filter(|it| it.outcome == change.0) {
        let id = usize::from(vendor.id);
        if (1..=vendor_max).contains(&id) && bits.bit(at + id - 1)? {
            vendor.outcome = change.1;
        }
    }
    Ok(end)
}

/// The offset of the end of a list of vendors.
fn vendors_end(bits: Bits<'_>, at: usize) -> Result<usize, Malformed> {
    let vendor_max = usize::try_from(bits.number(at, 16)?).map_err(|_| Malformed)?;
    match bits.bit(at + 16)? {
        true => ranges_end(bits, at + 17),
        false => Ok(at + 17 + vendor_max),
    }
}

/// The offset of the end of a list of ranges.
fn ranges_end(bits: Bits<'_>, at: usize) -> Result<usize, Malformed> {
    let count = bits.number(at, 12)?;
    let mut at = at + 12;
    for _ in 0..count {
        let is_range = bits.bit(at)?;
        at += 17;
        if is_range {
            at += 16;
            // This read makes the compiler branch, so that the next entry need not wait for `is_range`: twice as fast.
            bits.bit(at - 1)?;
        }
    }
    Ok(at)
}

/// Reads a count and that number of vendor ranges. Returns the offset of their end.
fn ranges(
    bits: Bits<'_>,
    at: usize,
    vendors: &mut [Vendor],
    change: Change,
) -> Result<usize, Malformed> {
    let count = bits.number(at, 12)?;
    let mut at = at + 12;
    for _ in 0..count {
        let entry = bits.number(at, 17)?;
        let first = entry & 0xffff;
        let mut last = first;
        at += 17;
        if entry > 0xffff {
            last = bits.number(at, 16)?;
            at += 16;
        }
        if first == 0 || last < first {
            return Err(Malformed);
        }
        for vendor in &mut *vendors {
            let is_listed = (first..=last).contains(&u64::from(vendor.id));
            if is_listed && vendor.outcome == change.0 {
                vendor.outcome = change.1;
            }
        }
    }
    Ok(at)
}
