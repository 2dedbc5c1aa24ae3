//! Makes the test harness run the tests of this package one at a time. With more threads, it polls a clock that is frozen in the test
//! program, and keeps a core busy.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=RUST_TEST_THREADS=1");
}
