//! Tools and permissions that a test needs. Without them the test is skipped, or fails if CI requires them.

use std::{
    env,
    fmt::Display,
    io::{self, Write as _},
    path::PathBuf,
    thread,
};

use crate::programs::installed;

/// If set to `1`, a test that would be skipped fails.
pub const REQUIRE_TOOLS_VARIABLE: &str = "REQUIRE_TOOLS";

/// Redis or Valkey server for tests, instead of `redis-server`.
const REDIS_SERVER_VARIABLE: &str = "REDIS_SERVER";

/// Reports on standard error that the calling test is skipped.
///
/// # Panics
/// If [`REQUIRE_TOOLS_VARIABLE`] is `1`.
#[track_caller]
pub fn skip(reason: impl Display) {
    assert!(
        env::var(REQUIRE_TOOLS_VARIABLE).as_deref() != Ok("1"),
        "{REQUIRE_TOOLS_VARIABLE}=1 forbids skipping this test: {reason}"
    );
    // Not `eprintln!`: the harness hides its output for tests that pass.
    let test = thread::current();
    let test = test.name().unwrap_or("?");
    drop(writeln!(io::stderr(), "skipped {test}: {reason}"));
}

/// The first installed program of `names`; [skips](skip) the test if there is none.
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

/// The Redis or Valkey server for a test: `$REDIS_SERVER`, or `redis-server`.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn redis_server_or_skip() -> Option<PathBuf> {
    let named = env::var(REDIS_SERVER_VARIABLE);
    installed_or_skip(&[named.as_deref().unwrap_or("redis-server")])
}
