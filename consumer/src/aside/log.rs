//! Segments on disk, and where in them each DSP's cookies lie. Blocks.
//!
//! A segment is a file of frames, each of which holds cookies of one DSP:
//!
//! ```text
//! checksum   u32   CRC-32 of all that follows
//! length     u32   bytes of the messages
//! DSP        u32
//! cookies    u32
//! messages   …     chunks as the wire has them, each with its length
//! ```
//!
//! Numbers are little-endian. Frames are appended to the newest segment, and one sync makes all frames of a batch durable,
//! however many DSPs they are of. What was read and is done with is forgotten in memory alone; a segment goes when none
//! of its frames is wanted. So after a restart some frames come a second time, which changes nothing in a store where the
//! newest wins.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use runtime::file_lock::FileLock;

const HEAD_BYTES: usize = 16;

/// What a frame is counted as at least: it also takes that much memory.
const CHARGE_MIN: u64 = 64;

/// The users' ids are nobody else's.
const MODE: u32 = 0o600;

const EXTENSION: &str = "aside";
const LOCK: &str = "lock";

/// Cookies of one DSP that are to be appended.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) dsp_id: u32,
    pub(super) cookies: u32,
    /// Chunks as gRPC messages, one after the other.
    pub(super) messages: Vec<u8>,
}

/// What was read of one DSP, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// How many frames; to be told to [`Log::done`].
    pub(super) frames: usize,
    /// How many cookies they have.
    pub(super) cookies: u64,
    /// Their messages.
    pub(super) messages: Vec<Bytes>,
}

/// All segments of a folder.
#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    bytes_max: u64,
    segment_bytes_max: u64,
    segments: BTreeMap<u64, Segment>,
    dsps: BTreeMap<u32, Kept>,
    /// Held as long as the log is.
    _lock: FileLock,
}

#[derive(Debug)]
struct Segment {
    file: File,
    /// Its length.
    bytes: u64,
    /// What it counts as, wanted or not.
    charge: u64,
    /// The same of the frames that are still wanted.
    wanted: u64,
}

/// What one DSP has in the log.
#[derive(Debug, Default)]
struct Kept {
    positions: VecDeque<FramePosition>,
    charge: u64,
    cookies: u64,
}

#[derive(Debug, Clone, Copy)]
struct FramePosition {
    segment: u64,
    at: u64,
    bytes: u32,
    cookies: u32,
}

impl FramePosition {
    fn charge(&self) -> u64 {
        u64::from(self.bytes).max(CHARGE_MIN)
    }
}

impl Log {
    /// Opens the log in `folder`, which is made if need be, and finds what it holds. What an interrupted append left
    /// behind is cut off.
    pub(super) fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let lock = options().write(true).create(true).open(folder.join(LOCK))?;
        let lock = FileLock::take(lock).map_err(|_| {
            io::Error::new(
                io::ErrorKind::ResourceBusy,
                "it is in use by another process",
            )
        })?;
        let mut log = Self {
            folder: folder.to_owned(),
            bytes_max,
            segment_bytes_max: (bytes_max / 16).clamp(64 << 10, 8 << 20),
            segments: BTreeMap::new(),
            dsps: BTreeMap::new(),
            _lock: lock,
        };
        for number in log.numbers()? {
            log.find(number)?;
        }
        Ok(log)
    }

    fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == EXTENSION) {
                let stem = path.file_stem().and_then(|stem| stem.to_str());
                numbers.extend(stem.and_then(|stem| stem.parse::<u64>().ok()));
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016}.{EXTENSION}"))
    }

    /// Notes all whole frames of a segment. Behind the last is what an interrupted append left; between two of them, what a
    /// disk has broken.
    fn find(&mut self, number: u64) -> io::Result<()> {
        let path = self.path(number);
        let bytes = fs::read(&path)?;
        let mut at = 0;
        let mut segment = Segment {
            file: options().read(true).write(true).open(&path)?,
            bytes: 0,
            charge: 0,
            wanted: 0,
        };
        while let Some((begins, (dsp_id, cookies, length))) = next_frame(&bytes, at) {
            if begins > at {
                let broken = begins - at;
                tracing::error!(file = %path.display(), at, broken, "a file of set-aside cookies is damaged: what lay there is lost, but for what was being written when the machine stopped, which comes again");
                segment.charge += broken as u64;
                at = begins;
            }
            let position = FramePosition {
                segment: number,
                at: at as u64,
                bytes: u32::try_from(HEAD_BYTES + length).unwrap_or(u32::MAX),
                cookies,
            };
            segment.charge += position.charge();
            segment.wanted += position.charge();
            self.dsps.entry(dsp_id).or_default().push(position);
            at += HEAD_BYTES + length;
        }
        segment.bytes = at as u64;
        let broken = bytes.len() - at;
        if broken > 0 {
            tracing::warn!(file = %path.display(), broken, "the end of a file of set-aside cookies is not whole: it is cut off");
            segment.file.set_len(segment.bytes)?;
        }
        self.segments.insert(number, segment);
        self.drop_unwanted();
        Ok(())
    }

    /// Whether frames of one DSP with so many bytes may still be appended: as long as it has no more than what would be
    /// left. So one alone gets half of the room, two a third each, and there is always some for another.
    /// `before` is what others of the same append have.
    pub(super) fn has_room(&self, dsp_id: u32, bytes: u64, before: u64) -> bool {
        let has = self.dsps.get(&dsp_id).map_or(0, |kept| kept.charge);
        let bytes = bytes.max(CHARGE_MIN);
        has + bytes
            <= self
                .bytes_max
                .saturating_sub(self.charge() + before + bytes)
    }

    /// What these DSPs have in it, of its bound.
    pub(super) fn charge_of(&self, dsps: impl Fn(u32) -> bool) -> u64 {
        let these = self.dsps.iter().filter(|(dsp_id, _)| dsps(**dsp_id));
        these.map(|(_, kept)| kept.charge).sum()
    }

    /// Whether all DSPs whose slot is still to be made may have so much together.
    pub(super) fn has_room_among_newcomers(&self, charge: u64) -> bool {
        charge <= self.bytes_max / 2
    }

    /// Appends frames, all or none; they are durable when it returns.
    pub(super) fn append(&mut self, frames: &[Frame]) -> io::Result<()> {
        let mut block = Vec::new();
        let mut positions = Vec::with_capacity(frames.len());
        for frame in frames {
            let at = block.len() as u64;
            put_frame(&mut block, frame)?;
            positions.push((frame.dsp_id, at, frame.cookies));
        }
        let (number, begins) = self.append_block(&block)?;
        let ends = positions.iter().skip(1).map(|(_, at, _)| *at);
        let ends: Vec<_> = ends.chain([block.len() as u64]).collect();
        for ((dsp_id, at, cookies), end) in positions.into_iter().zip(ends) {
            let position = FramePosition {
                segment: number,
                at: begins + at,
                bytes: u32::try_from(end - at).unwrap_or(u32::MAX),
                cookies,
            };
            self.want(dsp_id, position);
        }
        Ok(())
    }

    fn want(&mut self, dsp_id: u32, position: FramePosition) {
        if let Some(segment) = self.segments.get_mut(&position.segment) {
            segment.charge += position.charge();
            segment.wanted += position.charge();
        }
        self.dsps.entry(dsp_id).or_default().push(position);
    }

    /// Appends bytes to the newest segment, or to a new one if that is full; returns which, and where they begin.
    fn append_block(&mut self, block: &[u8]) -> io::Result<(u64, u64)> {
        let newest = self.segments.last_key_value();
        let number = match newest {
            Some((number, segment)) if segment.bytes < self.segment_bytes_max => *number,
            newest => {
                let number = newest.map_or(1, |(number, _)| number + 1);
                let file = options()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(self.path(number))?;
                File::open(&self.folder)?.sync_all()?;
                let segment = Segment {
                    file,
                    bytes: 0,
                    charge: 0,
                    wanted: 0,
                };
                self.segments.insert(number, segment);
                number
            }
        };
        let segment = self
            .segments
            .get_mut(&number)
            .expect("it was found or made");
        let begins = segment.bytes;
        let written = segment
            .file
            .write_all_at(block, begins)
            .and_then(|()| segment.file.sync_data());
        if let Err(error) = written {
            // What is there of it is overwritten by the next, or cut off at the next start.
            return Err(segment.file.set_len(begins).err().unwrap_or(error));
        }
        segment.bytes += block.len() as u64;
        Ok((number, begins))
    }

    /// Reads a DSP's oldest frames: one at least, and no more than fit `bytes_max`. A frame that cannot be read as it
    /// was written is an error.
    pub(super) fn read(&self, dsp_id: u32, bytes_max: u64) -> io::Result<Read> {
        let mut read = Read::default();
        let mut bytes = 0;
        let positions = self.dsps.get(&dsp_id).into_iter();
        for position in positions.flat_map(|kept| &kept.positions) {
            bytes += u64::from(position.bytes);
            if bytes > bytes_max && read.frames > 0 {
                break;
            }
            let frame = self.frame(position)?;
            read.frames += 1;
            read.cookies += u64::from(position.cookies);
            read.messages.extend(messages(frame.slice(HEAD_BYTES..)));
        }
        Ok(read)
    }

    fn frame(&self, position: &FramePosition) -> io::Result<Bytes> {
        let segment = self.segments.get(&position.segment);
        let segment = segment.ok_or(io::ErrorKind::NotFound)?;
        let mut frame = vec![0; position.bytes as usize];
        segment.file.read_exact_at(&mut frame, position.at)?;
        match frame_at(&frame) {
            Some(_) => Ok(frame.into()),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Forgets a DSP's oldest frames; returns how many cookies they had. Gives back the space of what nobody wants.
    pub(super) fn done(&mut self, dsp_id: u32, frames: usize) -> u64 {
        let Some(kept) = self.dsps.get_mut(&dsp_id) else {
            return 0;
        };
        let mut cookies = 0;
        for _ in 0..frames {
            let Some(position) = kept.positions.pop_front() else {
                break;
            };
            kept.charge -= position.charge();
            kept.cookies -= u64::from(position.cookies);
            cookies += u64::from(position.cookies);
            if let Some(segment) = self.segments.get_mut(&position.segment) {
                segment.wanted -= position.charge();
            }
        }
        if kept.positions.is_empty() {
            self.dsps.remove(&dsp_id);
        }
        self.drop_unwanted();
        cookies
    }

    /// Deletes segments of which nothing is wanted.
    fn drop_unwanted(&mut self) {
        let unwanted = self.segments.iter().filter(|(_, it)| it.wanted == 0);
        let unwanted: Vec<u64> = unwanted.map(|(number, _)| *number).collect();
        for number in unwanted {
            let path = self.path(number);
            match fs::remove_file(&path) {
                Ok(()) => drop(self.segments.remove(&number)),
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "cannot delete a file of cookies that were set aside");
                }
            }
        }
    }

    /// Moves what is wanted of the oldest segment that is mostly unwanted, so that a few cookies do not keep the room of
    /// many. To be called when room is short; does nothing where there is no such segment.
    pub(super) fn make_room(&mut self) -> io::Result<()> {
        let newest = self.segments.last_key_value().map(|(number, _)| *number);
        let sparse = self.segments.iter().find(|(number, segment)| {
            Some(**number) != newest && segment.wanted < segment.charge / 4
        });
        let Some((&from, _)) = sparse else {
            return Ok(());
        };
        let mut block = Vec::new();
        let mut moved = Vec::new();
        for (&dsp_id, kept) in &self.dsps {
            for (at, position) in kept.positions.iter().enumerate() {
                if position.segment == from {
                    moved.push((dsp_id, at, block.len() as u64));
                    block.extend_from_slice(&self.frame(position)?);
                }
            }
        }
        let (number, begins) = self.append_block(&block)?;
        for (dsp_id, at, offset) in moved {
            let kept = self.dsps.get_mut(&dsp_id).expect("it was just there");
            let position = &mut kept.positions[at];
            (position.segment, position.at) = (number, begins + offset);
            let segment = self.segments.get_mut(&number).expect("it was appended to");
            segment.charge += position.charge();
            segment.wanted += position.charge();
        }
        if let Some(segment) = self.segments.get_mut(&from) {
            segment.wanted = 0;
        }
        self.drop_unwanted();
        Ok(())
    }

    /// What the log counts as, of its bound.
    pub(super) fn charge(&self) -> u64 {
        self.segments.values().map(|it| it.charge).sum()
    }

    /// The DSPs that have something in it, and how many cookies.
    pub(super) fn dsps(&self) -> impl Iterator<Item = (u32, u64)> {
        self.dsps
            .iter()
            .map(|(dsp_id, kept)| (*dsp_id, kept.cookies))
    }
}

impl Kept {
    fn push(&mut self, position: FramePosition) {
        self.charge += position.charge();
        self.cookies += u64::from(position.cookies);
        self.positions.push_back(position);
    }
}

fn options() -> fs::OpenOptions {
    let mut options = File::options();
    options.mode(MODE);
    options
}

fn put_frame(block: &mut Vec<u8>, frame: &Frame) -> io::Result<()> {
    let length = u32::try_from(frame.messages.len()).map_err(io::Error::other)?;
    let at = block.len();
    block.extend_from_slice(&[0; 4]);
    for number in [length, frame.dsp_id, frame.cookies] {
        block.extend_from_slice(&number.to_le_bytes());
    }
    block.write_all(&frame.messages)?;
    let checksum = crc32fast::hash(&block[at + 4..]);
    block[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// The first whole frame at `at` or behind, and where it begins.
fn next_frame(bytes: &[u8], at: usize) -> Option<(usize, (u32, u32, usize))> {
    (at..bytes.len()).find_map(|at| Some((at, frame_at(&bytes[at..])?)))
}

/// DSP, cookies and bytes of messages of the frame that `bytes` begins with, if it is whole.
fn frame_at(bytes: &[u8]) -> Option<(u32, u32, usize)> {
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (checksum, length, dsp_id, cookies) = (number(0)?, number(4)?, number(8)?, number(12)?);
    let length = length as usize;
    let rest = bytes.get(4..HEAD_BYTES.checked_add(length)?)?;
    (crc32fast::hash(rest) == checksum).then_some((dsp_id, cookies, length))
}

/// Takes gRPC messages apart that lie one after the other.
fn messages(mut bytes: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let length = u32::from_be_bytes(*bytes.get(1..)?.first_chunk()?) as usize;
        let message = (bytes.len() >= 5 + length).then(|| bytes.split_to(5 + length))?;
        Some(message.slice(5..))
    })
}

#[cfg(test)]
mod tests;
