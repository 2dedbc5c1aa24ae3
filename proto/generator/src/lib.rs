//! Makes the code of a contract, and keeps what is checked in to it.
//!
//! The code is checked in, and not made by a build script, because what makes it took a tenth of a first build, of ours
//! and of everyone's who depends on a contract. After a change of one:
//!
//! ```sh
//! UPDATE_GENERATED=1 cargo test -p PACKAGE generated
//! ```

use std::{env, fs, path::Path};

use prost::Message as _;
use tempfile::TempDir;

/// A contract, in the folder of the package that has it.
#[derive(Debug, Clone, Copy)]
pub struct Contract<'a> {
    /// The name of the package.
    pub package: &'a str,
    /// Its folder, which its `.proto` is named from; what is generated is in `src/generated` there.
    pub root: &'a Path,
    /// The `.proto`.
    pub file: &'a str,
    /// The file that code is generated into: the protobuf package and `.rs`.
    pub code: &'a str,
    /// Whether code for a server is generated, beside that for a client.
    pub has_server: bool,
}

impl Contract<'_> {
    /// Checks that what is checked in is what the contract makes; writes it where `UPDATE_GENERATED` is set.
    ///
    /// # Panics
    /// When it is not.
    pub fn check(&self) {
        let Self { package, root, .. } = *self;
        let kept = root.join("src/generated");
        let descriptors =
            protox::compile([self.file], [root]).expect("the contract can be compiled");
        let made = TempDir::new().expect("a folder can be made");
        fs::write(
            made.path().join("descriptors.bin"),
            descriptors.encode_to_vec(),
        )
        .expect("a file can be written");
        tonic_prost_build::configure()
            .build_server(self.has_server)
            .bytes(".")
            .out_dir(made.path())
            .compile_fds(descriptors)
            .expect("code can be made of the contract");
        for name in [self.code, "descriptors.bin"] {
            let made = fs::read(made.path().join(name)).expect("it was just made");
            if env::var_os("UPDATE_GENERATED").is_some() {
                fs::write(kept.join(name), &made).expect("the kept file can be written");
            }
            assert!(
                fs::read(kept.join(name)).is_ok_and(|kept| kept == made),
                "{}/{name} is not what the contract makes: UPDATE_GENERATED=1 cargo test -p {package} generated",
                kept.display()
            );
        }
    }
}
