//! Removes what an interrupted creation of an embedded store (fjall) leaves behind.
//!
//! fjall creates the lock file, an empty journal and a directory for keyspaces, and writes the file `version` last. Without it, or with an empty one as on a
//! full disk, the store can neither be opened nor created. Nothing was ever written to such a store.

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

/// Removes an unfinished store from `dir`, unless another process uses it. Returns whether there is a store after that, that is, one to open and not to create.
///
/// # Errors
/// When the store in `dir` is damaged, or its files cannot be read or removed.
pub fn remove(dir: &Path) -> io::Result<bool> {
    let version = fs::metadata(dir.join(VERSION));
    if version.is_ok_and(|it| it.len() > 0) {
        return Ok(true);
    }
    if !dir.join(LOCK).exists() {
        return Ok(false);
    }
    if !is_blank(&dir.join(JOURNAL))? {
        let why = "the file `version` is missing or empty, but the journal is not";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let lock = OpenOptions::new().append(true).open(dir.join(LOCK))?;
    let Ok(_lock) = FileLock::take(lock) else {
        // Opening it says so.
        return Ok(false);
    };
    // Fails if there is anything in it.
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

/// Whether a file has nothing but zeros, or does not exist.
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
    fn unfinished_store_is_removed_and_nothing_else() -> Result<(), Box<dyn Error>> {
        let temporary = TempDir::new()?;
        let dir = temporary.path();
        assert!(!remove(dir)?);
        // Killed before `version` was made, and on a full disk.
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
        // Others' files do not matter, as `lost+found` of a file system.
        fs::create_dir(dir.join("lost+found"))?;
        assert!(!remove(dir)? && dir.join("lost+found").exists());
        // Something was written.
        fs::write(dir.join(LOCK), "")?;
        fs::write(dir.join(JOURNAL), [0, 0, 1])?;
        assert!(remove(dir).is_err() && dir.join(JOURNAL).exists());
        fs::write(dir.join(VERSION), "FJL3")?;
        assert!(remove(dir)?);
        Ok(())
    }

    #[test]
    fn store_that_another_process_creates_is_left() -> Result<(), Box<dyn Error>> {
        let dir = TempDir::new()?;
        let lock = FileLock::take(File::create(dir.path().join(LOCK))?)?;
        assert!(!remove(dir.path())?);
        assert!(dir.path().join(LOCK).exists());
        drop(lock);
        Ok(())
    }
}
