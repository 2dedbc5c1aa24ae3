//! Tells the program which revision it was built from; nothing fails without git.

use std::{path::Path, process::Command};

/// What the programs are made of: a change there can make the revision `-dirty`.
const SOURCES: [&str; 11] = [
    "../Cargo.lock",
    "../Cargo.toml",
    "../bench",
    "../build.rs",
    "../consumer",
    "../figures",
    "../launcher",
    "../limits",
    "../producer",
    "../proto",
    "../runtime",
];

/// Files of git that change with the revision: the log of `HEAD` when it moves, the others where there is no log.
const GIT_FILES: [&str; 3] = ["HEAD", "logs/HEAD", "packed-refs"];

fn main() {
    let describe = [
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ];
    let revision = git(&describe).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=BENCH_REVISION={revision}");
    println!("cargo:rustc-env=BENCH_SOURCES={}", SOURCES.join(" "));
    let git_files = GIT_FILES
        .iter()
        .filter_map(|file| git(&["rev-parse", "--git-path", file]));
    let sources = SOURCES.iter().map(|source| (*source).to_owned());
    // A path that does not exist would make this run for every build.
    for path in git_files
        .chain(sources)
        .filter(|path| Path::new(path).exists())
    {
        println!("cargo:rerun-if-changed={path}");
    }
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let words = String::from_utf8(output.stdout).ok()?;
    let words = words.trim();
    (output.status.success() && !words.is_empty()).then(|| words.to_owned())
}
