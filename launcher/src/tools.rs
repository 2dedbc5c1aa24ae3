//! Programs and rights that a test needs and a machine may lack: such a test is skipped, or fails where CI requires all of them.

use std::{
    env,
    fmt::Display,
    io::{self, Write as _},
    path::PathBuf,
    thread,
};

use crate::programs::installed;

/// With the value `1`, a test that would be skipped fails.
pub const REQUIRE_TOOLS_VARIABLE: &str = "REQUIRE_TOOLS";

/// Names the Redis or Valkey server of tests, instead of `redis-server`.
const REDIS_SERVER_VARIABLE: &str = "REDIS_SERVER";

/// Reports on standard error that the calling test is skipped.
///
/// # Panics
/// With [`REQUIRE_TOOLS_VARIABLE`], so that the test fails.
#[track_caller]
pub fn skip(reason: impl Display) {
    assert!(
        env::var(REQUIRE_TOOLS_VARIABLE).as_deref() != Ok("1"),
        "{REQUIRE_TOOLS_VARIABLE}=1 forbids skipping this test: {reason}"
    );
    // Not by `eprintln!`, whose output the harness hides for a test that passes.
    let test = thread::current();
    let test = test.name().unwrap_or("?");
    drop(writeln!(io::stderr(), "skipped {test}: {reason}"));
}

/// The first of these programs that is installed; [skips](skip) the test if none is.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn installed_or_skip(names: &[&str]) -> Option<PathBuf> {
    let program = names.iter().find_map(|name| installed(name));
    if program.is_none() {
        skip(format_args!("{} is not installed", names.join(" or ")));
    }
    program
}

/// The Redis or Valkey server of a test: the one that `REDIS_SERVER` names, or `redis-server`.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn redis_server_or_skip() -> Option<PathBuf> {
    let named = env::var(REDIS_SERVER_VARIABLE);
    installed_or_skip(&[named.as_deref().unwrap_or("redis-server")])
}
