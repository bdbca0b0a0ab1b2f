//! Compiles the C++ shim for a V8: Debian's libnode, which `tools/v8` brings into `.v8` (or the one in the folder in
//! `CROSSLANE_V8`), and with which it is linked; or that of Node's program, whose headers `python/setup.py` links as
//! `.node`. The package crosslane-node has the second V8, and so has this one with the feature `node`.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rustc-check-cfg=cfg(node)");
    println!("cargo:rerun-if-changed={}", shim().display());
    let is_library = env::var("CARGO_PKG_NAME").unwrap() == "crosslane-node";
    if is_library {
        // The loader looks for V8's functions when they are called. In another program, or with another V8, some are
        // missing, and the library must be able to say so.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,lazy");
    }
    if is_library || env::var_os("CARGO_FEATURE_NODE").is_some() {
        println!("cargo:rustc-cfg=node");
        let include = existing(root().join(".node/include/node"), "run python/setup.py, which links it");
        println!("cargo:rerun-if-changed={}", include.join("node_version.h").display());
        // V8's headers need this version of the language.
        return compile(&include, "c++20");
    }
    println!("cargo:rerun-if-env-changed=CROSSLANE_V8");
    let prefix = env::var_os("CROSSLANE_V8").map_or_else(|| root().join(".v8"), PathBuf::from);
    let prefix = existing(prefix, "run tools/v8, which fetches it");
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

fn root() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../..")
}

fn shim() -> PathBuf {
    root().join("crates/crosslane-js/shim")
}

fn existing(folder: PathBuf, advice: &str) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| panic!("there is no V8 in {}: {advice}", folder.display()))
}

fn compile(include: &Path, language: &str) {
    cc::Build::new()
        .cpp(true)
        .std(language)
        .flags(["-fno-rtti", "-fno-exceptions", "-fvisibility=hidden", "-Wno-unused-parameter"])
        .include(include)
        .file(shim().join("shim.cc"))
        .compile("crosslane_shim");
}
