//! Nothing. Only a crate with a build script may ask for features of crates that build scripts use.

fn main() {}
