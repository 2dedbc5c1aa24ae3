//! The file that keeps what waited when a producer stopped, until it starts again.
//!
//! It is a line that names the format, how many cookies there are, a checksum, and then chunks as they go over the wire, with the age of each
//! cookie. It is written under another name, synced, and renamed. It is removed when its cookies wait again: a producer that is killed in between
//! takes them twice, which costs nothing, as they are not newer than they were.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, ErrorKind, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::{Buf as _, Bytes};
use proto::{
    ids,
    limits::CHUNK_BYTES_MAX,
    wire::{self, ChunkHeader, CookieRef, FRAME_PREFIX_BYTES, HEADROOM_BYTES, StreamMessage},
};
use runtime::file_lock::FileLock;
use rustix::fs::OFlags;

use super::held::Held;
use crate::epoch_history::{fnv, fnv_after};

const MAGIC: &[u8] = b"cookiesync limits spool 1\n";

/// Magic, count, checksum.
const HEADER_BYTES: usize = MAGIC.len() + 8 + 8;

/// The file of one process, which nobody else uses meanwhile; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Spool {
    path: PathBuf,
    _lock: Arc<FileLock>,
}

impl Spool {
    /// Takes the file for this process.
    ///
    /// # Errors
    /// When another process has it, or nothing can be written beside it.
    pub(crate) fn take(path: PathBuf) -> io::Result<Self> {
        let lock =
            FileLock::take(create(&beside(&path, ".lock"))?).map_err(|error| match error {
                fs::TryLockError::WouldBlock => io::Error::other("another process uses it"),
                fs::TryLockError::Error(error) => error,
            })?;
        Ok(Self {
            path,
            _lock: Arc::new(lock),
        })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what waits under another name, until it is [published](Self::publish).
    pub(super) fn write(&self, held: &[Held], now_unix_micros: u64) -> io::Result<()> {
        let unfinished = beside(&self.path, ".new");
        write(&unfinished, held, now_unix_micros)
            .inspect_err(|_| drop(fs::remove_file(&unfinished)))
    }

    /// Gives what was written its name; what was in the file is replaced.
    pub(super) fn publish(&self) -> io::Result<()> {
        let unfinished = beside(&self.path, ".new");
        fs::rename(&unfinished, &self.path).inspect_err(|_| drop(fs::remove_file(&unfinished)))?;
        // So that the name is durable too, where the file system can do that.
        let dir = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        drop(File::open(dir.unwrap_or(Path::new("."))).and_then(|it| it.sync_all()));
        Ok(())
    }

    /// Reads what waited: what `make` makes of each cookie, and of when it was accepted, in microseconds since the Unix epoch. `None` when
    /// there is nothing to read. A file that is damaged is put aside, and the log says so; one that cannot be read stays where it is.
    pub(super) fn read<T>(&self, make: impl FnMut(CookieRef<'_>, u64) -> T) -> Option<Vec<T>> {
        let path = self.path.display();
        match read(&self.path, make) {
            Ok(all) => Some(all),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(why) if why.kind() == ErrorKind::InvalidData => {
                let aside = beside(&self.path, ".damaged");
                let moved = fs::rename(&self.path, &aside);
                tracing::error!(%path, %why, aside = %aside.display(), ?moved, "cannot read the spool");
                None
            }
            Err(error) => {
                tracing::error!(%path, %error, "cannot read the spool; move the file away, as the end of this run replaces it");
                None
            }
        }
    }

    /// Removes the file, whose cookies wait again.
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

/// Opens a file of this user's own, which others cannot read; what a link leads to is not touched.
fn create(path: &Path) -> io::Result<File> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(path)
}

fn write(path: &Path, held: &[Held], now_unix_micros: u64) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, create(path)?);
    // What it says is not known before all is written.
    file.write_all(&[0; HEADER_BYTES])?;
    let (mut sum, mut first) = (fnv(&[]), 1);
    let mut rest = held;
    while !rest.is_empty() {
        let mut buffer = vec![0; HEADROOM_BYTES];
        let mut count = 0;
        for held in rest {
            let cookie = held.released(now_unix_micros);
            if buffer.len() + wire::cookie_bytes(&cookie) > CHUNK_BYTES_MAX {
                break;
            }
            wire::put_cookie(&mut buffer, &cookie);
            count += 1;
        }
        let header = ChunkHeader {
            epoch: 0,
            first_sequence: first,
            count,
            accepted_unix_micros: now_unix_micros,
        };
        let at = wire::seal(&mut buffer, &header);
        sum = fnv_after(sum, &buffer[at..]);
        file.write_all(&buffer[at..])?;
        first += u64::from(count);
        rest = &rest[count as usize..];
    }
    let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(MAGIC)?;
    file.write_all(&(held.len() as u64).to_le_bytes())?;
    file.write_all(&sum.to_le_bytes())?;
    file.sync_all()
}

/// Reads the whole file at once. What is damaged is [`InvalidData`](ErrorKind::InvalidData).
fn read<T>(path: &Path, mut make: impl FnMut(CookieRef<'_>, u64) -> T) -> io::Result<Vec<T>> {
    let damaged = || io::Error::new(ErrorKind::InvalidData, "corrupt, or not a spool file");
    if !fs::metadata(path)?.is_file() {
        return Err(damaged());
    }
    let mut rest = Bytes::from(fs::read(path)?);
    if rest.len() < HEADER_BYTES || !rest.starts_with(MAGIC) {
        return Err(damaged());
    }
    rest.advance(MAGIC.len());
    let (count, sum) = (rest.get_u64_le(), rest.get_u64_le());
    if sum != fnv(&rest) {
        return Err(damaged());
    }
    let mut all = Vec::new();
    while rest.len() >= FRAME_PREFIX_BYTES {
        let mut prefix = rest.split_to(FRAME_PREFIX_BYTES);
        prefix.advance(1);
        let length = prefix.get_u32() as usize;
        if length > rest.len() {
            return Err(damaged());
        }
        let Ok(StreamMessage::Chunk(chunk)) = StreamMessage::decode(rest.split_to(length)) else {
            return Err(damaged());
        };
        for cookie in chunk.cookies() {
            let cookie = cookie.map_err(|_| damaged())?;
            let is_legal = ids::is_user_id(cookie.user_id.as_bytes())
                && ids::is_dsp_id(cookie.dsp_id)
                && ids::is_buyer_uid_of_stream(cookie.buyer_uid);
            if !is_legal {
                return Err(damaged());
            }
            let sent = chunk.header().accepted_unix_micros;
            all.push(make(cookie, cookie.accepted_unix_micros(sent)));
        }
    }
    let is_whole = rest.is_empty() && all.len() as u64 == count;
    is_whole.then_some(all).ok_or_else(damaged)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
