//! Bodies of requests: whole and bounded, or line by line.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;

use crate::problem::{self, Problem, invalid};

/// Maximum bytes of a JSON body, which has up to 100 assets in a single check.
const JSON_BYTES_MAX: usize = 512 << 10;

/// Maximum wait for the next part of a body.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a body.
pub(super) struct BodyReader {
    body: Incoming,
    buffer: BytesMut,
}

impl BodyReader {
    pub(super) fn new(body: Incoming) -> Self {
        let buffer = BytesMut::new();
        Self { body, buffer }
    }

    /// Whether the body is read to its end.
    pub(super) fn is_end(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Reads the next part; false at the end.
    async fn read(&mut self) -> Result<bool, Problem> {
        match timeout(PART_TIMEOUT, self.body.frame()).await {
            Err(_) => Err(invalid(
                "the body is too slow: send the next part within 30 s",
            )),
            Ok(None) => Ok(false),
            Ok(Some(Err(_))) => Err(invalid("the body is incomplete")),
            Ok(Some(Ok(frame))) => {
                self.buffer
                    .extend_from_slice(&frame.into_data().unwrap_or_default());
                Ok(true)
            }
        }
    }

    /// The whole body.
    pub(super) async fn whole(&mut self) -> Result<Bytes, Problem> {
        while self.read().await? {
            if self.buffer.len() > JSON_BYTES_MAX {
                return Err(Problem::new(problem::TOO_LARGE, ""));
            }
        }
        Ok(self.buffer.split().freeze())
    }

    /// The next line without its end; `None` at the end of the body.
    pub(super) async fn line(&mut self, bytes_max: usize) -> Result<Option<Bytes>, Problem> {
        let mut searched = 0;
        loop {
            let end = self.buffer[searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            let too_long = || Problem::new(problem::TOO_LARGE, "a line is too long");
            if let Some(end) = end {
                if searched + end > bytes_max {
                    return Err(too_long());
                }
                let mut line = self.buffer.split_to(searched + end + 1);
                line.truncate(searched + end);
                return Ok(Some(line.freeze()));
            }
            searched = self.buffer.len();
            if searched > bytes_max {
                return Err(too_long());
            }
            if !self.read().await? {
                let rest = self.buffer.split().freeze();
                return Ok((!rest.is_empty()).then_some(rest));
            }
        }
    }
}
