//! The spool: a file with the queued cookies of a stopped producer, restored at the next start.
//!
//! Format: a magic line, the number of cookies, a checksum, then chunks in wire format with the age of each cookie. The file
//! is written under a temporary name, synced, and renamed. It is removed after its cookies are queued again. If the producer
//! is killed before the removal, the next start restores the same cookies again. This is harmless: their age makes the
//! second copy equal to the first.

use std::{
    fs::{self, File},
    io::{self, BufWriter, ErrorKind, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use bytes::{Buf as _, Bytes};
use proto::{
    ids,
    limits::CHUNK_BYTES_MAX,
    units::{Epoch, Sequence, UnixMicros},
    wire::{
        self, ChunkHeader, CookieRef, FRAME_PREFIX_BYTES, HEADROOM_BYTES, Record, StreamMessage,
    },
};
use runtime::file_lock::FileLock;

use super::cookie_table::QueuedCookie;
use crate::epoch_history::{fnv, fnv_after, open_private};

const MAGIC: &[u8] = b"cookiesync limits spool 1\n";

/// Magic, count, checksum.
const HEADER_BYTES: usize = MAGIC.len() + 8 + 8;

/// The spool of one process, locked against others; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Spool {
    pub(super) path: PathBuf,
    _lock: Arc<FileLock>,
}

impl Spool {
    /// Locks the spool for this process.
    ///
    /// # Errors
    /// When another process has locked it, or its directory is not writable.
    pub(crate) fn lock(path: PathBuf) -> anyhow::Result<Self> {
        let lock = FileLock::acquire(open_private(&with_suffix(&path, ".lock"), true)?);
        let lock = lock.context("another process is using this spool")?;
        Ok(Self {
            path,
            _lock: Arc::new(lock),
        })
    }

    /// Writes the cookies under a temporary name; [`publish`](Self::publish) renames it.
    pub(super) fn write(&self, cookies: &[QueuedCookie], now: UnixMicros) -> io::Result<()> {
        let unfinished = with_suffix(&self.path, ".new");
        write(&unfinished, cookies, now).inspect_err(|_| drop(fs::remove_file(&unfinished)))
    }

    /// Renames the written file; replaces the previous spool.
    pub(super) fn publish(&self) -> io::Result<()> {
        let unfinished = with_suffix(&self.path, ".new");
        fs::rename(&unfinished, &self.path).inspect_err(|_| drop(fs::remove_file(&unfinished)))?;
        // Makes the rename durable, if the file system supports it.
        let dir = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        drop(File::open(dir.unwrap_or(Path::new("."))).and_then(|it| it.sync_all()));
        Ok(())
    }

    /// Reads the spool and calls `make` with each cookie and the time when it was accepted. Returns `None` without a readable spool. A corrupt spool is logged and renamed; an unreadable one stays in place.
    pub(super) fn read<T>(
        &self,
        make: impl FnMut(CookieRef<'_>, UnixMicros) -> T,
    ) -> Option<Vec<T>> {
        let path = self.path.display();
        match read(&self.path, make) {
            Ok(all) => Some(all),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                let moved_to = with_suffix(&self.path, ".damaged");
                let moved = fs::rename(&self.path, &moved_to);
                tracing::error!(%path, %error, moved_to = %moved_to.display(), ?moved, "the spool is corrupt; its cookies are lost");
                None
            }
            Err(error) => {
                tracing::error!(%path, %error, "failed to read the spool; move it elsewhere, or the next shutdown will overwrite it");
                None
            }
        }
    }

    /// Removes the spool after its cookies were queued again.
    pub(super) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(
                path = %self.path.display(),
                %error,
                "failed to remove the restored spool; its cookies will be restored again at the next start"
            );
        }
    }
}

fn write(path: &Path, cookies: &[QueuedCookie], now: UnixMicros) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, open_private(path, true)?);
    // Overwritten at the end, when the checksum is known.
    file.write_all(&[0; HEADER_BYTES])?;
    let (mut sum, mut first) = (fnv(&[]), Sequence::FIRST);
    let mut rest = cookies;
    while !rest.is_empty() {
        let mut buffer = vec![0; HEADROOM_BYTES];
        let mut count = 0;
        for cookie in rest {
            let cookie = cookie.with_age(now);
            if buffer.len() + wire::cookie_bytes(&cookie) > CHUNK_BYTES_MAX {
                break;
            }
            wire::put_cookie(&mut buffer, &cookie);
            count += 1;
        }
        let header = ChunkHeader {
            epoch: Epoch(0),
            first_sequence: first,
            count,
            accepted: now,
        };
        let at = wire::seal(&mut buffer, &header);
        sum = fnv_after(sum, &buffer[at..]);
        file.write_all(&buffer[at..])?;
        first = first + u64::from(count);
        rest = &rest[count as usize..];
    }
    let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(MAGIC)?;
    file.write_all(&(cookies.len() as u64).to_le_bytes())?;
    file.write_all(&sum.to_le_bytes())?;
    file.sync_all()
}

/// Reads the whole file. A corrupt file is [`InvalidData`](ErrorKind::InvalidData).
fn read<T>(
    path: &Path,
    mut make: impl FnMut(CookieRef<'_>, UnixMicros) -> T,
) -> io::Result<Vec<T>> {
    let corrupt = || io::Error::new(ErrorKind::InvalidData, "corrupt, or not a spool file");
    if !fs::metadata(path)?.is_file() {
        return Err(corrupt());
    }
    let mut rest = Bytes::from(fs::read(path)?);
    if rest.len() < HEADER_BYTES || !rest.starts_with(MAGIC) {
        return Err(corrupt());
    }
    rest.advance(MAGIC.len());
    let (count, sum) = (rest.get_u64_le(), rest.get_u64_le());
    if sum != fnv(&rest) {
        return Err(corrupt());
    }
    let mut all = Vec::new();
    while rest.len() >= FRAME_PREFIX_BYTES {
        let mut prefix = rest.split_to(FRAME_PREFIX_BYTES);
        prefix.advance(1);
        let length = prefix.get_u32() as usize;
        if length > rest.len() {
            return Err(corrupt());
        }
        let Ok(StreamMessage::Chunk(chunk)) = StreamMessage::decode(rest.split_to(length)) else {
            return Err(corrupt());
        };
        for record in chunk.records() {
            let Ok(Record::Set(cookie)) = record else {
                return Err(corrupt());
            };
            let is_valid = ids::is_user_id(cookie.user_id.as_bytes())
                && cookie.dsp_id.is_valid()
                && ids::is_buyer_uid_of_stream(cookie.buyer_uid);
            if !is_valid {
                return Err(corrupt());
            }
            let sent = chunk.header().accepted;
            all.push(make(cookie, cookie.accepted(sent)));
        }
    }
    let is_complete = rest.is_empty() && all.len() as u64 == count;
    is_complete.then_some(all).ok_or_else(corrupt)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
