//! The program `revalidator`.

fn main() {}
