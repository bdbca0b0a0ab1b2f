//! libduckdb's functions, looked up when the library is loaded.
//!
//! The library is loaded when the first database is opened. So a worker of the guest does not load
//! it, and the program can choose the library. Its functions are stored in the table that DuckDB
//! passes to extensions. `libduckdb_sys` calls through this table, because the code that converts
//! vectors is shared with the extension.

use crate::engine::connection::session::{failure, lock};
use crate::engine::library::catalog;
use crate::engine::library::text::{c_string, text};
use libduckdb_sys as ffi;
use magnus::Error;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

/// The path of the loaded library, as the program gave it.
static OPEN: Mutex<Option<String>> = Mutex::new(None);

macro_rules! table {
    ($($name:ident,)*) => {
        /// Fills the table. If the library lacks a function, the error is the function's name.
        ///
        /// # Safety
        /// The handle must be libduckdb's.
        #[allow(clippy::missing_transmute_annotations, reason = "each field's type is another")]
        unsafe fn table(library: *mut c_void) -> Result<ffi::duckdb_ext_api_v1, &'static str> {
            // SAFETY: the table consists of optional functions, and all-zero means none. A
            // function's type is that of the C header of this DuckDB, which the library implements.
            unsafe {
                let mut table: ffi::duckdb_ext_api_v1 = std::mem::zeroed();
                $(
                    let name = concat!(stringify!($name), "\0");
                    let found = libc::dlsym(library, name.as_ptr().cast());
                    if found.is_null() {
                        return Err(stringify!($name));
                    }
                    table.$name = std::mem::transmute::<*mut c_void, _>(found);
                )*
                Ok(table)
            }
        }
    };
}

table! {
    duckdb_aggregate_function_add_parameter,
    duckdb_aggregate_function_get_extra_info,
    duckdb_aggregate_function_set_destructor,
    duckdb_aggregate_function_set_error,
    duckdb_aggregate_function_set_extra_info,
    duckdb_aggregate_function_set_functions,
    duckdb_aggregate_function_set_name,
    duckdb_aggregate_function_set_return_type,
    duckdb_aggregate_function_set_special_handling,
    duckdb_append_data_chunk,
    duckdb_append_default_to_chunk,
    duckdb_appender_add_column,
    duckdb_appender_clear,
    duckdb_appender_close,
    duckdb_appender_column_count,
    duckdb_appender_column_type,
    duckdb_appender_create_ext,
    duckdb_appender_create_query,
    duckdb_appender_destroy,
    duckdb_appender_error_data,
    duckdb_array_type_array_size,
    duckdb_array_type_child_type,
    duckdb_array_vector_get_child,
    duckdb_bind_add_result_column,
    duckdb_bind_get_extra_info,
    duckdb_bind_get_named_parameter,
    duckdb_bind_get_parameter,
    duckdb_bind_set_bind_data,
    duckdb_bind_set_cardinality,
    duckdb_bind_set_error,
    duckdb_bind_value,
    duckdb_client_context_get_config_option,
    duckdb_client_context_get_connection_id,
    duckdb_close,
    duckdb_column_count,
    duckdb_column_logical_type,
    duckdb_column_name,
    duckdb_connect,
    duckdb_connection_get_client_context,
    duckdb_create_aggregate_function,
    duckdb_create_array_type,
    duckdb_create_blob,
    duckdb_create_bool,
    duckdb_create_config,
    duckdb_create_data_chunk,
    duckdb_create_date,
    duckdb_create_decimal,
    duckdb_create_decimal_type,
    duckdb_create_double,
    duckdb_create_enum_type,
    duckdb_create_hugeint,
    duckdb_create_instance_cache,
    duckdb_create_int16,
    duckdb_create_int32,
    duckdb_create_int64,
    duckdb_create_int8,
    duckdb_create_interval,
    duckdb_create_list_type,
    duckdb_create_list_value,
    duckdb_create_logical_type,
    duckdb_create_map_type,
    duckdb_create_map_value,
    duckdb_create_null_value,
    duckdb_create_scalar_function,
    duckdb_create_selection_vector,
    duckdb_create_struct_type,
    duckdb_create_struct_value,
    duckdb_create_table_function,
    duckdb_create_time,
    duckdb_create_time_ns,
    duckdb_create_time_tz_value,
    duckdb_create_timestamp,
    duckdb_create_timestamp_ms,
    duckdb_create_timestamp_ns,
    duckdb_create_timestamp_s,
    duckdb_create_timestamp_tz,
    duckdb_create_uhugeint,
    duckdb_create_uint16,
    duckdb_create_uint32,
    duckdb_create_uint64,
    duckdb_create_uint8,
    duckdb_create_union_type,
    duckdb_create_varchar_length,
    duckdb_create_vector,
    duckdb_data_chunk_get_column_count,
    duckdb_data_chunk_get_size,
    duckdb_data_chunk_get_vector,
    duckdb_data_chunk_set_size,
    duckdb_data_chunk_to_arrow,
    duckdb_decimal_scale,
    duckdb_decimal_width,
    duckdb_destroy_aggregate_function,
    duckdb_destroy_arrow_options,
    duckdb_destroy_client_context,
    duckdb_destroy_config,
    duckdb_destroy_data_chunk,
    duckdb_destroy_error_data,
    duckdb_destroy_extracted,
    duckdb_destroy_logical_type,
    duckdb_destroy_pending,
    duckdb_destroy_prepare,
    duckdb_destroy_result,
    duckdb_destroy_scalar_function,
    duckdb_destroy_selection_vector,
    duckdb_destroy_table_function,
    duckdb_destroy_value,
    duckdb_destroy_vector,
    duckdb_disconnect,
    duckdb_enum_dictionary_size,
    duckdb_enum_dictionary_value,
    duckdb_error_data_has_error,
    duckdb_error_data_message,
    duckdb_execute_pending,
    duckdb_extract_statements,
    duckdb_extract_statements_error,
    duckdb_fetch_chunk,
    duckdb_free,
    duckdb_function_get_extra_info,
    duckdb_function_get_init_data,
    duckdb_function_get_local_init_data,
    duckdb_function_set_error,
    duckdb_get_int64,
    duckdb_get_list_child,
    duckdb_get_list_size,
    duckdb_get_or_create_from_cache,
    duckdb_get_type_id,
    duckdb_get_value_type,
    duckdb_init_get_bind_data,
    duckdb_init_get_column_count,
    duckdb_init_get_column_index,
    duckdb_init_get_extra_info,
    duckdb_init_set_error,
    duckdb_init_set_init_data,
    duckdb_init_set_max_threads,
    duckdb_interrupt,
    duckdb_is_null_value,
    duckdb_library_version,
    duckdb_list_type_child_type,
    duckdb_list_vector_get_child,
    duckdb_list_vector_get_size,
    duckdb_list_vector_reserve,
    duckdb_list_vector_set_size,
    duckdb_logical_type_get_alias,
    duckdb_logical_type_set_alias,
    duckdb_map_type_key_type,
    duckdb_map_type_value_type,
    duckdb_nparams,
    duckdb_open_ext,
    duckdb_param_logical_type,
    duckdb_parameter_name,
    duckdb_pending_error,
    duckdb_pending_execute_task,
    duckdb_pending_execution_is_finished,
    duckdb_pending_prepared,
    duckdb_pending_prepared_streaming,
    duckdb_prepare_error,
    duckdb_prepare_extracted_statement,
    duckdb_prepared_statement_column_count,
    duckdb_prepared_statement_column_logical_type,
    duckdb_prepared_statement_column_name,
    duckdb_query,
    duckdb_query_progress,
    duckdb_register_aggregate_function,
    duckdb_register_scalar_function,
    duckdb_register_table_function,
    duckdb_result_error,
    duckdb_result_get_arrow_options,
    duckdb_row_count,
    duckdb_rows_changed,
    duckdb_scalar_function_add_parameter,
    duckdb_scalar_function_get_state,
    duckdb_scalar_function_init_get_bind_data,
    duckdb_scalar_function_init_get_client_context,
    duckdb_scalar_function_init_get_extra_info,
    duckdb_scalar_function_init_set_error,
    duckdb_scalar_function_init_set_state,
    duckdb_scalar_function_set_bind,
    duckdb_scalar_function_set_bind_data,
    duckdb_scalar_function_set_bind_data_copy,
    duckdb_scalar_function_set_error,
    duckdb_scalar_function_set_extra_info,
    duckdb_scalar_function_set_function,
    duckdb_scalar_function_set_init,
    duckdb_scalar_function_set_name,
    duckdb_scalar_function_set_return_type,
    duckdb_scalar_function_set_special_handling,
    duckdb_scalar_function_set_varargs,
    duckdb_scalar_function_set_volatile,
    duckdb_selection_vector_get_data_ptr,
    duckdb_set_config,
    duckdb_struct_type_child_count,
    duckdb_struct_type_child_name,
    duckdb_struct_type_child_type,
    duckdb_struct_vector_get_child,
    duckdb_table_function_add_named_parameter,
    duckdb_table_function_add_parameter,
    duckdb_table_function_get_client_context,
    duckdb_table_function_set_bind,
    duckdb_table_function_set_extra_info,
    duckdb_table_function_set_function,
    duckdb_table_function_set_init,
    duckdb_table_function_set_local_init,
    duckdb_table_function_set_name,
    duckdb_table_function_supports_projection_pushdown,
    duckdb_to_arrow_schema,
    duckdb_union_type_member_count,
    duckdb_union_type_member_name,
    duckdb_union_type_member_type,
    duckdb_unsafe_vector_assign_string_element_len,
    duckdb_validity_set_row_invalid,
    duckdb_value_varchar,
    duckdb_vector_copy_sel,
    duckdb_vector_ensure_validity_writable,
    duckdb_vector_get_column_type,
    duckdb_vector_get_data,
    duckdb_vector_get_validity,
    duckdb_vector_reference_value,
    duckdb_vector_size,
}

/// Loads libduckdb, once per process.
pub(crate) fn load(path: String) -> Result<(), Error> {
    // This must be done before a database is opened.
    crosslane_process::occupy_standard_descriptors();
    crosslane_process::report_panics();
    let mut open = lock(&OPEN);
    if let Some(known) = &*open {
        if *known == path {
            return Ok(());
        }
        return Err(failure(None, &format!("this process uses {known} already; it cannot use {path} too")));
    }
    let name = c_string(&path)?;
    // SAFETY: opening a library runs its initializers; the texts are C strings.
    let filled = unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        if library.is_null() {
            let why = CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned();
            let advice = "set CROSSLANE_LIBDUCKDB to the path of a libduckdb.so of 1.5.6 or newer";
            return Err(failure(None, &format!("{path} cannot be opened: {why}; {advice}")));
        }
        catalog::find(library);
        table(library)
    };
    let table = filled.map_err(|missing| {
        failure(None, &format!("{path} is no libduckdb of 1.5.6 or newer: it has no {missing}"))
    })?;
    TABLE.with(|place| place.set(Box::leak(Box::new(table))));
    let access = ffi::duckdb_extension_access { set_error: None, get_database: None, get_api: Some(get_api) };
    // SAFETY: the access and the table live across the call, which copies the functions.
    let ready =
        unsafe { ffi::duckdb_rs_extension_api_init(std::ptr::null_mut(), &raw const access, "v1.5.6") };
    match ready {
        Ok(true) => *open = Some(path),
        Ok(false) => {
            return Err(failure(None, &format!("{path} has no functions for extensions of DuckDB 1.5.6")));
        }
        Err(why) => return Err(failure(None, &format!("{path} cannot be used: {why}"))),
    }
    Ok(())
}

thread_local! {
    /// Passes the table through libduckdb_sys.
    static TABLE: std::cell::Cell<*const ffi::duckdb_ext_api_v1> = const { std::cell::Cell::new(std::ptr::null()) };
}

unsafe extern "C" fn get_api(_info: ffi::duckdb_extension_info, _version: *const c_char) -> *const c_void {
    TABLE.get().cast()
}

/// The library's version.
pub(crate) fn version() -> String {
    // SAFETY: a static text.
    unsafe { text(ffi::duckdb_library_version()) }
}
