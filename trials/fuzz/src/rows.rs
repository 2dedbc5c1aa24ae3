//! Fuzz target of the parser of rows in the producer's bulk input.

use producer::api::cookies::Row;
use proto::{limits::USER_ID_BYTES_MAX, wire::CookieRef};
use serde_json::{Value, json};

use crate::request::check_chunk;

/// Parses each line of a body. An accepted row must have the values that another parser finds, and valid ids. Encoding it
/// again, or as a chunk, must not change it.
///
/// # Panics
/// If the property does not hold.
pub fn rows(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        match Row::parse(line) {
            Ok(row) => check_row(line, &row),
            Err(reason) => assert!(
                reason
                    .bytes()
                    .all(|it| it.is_ascii_lowercase() || it == b'_')
            ),
        }
    }
}

fn check_row(line: &[u8], row: &Row<'_>) {
    assert!((1..=USER_ID_BYTES_MAX).contains(&row.u.len()));
    assert!(row.u.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(!row.b.is_empty() && !row.b.chars().any(char::is_control));

    let mut encoded = json!({ "u": row.u, "d": row.d, "b": row.b, "t": row.t });
    let parsed: Value = serde_json::from_slice(line).expect("an accepted row is JSON");
    let values = parsed.as_object().expect("an accepted row is an object");
    assert!(values.iter().all(|(key, value)| encoded[key] == *value));
    if row.t.is_none() {
        encoded.as_object_mut().expect("an object").remove("t");
    }
    let encoded = encoded.to_string();
    let again = Row::parse(encoded.as_bytes());
    assert_eq!(again.as_ref(), Ok(row));

    check_chunk(&CookieRef {
        user_id: &row.u,
        dsp_id: row.d,
        buyer_uid: &row.b,
        age_micros: 0,
    });
}
