//! Compiles the C++ code that calls DuckDB.

fn main() {
    println!("cargo:rerun-if-changed=shim/forget.cc");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flag("-fvisibility=hidden")
        .file("shim/forget.cc")
        .compile("crosslane_forget");
}
