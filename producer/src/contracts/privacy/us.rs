//! US privacy: the state sections of a GPP string, and `us_privacy`.
//!
//! The core of a section contains a field of two bits for each opt-out; 1 means that the user opted out. Sections 24 to
//! 27 may begin with a header segment.

use super::{
    bits::{self, Malformed},
    config::{Action, Us},
};

/// The section that contains a `us_privacy` text.
pub(super) const US_PRIVACY: usize = 6;

/// The sections that this module judges.
pub(super) const SECTIONS: std::ops::RangeInclusive<usize> = US_PRIVACY..=27;

const OPTED_OUT: u64 = 1;

/// Type of the segment with the Global Privacy Control bit.
const GPC: u64 = 1;

/// Whether the section has an opt-out that `us` denies, or, with `counts_gpc`, its Global Privacy Control bit set.
pub(super) fn opts_out(
    id: usize,
    text: &str,
    us: &Us,
    counts_gpc: bool,
) -> Result<bool, Malformed> {
    if id == US_PRIVACY {
        return us_privacy_opts_out(text, us);
    }
    bits::check_segments(text)?;
    let mut segments = bits::segments(text);
    let mut core = segments.next().ok_or(Malformed)?;
    if id >= 24 && core.number(0, 6)? == id as u64 {
        core = segments.next().ok_or(Malformed)?;
    }
    if core.len() < core_bits(id, core.number(0, 6)?) {
        return Err(Malformed);
    }
    let [sale, sharing, targeted] = offsets(id);
    let fields = [
        (sale, us.sale),
        (sharing, us.sharing),
        (targeted, us.targeted),
    ];
    for (offset, action) in fields {
        if let Some(at) = offset
            && core.number(at, 2)? == OPTED_OUT
            && action == Action::Deny
        {
            return Ok(true);
        }
    }
    if counts_gpc && has_gpc(id) {
        for segment in segments {
            if segment.number(0, 2)? == GPC && segment.bit(2)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Offsets of the opt-outs from sale, sharing and targeted advertising in the core of a section.
fn offsets(id: usize) -> [Option<usize>; 3] {
    match id {
        7 => [Some(18), Some(20), Some(22)],
        8 => [Some(12), Some(14), None],
        11 | 18 => [Some(14), None, Some(16)],
        24.. => [Some(16), None, Some(18)],
        _ => [Some(12), None, Some(14)],
    }
}

/// Bits of the fields of a core, without padding; a shorter one was cut, perhaps with the segments after it.
fn core_bits(id: usize, version: u64) -> usize {
    match id {
        7 if version == 1 => 60,
        7 => 70,
        9 => 40,
        10 => 38,
        12 => 44,
        8 | 13 | 14 | 20 => 46,
        15 | 17 => 52,
        21 => 54,
        24.. => 22,
        _ => 42,
    }
}

fn has_gpc(id: usize) -> bool {
    // Virginia, Utah, Florida; Indiana, Kentucky, Rhode Island.
    !matches!(id, 9 | 11 | 13 | 25..=27)
}

/// Whether the third character, the opt-out from sale, is `Y`.
pub(super) fn us_privacy_opts_out(text: &str, us: &Us) -> Result<bool, Malformed> {
    let [b'1', notice, sale, agreement] = *text.as_bytes() else {
        return Err(Malformed);
    };
    let is_valid = |it: u8| matches!(it.to_ascii_uppercase(), b'Y' | b'N' | b'-');
    if ![notice, sale, agreement].into_iter().all(is_valid) {
        return Err(Malformed);
    }
    Ok(sale.eq_ignore_ascii_case(&b'Y') && us.sale == Action::Deny)
}
