//! Sets the paths where the library looks for V8: next to itself (`v8/`), and where it was built.

fn main() {
    let libraries = std::env::var("DEP_NODE_LIBRARIES").unwrap_or_default();
    for argument in ["--disable-new-dtags", "-rpath,$ORIGIN/v8", &format!("-rpath,{libraries}")] {
        println!("cargo:rustc-link-arg=-Wl,{argument}");
    }
}
