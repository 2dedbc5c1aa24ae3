//! Compiles `proto/` into `OUT_DIR`: client code and message types, and the descriptor set that gRPC
//! reflection serves. Needs no installed `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/cookiesync");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    let descriptors = protox::compile(["cookiesync/v1/cookiesync.proto"], ["proto"])?;
    fs::write(out_dir.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
