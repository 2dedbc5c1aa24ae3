//! Bodies of bulk requests: NDJSON, plain or gzip, read line by line within bounds on size and time.
//!
//! Whatever its body contains, a request uses at most [`REQUEST_BYTES`] of memory: for one frame of the body, for the
//! lines of one slice of this frame, and for the decoder.

use std::{
    hash::{DefaultHasher, Hasher as _},
    io::Write as _,
    mem,
    time::Duration,
};

use axum::body::{Body, Bytes};
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use runtime::reload::BYTE_ORDER_MARK;
use tokio::time::{Instant, timeout, timeout_at};

use super::problem::{INVALID, MEDIA_TYPE, Problem, SLOW, TOO_LARGE};

/// Maximum bytes of a body as sent, and after decompression.
const ENCODED_BYTES_MAX: u64 = 16 << 20;
const DECODED_BYTES_MAX: u64 = 64 << 20;

/// Maximum compression ratio; NDJSON of ids is compressed 3 to 10 times. It applies from [`RATIO_FROM_BYTES`] of
/// decompressed data on.
const RATIO_MAX: u64 = 100;
const RATIO_FROM_BYTES: u64 = 256 << 10;

/// Maximum bytes of a row.
pub(super) const ROW_BYTES_MAX: usize = 4 * 1024;

/// Maximum number of rows of a request, including empty rows.
const ROWS_MAX: u32 = 100_000;

/// Timeout for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time to receive and discard the rest of a body after an error.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Encoded bytes (plain and gzip) to handle before other tasks run: some ten microseconds of CPU time.
const SLICE_BYTES: usize = 4 * 1024;
const GZIP_SLICE_BYTES: usize = 256;

/// Maximum memory of a request: two buffers, the decoder, and the buffers of the connection. Each of the two has up to twice
/// the size to which deflate can expand a slice (1,032:1).
pub(crate) const REQUEST_BYTES: usize = 4 * 1032 * GZIP_SLICE_BYTES + (192 << 10);

/// Reads the rows of a body.
pub(super) struct Rows<'a> {
    body: &'a mut Body,
    /// The time by which the body must have been received.
    pub(super) deadline: Instant,
    gzip: Option<MultiGzDecoder<Vec<u8>>>,
    /// Received bytes that are not decoded yet.
    frame: Bytes,
    has_ended: bool,
    /// Decoded bytes, and the number of them that were handled.
    output: Vec<u8>,
    handled: usize,
    encoded: u64,
    decoded: u64,
    /// Rows so far.
    pub(super) count: u32,
    /// Hash of the body as sent, independent of how it was split; only if the request has an `Idempotency-Key`.
    digest: Option<DefaultHasher>,
}

impl<'a> Rows<'a> {
    /// Checks the headers of a bulk request.
    ///
    /// # Errors
    /// 413 or 415.
    pub(super) fn new(headers: &HeaderMap, body: &'a mut Body) -> Result<Self, Problem> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let media_type = text(header::CONTENT_TYPE).and_then(|it| it.split(';').next());
        if !media_type.is_some_and(|it| it.trim().eq_ignore_ascii_case("application/x-ndjson")) {
            let detail = "expected Content-Type: application/x-ndjson";
            return Err(Problem::new(MEDIA_TYPE, detail));
        }
        let encoding = headers.get(header::CONTENT_ENCODING);
        let encoding = encoding.map(|it| it.as_bytes().to_ascii_lowercase());
        let gzip = match encoding.as_deref() {
            None | Some(b"identity") => None,
            Some(b"gzip" | b"x-gzip") => Some(MultiGzDecoder::new(Vec::new())),
            Some(_) => {
                let detail = "expected Content-Encoding: gzip or identity";
                return Err(Problem::new(MEDIA_TYPE, detail));
            }
        };
        let length = text(header::CONTENT_LENGTH).and_then(|it| it.parse::<u64>().ok());
        if length.is_some_and(|length| length > ENCODED_BYTES_MAX) {
            return Err(too_large());
        }
        Ok(Self {
            body,
            deadline: Instant::now() + BODY_TIMEOUT,
            gzip,
            frame: Bytes::new(),
            has_ended: false,
            output: Vec::new(),
            handled: 0,
            encoded: 0,
            decoded: 0,
            count: 0,
            digest: headers
                .contains_key("idempotency-key")
                .then(DefaultHasher::new),
        })
    }

    /// Receives more rows, after all rows so far were handled; false at the end.
    ///
    /// # Errors
    /// 400, 408 or 413.
    pub(super) async fn receive(&mut self) -> Result<bool, Problem> {
        if self.has_ended {
            return Ok(false);
        }
        if self.frame.is_empty() {
            let frame = timeout_at(self.deadline, self.body.frame()).await;
            let frame = frame.map_err(|_| {
                let detail = format!("body incomplete after {} s", BODY_TIMEOUT.as_secs());
                Problem::new(SLOW, detail)
            })?;
            let frame = frame.transpose().map_err(|_| {
                Problem::new(INVALID, "the connection closed before the end of the body")
            })?;
            self.has_ended = frame.is_none();
            let data = frame.and_then(|frame| frame.into_data().ok());
            self.frame = data.unwrap_or_default();
        }
        let slice_bytes = match self.gzip {
            Some(_) => GZIP_SLICE_BYTES,
            None => SLICE_BYTES,
        };
        let slice = self.frame.split_to(slice_bytes.min(self.frame.len()));
        if let Some(digest) = &mut self.digest {
            digest.write(&slice);
        }
        self.decode(&slice)?;
        Ok(true)
    }

    /// The digest of the body so far.
    pub(super) fn digest(&self) -> u64 {
        self.digest.as_ref().map_or(0, DefaultHasher::finish)
    }

    fn decode(&mut self, encoded: &[u8]) -> Result<(), Problem> {
        let before = self.output.len();
        if let Some(gzip) = &mut self.gzip {
            let decoded = gzip.write_all(encoded);
            let decoded = decoded.and_then(|()| match self.has_ended {
                true => gzip.try_finish(),
                false => Ok(()),
            });
            decoded.map_err(|_| Problem::new(INVALID, "the body is not valid gzip"))?;
            self.output.append(gzip.get_mut());
        } else {
            self.output.extend_from_slice(encoded);
        }
        self.encoded += encoded.len() as u64;
        self.decoded += (self.output.len() - before) as u64;
        let is_bomb = self.decoded > RATIO_FROM_BYTES && self.decoded / RATIO_MAX > self.encoded;
        if self.encoded > ENCODED_BYTES_MAX || self.decoded > DECODED_BYTES_MAX || is_bomb {
            return Err(too_large());
        }
        if self.has_ended && self.output.last().is_some_and(|it| *it != b'\n') {
            self.output.push(b'\n');
        }
        Ok(())
    }

    /// The next row, which may be empty; `None` if more must be received. A row that is too long is truncated, but stays
    /// longer than [`ROW_BYTES_MAX`].
    ///
    /// # Errors
    /// 413.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, Problem> {
        let Some(length) = memchr::memchr(b'\n', &self.output[self.handled..]) else {
            self.output.drain(..mem::take(&mut self.handled));
            self.output
                .truncate(BYTE_ORDER_MARK.len() + ROW_BYTES_MAX + 1);
            return Ok(None);
        };
        if self.count == ROWS_MAX {
            let detail = format!("too many rows; maximum: {ROWS_MAX}");
            return Err(Problem::new(TOO_LARGE, detail));
        }
        self.count += 1;
        let mut row = &self.output[self.handled..][..length];
        self.handled += length + 1;
        if self.count == 1 {
            row = row.strip_prefix(BYTE_ORDER_MARK).unwrap_or(row);
        }
        Ok(Some(if row.len() > ROW_BYTES_MAX {
            row
        } else {
            row.trim_ascii()
        }))
    }
}

/// Discards the rest of a body after an error: a client that is still sending it might not read the response.
pub(super) async fn discard(body: &mut Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    timeout(DISCARD_TIMEOUT, rest).await.ok();
}

fn too_large() -> Problem {
    let detail = format!(
        "body too large; maximum: {} MiB, {} MiB after decompression, compression ratio {RATIO_MAX}:1",
        ENCODED_BYTES_MAX >> 20,
        DECODED_BYTES_MAX >> 20,
    );
    Problem::new(TOO_LARGE, detail)
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    /// The lengths of the nonempty rows up to the first error, and whether there was no error.
    async fn lengths(is_gzip: bool, body: &[u8], part: usize) -> (Vec<usize>, bool) {
        let coding = if is_gzip { "X-GZip" } else { "Identity" };
        let mut headers = HeaderMap::new();
        let ndjson = "application/x-ndjson".parse().unwrap();
        headers.insert(header::CONTENT_TYPE, ndjson);
        headers.insert(header::CONTENT_ENCODING, coding.parse().unwrap());
        let parts = body.chunks(part).map(Bytes::copy_from_slice).collect();
        let mut body = Body::new(Parts(parts));
        let mut rows = Rows::new(&headers, &mut body).unwrap();
        let mut lengths = Vec::new();
        let is_ok = loop {
            match rows.receive().await {
                Ok(true) => {}
                Ok(false) => break true,
                Err(_) => break false,
            }
            loop {
                match rows.next() {
                    Ok(Some(row)) => lengths.extend((!row.is_empty()).then_some(row.len())),
                    Ok(None) => break,
                    Err(_) => return (lengths, false),
                }
            }
            assert!(rows.output.capacity() <= 2 * 1032 * GZIP_SLICE_BYTES);
        };
        (lengths, is_ok)
    }

    /// A body of these parts.
    struct Parts(std::collections::VecDeque<Bytes>);

    impl http_body::Body for Parts {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            let part = self.0.pop_front();
            std::task::Poll::Ready(part.map(|part| Ok(http_body::Frame::data(part))))
        }
    }

    fn gzip(body: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test]
    async fn rows_are_the_same_however_the_body_is_split_and_compressed() {
        let long = "x".repeat(2 * ROW_BYTES_MAX);
        let spaces = " ".repeat(2 * ROW_BYTES_MAX);
        let full = "y".repeat(ROW_BYTES_MAX);
        let body = format!("ab\n\n  \r\ncde\r\n{long}\n{spaces}z\n{full}\nend");
        for part in [1, 2, 3, 1000, usize::MAX] {
            for is_gzip in [false, true] {
                let body = match is_gzip {
                    true => gzip(body.as_bytes()),
                    false => body.clone().into_bytes(),
                };
                let (mut lengths, is_ok) = lengths(is_gzip, &body, part).await;
                assert!(is_ok);
                for too_long in &mut lengths[2..4] {
                    assert!(std::mem::take(too_long) > ROW_BYTES_MAX, "{part}");
                }
                assert_eq!(lengths, [2, 3, 0, 0, ROW_BYTES_MAX, 3], "{part}");
            }
        }
    }

    #[tokio::test]
    async fn byte_order_mark_is_not_part_of_the_first_row() {
        let full = "y".repeat(ROW_BYTES_MAX);
        for (body, expected) in [
            ("\u{feff}ab\n\u{feff}cd".to_owned(), vec![2, 5]),
            ("\u{feff}\r\ncd".to_owned(), vec![2]),
            (format!("\u{feff}{full}\ncd"), vec![ROW_BYTES_MAX, 2]),
            (format!("\u{feff}{full}y\ncd"), vec![ROW_BYTES_MAX + 1, 2]),
        ] {
            for part in [1, 2, 1000, usize::MAX] {
                for is_gzip in [false, true] {
                    let body = match is_gzip {
                        true => gzip(body.as_bytes()),
                        false => body.clone().into_bytes(),
                    };
                    assert_eq!(
                        lengths(is_gzip, &body, part).await,
                        (expected.clone(), true)
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn decompression_bombs_and_too_many_rows_are_rejected_early() {
        let bomb = gzip(&vec![b' '; 64 << 20]);
        assert!(bomb.len() < 100 << 10);
        assert!(!lengths(true, &bomb, usize::MAX).await.1);
        let rows = ROWS_MAX as usize;
        for (count, is_ok) in [(rows, true), (rows + 1, false)] {
            let all = lengths(false, "x\n".repeat(count).as_bytes(), usize::MAX).await;
            assert_eq!((all.0.len(), all.1), (rows, is_ok));
        }
    }

    #[tokio::test]
    async fn truncated_or_corrupt_gzip_is_an_error() {
        let whole = gzip(b"ab\ncd\n");
        assert!(lengths(true, &whole, 3).await.1);
        assert!(!lengths(true, &whole[..whole.len() - 4], 3).await.1);
        assert!(!lengths(true, b"plain text", 3).await.1);
    }
}
