//! Where the program looks for Lua's library: beside itself, where the wheel has it, and then where the system has it.

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN");
}
