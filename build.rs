//! Generates the types and the client of the contract from `proto/`, without an installed `protoc`.

use std::{env, error::Error, fs, path::Path};

use prost::Message as _;

const CONTRACT: &str = "cookiesync/v1/cookiesync.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto/{CONTRACT}");
    let descriptors = protox::compile([CONTRACT], ["proto"])?;
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
