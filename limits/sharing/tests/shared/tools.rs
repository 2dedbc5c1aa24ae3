//! A missing server skips a test, and fails it with `REQUIRE_TOOLS=1`.

use std::{
    env,
    process::{Command, Output},
};

/// A test that needs a server.
const TEST: &str = "exact::nothing_goes_twice_over_a_slow_and_lossy_link";

/// Runs that test where no server is installed.
fn run_without_server(require_tools: &str) -> Output {
    Command::new(env::current_exe().expect("this program has a path"))
        .args([TEST, "--exact"])
        .env("REQUIRE_TOOLS", require_tools)
        .env("REDIS_SERVER", "redis-server-that-is-missing")
        .env("PATH", "")
        .output()
        .expect("this program can be run")
}

#[test]
fn missing_server_skips_a_test_and_fails_it_where_tools_are_required() {
    let reason = "redis-server-that-is-missing is not installed";
    let skipped = run_without_server("");
    let printed = String::from_utf8_lossy(&skipped.stdout);
    assert!(printed.contains("1 passed"), "{skipped:?}");
    let errors = String::from_utf8_lossy(&skipped.stderr);
    assert_eq!(errors, format!("skipped {TEST}: {reason}\n"));

    let required = run_without_server("1");
    let printed = String::from_utf8_lossy(&required.stdout);
    assert!(printed.contains("1 failed"), "{required:?}");
    let expected = format!("REQUIRE_TOOLS=1 forbids skipping this test: {reason}");
    assert!(printed.contains(&expected), "{printed}");
}
