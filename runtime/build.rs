//! Finds out which commit this is, and in which profile it is built: what a program says of itself.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=COOKIESYNC_COMMIT={}", commit());
    println!("cargo:rustc-env=COOKIESYNC_PROFILE={}", profile());
}

/// The profile's name, `dev`, `release` or `dist`: the directory of cargo's that this is built in, which is the only place where a
/// build script finds it.
fn profile() -> String {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    // …/PROFILE/build/PACKAGE-HASH/out
    let build = out_dir.ancestors().find(|dir| dir.ends_with("build"));
    let dir = build.and_then(Path::parent).and_then(Path::file_name);
    match dir.map(|name| name.to_string_lossy()) {
        Some(name) if name != "debug" => name.into_owned(),
        _ => "dev".to_owned(),
    }
}

/// The commit: what `COOKIESYNC_COMMIT` says, or else git, or else `unknown`.
///
/// Git is asked for release builds only: whatever is built with the commit in it has to be built anew after the next, and
/// nobody asks a debug build for it. What was changed and not committed does not show.
fn commit() -> String {
    println!("cargo:rerun-if-env-changed=COOKIESYNC_COMMIT");
    let given = env::var("COOKIESYNC_COMMIT").ok();
    let given = given.filter(|commit| is_commit(commit));
    given
        .or_else(commit_of_git)
        .unwrap_or_else(|| "unknown".to_owned())
}

fn commit_of_git() -> Option<String> {
    // Sources that were unpacked inside of somebody else's repository are none of its commits.
    if env::var("PROFILE").ok()? != "release" || !Path::new("../.git").exists() {
        return None;
    }
    // Written by each commit and checkout, and by nothing else. Cargo takes a file that is missing for changed.
    let log = PathBuf::from(git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    if !log.exists() {
        return None;
    }
    println!("cargo:rerun-if-changed={}", log.display());
    git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Whether it is something that a line of a build script, and a label, can hold.
fn is_commit(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}
