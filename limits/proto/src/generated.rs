//! Keeps what is generated from the contract, `generated/`, to the contract.

use std::path::Path;

use proto_generator::Contract;

#[test]
fn generated_code_and_descriptors_are_those_of_the_contract() {
    let contract = Contract {
        package: "limiter-proto",
        root: Path::new(env!("CARGO_MANIFEST_DIR")),
        file: "cookiesync/limiter/v1/limiter.proto",
        code: "cookiesync.limiter.v1.rs",
        has_server: true,
    };
    contract.check();
}
