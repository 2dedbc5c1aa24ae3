//! Tests that a missing server program skips a test, or fails it with `REQUIRE_TOOLS=1`.

use std::{
    env,
    process::{Command, Output},
};

/// A test that needs a server.
const TEST: &str = "exact::limit_holds_over_a_slow_and_lossy_link";

/// Runs that test without a server program.
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
fn missing_server_skips_tests_unless_tools_are_required() {
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
