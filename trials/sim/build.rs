//! Runs the tests one at a time. With more threads, the test harness polls a clock that is frozen in the test program, and keeps a core
//! busy.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=RUST_TEST_THREADS=1");
}
