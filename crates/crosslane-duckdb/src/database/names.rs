//! Which names exist in a database, and which of them a load may take.
//!
//! A function is registered for the whole database. With the name of a built-in function it would
//! replace that in every query. With the name of a macro it would never be called, because DuckDB
//! finds macros first.

use super::connection::Connection;
use crosslane::catalog::Catalog;
use crosslane::{Error, Function};
use crosslane_remote::AnyZygote;
use crosslane_vectors::quoted;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// What a load may do beside loading.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Permissions {
    /// Take the names of macros and built-in functions.
    pub(crate) replace: bool,
    /// Leave calls ambiguous for a moment: the caller then makes DuckDB forget the outdated
    /// functions.
    pub(crate) outdate: bool,
    /// Leave macros alone, even if names may be taken.
    pub(crate) keep_macros: bool,
}

/// What DuckDB and this database already have by the names of functions that are to be loaded. One
/// query finds all, because DuckDB lists all of its functions for it, which takes 30 to 70 ms.
pub(crate) struct Names(Vec<Named>);

struct Named {
    /// In lower case.
    name: String,
    kind: String,
    database: String,
    schema: String,
    /// As it was written.
    written: String,
}

impl Names {
    pub(crate) fn of<'a>(
        connection: &Connection,
        functions: impl Iterator<Item = &'a Arc<Function>>,
    ) -> Result<Self, Error> {
        let names: BTreeSet<_> = functions.map(|function| function.name().to_lowercase()).collect();
        if names.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let names: Vec<_> = names.iter().map(|name| quoted(name, '\'')).collect();
        let query = format!(
            "SELECT DISTINCT concat_ws(chr(31), function_type, database_name, schema_name, function_name) \
             FROM duckdb_functions() WHERE lower(function_name) IN ({}) AND (database_name = 'system' \
             OR database_name = {} AND schema_name = 'main')",
            names.join(", "),
            quoted(connection.database(), '\'')
        );
        let named = |row: String| {
            let [kind, database, schema, written] =
                row.split('\u{1f}').map(str::to_owned).collect::<Vec<_>>().try_into().ok()?;
            Some(Named { name: written.to_lowercase(), kind, database, schema, written })
        };
        Ok(Self(connection.texts(&query)?.into_iter().filter_map(named).collect()))
    }

    /// The entries of a name in lower case.
    fn all(&self, name: &str) -> impl Iterator<Item = &Named> {
        self.0.iter().filter(move |named| named.name == name)
    }

    /// Whether there is an aggregate of this name in lower case.
    pub(crate) fn has_aggregate(&self, name: &str) -> bool {
        self.all(name).any(|named| named.kind == "aggregate")
    }
}

impl Named {
    /// Whether it belongs to this database, and not to DuckDB or an extension.
    fn is_mine(&self) -> bool {
        self.database != "system"
    }

    /// Drops a macro.
    fn drop(&self, connection: &Connection, what: &str) -> Result<(), Error> {
        let place = [&self.database, &self.schema, &self.written].map(|part| quoted(part, '"')).join(".");
        Ok(connection.run(&format!("DROP {what} IF EXISTS {place}"))?)
    }
}

/// Checks that the names are free, or that the user lets them be replaced; then macros are dropped.
/// Returns the names that our functions share with functions of DuckDB or of another extension.
pub(crate) fn take(
    connection: &Connection,
    names: &Names,
    functions: &[Arc<Function>],
    is_ours: impl Fn(&str) -> bool,
    permissions: Permissions,
) -> Result<HashSet<String>, Error> {
    let taken_names: BTreeSet<_> = functions.iter().map(|function| function.name().to_lowercase()).collect();
    let mut shared = HashSet::new();
    for name in taken_names {
        let is_ours = is_ours(&name);
        for named in names.all(&name) {
            let (kind, written) = (named.kind.as_str(), named.written.as_str());
            let may_drop = permissions.replace && !permissions.keep_macros;
            match (kind, permissions.replace) {
                ("table" | "table_macro" | "pragma", _) => {}
                (kind, _) if is_ours && kind != "macro" => {}
                ("scalar", true) => drop(shared.insert(name.clone())),
                ("macro", _) if named.is_mine() && may_drop => named.drop(connection, "MACRO")?,
                ("macro", _) if named.is_mine() => {
                    return Err(taken(
                        written,
                        "a macro of this database, which would be called instead",
                        true,
                    ));
                }
                ("scalar", false) => {
                    let what = "a function that exists already, which would change for the whole database";
                    return Err(taken(written, what, true));
                }
                _ => {
                    return Err(taken(
                        written,
                        &format!("DuckDB's own {kind}, which cannot be replaced"),
                        false,
                    ));
                }
            }
        }
    }
    Ok(shared)
}

/// A table function that is to be loaded.
pub(crate) struct Table {
    function: Arc<Function>,
    /// Whether we have registered a table function of this name.
    ours: bool,
    /// Whether that one has the same parameters.
    same: bool,
}

impl Table {
    pub(crate) fn of(catalog: &Catalog<AnyZygote>, function: Arc<Function>) -> Self {
        let (ours, same) = (catalog.knows(function.name(), true), catalog.knows_all(&function));
        Self { function, ours, same }
    }
}

/// As [`take`], for table functions: DuckDB has at most one of a name, and keeps it.
pub(crate) fn take_tables(
    connection: &Connection,
    names: &Names,
    tables: &[Table],
    permissions: Permissions,
) -> Result<(), Error> {
    let may_drop = permissions.replace && !permissions.keep_macros;
    for Table { function, ours, same } in tables {
        let name = function.name().to_lowercase();
        for named in names.all(&name) {
            let written = named.written.as_str();
            match named.kind.as_str() {
                "table_macro" if named.is_mine() && may_drop => named.drop(connection, "MACRO TABLE")?,
                "table_macro" if named.is_mine() => {
                    let what = "a table macro of this database, which would be called instead";
                    return Err(taken(written, what, true));
                }
                "table" if *same => {}
                "table" if *ours => {
                    return Err(Error::Engine(format!(
                        "DuckDB cannot change the parameters of a table function: {written} has others in this database; \
                         nothing was loaded. Give the function another name, or open the database again"
                    )));
                }
                "table" | "table_macro" => {
                    let what = "DuckDB's own table function, which cannot be replaced";
                    return Err(taken(written, what, false));
                }
                _ => {}
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

/// Checks that DuckDB can distinguish the functions of these names: some versions cannot replace a
/// function by one whose result has another type.
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

/// The error that no function has a name. It suggests similar names of `ours`, or gives other
/// advice.
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
