//! Stored objects of an application: files in a directory.
//!
//! The name of a file is the hash of the key, so a key cannot reach another directory. A file is replaced by a rename; writing or
//! removing an object twice has the same effect as once.

use std::{
    fs::{self, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use tempfile::Builder;
use tokio::task::spawn_blocking;
use xxhash_rust::xxh3::xxh3_128;

/// A directory of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents(PathBuf);

impl Contents {
    /// Parses `file:DIRECTORY`.
    ///
    /// # Errors
    /// When the location has another form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let dir = text
            .strip_prefix("file:")
            .map(|dir| dir.strip_prefix("//").unwrap_or(dir));
        match dir.map(Path::new).filter(|dir| dir.is_absolute()) {
            Some(dir) => Ok(Self(dir.to_owned())),
            None => Err(format!("{text:?}: use file:ABSOLUTE_PATH")),
        }
    }

    /// Path of an object.
    #[must_use]
    pub fn path(&self, key: &str) -> PathBuf {
        let name = format!("{:032x}", xxh3_128(key.as_bytes()));
        self.0.join(&name[..2]).join(name)
    }

    /// Stores an object.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn write(&self, key: &str, body: Bytes) -> Result<()> {
        let path = self.path(key);
        spawn_blocking(move || write(&path, &body).with_context(|| path.display().to_string()))
            .await?
    }

    /// Removes an object.
    ///
    /// # Errors
    /// When the file exists and cannot be removed.
    pub async fn remove(&self, key: &str) -> Result<()> {
        let path = self.path(key);
        spawn_blocking(move || match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| path.display().to_string())
            }
            _ => Ok(()),
        })
        .await?
    }
}

fn write(path: &Path, body: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir)?;
    // The umask applies, unlike in other temporary files: other programs read the objects.
    let mode = Permissions::from_mode(0o666);
    let mut file = Builder::new().permissions(mode).tempfile_in(dir)?;
    file.write_all(body)?;
    file.as_file().sync_data()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn objects_are_written_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let contents = Contents::parse(&format!("file:{}", dir.path().display())).unwrap();
        for key in ["a", "../../a", "/etc/passwd", ""] {
            assert!(contents.path(key).starts_with(dir.path()), "{key}");
            for body in ["one", "two", "two"] {
                contents.write(key, Bytes::from(body)).await.unwrap();
                assert_eq!(fs::read(contents.path(key)).unwrap(), body.as_bytes());
            }
            contents.remove(key).await.unwrap();
            contents.remove(key).await.unwrap();
            assert!(!contents.path(key).exists());
        }
    }

    #[test]
    fn location_is_an_absolute_directory() {
        assert_eq!(
            Contents::parse("file:///var/x"),
            Contents::parse("file:/var/x")
        );
        for text in ["", "file:x", "s3://bucket/x", "/var/x"] {
            assert!(Contents::parse(text).is_err(), "{text}");
        }
    }
}
