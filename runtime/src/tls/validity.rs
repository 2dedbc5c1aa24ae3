//! Until when a certificate is valid. Pure.
//!
//! Reads as much of the encoding as lies before that field, of certificates that were parsed by the TLS library
//! before; what is not as expected is no error but unknown.

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The end of a certificate's validity in seconds since the Unix epoch; `None` when it cannot be read.
pub(super) fn not_after(certificate: &[u8]) -> Option<i64> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (signed, _) = element(certificate, SEQUENCE)?;
    let after_version = element(signed, VERSION).map_or(signed, |(_, rest)| rest);
    let (_serial, rest) = element(after_version, INTEGER)?;
    let (_algorithm, rest) = element(rest, SEQUENCE)?;
    let (_issuer, rest) = element(rest, SEQUENCE)?;
    let (validity, _) = element(rest, SEQUENCE)?;
    let (_, end) = time(validity)?;
    time(end).map(|(seconds, _)| seconds)
}

/// The content of the element with this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, bytes) = bytes.split_first()?;
    let (&first, bytes) = bytes.split_first()?;
    let (length, bytes) = match first {
        0..=0x7f => (usize::from(first), bytes),
        // Three bytes of length are more than any file here has.
        0x81..=0x83 => {
            let (length, rest) = bytes.split_at_checked(usize::from(first & 0x7f))?;
            let value = |value, &byte| (value << 8) | usize::from(byte);
            (length.iter().fold(0, value), rest)
        }
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    (found == tag).then_some((content, rest))
}

fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    if let Some((text, rest)) = element(bytes, GENERALIZED_TIME) {
        let (century, text) = text.split_at_checked(2)?;
        return Some((seconds(number(century)? * 100, text)?, rest));
    }
    let (text, rest) = element(bytes, UTC_TIME)?;
    // Two digits of a year mean 1950 to 2049 (RFC 5280, 4.1.2.5.1).
    let century = if number(text.get(..2)?)? < 50 {
        2000
    } else {
        1900
    };
    Some((seconds(century, text)?, rest))
}

/// Seconds of `YYMMDDHHMMSSZ` in this century.
fn seconds(century: i64, text: &[u8]) -> Option<i64> {
    if text.len() != 13 || text[12] != b'Z' {
        return None;
    }
    let pair = |at: usize| number(&text[2 * at..2 * at + 2]);
    let days = days(century + pair(0)?, pair(1)?, pair(2)?)?;
    Some(((days * 24 + pair(3)?) * 60 + pair(4)?) * 60 + pair(5)?)
}

fn number(digits: &[u8]) -> Option<i64> {
    let digit = |value, byte: &u8| {
        byte.is_ascii_digit()
            .then(|| value * 10 + i64::from(byte - b'0'))
    };
    digits.iter().try_fold(0, digit)
}

/// Days from 1970-01-01 to a day of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // A year that begins in March has its leap day at the end.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    // 719,468 days lie between the first of March of the year 0 and 1970.
    Some(year * 365 + leap_days + day_of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tag: u8, text: &str, expected: Option<i64>) {
        let length = u8::try_from(text.len()).unwrap();
        let bytes = [&[tag, length], text.as_bytes()].concat();
        assert_eq!(time(&bytes).map(|(seconds, _)| seconds), expected, "{text}");
    }

    #[test]
    fn both_forms_of_time_are_read() {
        check(UTC_TIME, "700101000000Z", Some(0));
        check(UTC_TIME, "000229120000Z", Some(951_825_600));
        check(UTC_TIME, "491231235959Z", Some(2_524_607_999));
        check(UTC_TIME, "500101000000Z", Some(-631_152_000));
        check(GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000));
        check(GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799));
    }

    #[test]
    fn what_is_no_time_is_unknown() {
        for text in [
            "",
            "7",
            "701301000000Z",
            "700100000000Z",
            "70010100000",
            "700101000000+",
        ] {
            check(UTC_TIME, text, None);
            check(GENERALIZED_TIME, text, None);
        }
        check(INTEGER, "700101000000Z", None);
    }

    #[test]
    fn cut_off_or_broken_certificates_are_unknown() {
        // A certificate as far as its validity: version, serial, algorithm, issuer, two times.
        let time = |text: &str| [&[UTC_TIME, 13], text.as_bytes()].concat();
        let validity = [time("200101000000Z"), time("300101000000Z")].concat();
        let signed = [
            &[VERSION, 3, INTEGER, 1, 2, INTEGER, 1, 1][..],
            &[SEQUENCE, 0, SEQUENCE, 0],
            &[SEQUENCE, 30],
            &validity,
        ]
        .concat();
        let signed_length = u8::try_from(signed.len()).unwrap();
        let whole = [
            &[SEQUENCE, 0x81, signed_length + 2, SEQUENCE, signed_length][..],
            &signed,
        ]
        .concat();
        assert_eq!(not_after(&whole), Some(1_893_456_000));
        for length in 0..whole.len() {
            assert_eq!(not_after(&whole[..length]), None, "{length}");
        }
    }
}
