//! A test that needs the process for itself. `tls` sets a variable of the environment that names the
//! authorities that clients trust. No other thread may read the environment meanwhile.

#[path = "../common/mod.rs"]
mod common;
mod tls;
