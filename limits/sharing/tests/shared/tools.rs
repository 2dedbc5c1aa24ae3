//! A missing server skips a test, and fails it with `REQUIRE_TOOLS=1`.

use std::{
    env,
    process::{Command, Output},
};

/// Runs a test of this program that needs a server, where none is installed.
fn run_without_server(require_tools: &str) -> Output {
    let test = "exact::nothing_goes_twice_over_a_slow_and_lossy_link";
    Command::new(env::current_exe().expect("this program has a path"))
        .args([test, "--exact", "--nocapture"])
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
    assert!(errors.contains(&format!("skipped: {reason}")), "{errors}");

    let required = run_without_server("1");
    let printed = String::from_utf8_lossy(&required.stdout);
    assert!(printed.contains("1 failed"), "{required:?}");
    let errors = String::from_utf8_lossy(&required.stderr);
    let expected = format!("REQUIRE_TOOLS=1 forbids skipping this test: {reason}");
    assert!(errors.contains(&expected), "{errors}");
}
