//! Does nothing. Only a crate with a build script can select features of crates that build scripts
//! use.

fn main() {}
