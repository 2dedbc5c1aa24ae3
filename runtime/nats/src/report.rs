//! Authentication of node reports: a code that only a holder of the token can compute.
//!
//! ```
//! use proto::v1::NodePositions;
//! use runtime::token::Tokens;
//! use runtime_nats::report::{seal, verify};
//!
//! let positions = NodePositions { name: "node-1".to_owned(), ..NodePositions::default() };
//! let tokens = Tokens::parse(b"a-token-of-16-bytes\nanother-token-of-24-bytes").unwrap();
//! let message = seal(&positions, Some("another-token-of-24-bytes"));
//! assert_eq!(verify(message.into(), Some(&tokens)), Ok(Some(positions.clone())));
//!
//! for token in [None, Some("guessed-token-of-some-length")] {
//!     assert_eq!(verify(seal(&positions, token).into(), Some(&tokens)), Ok(None));
//! }
//! ```

use bytes::Bytes;
use prost::{DecodeError, Message as _};
use proto::v1::{NodePositions, NodeReport};
use ring::hmac;
use runtime::token::Tokens;

/// The message with these positions; without a code if there is no token.
pub fn seal(positions: &NodePositions, token: Option<&str>) -> Vec<u8> {
    let positions = positions.encode_to_vec();
    let mac = token.map(|token| hmac::sign(&key(token), &positions));
    let report = NodeReport {
        mac: mac.map_or_else(Bytes::new, |mac| Bytes::copy_from_slice(mac.as_ref())),
        positions: positions.into(),
    };
    report.encode_to_vec()
}

/// The positions in a message with a valid code; `None` if the code is missing or of none of the tokens.
///
/// # Errors
/// If the message is invalid.
pub fn verify(
    message: Bytes,
    tokens: Option<&Tokens>,
) -> Result<Option<NodePositions>, DecodeError> {
    let report = NodeReport::decode(message)?;
    let is_valid = |token| hmac::verify(&key(token), &report.positions, &report.mac).is_ok();
    if tokens.is_some_and(|tokens| tokens.iter().any(is_valid)) {
        NodePositions::decode(report.positions).map(Some)
    } else {
        Ok(None)
    }
}

fn key(token: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes())
}
