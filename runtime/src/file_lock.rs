//! A file that one process has at a time.

use std::fs::{File, TryLockError};

/// A locked file. Another process can lock it once this is dropped, or when this process ends, however it ends.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks `file`.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] when somebody else has it, this process included.
    pub fn take(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self(file))
    }
}

impl Drop for FileLock {
    /// Closing would not do: a child that was forked and does not run its own program yet still has the file open, and
    /// with it the lock.
    fn drop(&mut self) {
        // Where that fails, the lock goes with the last one that has the file open.
        drop(self.0.unlock());
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn dropped_lock_is_free_while_a_child_still_has_the_file_open() -> Result<(), Box<dyn Error>> {
        let file = tempfile::NamedTempFile::new()?;
        let lock = FileLock::take(file.reopen()?)?;
        // What a fork makes: a second descriptor of the same open file.
        let of_child = lock.0.try_clone()?;
        assert!(matches!(
            FileLock::take(file.reopen()?),
            Err(TryLockError::WouldBlock)
        ));
        drop(lock);
        FileLock::take(file.reopen()?)?;
        drop(of_child);
        Ok(())
    }
}
