//! Bulk bodies: NDJSON, plain or gzip, read line by line within bounds.
//!
//! A request holds the current frame, one partial line, and the decoder: some 100 KiB, regardless of the size of the
//! body.

use std::{
    io::{self, Write as _},
    mem,
    time::Duration,
};

use axum::body::{Body, Bytes};
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use runtime::reply::Reply;
use tokio::{
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::problem::{Early, INVALID, MEDIA_TYPE, Problem, SLOW, TOO_LARGE};

/// Maximum bytes of a body as sent, and after decompression.
const ENCODED_BYTES_MAX: u64 = 16 << 20;
const DECODED_BYTES_MAX: u64 = 64 << 20;

/// Maximum compression ratio; NDJSON of ids is compressed 3 to 10 times. It applies from [`RATIO_FROM_BYTES`] of
/// decompressed data on.
const RATIO_MAX: u64 = 100;
const RATIO_FROM_BYTES: u64 = 256 << 10;

/// Maximum bytes of a row.
pub(super) const ROW_BYTES_MAX: usize = 4 * 1024;

/// Maximum number of rows of a request.
const ROWS_MAX: u32 = 100_000;

/// Timeout for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the rest of a body is awaited after an error.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Encoded bytes that are handled before other tasks run, plain and gzip: some ten microseconds' work.
const SLICE_BYTES: usize = 4 * 1024;
const GZIP_SLICE_BYTES: usize = 512;

/// Receives the rows of a body.
pub(super) trait Rows {
    /// Handles one row; `None` if it is longer than [`ROW_BYTES_MAX`]. Rows are numbered from 1.
    ///
    /// # Errors
    /// When the request cannot continue.
    fn row(&mut self, number: u32, row: Option<&[u8]>) -> Result<(), Problem>;

    /// Called before more of the body is awaited, which may take long.
    ///
    /// # Errors
    /// When the request cannot continue.
    fn flush(&mut self) -> Result<(), Problem>;
}

/// Checks the headers of a bulk request.
///
/// # Errors
/// 413 or 415.
pub(super) fn check_headers(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let media_type = text(header::CONTENT_TYPE).and_then(|it| it.split(';').next());
    if !media_type.is_some_and(|it| it.trim().eq_ignore_ascii_case("application/x-ndjson")) {
        let detail = "expected Content-Type: application/x-ndjson";
        return Err(Problem::new(MEDIA_TYPE, detail));
    }
    encoding(headers)?;
    let length = text(header::CONTENT_LENGTH).and_then(|it| it.parse::<u64>().ok());
    match length {
        Some(length) if length > ENCODED_BYTES_MAX => Err(too_large()),
        _ => Ok(()),
    }
}

/// Whether the body is compressed with gzip.
fn encoding(headers: &HeaderMap) -> Result<bool, Problem> {
    match headers
        .get(header::CONTENT_ENCODING)
        .map(|it| it.as_bytes())
    {
        None | Some(b"identity") => Ok(false),
        Some(b"gzip") => Ok(true),
        Some(_) => {
            let detail = "expected Content-Encoding: gzip or identity";
            Err(Problem::new(MEDIA_TYPE, detail))
        }
    }
}

/// Discards the rest of the body of a request that ended early, up to a limit: a client that is still sending it might not read
/// the response. Only for clients with a token.
pub(super) async fn discard_rest(
    result: Result<Reply, Early>,
    mut body: Body,
) -> Result<Reply, Early> {
    let discard = async {
        let mut left = 2 * ENCODED_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await
            && let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len) as u64)
        {
            left = rest;
        }
    };
    if result
        .as_ref()
        .is_err_and(|early| early.0.status() != StatusCode::UNAUTHORIZED)
    {
        timeout(DISCARD_TIMEOUT, discard).await.ok();
    }
    result
}

/// Reads a body and passes its rows to `rows`. On an error, the rows before the error have already been passed.
///
/// # Errors
/// 400, 408 or 413, and the errors of `rows`.
pub(super) async fn read<R: Rows>(
    headers: &HeaderMap,
    body: &mut Body,
    rows: &mut R,
) -> Result<(), Problem> {
    let is_gzip = encoding(headers)?;
    let mut reader = Reader::new(is_gzip, rows);
    let slice_bytes = if is_gzip {
        GZIP_SLICE_BYTES
    } else {
        SLICE_BYTES
    };
    let deadline = Instant::now() + BODY_TIMEOUT;
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| {
            let detail = format!("maximum: {} seconds", BODY_TIMEOUT.as_secs());
            Problem::new(SLOW, detail)
        })?;
        let Some(frame) = frame else {
            return reader.end();
        };
        let broken = |_| Problem::new(INVALID, "the connection closed before the end of the body");
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        for slice in data.chunks(slice_bytes) {
            reader.put(slice)?;
            reader.rows.flush()?;
            yield_now().await;
        }
    }
}

/// Decodes a body and splits it into rows.
struct Reader<'a, R> {
    rows: &'a mut R,
    decoder: Decoder,
    /// Bytes of a row whose end has not arrived, at the beginning of the decoder's output.
    partial: usize,
    /// Whether that row is already too long, so that its rest is skipped.
    is_too_long: bool,
    count: u32,
    encoded: u64,
    decoded: u64,
}

/// Appends decoded bytes to its output: up to half a megabyte for a slice of gzip.
enum Decoder {
    Identity(Vec<u8>),
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
}

impl Decoder {
    fn put(&mut self, encoded: &[u8]) -> io::Result<()> {
        match self {
            Self::Identity(output) => output.write_all(encoded),
            Self::Gzip(decoder) => decoder.write_all(encoded),
        }
    }

    fn output(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Identity(output) => output,
            Self::Gzip(decoder) => decoder.get_mut(),
        }
    }
}

impl<'a, R: Rows> Reader<'a, R> {
    fn new(is_gzip: bool, rows: &'a mut R) -> Self {
        Self {
            rows,
            decoder: if is_gzip {
                Decoder::Gzip(Box::new(MultiGzDecoder::new(Vec::new())))
            } else {
                Decoder::Identity(Vec::new())
            },
            partial: 0,
            is_too_long: false,
            count: 0,
            encoded: 0,
            decoded: 0,
        }
    }

    fn put(&mut self, encoded: &[u8]) -> Result<(), Problem> {
        self.encoded += encoded.len() as u64;
        if self.encoded > ENCODED_BYTES_MAX {
            return Err(too_large());
        }
        let decoded = self.decoder.put(encoded);
        self.split()?;
        decoded.map_err(|_| invalid_gzip())
    }

    /// Finishes decompression and passes the last row.
    fn end(&mut self) -> Result<(), Problem> {
        if let Decoder::Gzip(decoder) = &mut self.decoder {
            decoder.try_finish().map_err(|_| invalid_gzip())?;
        }
        self.split()?;
        let row = mem::take(self.decoder.output());
        self.row(&row)
    }

    /// Hands over the complete rows of the decoder's output.
    fn split(&mut self) -> Result<(), Problem> {
        let mut output = mem::take(self.decoder.output());
        self.decoded += (output.len() - self.partial) as u64;
        let is_bomb = self.decoded > RATIO_FROM_BYTES && self.decoded / RATIO_MAX > self.encoded;
        if self.decoded > DECODED_BYTES_MAX || is_bomb {
            return Err(too_large());
        }
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', &output) {
            self.row(&output[begin..end])?;
            begin = end + 1;
        }
        output.drain(..begin);
        if output.len() > ROW_BYTES_MAX {
            self.is_too_long = true;
            output.clear();
        }
        self.partial = output.len();
        *self.decoder.output() = output;
        Ok(())
    }

    /// Hands over a row. Passes a row to `rows`; ignores empty lines.
    fn row(&mut self, row: &[u8]) -> Result<(), Problem> {
        let (row, was_too_long) = (row.trim_ascii(), mem::take(&mut self.is_too_long));
        if row.is_empty() && !was_too_long {
            return Ok(());
        }
        self.count += 1;
        if self.count > ROWS_MAX {
            let detail = format!("maximum: {ROWS_MAX} rows");
            return Err(Problem::new(TOO_LARGE, detail));
        }
        let is_valid = !was_too_long && row.len() <= ROW_BYTES_MAX;
        self.rows.row(self.count, is_valid.then_some(row))
    }
}

fn invalid_gzip() -> Problem {
    Problem::new(INVALID, "the body is not valid gzip")
}

fn too_large() -> Problem {
    let detail = format!(
        "maximum: {} MiB, {} MiB after decompression, compression {RATIO_MAX}:1",
        ENCODED_BYTES_MAX >> 20,
        DECODED_BYTES_MAX >> 20,
    );
    Problem::new(TOO_LARGE, detail)
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    #[derive(Default)]
    struct Lengths(Vec<Option<usize>>);

    impl Rows for Lengths {
        fn row(&mut self, number: u32, row: Option<&[u8]>) -> Result<(), Problem> {
            self.0.push(row.map(<[u8]>::len));
            assert_eq!(number as usize, self.0.len());
            Ok(())
        }

        fn flush(&mut self) -> Result<(), Problem> {
            Ok(())
        }
    }

    fn decode(is_gzip: bool, body: &[u8], part: usize) -> (Vec<Option<usize>>, bool) {
        let mut rows = Lengths::default();
        let mut reader = Reader::new(is_gzip, &mut rows);
        let put = body.chunks(part).try_for_each(|part| reader.put(part));
        let is_ok = put.and_then(|()| reader.end()).is_ok();
        (rows.0, is_ok)
    }

    fn gzip(body: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn rows_are_the_same_however_the_body_is_split_and_compressed() {
        let long = "x".repeat(ROW_BYTES_MAX + 1);
        let full = "y".repeat(ROW_BYTES_MAX);
        let body = format!("ab\n\n  \r\ncde\r\n{long}\n{full}\nend");
        let expected = [Some(2), Some(3), None, Some(ROW_BYTES_MAX), Some(3)];
        for part in [1, 2, 3, 1000, usize::MAX] {
            let plain = decode(false, body.as_bytes(), part);
            assert_eq!(plain, (expected.to_vec(), true), "{part}");
            assert_eq!(decode(true, &gzip(body.as_bytes()), part), plain, "{part}");
        }
    }

    #[test]
    fn decompression_bombs_and_too_many_rows_are_rejected_early() {
        let bomb = gzip(&vec![b'\n'; 64 << 20]);
        assert!(bomb.len() < 100 << 10);
        assert!(!decode(true, &bomb, SLICE_BYTES).1);
        let (rows, is_ok) = decode(false, "x\n".repeat(ROWS_MAX as usize + 1).as_bytes(), 4096);
        assert_eq!((rows.len(), is_ok), (ROWS_MAX as usize, false));
    }

    #[test]
    fn truncated_or_corrupt_gzip_is_an_error() {
        let whole = gzip(b"ab\ncd\n");
        assert!(decode(true, &whole, 3).1);
        assert!(!decode(true, &whole[..whole.len() - 4], 3).1);
        assert!(!decode(true, b"plain text", 3).1);
    }
}
