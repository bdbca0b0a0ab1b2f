//! Callbacks that DuckDB calls: their errors and panics become errors of the query.

use crosslane::Error;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a callback's body; a panic becomes an error that names it.
pub fn guard<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(Error::Engine(format!("crosslane has a defect, please report it: {text}")))
    })
}

/// Runs a callback's body. Its error, or its panic as an error, goes to `set_error`.
pub fn run(set_error: impl FnOnce(*const c_char), body: impl FnOnce() -> Result<(), Error>) {
    if let Err(error) = guard(body) {
        set_error(error_text(&error).as_ptr());
    }
}

/// An error as a C string.
pub fn error_text(error: &Error) -> CString {
    let mut text = error.to_string();
    if let Error::Forked = error {
        text += "; open the database and load them after the fork";
    }
    CString::new(text.replace('\0', "\u{2400}")).unwrap_or_default()
}

/// Frees what `Box::into_raw` gave to DuckDB.
///
/// # Safety
/// `data` must come from `Box::<T>::into_raw`, and DuckDB calls this once.
pub unsafe extern "C" fn drop_box<T>(data: *mut std::ffi::c_void) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller vouches for the pointer.
        drop(unsafe { Box::from_raw(data.cast::<T>()) });
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_the_query() {
        let error = guard(|| -> Result<(), Error> { panic!("a defect in row {}", 7) }).unwrap_err();
        assert!(error.to_string().ends_with("please report it: a defect in row 7"), "{error}");
    }

    #[test]
    fn a_text_for_c_has_no_zero_bytes() {
        assert_eq!(error_text(&Error::Engine("a\0b".into())).to_string_lossy(), "a\u{2400}b");
    }

    #[test]
    fn a_forked_process_gets_advice() {
        assert!(error_text(&Error::Forked).to_string_lossy().contains("; open the database and load"));
    }
}
