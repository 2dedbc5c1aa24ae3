//! Keeps what is generated from the contract, `generated/`, to the contract.
//!
//! It is checked in, and not made by a build script, because what makes it took a tenth of a first build, of ours and of
//! everyone's who depends on this crate. After a change of the contract:
//!
//! ```sh
//! UPDATE_GENERATED=1 cargo test -p cookiesync-proto generated
//! ```

use std::{env, fs, path::Path};

use prost::Message as _;
use tempfile::TempDir;

#[test]
fn generated_code_and_descriptors_are_those_of_the_contract() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kept = root.join("src/generated");
    let descriptors = protox::compile(["cookiesync/v1/cookiesync.proto"], [root])
        .expect("the contract can be compiled");
    let made = TempDir::new().expect("a folder can be made");
    fs::write(
        made.path().join("descriptors.bin"),
        descriptors.encode_to_vec(),
    )
    .expect("a file can be written");
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .out_dir(made.path())
        .compile_fds(descriptors)
        .expect("code can be made of the contract");
    for name in ["cookiesync.v1.rs", "descriptors.bin"] {
        let made = fs::read(made.path().join(name)).expect("it was just made");
        if env::var_os("UPDATE_GENERATED").is_some() {
            fs::write(kept.join(name), &made).expect("the kept file can be written");
        }
        assert!(
            fs::read(kept.join(name)).is_ok_and(|kept| kept == made),
            "proto/src/generated/{name} is not what the contract makes: UPDATE_GENERATED=1 cargo test -p cookiesync-proto generated"
        );
    }
}
