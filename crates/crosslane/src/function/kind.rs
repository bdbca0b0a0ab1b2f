//! The kinds of functions, and the batches of their exchanges. Engines and guests both use these
//! rules.
//!
//! | kind | entry | rows of the engine | answer of the guest |
//! |---|---|---|---|
//! | scalar | [`Entry::Call`] | the arguments | a result for each row |
//! | table | [`Entry::Scan`] | one row: the partition (BLOB; NULL without), the places of the wanted columns, the arguments | batches of any number of rows: a STRUCT of the wanted columns |
//! | table | [`Entry::Partitions`] | one row: the arguments | batches of any number of rows: a partition as bytes |
//! | stream | [`Entry::Map`] | rows: a STRUCT of the input's columns | batches of any number of rows: a STRUCT of the output's columns |
//! | stream | [`Entry::Iterate`] | the same, in any number of batches; the first and the last message have no rows and columns | the same |
//! | aggregate | [`Entry::Update`] | a state's number, the arguments | a batch without rows and columns |
//! | aggregate | [`Entry::Combine`] | the numbers of two states, of which the second is added to the first; whether the second is kept | the same |
//! | aggregate | [`Entry::Finish`] | a state's number | a result for each row |
//! | aggregate | [`Entry::Save`] | a state's number | a state as bytes for each row |
//! | aggregate | [`Entry::Load`] | a state's number, and a state as bytes that is added to it | a batch without rows and columns |
//! | aggregate | [`Entry::Forget`] | the number of a state that no longer exists | the same |

use crate::lane::Entry;
use crate::types::Signature;
use crate::types::{DataType, Field};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

/// The kind of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It returns one value for each row.
    #[default]
    Scalar,
    /// It returns a table.
    Table,
    /// It returns one value for many rows.
    Aggregate,
    /// It returns batches for each batch.
    Stream,
}

/// The columns that an exchange for an entry of a function carries. [`Kind::entry`] makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryTypes<'a> {
    /// The columns that the engine adds before the arguments.
    pub leading: &'a [Field],
    /// The columns after these: the function's parameters, if the entry takes arguments.
    pub arguments: &'a [Field],
    /// The type of the guest's column; `None` if the guest answers with an empty batch.
    pub returns: Option<&'a DataType>,
}

/// The leading columns of [`Entry::Update`], [`Entry::Finish`], [`Entry::Save`] and
/// [`Entry::Forget`].
static STATE: LazyLock<[Field; 1]> = LazyLock::new(|| [state("state")]);
/// The leading columns of [`Entry::Combine`].
static STATES: LazyLock<[Field; 3]> =
    LazyLock::new(|| [state("target"), state("source"), field("keep", DataType::Boolean)]);
/// The leading columns of [`Entry::Load`].
static SAVED: LazyLock<[Field; 2]> = LazyLock::new(|| [state("state"), field("saved", DataType::Blob)]);
/// The leading columns of [`Entry::Scan`].
static SCAN: LazyLock<[Field; 2]> = LazyLock::new(|| {
    [field("partition", DataType::Blob), field("wanted", DataType::List(Arc::new(DataType::Integer)))]
});
/// The type of partitions and states in batches.
const BYTES: DataType = DataType::Blob;

fn field(name: &str, data_type: DataType) -> Field {
    Field { name: name.into(), data_type }
}

fn state(name: &str) -> Field {
    field(name, DataType::BigInt)
}

impl Kind {
    /// The name of the kind, for guests and users.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Scalar => "scalar",
            Kind::Table => "table",
            Kind::Aggregate => "aggregate",
            Kind::Stream => "stream",
        }
    }

    /// The kind of a function that a file declares with this kind and this signature. A table
    /// function whose parameter is a table is a stream function.
    ///
    /// # Errors
    /// If it is a stream function and one of its two tables has no columns. Only the caller that
    /// maps the stream would know these columns.
    pub fn declared(self, signature: &Signature) -> Result<Self, String> {
        if self != Kind::Table || !signature.stream {
            return Ok(self);
        }
        let mut tables =
            signature.parameters.iter().map(|field| &field.data_type).chain([&signature.returns]);
        if tables.any(|table| *table == DataType::Any) {
            return Err(
                "the columns of both tables are declared: (rows TABLE(column TYPE, ...)) -> TABLE(column TYPE, ...)".into(),
            );
        }
        Ok(Kind::Stream)
    }

    /// The columns of an exchange for this entry of a function with this signature. `None` if
    /// functions of this kind have no such entry.
    pub fn entry(self, entry: Entry, signature: &Signature) -> Option<EntryTypes<'_>> {
        let (parameters, returns) = (&signature.parameters[..], Some(&signature.returns));
        let (leading, arguments, returns): (&[Field], &[Field], _) = match (self, entry) {
            (Kind::Scalar, Entry::Call) => (&[], parameters, returns),
            (Kind::Table, Entry::Scan) => (&*SCAN, parameters, returns),
            (Kind::Table, Entry::Partitions) => (&[], parameters, Some(&BYTES)),
            (Kind::Aggregate, Entry::Update) => (&*STATE, parameters, None),
            (Kind::Aggregate, Entry::Combine) => (&*STATES, &[], None),
            (Kind::Aggregate, Entry::Finish) => (&*STATE, &[], returns),
            (Kind::Aggregate, Entry::Save) => (&*STATE, &[], Some(&BYTES)),
            (Kind::Aggregate, Entry::Load) => (&*SAVED, &[], None),
            (Kind::Aggregate, Entry::Forget) => (&*STATE, &[], None),
            (Kind::Stream, Entry::Map | Entry::Iterate) => (&[], parameters, returns),
            _ => return None,
        };
        Some(EntryTypes { leading, arguments, returns })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let kinds = [Kind::Scalar, Kind::Table, Kind::Aggregate, Kind::Stream];
        let kind = kinds.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| format!("a function's kind is scalar, table, aggregate or stream, not {name:?}"))
    }
}

impl<'a> EntryTypes<'a> {
    /// The columns of the engine.
    pub fn fields(&self) -> impl Iterator<Item = &'a Field> + use<'a> {
        self.leading.iter().chain(self.arguments)
    }

    /// The types of the engine's columns.
    pub fn takes(&self) -> impl Iterator<Item = &'a DataType> + use<'a> {
        self.fields().map(|field| &field.data_type)
    }

    /// The number of rows in the one batch that answers `rows` rows.
    pub fn answer(&self, rows: usize) -> usize {
        if self.returns.is_some() { rows } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries of a kind, each with the engine's columns and the guest's column.
    fn entries(kind: &str) -> Vec<(Entry, String, Option<String>)> {
        let signature: Signature = "f(x DATE, y VARCHAR[]) -> DOUBLE".parse().unwrap();
        let kind: Kind = kind.parse().unwrap();
        let described = |entry| {
            let types = kind.entry(entry, &signature)?;
            let fields: Vec<_> = types.fields().map(Field::to_string).collect();
            assert_eq!(types.answer(7), if types.returns.is_some() { 7 } else { 0 });
            Some((entry, fields.join(", "), types.returns.map(DataType::to_string)))
        };
        (1..=Entry::COUNT as u32).filter_map(Entry::of).filter_map(described).collect()
    }

    #[test]
    fn a_kind_says_which_entries_there_are_and_what_they_carry() {
        let (arguments, returns) = ("x DATE, y VARCHAR[]", || Some("DOUBLE".to_owned()));
        assert_eq!(entries("scalar"), [(Entry::Call, arguments.to_owned(), returns())]);
        let bytes = || Some("BLOB".to_owned());
        assert_eq!(
            entries("table"),
            [
                (Entry::Scan, format!("partition BLOB, wanted INTEGER[], {arguments}"), returns()),
                (Entry::Partitions, arguments.to_owned(), bytes()),
            ]
        );
        assert_eq!(
            entries("aggregate"),
            [
                (Entry::Update, format!("state BIGINT, {arguments}"), None),
                (Entry::Combine, "target BIGINT, source BIGINT, keep BOOLEAN".to_owned(), None),
                (Entry::Finish, "state BIGINT".to_owned(), returns()),
                (Entry::Save, "state BIGINT".to_owned(), bytes()),
                (Entry::Load, "state BIGINT, saved BLOB".to_owned(), None),
                (Entry::Forget, "state BIGINT".to_owned(), None),
            ]
        );
        let stream = |entry| (entry, arguments.to_owned(), returns());
        assert_eq!(entries("stream"), [stream(Entry::Map), stream(Entry::Iterate)]);
    }

    #[test]
    fn a_table_function_of_a_table_is_a_stream_function() {
        let declared = |kind: Kind, text: &str| kind.declared(&text.parse().unwrap());
        let stream = "f(rows TABLE(a INT)) -> TABLE(b INT)";
        assert_eq!(declared(Kind::Table, stream), Ok(Kind::Stream));
        assert_eq!(declared(Kind::Table, "f(a INT) -> TABLE(b INT)"), Ok(Kind::Table));
        // A check that all functions share rejects this signature later.
        assert_eq!(declared(Kind::Scalar, stream), Ok(Kind::Scalar));
        for text in ["f(rows TABLE) -> TABLE(b INT)", "f(rows TABLE(a INT)) -> TABLE"] {
            assert!(declared(Kind::Table, text).unwrap_err().starts_with("the columns of both tables"));
        }
    }

    #[test]
    fn kinds_have_their_names() {
        for kind in [Kind::Scalar, Kind::Table, Kind::Aggregate, Kind::Stream] {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert!("Scalar".parse::<Kind>().unwrap_err().contains("not \"Scalar\""));
    }
}
