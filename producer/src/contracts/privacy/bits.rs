//! Random access to the bits of base64url text, without decoding it. Each character has six bits, the highest first.

use std::iter;

/// A signal that does not follow its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Marks a byte that is not a base64url character.
const INVALID: u8 = 0xff;

/// The six bits of each base64url character.
const SEXTETS: [u8; 256] = {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut sextets = [INVALID; 256];
    let mut sextet = 0;
    while sextet < 64 {
        sextets[alphabet[sextet as usize] as usize] = sextet;
        sextet += 1;
    }
    sextets
};

/// The bits of a text. Reading past the end, or the bits of an invalid character, is an error.
#[derive(Clone, Copy)]
pub(super) struct Bits<'a>(&'a [u8]);

impl<'a> Bits<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self(text.as_bytes())
    }

    /// Number of bits.
    pub(super) fn len(self) -> usize {
        6 * self.0.len()
    }

    /// The bit at this offset.
    pub(super) fn bit(self, at: usize) -> Result<bool, Malformed> {
        #[cfg(test)]
        reads::add(1);
        let character = *self.0.get(at / 6).ok_or(Malformed)?;
        match SEXTETS[usize::from(character)] {
            INVALID => Err(Malformed),
            sextet => Ok(sextet >> (5 - at % 6) & 1 == 1),
        }
    }

    /// The number of up to 36 bits at this offset, the highest bit first.
    #[inline]
    pub(super) fn number(self, at: usize, width: usize) -> Result<u64, Malformed> {
        let (first, end) = (at / 6, (at + width).div_ceil(6));
        #[cfg(test)]
        reads::add((end - first).max(4));
        // Faster for most numbers: without a loop.
        if let Some(four) = self.0.get(first..).and_then(<[u8]>::first_chunk::<4>)
            && end <= first + 4
        {
            let sextets = four.map(|character| SEXTETS[usize::from(character)]);
            if sextets.iter().fold(0, |all, sextet| all | sextet) != INVALID {
                let bits = sextets
                    .iter()
                    .fold(0, |bits, &sextet| bits << 6 | u64::from(sextet));
                return Ok(bits >> (6 * (first + 4) - at - width) & ((1 << width) - 1));
            }
        }
        let mut number = 0;
        for &character in self.0.get(first..end).ok_or(Malformed)? {
            let sextet = SEXTETS[usize::from(character)];
            if sextet == INVALID {
                return Err(Malformed);
            }
            number = number << 6 | u64::from(sextet);
        }
        Ok(number >> (6 * end - at - width) & ((1 << width) - 1))
    }
}

/// Checks that all characters of a text, also those that are not read, are base64url or one of the separators.
///
/// No early exit, so that it compiles to vector instructions.
pub(super) fn check_characters(text: &str, separators: &[u8; 2]) -> Result<(), Malformed> {
    let is_valid = |byte: u8| {
        byte.is_ascii_alphanumeric()
            | (byte == b'-')
            | (byte == b'_')
            | (byte == separators[0])
            | (byte == separators[1])
    };
    let are_valid = text.bytes().fold(true, |all, byte| all & is_valid(byte));
    are_valid.then_some(()).ok_or(Malformed)
}

/// Maximum number of segments that are read; the formats have up to four.
const SEGMENTS_MAX: usize = 8;

/// Checks that no segment is empty, as the last one of a text that was cut may be, and that all of them are read.
pub(super) fn check_segments(text: &str) -> Result<(), Malformed> {
    let has_empty = text.split('.').any(str::is_empty);
    let are_read = text.split('.').count() <= SEGMENTS_MAX;
    (!has_empty && are_read).then_some(()).ok_or(Malformed)
}

/// The first segments of a text, which dots separate.
pub(super) fn segments(text: &str) -> impl Iterator<Item = Bits<'_>> {
    let mut rest = Some(text.as_bytes());
    let segment = move || {
        let text = rest?;
        let end = memchr::memchr(b'.', text);
        rest = end.map(|end| &text[end + 1..]);
        Some(Bits(&text[..end.unwrap_or(text.len())]))
    };
    iter::from_fn(segment).take(SEGMENTS_MAX)
}

/// Counts the characters that a test reads, to check the bound for hostile texts.
#[cfg(test)]
pub(super) mod reads {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn add(count: usize) {
        COUNT.set(COUNT.get() + count);
    }

    /// The count since the previous call.
    pub(in super::super) fn take() -> usize {
        COUNT.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_at_every_offset_and_width() {
        let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let text = format!("{alphabet}{}", alphabet.chars().rev().collect::<String>());
        let binary: String = (0..64)
            .chain((0..64).rev())
            .map(|it| format!("{it:06b}"))
            .collect();
        let bits = Bits::of(&text);
        assert_eq!(bits.len(), binary.len());
        for width in 1..=36 {
            for at in 0..=binary.len() - width {
                let expected = u64::from_str_radix(&binary[at..at + width], 2).unwrap();
                assert_eq!(bits.number(at, width), Ok(expected), "{at} {width}");
            }
            assert_eq!(bits.number(binary.len() - width + 1, width), Err(Malformed));
        }
    }

    #[test]
    fn only_bits_of_valid_characters_are_read() {
        for invalid in ["A%A", "A=A", "A+A", "A/A", "A A", "A.A", "A~A"] {
            let bits = Bits::of(invalid);
            assert_eq!(bits.number(0, 6), Ok(0));
            assert_eq!(bits.bit(12), Ok(false));
            for at in 6..12 {
                assert_eq!(bits.bit(at), Err(Malformed), "{invalid}");
            }
            assert_eq!(bits.number(0, 18), Err(Malformed), "{invalid}");
        }
    }
}
