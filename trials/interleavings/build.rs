//! Tells the sources of the log that they are compiled here, without what their unit tests need.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cfg=interleavings");
}
