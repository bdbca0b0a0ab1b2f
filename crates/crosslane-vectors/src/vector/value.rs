//! Values and texts that DuckDB gives to its caller.

use libduckdb_sys as ffi;
use std::ffi::{CStr, c_char};

/// A value, destroyed when dropped.
#[derive(Debug)]
pub struct Value(ffi::duckdb_value);

impl Value {
    /// Takes a handle, to destroy it. The handle is null for an argument that was not given.
    ///
    /// # Safety
    /// The handle must be null, or valid and the caller's.
    pub unsafe fn owned(handle: ffi::duckdb_value) -> Self {
        Self(handle)
    }

    /// The handle, which dies with self.
    pub fn raw(&self) -> ffi::duckdb_value {
        self.0
    }

    /// Whether the value was not given, or is NULL.
    pub fn is_null(&self) -> bool {
        // SAFETY: the value lives.
        self.0.is_null() || unsafe { ffi::duckdb_is_null_value(self.0) }
    }

    /// The value as text, unless it is NULL.
    pub fn text(&self) -> Option<String> {
        // SAFETY: the value lives, and the text is given to the caller.
        (!self.is_null()).then(|| unsafe { owned_text(ffi::duckdb_get_varchar(self.0)) })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and destroyed once.
        unsafe { ffi::duckdb_destroy_value(&raw mut self.0) };
    }
}

/// Copies a text, and frees it. Null is an empty text.
///
/// # Safety
/// The text must be null, or a C string that DuckDB allocated for its caller.
pub unsafe fn owned_text(text: *const c_char) -> String {
    // SAFETY: as the caller says.
    unsafe {
        let owned = copied_text(text);
        ffi::duckdb_free(text.cast_mut().cast());
        owned
    }
}

/// Copies a text. Null is an empty text.
///
/// # Safety
/// The text must be null, or a C string that lives.
pub(crate) unsafe fn copied_text(text: *const c_char) -> String {
    // SAFETY: as the caller says.
    let text = unsafe { text.as_ref().map_or(c"", |text| CStr::from_ptr(text)) };
    text.to_string_lossy().into_owned()
}
