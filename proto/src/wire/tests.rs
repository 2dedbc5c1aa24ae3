//! Tests of the codec against prost and against malformed bytes.

use super::*;
use crate::{limits::AGE_MICROS_MAX, units::DspId};

/// Cookies, every seventh of which is a deletion.
fn cookies(count: u32) -> Vec<v1::Cookie> {
    let cookie = |index: u32| {
        let deleted = index % 7 == 3;
        v1::Cookie {
            user_id: format!("user-{index}"),
            dsp_id: index.wrapping_mul(0x1357_9bdf) | 1,
            buyer_uid: match deleted {
                true => String::new(),
                false => "ü=/&+%--".repeat(index as usize % 40 + 1),
            },
            age_micros: u64::from(index % 3) * 60_000_000_000 * u64::from(index % 4),
            deleted,
            padding: Bytes::new(),
        }
    };
    (0..count).map(cookie).collect()
}

fn record(cookie: &v1::Cookie) -> Record<'_> {
    let v1::Cookie {
        user_id,
        dsp_id,
        buyer_uid,
        age_micros,
        ..
    } = cookie;
    if cookie.deleted {
        return Record::Delete {
            scope: Scope::Match(user_id, DspId(*dsp_id)),
            age_micros: *age_micros,
        };
    }
    Record::Set(CookieRef {
        user_id,
        dsp_id: DspId(*dsp_id),
        buyer_uid,
        age_micros: *age_micros,
    })
}

fn sealed(cookies: &[v1::Cookie]) -> (ChunkHeader, Bytes) {
    let mut buffer = vec![0; HEADROOM_BYTES];
    for cookie in cookies {
        put_record(&mut buffer, &record(cookie));
    }
    let header = ChunkHeader {
        epoch: Epoch(u64::MAX),
        first_sequence: Sequence(7),
        count: u32::try_from(cookies.len()).unwrap(),
        accepted: UnixMicros(1_700_000_000_000_000),
    };
    let at = seal(&mut buffer, &header);
    (header, Bytes::from(buffer).slice(at..))
}

#[track_caller]
fn strip_prefix(message: &Bytes) -> Bytes {
    let length = u32::from_be_bytes(message[1..5].try_into().unwrap()) as usize;
    assert_eq!(
        (message[0], message.len()),
        (0, FRAME_PREFIX_BYTES + length)
    );
    message.slice(FRAME_PREFIX_BYTES..)
}

#[test]
fn sealed_chunk_is_decoded_equally_by_prost_and_chunk_ref() {
    for count in [1, 2, 3, 4, 5, 6, 100, 1000] {
        let cookies = cookies(count);
        let (header, wire) = sealed(&cookies);
        assert!(wire.len() >= SMALL_FRAME_BYTES);
        let message = strip_prefix(&wire);

        let event = v1::Event::decode(message.clone()).unwrap();
        let Some(v1::event::Event::Chunk(chunk)) = event.event else {
            panic!("not a chunk");
        };
        assert_eq!(chunk.cookies, cookies);
        assert_eq!(
            (chunk.epoch, chunk.first_sequence, chunk.count),
            (header.epoch.0, header.first_sequence.0, header.count)
        );

        let StreamMessage::Chunk(chunk) = StreamMessage::decode(message).unwrap() else {
            panic!("not a chunk");
        };
        assert_eq!(*chunk.header(), header);
        let decoded: Vec<_> = chunk.records().map(Result::unwrap).collect();
        let expected: Vec<_> = cookies.iter().map(record).collect();
        assert_eq!(decoded, expected);
    }
}

#[test]
fn cookie_encoding_is_stable() {
    #[track_caller]
    fn check(age_micros: u64, expected: &[u8]) {
        let cookie = CookieRef {
            user_id: "u",
            dsp_id: DspId(300),
            buyer_uid: "b",
            age_micros,
        };
        let mut buffer = Vec::new();
        put_cookie(&mut buffer, &cookie);
        assert_eq!(buffer, expected);
        assert_eq!(cookie_bytes(&cookie), buffer.len());
        assert_eq!(decode_record(&buffer[2..]), Ok(Record::Set(cookie)));
        put_cookie(&mut buffer, &cookie);
        assert_eq!(first_cookie(&buffer), Ok((&expected[2..], expected.len())));
        assert_eq!(cookie_dsp(&expected[2..]), Ok(DspId(300)));
    }
    check(0, b"\x2a\x09\x0a\x01u\x10\xac\x02\x1a\x01b");
    check(150, b"\x2a\x0c\x0a\x01u\x10\xac\x02\x1a\x01b\x20\x96\x01");
    assert_eq!(first_cookie(b""), Err(WireError::Truncated));
    assert_eq!(first_cookie(b"\x2a\x09\x0a"), Err(WireError::Truncated));
    assert_eq!(first_cookie(b"\x20\x09"), Err(WireError::WireType));
    assert_eq!(cookie_dsp(b"\x0a\x01u"), Ok(DspId(0)));
    assert_eq!(cookie_dsp(b"\x0a\x02u"), Err(WireError::Truncated));
    assert_eq!(
        cookie_dsp(b"\x10\x80\x80\x80\x80\x10"),
        Err(WireError::Range)
    );
}

#[test]
fn integers_have_the_computed_size() {
    let powers = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit]);
    for value in powers.chain([u64::MAX]) {
        let (mut tagged, mut expected) = (Vec::new(), vec![PADDING]);
        put_tagged(&mut tagged, PADDING, value);
        prost::encoding::encode_varint(value, &mut expected);
        assert_eq!(tagged, expected, "{value}");
        assert_eq!(tagged.len(), 1 + varint_bytes(value), "{value}");
    }
}

#[test]
fn age_is_clamped_to_a_week_and_acceptance_time_to_zero() {
    let aged = |age_micros| {
        let cookie = v1::Cookie {
            user_id: "u".to_owned(),
            age_micros,
            deleted: true,
            ..v1::Cookie::default()
        };
        let encoded = cookie.encode_to_vec();
        decode_record(&encoded).unwrap().age_micros()
    };
    assert_eq!(aged(AGE_MICROS_MAX), AGE_MICROS_MAX);
    assert_eq!(aged(u64::MAX), AGE_MICROS_MAX);
    let cookie = CookieRef {
        user_id: "u",
        dsp_id: DspId(1),
        buyer_uid: "b",
        age_micros: 100,
    };
    let accepted = [0, 99, 100, 1_000].map(|chunk| cookie.accepted(UnixMicros(chunk)).0);
    assert_eq!(accepted, [0, 0, 0, 900]);
    assert_eq!(
        decode_record(b"\x21\0\0\0\0\0\0\0\0"),
        Err(WireError::WireType)
    );
}

#[test]
fn cookie_messages_are_decoded_by_prost_and_never_form_a_small_frame() {
    for count in [1, 2, 50] {
        let mut cookies = cookies(count);
        cookies.sort_by_key(|cookie| !cookie.deleted);
        let (_, wire) = sealed(&cookies);
        let StreamMessage::Chunk(chunk) = StreamMessage::decode(strip_prefix(&wire)).unwrap()
        else {
            panic!("not a chunk");
        };
        for deletions in [true, false] {
            let mut messages = cookie_messages(&chunk, deletions).unwrap();
            assert!(messages.len() >= SMALL_FRAME_BYTES);
            for cookie in cookies.iter().filter(|cookie| deletions || !cookie.deleted) {
                let length = u32::from_be_bytes(messages[1..5].try_into().unwrap()) as usize;
                let message = messages.split_to(FRAME_PREFIX_BYTES + length);
                let mut read = v1::Cookie::decode(strip_prefix(&message)).unwrap();
                read.padding = Bytes::new();
                assert_eq!(read, *cookie);
            }
            assert!(messages.is_empty());
        }
    }
}

#[test]
fn chunk_of_deletions_has_no_messages_unless_they_are_requested() {
    let (_, wire) = sealed(&cookies(4)[3..]);
    let StreamMessage::Chunk(chunk) = StreamMessage::decode(strip_prefix(&wire)).unwrap() else {
        panic!("not a chunk");
    };
    assert_eq!(cookie_messages(&chunk, false), Ok(Bytes::new()));
    assert!(!cookie_messages(&chunk, true).unwrap().is_empty());
}

#[test]
fn cookie_has_either_a_buyer_uid_or_the_flag_of_a_deletion() {
    #[track_caller]
    fn check(ids: (&str, DspId), buyer_uid: &str, deleted: bool, expected: Option<Scope<&str>>) {
        let cookie = v1::Cookie {
            user_id: ids.0.to_owned(),
            dsp_id: ids.1.0,
            buyer_uid: buyer_uid.to_owned(),
            deleted,
            ..v1::Cookie::default()
        };
        let encoded = cookie.encode_to_vec();
        let expected = expected.map(|scope| Record::Delete {
            scope,
            age_micros: 0,
        });
        assert_eq!(decode_record(&encoded), expected.ok_or(WireError::Deletion));
        if let Some(record) = expected {
            let mut buffer = Vec::new();
            put_record(&mut buffer, &record);
            assert_eq!(buffer.len(), record_bytes(&record));
            let written = v1::Cookie::decode(&buffer[2..]).unwrap();
            assert_eq!(written, cookie);
        }
    }
    check(("u", DspId(1)), "", true, Some(Scope::Match("u", DspId(1))));
    check(("u", DspId::NONE), "", true, Some(Scope::User("u")));
    check(("", DspId(1)), "", true, Some(Scope::Dsp(DspId(1))));
    check(("", DspId::NONE), "", true, None);
    check(("u", DspId(1)), "", false, None);
    check(("u", DspId(1)), "b", true, None);
}

#[test]
fn message_is_padded_to_the_small_frame_size_for_every_length() {
    for name_bytes in 0..300 {
        let hello = v1::Hello {
            producer_id: "p".repeat(name_bytes),
            ..v1::Hello::default()
        };
        let message = encode_event(v1::event::Event::Hello(hello.clone()));
        assert!(message.len() >= SMALL_FRAME_BYTES, "{}", message.len());
        assert!(message.len() <= SMALL_FRAME_BYTES.max(name_bytes + 20) + 1);
        match StreamMessage::decode(strip_prefix(&message)).unwrap() {
            StreamMessage::Event(v1::event::Event::Hello(read)) => assert_eq!(read, hello),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn truncated_or_corrupt_bytes_never_panic() {
    let (_, wire) = sealed(&cookies(3));
    let message = strip_prefix(&wire);
    let read = |bytes: Bytes| {
        if let Ok(StreamMessage::Chunk(chunk)) = StreamMessage::decode(bytes) {
            chunk.records().take_while(Result::is_ok).count()
        } else {
            0
        }
    };
    assert_eq!(read(message.clone()), 3);
    for end in 0..message.len() {
        read(message.slice(..end));
    }
    for at in 0..message.len() {
        for bit in 0..8 {
            let mut bytes = message.to_vec();
            bytes[at] ^= 1 << bit;
            read(Bytes::from(bytes));
        }
    }
}

#[test]
fn empty_and_overflowing_chunks_are_rejected() {
    let chunk = |count, first_sequence| {
        let chunk = v1::Chunk {
            count,
            first_sequence,
            ..v1::Chunk::default()
        };
        ChunkRef::decode(Bytes::from(chunk.encode_to_vec())).err()
    };
    assert_eq!(chunk(0, 1), Some(WireError::Count));
    assert_eq!(chunk(2, u64::MAX), Some(WireError::Range));
    assert_eq!(chunk(2, 1), None);
}
