//! Bulk bodies: NDJSON, plain or gzip, read line by line within bounds.
//!
//! A request holds the frame that is being read, one partial line, and the decoder: some 100 KiB, however large the body is.

use std::{
    io::{self, Write},
    pin::pin,
    time::Duration,
};

use axum::body::Body;
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::problem::{Kind, Problem};

/// Largest body as sent, and after decompression.
const ENCODED_BYTES_MAX: u64 = 16 << 20;
const DECODED_BYTES_MAX: u64 = 64 << 20;

/// Highest compression ratio; NDJSON of ids is compressed 3 to 10 times. It counts beyond the first [`RATIO_FROM_BYTES`].
const RATIO_MAX: u64 = 100;
const RATIO_FROM_BYTES: u64 = 256 << 10;

/// Longest row.
pub(super) const ROW_BYTES_MAX: usize = 4 * 1024;

/// Most rows of a request.
const ROWS_MAX: u32 = 100_000;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Encoded bytes that are handled before other tasks run: about a millisecond's work if they are not compressed.
const SLICE_BYTES: usize = 4 * 1024;

/// What rows are handed to.
pub(super) trait Rows {
    /// Handles one row; `None` for one that is longer than [`ROW_BYTES_MAX`]. Rows count from 1.
    ///
    /// # Errors
    /// When the request cannot continue.
    fn row(&mut self, number: u32, row: Option<&[u8]>) -> Result<(), Problem>;
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
        return Err(Problem::new(Kind::MediaType, detail));
    }
    encoding(headers)?;
    let length = text(header::CONTENT_LENGTH).and_then(|it| it.parse::<u64>().ok());
    match length {
        Some(length) if length > ENCODED_BYTES_MAX => Err(too_large()),
        _ => Ok(()),
    }
}

/// Whether the body is gzip.
fn encoding(headers: &HeaderMap) -> Result<bool, Problem> {
    match headers
        .get(header::CONTENT_ENCODING)
        .map(|it| it.as_bytes())
    {
        None | Some(b"identity") => Ok(false),
        Some(b"gzip") => Ok(true),
        Some(_) => {
            let detail = "expected Content-Encoding: gzip or identity";
            Err(Problem::new(Kind::MediaType, detail))
        }
    }
}

/// Reads a body and hands its rows to `rows`. After an error the rows before it were handed over.
///
/// # Errors
/// 400, 408 or 413, and the errors of `rows`.
pub(super) async fn read<R: Rows>(
    headers: &HeaderMap,
    body: Body,
    rows: &mut R,
) -> Result<(), Problem> {
    let is_gzip = encoding(headers)?;
    let mut decoder = Decoder::new(is_gzip, rows);
    let read = read_all(&mut decoder, body).await;
    let ended = read.and_then(|()| decoder.end());
    // Dropping a decoder writes what it has left.
    decoder.reader().is_closed = true;
    ended
}

async fn read_all<R: Rows>(decoder: &mut Decoder<'_, R>, body: Body) -> Result<(), Problem> {
    let deadline = Instant::now() + BODY_TIMEOUT;
    let mut body = pin!(body);
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| {
            let detail = format!("maximum: {} seconds", BODY_TIMEOUT.as_secs());
            Problem::new(Kind::Slow, detail)
        })?;
        let Some(frame) = frame else { return Ok(()) };
        let broken = |_| {
            Problem::new(
                Kind::Invalid,
                "the connection closed before the end of the body",
            )
        };
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        for slice in data.chunks(SLICE_BYTES) {
            decoder.put(slice)?;
            yield_now().await;
        }
    }
}

enum Decoder<'a, R: Rows> {
    Identity(Reader<'a, R>),
    Gzip(Box<MultiGzDecoder<Reader<'a, R>>>),
}

impl<'a, R: Rows> Decoder<'a, R> {
    fn new(is_gzip: bool, rows: &'a mut R) -> Self {
        let reader = Reader {
            rows,
            partial: Vec::new(),
            is_too_long: false,
            count: 0,
            encoded: 0,
            decoded: 0,
            problem: None,
            is_closed: false,
        };
        if is_gzip {
            Self::Gzip(Box::new(MultiGzDecoder::new(reader)))
        } else {
            Self::Identity(reader)
        }
    }

    fn reader(&mut self) -> &mut Reader<'a, R> {
        match self {
            Self::Identity(reader) => reader,
            Self::Gzip(decoder) => decoder.get_mut(),
        }
    }

    fn put(&mut self, encoded: &[u8]) -> Result<(), Problem> {
        let reader = self.reader();
        reader.encoded += encoded.len() as u64;
        if reader.encoded > ENCODED_BYTES_MAX {
            return Err(too_large());
        }
        let written = match self {
            Self::Identity(reader) => reader.write_all(encoded),
            Self::Gzip(decoder) => decoder.write_all(encoded),
        };
        written.map_err(|_| self.broken())
    }

    /// Ends the encoding and the last row.
    fn end(&mut self) -> Result<(), Problem> {
        if let Self::Gzip(decoder) = self
            && decoder.try_finish().is_err()
        {
            return Err(self.broken());
        }
        self.reader().end_row()
    }

    /// Why decoding failed: a row, a bound, or the encoding itself.
    fn broken(&mut self) -> Problem {
        let problem = self.reader().problem.take();
        problem.unwrap_or_else(|| Problem::new(Kind::Invalid, "the body is not valid gzip"))
    }
}

/// Splits decoded bytes into rows.
struct Reader<'a, R> {
    rows: &'a mut R,
    /// The beginning of a row whose end has not arrived.
    partial: Vec<u8>,
    /// That row is already too long; the rest of it is skipped.
    is_too_long: bool,
    count: u32,
    encoded: u64,
    decoded: u64,
    problem: Option<Problem>,
    is_closed: bool,
}

impl<R: Rows> Reader<'_, R> {
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Problem> {
        self.decoded += bytes.len() as u64;
        let is_bomb = self.decoded > RATIO_FROM_BYTES && self.decoded / RATIO_MAX > self.encoded;
        if self.decoded > DECODED_BYTES_MAX || is_bomb {
            return Err(too_large());
        }
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (row, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.partial.is_empty() && !self.is_too_long {
                // The usual case needs no copy.
                self.hand_over(row)?;
            } else {
                self.keep(row);
                self.end_row()?;
            }
        }
        self.keep(bytes);
        Ok(())
    }

    fn keep(&mut self, part: &[u8]) {
        if self.partial.len() + part.len() > ROW_BYTES_MAX {
            self.is_too_long = true;
            self.partial.clear();
        } else if !self.is_too_long {
            self.partial.extend_from_slice(part);
        }
    }

    fn end_row(&mut self) -> Result<(), Problem> {
        if std::mem::take(&mut self.is_too_long) {
            return self.next_row(None);
        }
        let row = std::mem::take(&mut self.partial);
        let handed_over = self.hand_over(&row);
        self.partial = row;
        self.partial.clear();
        handed_over
    }

    /// Empty lines are no rows.
    fn hand_over(&mut self, row: &[u8]) -> Result<(), Problem> {
        match row.trim_ascii() {
            [] => Ok(()),
            row if row.len() > ROW_BYTES_MAX => self.next_row(None),
            row => self.next_row(Some(row)),
        }
    }

    fn next_row(&mut self, row: Option<&[u8]>) -> Result<(), Problem> {
        self.count += 1;
        if self.count > ROWS_MAX {
            let detail = format!("maximum: {ROWS_MAX} rows");
            return Err(Problem::new(Kind::TooLarge, detail));
        }
        self.rows.row(self.count, row)
    }
}

impl<R: Rows> Write for Reader<'_, R> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_closed {
            return Err(io::Error::other("closed"));
        }
        match self.take(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(problem) => {
                self.problem = Some(problem);
                self.is_closed = true;
                Err(io::Error::other("stopped"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn too_large() -> Problem {
    let detail = format!(
        "maximum: {} MiB, {} MiB after decompression, compression {RATIO_MAX}:1",
        ENCODED_BYTES_MAX >> 20,
        DECODED_BYTES_MAX >> 20,
    );
    Problem::new(Kind::TooLarge, detail)
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
    }

    fn decode(is_gzip: bool, body: &[u8], part: usize) -> (Vec<Option<usize>>, bool) {
        let mut rows = Lengths::default();
        let mut decoder = Decoder::new(is_gzip, &mut rows);
        let put = body.chunks(part).try_for_each(|part| decoder.put(part));
        let is_ok = put.and_then(|()| decoder.end()).is_ok();
        decoder.reader().is_closed = true;
        drop(decoder);
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
    fn bombs_and_too_many_rows_end_early() {
        let bomb = gzip(&vec![b'\n'; 64 << 20]);
        assert!(bomb.len() < 100 << 10);
        assert!(!decode(true, &bomb, SLICE_BYTES).1);
        let (rows, is_ok) = decode(false, "x\n".repeat(ROWS_MAX as usize + 1).as_bytes(), 4096);
        assert_eq!((rows.len(), is_ok), (ROWS_MAX as usize, false));
    }

    #[test]
    fn cut_or_damaged_gzip_is_an_error() {
        let whole = gzip(b"ab\ncd\n");
        assert!(decode(true, &whole, 3).1);
        assert!(!decode(true, &whole[..whole.len() - 4], 3).1);
        assert!(!decode(true, b"plain text", 3).1);
    }
}
