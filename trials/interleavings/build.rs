//! Sets a `cfg` so that the sources of the producer's log compile here without the dependencies of their unit tests.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cfg=interleavings");
}
