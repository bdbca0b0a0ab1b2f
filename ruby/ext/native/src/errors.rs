//! Ruby exceptions for errors of Rust.

use crosslane_gvl::Unwind;
use magnus::{Error, Ruby};

/// An ArgumentError.
pub(crate) fn argument_error(message: impl ToString) -> Error {
    Error::new(Ruby::get().expect("with the GVL").exception_arg_error(), message.to_string())
}

/// The exception for a system error.
pub(crate) fn io_error(error: std::io::Error) -> Error {
    Unwind::from(error).into_error()
}
