//! Reads the expiry of a certificate. Does no I/O.
//!
//! Parses only the DER fields up to the validity. The TLS library has already accepted the certificate, so an unexpected encoding
//! is not an error: the expiry is then unknown.

use std::time::Duration;

use der::{
    Decode as _, ErrorKind, SliceReader, Tag, Tagged as _,
    asn1::{AnyRef, GeneralizedTime, UtcTime},
};

/// The expiry of a certificate in seconds since the Unix epoch; `None` if it cannot be parsed or is before 1970.
pub(super) fn not_after(certificate: &[u8]) -> Option<i64> {
    let end = end_of_validity(certificate).ok()?;
    i64::try_from(end.as_secs()).ok()
}

fn end_of_validity(certificate: &[u8]) -> der::Result<Duration> {
    let mut certificate = SliceReader::new(certificate)?;
    let mut signed = sequence(&mut sequence(&mut certificate)?)?;
    // Version 1 certificates have no version field before the serial number.
    if AnyRef::decode(&mut signed)?.tag() != Tag::Integer {
        AnyRef::decode(&mut signed)?;
    }
    let _algorithm = AnyRef::decode(&mut signed)?;
    let _issuer = AnyRef::decode(&mut signed)?;
    let mut validity = sequence(&mut signed)?;
    let _begin = time(&mut validity)?;
    time(&mut validity)
}

/// A reader of the contents of the next element.
fn sequence<'a>(reader: &mut SliceReader<'a>) -> der::Result<SliceReader<'a>> {
    let element = AnyRef::decode(reader)?;
    element.tag().assert_eq(Tag::Sequence)?;
    SliceReader::new(element.value())
}

/// A time since the Unix epoch.
fn time(reader: &mut SliceReader<'_>) -> der::Result<Duration> {
    let element = AnyRef::decode(reader)?;
    match element.tag() {
        Tag::UtcTime => Ok(element.decode_as::<UtcTime>()?.to_unix_duration()),
        Tag::GeneralizedTime => Ok(element.decode_as::<GeneralizedTime>()?.to_unix_duration()),
        tag => Err(ErrorKind::TagUnexpected {
            expected: None,
            actual: tag,
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    const INTEGER: u8 = 0x02;
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;

    #[track_caller]
    fn check(tag: u8, text: &str, expected: Option<u64>) {
        let length = u8::try_from(text.len()).unwrap();
        let bytes = [&[tag, length], text.as_bytes()].concat();
        let read = time(&mut SliceReader::new(&bytes).unwrap());
        assert_eq!(read.ok().map(|time| time.as_secs()), expected, "{text}");
    }

    #[test]
    fn both_time_formats_are_parsed() {
        check(UTC_TIME, "700101000000Z", Some(0));
        check(UTC_TIME, "000229120000Z", Some(951_825_600));
        check(UTC_TIME, "491231235959Z", Some(2_524_607_999));
        // 1950, before the Unix epoch.
        check(UTC_TIME, "500101000000Z", None);
        check(GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000));
        check(GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799));
    }

    #[test]
    fn invalid_time_is_unknown() {
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

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        let head = match length {
            0..=0x7f => vec![tag, length],
            _ => vec![tag, 0x81, length],
        };
        [&head, content].concat()
    }

    #[test]
    fn truncated_or_malformed_certificate_has_unknown_expiry() {
        // A certificate up to its validity: version, serial, algorithm, issuer, two times.
        let time = |text: &str| element(UTC_TIME, text.as_bytes());
        let validity = [time("200101000000Z"), time("300101000000Z")].concat();
        let signed = [
            element(VERSION, &[INTEGER, 1, 2]),
            element(INTEGER, &[1]),
            element(SEQUENCE, &[]),
            element(SEQUENCE, &[0; 130]),
            element(SEQUENCE, &validity),
        ];
        let of = |signed: &[Vec<u8>]| element(SEQUENCE, &element(SEQUENCE, &signed.concat()));
        let complete = of(&signed);
        assert_eq!(not_after(&complete), Some(1_893_456_000));
        assert_eq!(
            not_after(&of(&signed[1..])),
            Some(1_893_456_000),
            "version 1"
        );
        assert_eq!(not_after(&of(&signed[2..])), None, "no serial number");
        for length in 0..complete.len() {
            assert_eq!(not_after(&complete[..length]), None, "{length}");
        }
    }
}
