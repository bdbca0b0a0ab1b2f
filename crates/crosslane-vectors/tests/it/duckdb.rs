//! DuckDB itself, and chunks of it, for tests.

use crosslane::DataType;
use crosslane_vectors::{LogicalType, Results};
use libduckdb_sys as ffi;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::LazyLock;

/// The path to which `make setup` installs it.
const LIBRARY: &CStr = match CStr::from_bytes_with_nul(
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../.duckdb/libduckdb.so\0").as_bytes(),
) {
    Ok(path) => path,
    Err(_) => panic!("a path"),
};

thread_local! {
    /// The table of functions for `libduckdb_sys`.
    static TABLE: Cell<*const ffi::duckdb_ext_api_v1> = const { Cell::new(std::ptr::null()) };
}

unsafe extern "C" fn get_api(_info: ffi::duckdb_extension_info, _version: *const c_char) -> *const c_void {
    TABLE.get().cast()
}

/// Opens libduckdb, and passes the functions that vectors need to `libduckdb_sys`.
#[allow(clippy::missing_transmute_annotations, reason = "each field's type is another")]
static DUCKDB: LazyLock<()> = LazyLock::new(|| {
    // SAFETY: the texts are C strings. The table has only optional functions, and all-zero bytes mean
    // that there is none. A function's type is the type in the header of this DuckDB. The access and the
    // table live during the call that copies them.
    unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "{LIBRARY:?} cannot be opened; `make setup` brings it");
        let mut table: ffi::duckdb_ext_api_v1 = std::mem::zeroed();
        macro_rules! fill {
            ($($name:ident)*) => {$(
                let found = libc::dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast());
                assert!(!found.is_null(), "libduckdb has no {}", stringify!($name));
                table.$name = std::mem::transmute::<*mut c_void, _>(found);
            )*};
        }
        fill! {
            duckdb_array_vector_get_child duckdb_create_array_type duckdb_create_decimal_type duckdb_create_data_chunk duckdb_create_list_type
            duckdb_create_logical_type duckdb_create_struct_type duckdb_data_chunk_get_column_count
            duckdb_data_chunk_get_size duckdb_data_chunk_get_vector duckdb_data_chunk_reset duckdb_data_chunk_set_size duckdb_destroy_data_chunk
            duckdb_destroy_logical_type duckdb_list_vector_get_child duckdb_list_vector_get_size
            duckdb_list_vector_reserve duckdb_list_vector_set_size duckdb_struct_vector_get_child
            duckdb_unsafe_vector_assign_string_element_len duckdb_validity_set_row_invalid
            duckdb_vector_ensure_validity_writable duckdb_vector_get_data duckdb_vector_get_validity
        }
        TABLE.set(&raw const table);
        let access =
            ffi::duckdb_extension_access { set_error: None, get_database: None, get_api: Some(get_api) };
        let ready = ffi::duckdb_rs_extension_api_init(std::ptr::null_mut(), &raw const access, "v1.5.6");
        assert_eq!(ready, Ok(true));
    }
});

/// A chunk with a vector of a type.
pub(crate) struct Chunk {
    pub(crate) raw: ffi::duckdb_data_chunk,
    pub(crate) data_type: DataType,
}

impl Chunk {
    pub(crate) fn new(data_type: &str) -> Self {
        LazyLock::force(&DUCKDB);
        let data_type: DataType = data_type.parse().unwrap();
        let logical = LogicalType::new(&data_type).unwrap();
        // SAFETY: the type lives across the call.
        let raw = unsafe { ffi::duckdb_create_data_chunk(&mut logical.raw(), 1) };
        Self { raw, data_type }
    }

    pub(crate) fn vector(&self) -> ffi::duckdb_vector {
        // SAFETY: the chunk lives, and has a vector.
        unsafe { ffi::duckdb_data_chunk_get_vector(self.raw, 0) }
    }

    /// The vector of the chunk for `rows` results.
    pub(crate) fn results(&self, rows: usize) -> Results<'_> {
        // SAFETY: the vector is of the type, and has space for 2048 rows; no test asks for more.
        unsafe { Results::new(self.vector(), &self.data_type, rows) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: this owns the chunk, and destroys it once.
        unsafe { ffi::duckdb_destroy_data_chunk(&raw mut self.raw) };
    }
}
