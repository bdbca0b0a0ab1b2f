//! Compiles the C++ shim for a V8, which `tools/v8` fetches: Debian's libnode in `.v8` (or in the folder in
//! `CROSSLANE_V8`), with which it is linked, or that of Node's program in `.node` (or in `CROSSLANE_NODE`).

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=shim");
    if env::var_os("CARGO_FEATURE_NODE").is_some() {
        let node = folder("CROSSLANE_NODE", ".node");
        println!("cargo:rerun-if-changed={}", node.join("include/node/node_version.h").display());
        // In another program, or with another V8, functions are missing. The library must say so.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,lazy");
        // V8's headers need this version of the language.
        return compile(&node.join("include/node"), "c++20");
    }
    let prefix = folder("CROSSLANE_V8", ".v8");
    println!("cargo:rerun-if-changed={}", prefix.join("stamp").display());
    compile(&prefix.join("include"), "c++17");
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

/// The folder that this variable names, or that has this name in the repository.
fn folder(variable: &str, name: &str) -> PathBuf {
    println!("cargo:rerun-if-env-changed={variable}");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../..");
    let folder = env::var_os(variable).map_or_else(|| root.join(name), PathBuf::from);
    let Ok(folder) = folder.canonicalize() else {
        panic!("there is no V8 in {}: run tools/v8, which fetches it", folder.display());
    };
    folder
}

fn compile(include: &Path, language: &str) {
    cc::Build::new()
        .cpp(true)
        .std(language)
        .flags(["-fno-rtti", "-fno-exceptions", "-fvisibility=hidden", "-Wno-unused-parameter"])
        .include(include)
        .file("shim/shim.cc")
        .compile("crosslane_shim");
}
