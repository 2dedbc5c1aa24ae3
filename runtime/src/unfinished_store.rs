//! Removes an embedded store (fjall) whose creation was interrupted.
//!
//! fjall creates the lock file, an empty journal and a directory for keyspaces, and then writes the file `version`. If that file is
//! missing or empty, for instance because the disk was full, fjall can neither open nor create the store. The store is still empty.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    path::Path,
};

use crate::file_lock::FileLock;

const VERSION: &str = "version";
const LOCK: &str = "lock";
const JOURNAL: &str = "0.jnl";
const KEYSPACES: &str = "keyspaces";

/// Removes an unfinished store from `dir` unless another process uses it. Returns whether `dir` contains a store that can be opened.
///
/// # Errors
/// If the store is corrupt, or its files cannot be read or removed.
pub fn remove(dir: &Path) -> io::Result<bool> {
    let version = fs::metadata(dir.join(VERSION));
    if version.is_ok_and(|it| it.len() > 0) {
        return Ok(true);
    }
    if !dir.join(LOCK).exists() {
        return Ok(false);
    }
    if !is_blank(&dir.join(JOURNAL))? {
        let reason = "the file `version` is missing or empty, but the journal contains data";
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    let lock = OpenOptions::new().append(true).open(dir.join(LOCK))?;
    let Ok(_lock) = FileLock::acquire(lock) else {
        // The caller opens the store, which then reports the lock.
        return Ok(false);
    };
    // Fails if the directory is not empty.
    for result in [
        fs::remove_dir(dir.join(KEYSPACES)),
        fs::remove_file(dir.join(JOURNAL)),
        fs::remove_file(dir.join(VERSION)),
        fs::remove_file(dir.join(LOCK)),
    ] {
        match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

/// Whether a file has only zero bytes, or does not exist.
fn is_blank(file: &Path) -> io::Result<bool> {
    let mut file = match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        file => file?,
    };
    let mut bytes = vec![0; 1 << 16];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(true),
            read if bytes[..read].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn only_an_unfinished_store_is_removed() -> Result<(), Box<dyn Error>> {
        let temporary = TempDir::new()?;
        let dir = temporary.path();
        assert!(!remove(dir)?);
        // Killed before `version` was created, and on a full disk.
        for version in [None, Some("")] {
            fs::write(dir.join(LOCK), "")?;
            fs::write(dir.join(JOURNAL), [0; 100_000])?;
            fs::create_dir(dir.join(KEYSPACES))?;
            if let Some(version) = version {
                fs::write(dir.join(VERSION), version)?;
            }
            assert!(!remove(dir)?);
            assert_eq!(fs::read_dir(dir)?.count(), 0);
        }
        // Other files, such as `lost+found`, stay.
        fs::create_dir(dir.join("lost+found"))?;
        assert!(!remove(dir)? && dir.join("lost+found").exists());
        // The journal has data.
        fs::write(dir.join(LOCK), "")?;
        fs::write(dir.join(JOURNAL), [0, 0, 1])?;
        assert!(remove(dir).is_err() && dir.join(JOURNAL).exists());
        fs::write(dir.join(VERSION), "FJL3")?;
        assert!(remove(dir)?);
        Ok(())
    }

    #[test]
    fn store_in_creation_by_another_process_is_kept() -> Result<(), Box<dyn Error>> {
        let dir = TempDir::new()?;
        let lock = FileLock::acquire(File::create(dir.path().join(LOCK))?)?;
        assert!(!remove(dir.path())?);
        assert!(dir.path().join(LOCK).exists());
        drop(lock);
        Ok(())
    }
}
