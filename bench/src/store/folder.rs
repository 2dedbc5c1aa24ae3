//! The folder of an embedded store that is made for a run and removed after it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// Lies in every folder that this program has made its own.
const MARK: &str = "made-by-bench-store";

/// Holds the store.
const DATA: &str = "data";

/// A folder of ours.
#[derive(Debug)]
pub(super) struct OwnFolder {
    path: PathBuf,
    existed: bool,
}

impl OwnFolder {
    /// Takes a folder that does not exist, is empty, or was made by an earlier run, whose store is removed.
    pub(super) fn take(path: &Path) -> Result<Self> {
        let place = path.display();
        let existed = match fs::read_dir(path) {
            Ok(mut entries) => {
                if entries.next().is_some() && !path.join(MARK).is_file() {
                    bail!(
                        "{place} is not empty and was not made by `bench store`: name another folder"
                    );
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).with_context(|| format!("cannot use {place}")),
        };
        fs::create_dir_all(path).with_context(|| format!("cannot create {place}"))?;
        fs::write(path.join(MARK), "").with_context(|| format!("cannot write to {place}"))?;
        let own = Self {
            path: path.to_owned(),
            existed,
        };
        remove(&own.data())?;
        Ok(own)
    }

    /// Where the store is.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join(DATA)
    }

    /// Removes what this program has made.
    pub(super) fn remove(self) -> Result<()> {
        remove(&self.data())?;
        fs::remove_file(self.path.join(MARK))?;
        if !self.existed {
            fs::remove_dir(&self.path)?;
        }
        Ok(())
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_somebody_else_is_refused_and_own_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let foreign = parent.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("precious"), "").unwrap();
        let refused = OwnFolder::take(&foreign).unwrap_err().to_string();
        assert!(refused.contains("not empty"), "{refused}");

        let path = parent.path().join("own");
        let left_behind = OwnFolder::take(&path).unwrap();
        fs::create_dir(left_behind.data()).unwrap();
        let own = OwnFolder::take(&path).unwrap();
        assert!(!own.data().exists());
        own.remove().unwrap();
        assert!(path.exists(), "it was there before");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);

        let new = parent.path().join("new");
        OwnFolder::take(&new).unwrap().remove().unwrap();
        assert!(!new.exists());
        assert!(foreign.join("precious").exists());
    }
}
