//! Compiles the C++ shim and links it with V8, which `tools/v8` puts into `.v8` (or into the folder
//! in `CROSSLANE_V8`).

use std::env;
use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../..");
    let prefix = env::var_os("CROSSLANE_V8").map_or_else(|| root.join(".v8"), PathBuf::from);
    println!("cargo:rerun-if-env-changed=CROSSLANE_V8");
    println!("cargo:rerun-if-changed=shim");
    let Ok(prefix) = prefix.canonicalize() else {
        panic!("there is no V8 in {}: run tools/v8, which fetches it", prefix.display());
    };
    println!("cargo:rerun-if-changed={}", prefix.join("stamp").display());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flags(["-fno-rtti", "-fno-exceptions", "-fvisibility=hidden", "-Wno-unused-parameter"])
        .include(prefix.join("include"))
        .file("shim/shim.cc")
        .compile("crosslane_shim");
    let libraries = prefix.join("lib");
    println!("cargo:rustc-link-search=native={}", libraries.display());
    println!("cargo:rustc-link-lib=dylib=node");
    // The first path is where the package has its copy. The old kind of tag is needed: with the new
    // kind the loader does not search the program's path for libraries of libnode.
    for argument in ["--disable-new-dtags", "-rpath,$ORIGIN/v8", &format!("-rpath,{}", libraries.display())] {
        println!("cargo:rustc-link-arg=-Wl,{argument}");
    }
    println!("cargo:libraries={}", libraries.display());
}
