//! Stored objects of an application: files in a directory, or objects in a bucket (feature `s3`).
//!
//! The name of an object is the hash of its key, so a key cannot reach another directory. A new version is written to a
//! temporary file, which atomically replaces the old file. Writes and removals are idempotent.

#[cfg(feature = "s3")]
mod bucket;

use std::{
    fs::{self, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use serde::Deserialize;
use tempfile::Builder;
use tokio::task::spawn_blocking;
use xxhash_rust::xxh3::xxh3_128;

/// Location of objects.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Contents {
    /// The directory, or the prefix in the bucket.
    root: PathBuf,
    #[cfg(feature = "s3")]
    bucket: Option<bucket::Bucket>,
}

impl TryFrom<String> for Contents {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl Contents {
    /// Parses `file:DIRECTORY` or `s3://BUCKET/PREFIX`.
    ///
    /// # Errors
    /// When the location has another form, or the bucket cannot be used.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, place) = text.split_once(':').unwrap_or_default();
        let place = place.strip_prefix("//").unwrap_or(place);
        match scheme {
            "file" if place.starts_with('/') => Ok(Self {
                root: place.into(),
                #[cfg(feature = "s3")]
                bucket: None,
            }),
            #[cfg(feature = "s3")]
            "s3" if !place.is_empty() => {
                let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
                Ok(Self {
                    root: prefix.into(),
                    bucket: Some(bucket::Bucket::open(bucket)?),
                })
            }
            #[cfg(not(feature = "s3"))]
            "s3" => Err("s3: needs a build with --features revalidator/s3".to_owned()),
            _ => Err(format!("{text:?}: use file:ABSOLUTE_PATH or s3://BUCKET")),
        }
    }

    /// Path of an object.
    pub fn path(&self, key: &str) -> PathBuf {
        let name = format!("{:032x}", xxh3_128(key.as_bytes()));
        self.root.join(&name[..2]).join(name)
    }

    /// Stores an object.
    ///
    /// # Errors
    /// When the object cannot be written.
    pub async fn write(&self, key: &str, body: Bytes) -> Result<()> {
        let path = self.path(key);
        #[cfg(feature = "s3")]
        if let Some(bucket) = &self.bucket {
            return bucket.write(&path, body).await;
        }
        spawn_blocking(move || write(&path, &body).with_context(|| path.display().to_string()))
            .await?
    }

    /// Whether an object is stored; false if that is unknown.
    pub async fn has(&self, key: &str) -> bool {
        let path = self.path(key);
        #[cfg(feature = "s3")]
        if let Some(bucket) = &self.bucket {
            return bucket.has(&path).await;
        }
        tokio::fs::try_exists(path).await.unwrap_or(false)
    }

    /// Removes an object.
    ///
    /// # Errors
    /// When the object exists and cannot be removed.
    pub async fn remove(&self, key: &str) -> Result<()> {
        let path = self.path(key);
        #[cfg(feature = "s3")]
        if let Some(bucket) = &self.bucket {
            return bucket.remove(&path).await;
        }
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
    // Unlike for other temporary files, the umask applies: other programs read the objects.
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
        let path = |text| Contents::parse(text).unwrap().path("a");
        assert_eq!(path("file:///var/x"), path("file:/var/x"));
        for text in ["", "file:x", "http://bucket/x", "/var/x"] {
            assert!(Contents::parse(text).is_err(), "{text}");
        }
    }
}
