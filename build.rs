//! Compiles `proto/` into `OUT_DIR`: client code and message types, and the descriptor set that gRPC
//! reflection serves. Needs no installed `protoc`. Finds out which commit this is.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/cookiesync");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=COOKIESYNC_COMMIT={}", commit());
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    let descriptors = protox::compile(["cookiesync/v1/cookiesync.proto"], ["proto"])?;
    fs::write(out_dir.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
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
    if env::var("PROFILE").ok()? != "release" || !Path::new(".git").exists() {
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
