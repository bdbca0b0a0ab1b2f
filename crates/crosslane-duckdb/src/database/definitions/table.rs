//! The table `crosslane.definitions` of a database file.
//!
//! A file from elsewhere may have another table of this name. A generated column gives other values
//! each time it is read, a trigger runs statements, and a view does anything. So the table is read only
//! if it has exactly the columns that Crosslane gives it, and it is written as a whole, as a new table.

use super::super::connection::Connection;
use super::Kept;
use crosslane::ddl::Definition;
use crosslane::{Error, TypeNames};
use crosslane_vectors::quoted;

/// The table, below the name of a database.
const TABLE: &str = "crosslane.definitions";
/// Its columns, as DuckDB lists them.
const COLUMNS: [&str; 5] =
    ["function VARCHAR", "signature VARCHAR", "language VARCHAR", "definition VARCHAR", "created TIMESTAMP"];
/// Stands between the values of a row that is read as one text.
const SEPARATOR: char = '\u{1f}';

/// What a database has by the table's name.
#[derive(PartialEq, Eq)]
enum Found {
    Nothing,
    Ours,
    Another,
}

/// The definitions in the table, the oldest first. There are none in another table of this name.
pub(super) fn read(connection: &Connection, types: &TypeNames) -> Result<Vec<Kept>, Error> {
    if find(connection)? != Found::Ours {
        return Ok(Vec::new());
    }
    let text = |column: &str| format!("replace(coalesce({column}, ''), chr(31), '')");
    let values = ["function", "signature", "language", "created::VARCHAR"].map(text).join(", ");
    let query = format!(
        "SELECT concat_ws(chr(31), {values}, coalesce(definition, '')) FROM {} ORDER BY created, rowid",
        qualified(connection)
    );
    let kept = |row: String| {
        let [function, signature, language, created, text] =
            row.splitn(5, SEPARATOR).map(str::to_owned).collect::<Vec<_>>().try_into().ok()?;
        let definition = types.within(|| Definition::parse(&text));
        // The column may say anything.
        let function = definition.as_ref().map_or(function, |parsed| parsed.signature.name.clone());
        let definition = definition.map_err(|error| Error::Declaration(error.to_string()));
        Some(Kept { function, signature, language, created, text, definition })
    };
    Ok(connection.texts(&query)?.into_iter().filter_map(kept).collect())
}

/// Writes the table anew, with these definitions.
///
/// # Errors
/// If the database has another table of this name, or cannot be written.
pub(super) fn write(connection: &Connection, rows: &[Kept]) -> Result<(), Error> {
    if find(connection)? == Found::Another {
        return Err(Error::Declaration(format!(
            "the database has a table {TABLE} of its own, so it cannot keep functions; write CREATE TEMP FUNCTION"
        )));
    }
    let schema = format!("{}.crosslane", quoted(connection.database(), '"'));
    connection.run(&format!("CREATE SCHEMA IF NOT EXISTS {schema}"))?;
    let table = qualified(connection);
    connection.run(&format!("CREATE OR REPLACE TABLE {table} ({})", COLUMNS.join(", ")))?;
    if rows.is_empty() {
        return Ok(());
    }
    let row = |kept: &Kept| {
        let texts =
            [&kept.function, &kept.signature, &kept.language, &kept.text].map(|text| quoted(text, '\''));
        // As a clock in UTC, since the column has no time zone.
        let now = "now() AT TIME ZONE 'UTC'".to_owned();
        let created = if kept.created.is_empty() { now } else { quoted(&kept.created, '\'') };
        format!("({}, {created})", texts.join(", "))
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    Ok(connection.run(&format!("INSERT INTO {table} VALUES {}", rows.join(", ")))?)
}

pub(super) fn is_read_only(connection: &Connection) -> Result<bool, Error> {
    let database = quoted(connection.database(), '\'');
    let query = format!(
        "SELECT count(*)::BIGINT FROM duckdb_databases() WHERE database_name = {database} AND readonly"
    );
    Ok(connection.number(&query)? != 0)
}

fn find(connection: &Connection) -> Result<Found, Error> {
    let database = quoted(connection.database(), '\'');
    // DuckDB lists tables with their statements, which takes long if there are many. Most databases have no
    // such schema.
    let schemas = connection.number(&format!(
        "SELECT count(*)::BIGINT FROM duckdb_schemas() WHERE database_name = {database} AND schema_name = 'crosslane'"
    ))?;
    if schemas == 0 {
        return Ok(Found::Nothing);
    }
    let here = format!("database_name = {database} AND schema_name || '.' || table_name = '{TABLE}'");
    let tables = connection.texts(&format!(
        "SELECT (has_primary_key OR index_count > 0 OR check_constraint_count > 0)::VARCHAR || sql FROM duckdb_tables() \
         WHERE {here}"
    ))?;
    let Some(table) = tables.first() else { return Ok(Found::Nothing) };
    let columns = connection.texts(&format!(
        "SELECT column_name || ' ' || data_type || if(column_default IS NULL AND is_nullable, '', ' ...') \
         FROM duckdb_columns() WHERE {here} ORDER BY column_index"
    ))?;
    let is_plain = table.starts_with("false") && !table.to_uppercase().contains("GENERATED");
    Ok(if is_plain && columns == COLUMNS { Found::Ours } else { Found::Another })
}

/// The table's name, with that of the database whose file was opened.
fn qualified(connection: &Connection) -> String {
    format!("{}.{TABLE}", quoted(connection.database(), '"'))
}
