//! Where the program finds V8.

fn main() {
    let libraries = std::env::var("DEP_NODE_LIBRARIES").unwrap_or_default();
    println!("cargo:rustc-link-arg=-Wl,--disable-new-dtags,-rpath,{libraries}");
}
