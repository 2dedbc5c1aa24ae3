//! Exclusive lock of a file.

use std::fs::{File, TryLockError};

/// A locked file. The lock is released on drop, or when the process exits for any reason.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks `file`.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if another process, or this one, holds the lock.
    pub fn acquire(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self(file))
    }
}

impl Drop for FileLock {
    /// Unlocks explicitly, because a forked child that has not yet called exec also has the file open and holds the lock.
    fn drop(&mut self) {
        // If this fails, closing the last descriptor releases the lock.
        drop(self.0.unlock());
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn dropped_lock_is_released_while_a_child_has_the_file_open() -> Result<(), Box<dyn Error>> {
        let file = tempfile::NamedTempFile::new()?;
        let lock = FileLock::acquire(file.reopen()?)?;
        // Like after a fork: a second descriptor of the same open file.
        let child_copy = lock.0.try_clone()?;
        assert!(matches!(
            FileLock::acquire(file.reopen()?),
            Err(TryLockError::WouldBlock)
        ));
        drop(lock);
        FileLock::acquire(file.reopen()?)?;
        drop(child_copy);
        Ok(())
    }
}
