//! Has the loader look for V8's functions when they are called. In another program, or with another V8, some are
//! missing, and the library must be able to say so.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,lazy");
}
