//! The folder in which a limiter keeps its snapshot, and the journals since: one process at a time, one whole snapshot at any time.
//!
//! A snapshot is written beside the one before it, synced, and takes its name; then the folder is synced. So there is always
//! one that is whole, and one that is damaged was damaged by others. Journals have numbers; those before the snapshot's are removed when that is on the disk.
//! The files are for this user alone.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use runtime::file_lock::FileLock;
use rustix::fs::OFlags;

const SNAPSHOT: &str = "snapshot";
const NEXT: &str = "snapshot.next";
const LOCK: &str = "lock";
const JOURNAL: &str = "journal.";

/// Largest snapshot: more than the most counters take, but for large logs.
const BYTES_MAX: u64 = 64 << 30;

/// The folder, for as long as this is there.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    folder: File,
    _lock: FileLock,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another process has it.
    #[error("another limiter uses it")]
    Locked,
    /// Somebody else could change or read what is in it.
    #[error("{0} in it is not a file of this user's own that nobody else can read or write")]
    Foreign(String),
}

impl Folder {
    /// Opens the folder, or makes it, and takes it for this process until its end, however it ends.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open(path: &Path) -> Result<Self, Unusable> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let lock = FileLock::take(own_file(path, LOCK, true)?).map_err(|error| match error {
            TryLockError::WouldBlock => Unusable::Locked,
            TryLockError::Error(error) => error.into(),
        })?;
        Ok(Self {
            folder: File::open(path)?,
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The snapshot, if there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self) -> Result<Option<Vec<u8>>, Unusable> {
        match self.read_file(SNAPSHOT) {
            Err(Unusable::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            bytes => bytes.map(Some),
        }
    }

    /// The journals that there are, in the order of their numbers.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn read_journals(&self) -> Result<Vec<(u64, Vec<u8>)>, Unusable> {
        let numbers = self.journals()?.into_iter();
        let read = |number| Ok((number, self.read_file(&format!("{JOURNAL}{number}"))?));
        numbers.map(read).collect()
    }

    fn read_file(&self, name: &str) -> Result<Vec<u8>, Unusable> {
        let file = own_file(&self.path, name, false)?;
        if file.metadata()?.len() > BYTES_MAX {
            return Err(io::Error::other(format!("{name} is larger than 64 GiB")).into());
        }
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn journal(&self, number: u64) -> PathBuf {
        self.path.join(format!("{JOURNAL}{number}"))
    }

    fn journals(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(JOURNAL));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Makes an empty journal of this number. Others that are empty, but the `live` one, are of snapshots that could not be written, and are removed.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn begin_journal(&self, number: u64, live: u64) -> io::Result<File> {
        let others = self.journals()?.into_iter().filter(|it| *it != live);
        for path in others.map(|number| self.journal(number)) {
            if fs::metadata(&path)?.len() == 0 {
                fs::remove_file(path)?;
            }
        }
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(self.journal(number))?;
        self.folder.sync_all()?;
        Ok(file)
    }

    /// Puts a snapshot in the place of the one before, and removes journals before this number; it is on the disk when this returns.
    ///
    /// # Errors
    /// When it is not: then the one before is still there, or this one.
    pub fn write(&self, snapshot: &[u8], journal: u64) -> io::Result<()> {
        if snapshot.len() as u64 > BYTES_MAX {
            let error = "the snapshot is larger than the 64 GiB that are read: lower --counters";
            return Err(io::Error::other(error));
        }
        let next = self.path.join(NEXT);
        match fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if let Err(error) = self.put(snapshot, &next) {
            // It may be what fills the disk. The next one removes it too.
            fs::remove_file(&next).ok();
            return Err(error);
        }
        self.folder.sync_all()?;
        for older in self.journals()?.into_iter().filter(|it| *it < journal) {
            fs::remove_file(self.journal(older))?;
        }
        Ok(())
    }

    fn put(&self, snapshot: &[u8], next: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(next)?;
        file.write_all(snapshot)?;
        file.sync_data()?;
        fs::rename(next, self.path.join(SNAPSHOT))
    }
}

/// A file of this user's own; no link is followed.
fn own_file(folder: &Path, name: &str, is_made: bool) -> Result<File, Unusable> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new()
        .read(true)
        .write(is_made)
        .create(is_made)
        .truncate(false)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(folder.join(name))?;
    let found = file.metadata()?;
    let is_own = found.is_file()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & 0o077 == 0
        && found.nlink() == 1;
    is_own
        .then_some(file)
        .ok_or_else(|| Unusable::Foreign(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn snapshot_is_whole_and_replaced_whole() {
        let temporary = TempDir::new().unwrap();
        let path = temporary.path().join("made/here");
        let folder = Folder::open(&path).unwrap();
        assert_eq!(folder.read().unwrap(), None);
        for bytes in [&b"first"[..], b"the second"] {
            folder.write(bytes, 0).unwrap();
            assert_eq!(folder.read().unwrap().as_deref(), Some(bytes));
        }
        for number in [7, 8, 9, 10, 11] {
            let mut journal = folder.begin_journal(number, 7).unwrap();
            let since: &[u8] = if number < 9 { b"" } else { b"since" };
            journal.write_all(since).unwrap();
        }
        let there = folder.journals().unwrap();
        assert_eq!(there, [7, 9, 10, 11]);
        assert!(folder.begin_journal(11, 0).is_err());
        // What was left half written by a crash is in nobody's way.
        fs::write(path.join(NEXT), "half").unwrap();
        folder.write(b"the third", 10).unwrap();
        let journals = [10, 11].map(|number| (number, b"since".to_vec()));
        assert_eq!(folder.read_journals().unwrap(), journals);
        assert_eq!(folder.read().unwrap().as_deref(), Some(&b"the third"[..]));
        let mode = fs::metadata(path.join(SNAPSHOT)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        // One that cannot be written leaves nothing behind.
        fs::remove_file(path.join(SNAPSHOT)).unwrap();
        fs::create_dir(path.join(SNAPSHOT)).unwrap();
        assert!(folder.write(b"the fourth", 12).is_err());
        assert!(!path.join(NEXT).exists());
        assert_eq!(folder.journals().unwrap(), [10, 11]);
    }

    #[test]
    fn folder_is_of_one_process_and_its_files_of_one_user() {
        let temporary = TempDir::new().unwrap();
        let path = temporary.path();
        let folder = Folder::open(path).unwrap();
        assert!(matches!(Folder::open(path), Err(Unusable::Locked)));
        folder.write(b"x", 0).unwrap();
        let snapshot = path.join(SNAPSHOT);
        fs::set_permissions(&snapshot, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(folder.read(), Err(Unusable::Foreign(_))));
        fs::remove_file(&snapshot).unwrap();
        symlink("/etc/passwd", &snapshot).unwrap();
        assert!(folder.read().is_err());
        drop(folder);
        drop(Folder::open(path).unwrap());
    }
}
