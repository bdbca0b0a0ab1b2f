//! Which names a load may take, and which there are.
//!
//! A function is registered for the whole database. One with the name of a built-in function would take the place of it
//! in every query, and one with the name of a macro would never be called, because macros are found first.

use crate::connection::Connection;
use crosslane::catalog::Catalog;
use crosslane::{Error, Function};
use crosslane_remote::AnyZygote;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// Looks whether the names are free, or may be taken because the user said so: macros are dropped then. Returns the
/// names that functions of DuckDB or of another extension keep beside ours.
pub(crate) fn take(
    connection: &Connection,
    functions: impl Iterator<Item = Arc<Function>>,
    is_ours: impl Fn(&str) -> bool,
    replace: bool,
) -> Result<HashSet<String>, Error> {
    let (ours, others): (Vec<_>, Vec<_>) =
        functions.map(|function| function.name().to_lowercase()).partition(|name| is_ours(name));
    let list = |names: &[String]| {
        // A list that nothing is in is not SQL.
        let names = names.iter().map(|name| format!(", {}", quoted(name, '\'')));
        names.fold("NULL".to_owned(), |list, name| list + &name)
    };
    let query = format!(
        "SELECT concat_ws(chr(31), function_type, database_name, schema_name, function_name) FROM duckdb_functions() \
         WHERE (lower(function_name) IN ({}) AND function_type NOT IN ('table', 'table_macro', 'pragma') \
         OR lower(function_name) IN ({}) AND function_type = 'macro') AND (database_name = 'system' \
         OR database_name = current_database() AND schema_name = current_schema())",
        list(&others),
        list(&ours)
    );
    let mut kept = HashSet::new();
    for row in connection.texts(&query)? {
        let [kind, database, schema, name] = row.split('\u{1f}').collect::<Vec<_>>()[..] else { continue };
        let mine = database != "system";
        match (kind, replace) {
            ("scalar", true) => drop(kept.insert(name.to_lowercase())),
            ("macro", true) if mine => {
                let place = [database, schema, name].map(|part| quoted(part, '"')).join(".");
                connection.run(&format!("DROP MACRO IF EXISTS {place}"))?;
            }
            ("macro", false) if mine => {
                return Err(taken(name, "a macro of this database, which would be called instead", true));
            }
            ("scalar", false) => {
                let what = "a function that exists already, which would change for the whole database";
                return Err(taken(name, what, true));
            }
            _ => return Err(taken(name, &format!("DuckDB's own {kind}, which cannot be replaced"), false)),
        }
    }
    Ok(kept)
}

/// A table function that is to be loaded.
pub(crate) struct Table {
    function: Arc<Function>,
    /// Whether DuckDB has one of this name that is ours.
    ours: bool,
    /// Whether that has just these parameters.
    same: bool,
}

impl Table {
    pub(crate) fn of(catalog: &Catalog<AnyZygote>, function: Arc<Function>) -> Self {
        let (ours, same) = (catalog.knows(function.name(), true), catalog.knows_all(&function));
        Self { function, ours, same }
    }
}

/// As [`take`], for table functions: DuckDB has one of a name at most, for ever.
pub(crate) fn take_tables(connection: &Connection, tables: &[Table], replace: bool) -> Result<(), Error> {
    for Table { function, ours, same } in tables {
        let query = format!(
            "SELECT concat_ws(chr(31), function_type, database_name, schema_name, function_name) FROM duckdb_functions() \
             WHERE lower(function_name) = {} AND function_type IN ('table', 'table_macro') AND (database_name = 'system' \
             OR database_name = current_database() AND schema_name = current_schema())",
            quoted(&function.name().to_lowercase(), '\'')
        );
        for row in connection.texts(&query)? {
            let [kind, database, schema, name] = row.split('\u{1f}').collect::<Vec<_>>()[..] else {
                continue;
            };
            let mine = database != "system";
            match kind {
                "table_macro" if mine && replace => {
                    let place = [database, schema, name].map(|part| quoted(part, '"')).join(".");
                    connection.run(&format!("DROP MACRO TABLE IF EXISTS {place}"))?;
                }
                "table_macro" if mine => {
                    let what = "a table macro of this database, which would be called instead";
                    return Err(taken(name, what, true));
                }
                "table" if *same => {}
                "table" if *ours => {
                    return Err(Error::Engine(format!(
                        "DuckDB cannot change the parameters of a table function: {name} has others in this database; nothing \
                         was loaded. Give the function another name, or open the database again"
                    )));
                }
                _ => {
                    let what = "DuckDB's own table function, which cannot be replaced";
                    return Err(taken(name, what, false));
                }
            }
        }
    }
    Ok(())
}

fn taken(name: &str, what: &str, replaceable: bool) -> Error {
    let advice =
        if replaceable { ", or replace it: replace=True in Python, replace := true in SQL" } else { "" };
    Error::Engine(format!(
        "the name {name} is taken by {what}; nothing was loaded. Give the function another name{advice}"
    ))
}

/// Looks whether DuckDB can tell apart the functions of these names: some versions cannot replace one whose result has
/// another type.
pub(crate) fn tell_apart(connection: &Connection, names: &[String]) -> Result<(), Error> {
    for name in names {
        let query = format!(
            "SELECT count(*)::BIGINT FROM (SELECT parameter_types FROM duckdb_functions() WHERE lower(function_name) = {} \
             GROUP BY parameter_types HAVING count(*) > 1)",
            quoted(&name.to_lowercase(), '\'')
        );
        if connection.number(&query)? > 0 {
            return Err(Error::Engine(format!(
                "this version of DuckDB cannot change the type of a function's result: {name} has another in this \
                 database; nothing was loaded. Give the function another name, or open the database again \
                 (crosslane.load and crosslane.register in Python can change it)"
            )));
        }
    }
    Ok(())
}

/// Whether DuckDB knows an aggregate of this name, which is in lower case.
pub(crate) fn is_aggregate(connection: &Connection, name: &str) -> Result<bool, Error> {
    let query = format!(
        "SELECT count(*)::BIGINT FROM duckdb_functions() WHERE lower(function_name) = {} AND function_type = 'aggregate'",
        quoted(name, '\'')
    );
    Ok(connection.number(&query)? > 0)
}

/// Says that none of these has the name, and which have one like it, or what else to do.
pub(crate) fn unknown(
    connection: &Connection,
    what: &str,
    name: &str,
    ours: &BTreeSet<String>,
    otherwise: &str,
) -> Error {
    let names = ours.iter().map(|name| quoted(name, '\'')).collect::<Vec<_>>().join(", ");
    let query = format!(
        "SELECT name FROM (SELECT name, jaro_winkler_similarity(lower(name), lower({})) AS likeness \
         FROM (SELECT unnest([{names}]::VARCHAR[]) AS name)) WHERE likeness > 0.75 ORDER BY likeness DESC LIMIT 3",
        quoted(name, '\'')
    );
    // A DuckDB without this function has no names to suggest.
    let similar = connection.texts(&query).unwrap_or_default();
    let advice = if similar.is_empty() {
        otherwise.to_owned()
    } else {
        format!("did you mean {}?", similar.join(" or "))
    };
    Error::Engine(format!("Crosslane has no {what} {name}; {advice}"))
}

fn quoted(text: &str, quote: char) -> String {
    let doubled = text.replace(quote, &format!("{quote}{quote}"));
    format!("{quote}{doubled}{quote}")
}
