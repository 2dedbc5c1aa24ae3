//! TCF 2 consent strings: whether two vendors may store a match.
//!
//! A string consists of a core segment and optional segments, separated by dots. Offsets are in bits. Purpose 1 is
//! "store and/or access information on a device", and only consent permits it.

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

/// Which of two vendors are listed. A vendor 0 is never listed.
type Listed = [bool; 2];

/// Judges a string for the vendor ids of the exchange and the DSP. The id of a party that is not a vendor is 0.
pub(super) fn judge(text: &str, config: &Config, vendors: [u16; 2]) -> Result<Outcome, Malformed> {
    bits::check_characters(text, b"..")?;
    let mut segments = bits::segments(text);
    let core = segments.next().ok_or(Malformed)?;
    core.bit(CORE_BITS_MIN - 1)?;
    if core.number(0, 6)? != VERSION {
        return Ok(Outcome::ConsentVersion);
    }
    if !core.bit(PURPOSE_1_CONSENT)? && !is_treated(core, config)? {
        return Ok(Outcome::ConsentPurpose);
    }
    let ([host, dsp], consents_end) = vendors_in(core, VENDOR_CONSENTS, vendors)?;
    if !host {
        return Ok(Outcome::ConsentVendorHost);
    }
    if !dsp {
        return Ok(Outcome::ConsentVendorDsp);
    }
    let interests_end = vendors_end(core, consents_end)?;
    if is_restricted(core, interests_end, vendors)? {
        return Ok(Outcome::ConsentRestricted);
    }
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
    if must_disclose && !are_disclosed(segments, vendors)? {
        return Ok(Outcome::ConsentUndisclosed);
    }
    Ok(Outcome::Allowed)
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
/// one without restrictions.
fn is_restricted(core: Bits<'_>, at: usize, vendors: [u16; 2]) -> Result<bool, Malformed> {
    let count = core.number(at, 12)?;
    let mut at = at + 12;
    for _ in 0..count {
        let restriction = core.number(at, 8)?;
        at += 8;
        if restriction != PURPOSE_1_NOT_ALLOWED {
            at = ranges_end(core, at)?;
            continue;
        }
        let (listed, end) = ranges(core, at, vendors)?;
        if listed.contains(&true) {
            return Ok(true);
        }
        at = end;
    }
    let padding = core.len().checked_sub(at).ok_or(Malformed)?;
    if padding >= PADDED_BITS || core.number(at, padding)? != 0 {
        return Err(Malformed);
    }
    Ok(false)
}

fn are_disclosed<'a>(
    segments: impl Iterator<Item = Bits<'a>>,
    vendors: [u16; 2],
) -> Result<bool, Malformed> {
    for segment in segments.filter(|segment| segment.len() > 0) {
        if segment.number(0, 3)? == DISCLOSED {
            let (listed, _) = vendors_in(segment, 3, vendors)?;
            return Ok(listed == [true; 2]);
        }
    }
    Ok(false)
}

/// Reads a list of vendors, a bit field or ranges. Returns the listed vendors, and the offset of its end.
fn vendors_in(bits: Bits<'_>, at: usize, vendors: [u16; 2]) -> Result<(Listed, usize), Malformed> {
    let vendor_max = usize::try_from(bits.number(at, 16)?).map_err(|_| Malformed)?;
    let at = at + 17;
    if bits.bit(at - 1)? {
        return ranges(bits, at, vendors);
    }
    let end = at + vendor_max;
    if end > bits.len() {
        return Err(Malformed);
    }
    let mut listed = [false; 2];
    for (listed, vendor) in listed.iter_mut().zip(vendors.map(usize::from)) {
        *listed = (1..=vendor_max).contains(&vendor) && bits.bit(at + vendor - 1)?;
    }
    Ok((listed, end))
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

/// Reads a count and that number of vendor ranges.
fn ranges(bits: Bits<'_>, at: usize, vendors: [u16; 2]) -> Result<(Listed, usize), Malformed> {
    let vendors = vendors.map(u64::from);
    let mut listed = [false; 2];
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
        for (listed, vendor) in listed.iter_mut().zip(vendors) {
            *listed |= (first..=last).contains(&vendor);
        }
    }
    Ok((listed, at))
}
