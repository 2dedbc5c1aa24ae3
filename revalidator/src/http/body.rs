//! Reads request bodies into memory or into a temporary file.

use std::{io, time::Duration};

use anyhow::anyhow;
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use tempfile::{NamedTempFile, TempPath};
use tokio::{fs::File, io::AsyncWriteExt as _, time::timeout};

use crate::{
    problem::{self, Problem, broker, invalid},
    source::SOURCE_BYTES_MAX,
};

/// Maximum bytes of a JSON body, which has up to 100 assets in a single check.
const JSON_BYTES_MAX: usize = 512 << 10;

/// Maximum times to receive a JSON body, and assets.
const JSON_TIMEOUT: Duration = Duration::from_secs(5);
const ASSETS_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// The whole body.
pub(super) async fn whole(body: &mut Incoming) -> Result<Bytes, Problem> {
    let body = Limited::new(body, JSON_BYTES_MAX).collect();
    match timeout(JSON_TIMEOUT, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Problem::new(problem::TOO_LARGE, ""))
        }
        _ => Err(invalid("the body is incomplete, or took longer than 5 s")),
    }
}

/// A temporary file with the body.
pub(super) async fn file(body: &mut Incoming) -> Result<TempPath, Problem> {
    let failed = |error: io::Error| broker(anyhow!(error));
    let file = NamedTempFile::new().map_err(failed)?;
    let mut writer = File::from_std(file.reopen().map_err(failed)?);
    let mut size = 0;
    let receive = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| invalid("the body is incomplete"))?;
            let part = frame.into_data().unwrap_or_default();
            size += part.len() as u64;
            if size > SOURCE_BYTES_MAX {
                return Err(Problem::new(problem::TOO_LARGE, ""));
            }
            writer.write_all(&part).await.map_err(failed)?;
        }
        writer.flush().await.map_err(failed)
    };
    let received = timeout(ASSETS_TIMEOUT, receive).await;
    received.unwrap_or_else(|_| Err(invalid("the body took longer than 15 minutes")))?;
    Ok(file.into_temp_path())
}
