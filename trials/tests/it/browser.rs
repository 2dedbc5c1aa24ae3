//! Runs the Python scripts of tests that control a real browser.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Result, ensure};
use testkit::tools::installed_or_skip;

/// Commands of browsers that support the DevTools protocol.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// An installed browser, or `None` (a skipped test).
#[track_caller]
pub(crate) fn browser_or_skip() -> Option<PathBuf> {
    installed_or_skip(&BROWSERS)
}

/// Runs a script of this directory, whose first argument is the browser. Returns its output.
///
/// # Errors
/// If the script fails; with its output.
pub(crate) async fn run(script: &str, browser: &Path, arguments: &[&str]) -> Result<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let output = tokio::process::Command::new("python3")
        .arg("-B")
        .arg(directory.join(script))
        .arg(browser)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{text}");
    Ok(text)
}
