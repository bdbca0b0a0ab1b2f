//! The types that a database has besides DuckDB's own (`CREATE TYPE`).

use super::logical::{LogicalType, data_type};
use crate::vector::{owned_text, query, quoted};
use crosslane::{DataType, Error, TypeNames};
use libduckdb_sys as ffi;
use std::ffi::{CStr, CString};

/// The database, schema and name of each type, and whether it is in the database whose file was opened.
/// Qualified, because a database may have functions of these names.
const ALL: &CStr = c"\
    SELECT DISTINCT database_name, schema_name, type_name, database_name = (\
        SELECT database_name FROM system.main.duckdb_databases() WHERE NOT internal ORDER BY database_oid LIMIT 1) \
    FROM system.main.duckdb_types() WHERE NOT internal ORDER BY ALL";

/// The types of the databases that a connection sees, by all names that SQL has for them: `mood` in
/// the schema `main`, `shop.mood`, and `database.shop.mood` or `database.mood`. Types that
/// functions cannot have are left out.
///
/// # Errors
/// [`Error::Engine`] if DuckDB does not list them.
///
/// # Safety
/// The connection must be open, and no other thread may use it meanwhile.
pub unsafe fn type_names(connection: ffi::duckdb_connection) -> Result<TypeNames, Error> {
    // SAFETY: as the caller says.
    let all = unsafe { query(connection, ALL, rows)? };
    // SAFETY: as the caller says.
    let types = unsafe { types(connection, &all) };
    let mut names = [const { Vec::new() }; 4];
    for ([database, schema, name, current], found) in all.into_iter().zip(types) {
        let Some(found) = found else { continue };
        let [schema, name] = [schema, name].map(|part| part.to_lowercase());
        let (current, main) = (current == "true", schema == "main");
        if current && main {
            names[0].push((name.clone(), found.clone()));
        }
        if current {
            names[1].push((format!("{schema}.{name}"), found.clone()));
        }
        if main {
            names[2].push((format!("{database}.{name}"), found.clone()));
        }
        names[3].push((format!("{database}.{schema}.{name}"), found));
    }
    Ok(names.into_iter().flatten().collect())
}

/// The meaning of each name; `None` for a type that functions cannot have.
///
/// # Safety
/// As [`type_names`].
unsafe fn types(connection: ffi::duckdb_connection, all: &[[String; 4]]) -> Vec<Option<DataType>> {
    if all.is_empty() {
        return Vec::new();
    }
    let value = |[database, schema, name, _]: &[String; 4]| {
        let [database, schema, name] = [database, schema, name].map(|part| quoted(part, '"'));
        format!("NULL::{database}.{schema}.{name}")
    };
    let select = format!("SELECT {}", all.iter().map(value).collect::<Vec<_>>().join(", "));
    let read = |result: &mut ffi::duckdb_result| {
        (0..).zip(all).map(|(at, _)| column_type(result, at).ok()).collect()
    };
    // SAFETY: as the caller says.
    let found = CString::new(select).ok().and_then(|select| unsafe { query(connection, &select, read) }.ok());
    match found {
        Some(found) => found,
        None if all.len() == 1 => vec![None],
        // One type that cannot be used makes the whole query fail.
        None => {
            // SAFETY: as the caller says.
            let each = all.iter().map(|one| unsafe { types(connection, std::slice::from_ref(one)) });
            each.flatten().collect()
        }
    }
}

/// The rows of a result of four columns, as text.
fn rows(result: &mut ffi::duckdb_result) -> Vec<[String; 4]> {
    // SAFETY: the result lives.
    let count = unsafe { ffi::duckdb_row_count(result) };
    // SAFETY: the result lives, and has these rows and columns; each text is freed once.
    let mut text = |column, row| unsafe { owned_text(ffi::duckdb_value_varchar(result, column, row)) };
    (0..count).map(|row| [0, 1, 2, 3].map(|column| text(column, row))).collect()
}

/// The type of a result's column, which there is.
fn column_type(result: &mut ffi::duckdb_result, column: ffi::idx_t) -> Result<DataType, Error> {
    // SAFETY: the result lives, and has the column; its owner frees its type.
    unsafe {
        let logical = LogicalType::owned(ffi::duckdb_column_logical_type(result, column));
        data_type(logical.raw())
    }
}
