//! Generates the protocol's types and client from `proto/`. Needs no installed `protoc`.

use std::{env, error::Error, fs, path::Path};

use prost::Message as _;

const PROTO: &str = "cookiesync/v1/cookiesync.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto/{PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    let out_dir = env::var("OUT_DIR")?;
    fs::write(
        Path::new(&out_dir).join("descriptors.bin"),
        descriptors.encode_to_vec(),
    )?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
