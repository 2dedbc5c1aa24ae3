//! Passes the version, commit and cargo profile of this build to the crate.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let (commit, profile) = (commit(), profile());
    let build = match &commit {
        Some(commit) => format!("{}, {profile}", commit.get(..7).unwrap_or(commit)),
        None => profile.clone(),
    };
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    println!("cargo:rustc-env=COOKIESYNC_VERSION={version} ({build})");
    let commit = commit.as_deref().unwrap_or("unknown");
    println!("cargo:rustc-env=COOKIESYNC_COMMIT={commit}");
    println!("cargo:rustc-env=COOKIESYNC_PROFILE={profile}");
}

/// The name of the profile: `dev`, `release` or `dist`. Only the output path of a build script contains it.
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

/// The commit: `$COOKIESYNC_COMMIT`, which the release build sets, or that of git. Uncommitted changes are not marked.
///
/// Debug builds do not query git: otherwise each commit would rebuild every program.
fn commit() -> Option<String> {
    println!("cargo:rerun-if-env-changed=COOKIESYNC_COMMIT");
    let given = env::var("COOKIESYNC_COMMIT").ok();
    given.filter(|commit| is_commit(commit)).or_else(git_commit)
}

fn git_commit() -> Option<String> {
    // Sources unpacked inside another repository must not report its commit.
    if env::var("PROFILE").ok()? != "release" || !Path::new("../.git").exists() {
        return None;
    }
    // Commits and checkouts write only this file. Cargo treats a missing file as changed.
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

/// Whether the text is valid as a line of build script output and as a label.
fn is_commit(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}
