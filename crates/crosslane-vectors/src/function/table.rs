//! Functions as DuckDB's table functions: what all adapters do alike.
//!
//! Binding reads the arguments and declares the columns. It also happens for EXPLAIN and PREPARE,
//! and calls no function. When the query begins, it asks the function for its partitions, if it has
//! any. Then each worker scans one partition at a time, and holds a lane for that ([`Scan`]). The
//! lane makes the next rows while DuckDB uses the last ones. A query that ends early drops its
//! scans, which cancels them.

use super::bind::arguments;
use super::callback::{drop_box, run};
use super::context::Context;
use super::registration::{add_result_columns, c_string};
use crate::input::Arguments;
use crate::output::{Projection, Results};
use crate::types::LogicalType;
use crosslane::batch::Column;
use crosslane::call::{Asked, CallGroup, Caller, LARGEST_PARTITIONS, Output, Row, Scan};
use crosslane::pool::Zygote;
use crosslane::stats::now;
use crosslane::{DataType, Entry, Error, Function, Library};
use libduckdb_sys as ffi;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What an adapter knows of a registered table function.
pub trait Table: Send + Sync + 'static {
    /// What runs the functions.
    type Zygote: Zygote;
    /// What one query needs of the function, from its begin to its end.
    type Query: Query<Self::Zygote>;

    /// The function, as a statement is bound to it.
    ///
    /// # Errors
    /// If it is no more.
    fn function(&self) -> Result<Arc<Function>, Error>;

    /// One use of the function, with the arguments for its [parameters](Function::parameters).
    ///
    /// # Errors
    /// If its columns are not known.
    fn bind(&self, function: &Function, arguments: Row, context: Context) -> Result<Bound, Error> {
        Ok(Bound { arguments, rows: function.signature.returns.clone(), context })
    }

    /// A query begins.
    ///
    /// # Errors
    /// If there is nothing that could run the function.
    fn begin(&self, context: Context) -> Result<Self::Query, Error>;
}

/// A table function in a query that runs.
pub trait Query<Z: Zygote>: Send + Sync + 'static {
    /// What runs it.
    fn library(&self) -> &Arc<Library<Z>>;

    /// The function.
    fn function(&self) -> &Arc<Function>;

    /// The group with which it is cancelled.
    fn group(&self) -> &CallGroup;

    /// The arguments of the scans.
    ///
    /// # Errors
    /// If there is no memory for it.
    fn arguments(&self, bound: &Row) -> Result<Row, Error> {
        Ok(bound.clone())
    }

    /// The outcome of a step that DuckDB gets.
    ///
    /// # Errors
    /// If it failed.
    fn settle<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome
    }
}

/// One use of a table function in a statement.
#[derive(Debug)]
pub struct Bound {
    /// The arguments of the scans.
    pub arguments: Row,
    /// A STRUCT of its columns.
    pub rows: DataType,
    /// The statement's connection.
    pub context: Context,
}

/// Makes a table function callable on all connections of the database, from the next statement on.
/// If DuckDB already has a table function of this name, it keeps that without an error, so the
/// caller must check this before.
///
/// # Errors
/// [`Error::Engine`] if it is no table function, or DuckDB refuses it.
///
/// # Safety
/// The connection must be open.
pub unsafe fn register_table<T: Table>(
    connection: ffi::duckdb_connection,
    function: &Function,
    extra: T,
) -> Result<(), Error> {
    function.entry(Entry::Scan)?;
    let name = c_string(function.name())?;
    let parameters = function
        .parameters()
        .iter()
        .zip(&function.spec.named)
        .map(|(field, named)| {
            let name = named.then(|| c_string(&field.name)).transpose()?;
            Ok((name, LogicalType::new(&field.data_type)?))
        })
        .collect::<Result<Vec<_>, Error>>()?;
    // SAFETY: all handles live across the calls; what is registered is freed by DuckDB through
    // `drop_box`.
    let state = unsafe {
        let mut table = ffi::duckdb_create_table_function();
        ffi::duckdb_table_function_set_name(table, name.as_ptr());
        for (name, data_type) in &parameters {
            match name {
                None => ffi::duckdb_table_function_add_parameter(table, data_type.raw()),
                Some(name) => {
                    ffi::duckdb_table_function_add_named_parameter(table, name.as_ptr(), data_type.raw());
                }
            }
        }
        let extra = Box::into_raw(Box::new(extra)).cast();
        ffi::duckdb_table_function_set_extra_info(table, extra, Some(drop_box::<T>));
        ffi::duckdb_table_function_set_bind(table, Some(bind::<T>));
        ffi::duckdb_table_function_set_init(table, Some(init::<T>));
        ffi::duckdb_table_function_set_local_init(table, Some(local_init::<T>));
        ffi::duckdb_table_function_set_function(table, Some(execute::<T>));
        ffi::duckdb_table_function_supports_projection_pushdown(table, true);
        let state = ffi::duckdb_register_table_function(connection, table);
        ffi::duckdb_destroy_table_function(&raw mut table);
        state
    };
    if state != ffi::duckdb_state_DuckDBSuccess {
        return Err(Error::Engine(format!("DuckDB refused {}", function.signature)));
    }
    Ok(())
}

unsafe extern "C" fn bind<T: Table>(info: ffi::duckdb_bind_info) {
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_bind_set_error(info, text) };
    // SAFETY: DuckDB passes its own info and the extra info that was registered, and copies what it
    // is given.
    run(set_error, || unsafe {
        let table = &*ffi::duckdb_bind_get_extra_info(info).cast::<T>();
        let function = table.function()?;
        let parameters = function.parameters();
        let arguments = arguments(info, parameters, &function.spec.named)?;
        let types = || parameters.iter().map(|field| &field.data_type);
        let row = Row::of(&Arguments::new(arguments.0, types()), types().cloned())?;
        let bound = table.bind(&function, row, Context::of_bind(info))?;
        add_result_columns(info, &bound.rows)?;
        if let Some(rows) = function.spec.cardinality {
            ffi::duckdb_bind_set_cardinality(info, rows, false);
        }
        let bound = Box::into_raw(Box::new(bound)).cast();
        ffi::duckdb_bind_set_bind_data(info, bound, Some(drop_box::<Bound>));
        Ok(())
    });
}

/// A table function in a query that runs, for all its workers.
struct Running<T: Table> {
    query: T::Query,
    arguments: Row,
    projection: Projection,
    parts: Parts,
    begun: u64,
}

/// The parts of a table that the workers of a query scan.
#[derive(Debug)]
struct Parts {
    /// The partitions; `None` if the table has no partitions, so that it is one part.
    partitions: Option<Vec<Vec<u8>>>,
    next: AtomicUsize,
}

impl Parts {
    fn of(partitions: Option<Vec<Vec<u8>>>) -> Self {
        Self { partitions, next: AtomicUsize::new(0) }
    }

    fn count(&self) -> usize {
        self.partitions.as_ref().map_or(1, Vec::len)
    }

    /// The next part that no worker has taken: a partition, if the table has any.
    fn next(&self) -> Option<Option<Vec<u8>>> {
        let at = self.next.fetch_add(1, Relaxed);
        match &self.partitions {
            None => (at == 0).then_some(None),
            Some(partitions) => partitions.get(at).cloned().map(Some),
        }
    }
}

impl<T: Table> Running<T> {
    fn new(query: T::Query, bound: &Bound, projection: Projection) -> Result<Self, Error> {
        let parts = Parts::of(None);
        let arguments = query.arguments(&bound.arguments)?;
        let mut this = Self { query, arguments, projection, parts, begun: now() };
        let spec = &this.query.function().spec;
        let columns = this.arguments.columns()?;
        let mut parameters = columns.iter().zip(&spec.admits_null).zip(&spec.named);
        let is_empty = parameters.any(|((column, admits), named)| !admits && !named && !column.is_valid(0));
        if is_empty {
            this.parts = Parts::of(Some(Vec::new()));
        } else if spec.partitions {
            this.parts = Parts::of(Some(this.query.settle(this.partitions())?));
        }
        Ok(this)
    }

    fn caller(&self) -> Caller<'_> {
        Caller::since(self.query.group(), 1, self.begun)
    }

    /// Asks the function for its partitions.
    fn partitions(&self) -> Result<Vec<Vec<u8>>, Error> {
        let (library, function) = (self.query.library(), self.query.function());
        let arguments = self.arguments.clone();
        let partitions = Scan::partitions(library, function, self.caller(), arguments, LARGEST_PARTITIONS)?;
        Ok(partitions.into_iter().flatten().collect())
    }
}

/// The scan of one worker.
enum Part<T: Table> {
    /// The next part, if there is one.
    Next,
    Open(Box<Scan<T::Zygote, Asked>>),
    Over,
}

impl<T: Table> Part<T> {
    /// Puts the next rows into a chunk. Returns how many; 0 if there are no more.
    ///
    /// # Safety
    /// The chunk must be an empty one of the scan's columns.
    unsafe fn next(&mut self, running: &Running<T>, output: ffi::duckdb_data_chunk) -> Result<usize, Error> {
        let Running { query, arguments, projection, parts, .. } = running;
        loop {
            match self {
                Part::Over => return Ok(0),
                Part::Next => {
                    let Some(partition) = parts.next() else {
                        *self = Part::Over;
                        continue;
                    };
                    let (wanted, arguments) = (Arc::clone(&projection.wanted), arguments.clone());
                    let asked = Asked { partition, wanted, arguments };
                    let (library, function) = (Arc::clone(query.library()), Arc::clone(query.function()));
                    let rows = projection.rows.clone();
                    let scan = Scan::open(library, function, running.caller(), rows, asked)?;
                    *self = Part::Open(Box::new(scan));
                }
                Part::Open(scan) => {
                    if let Some(batch) = scan.next(running.caller())? {
                        // SAFETY: as the caller says.
                        unsafe { write(&batch, projection, output)? };
                        return Ok(batch.rows);
                    }
                    *self = Part::Next;
                }
            }
        }
    }
}

/// # Safety
/// The chunk must be an empty one of the projection's columns.
unsafe fn write(
    batch: &Column<'_>,
    projection: &Projection,
    output: ffi::duckdb_data_chunk,
) -> Result<(), Error> {
    for (index, column) in (0..).zip(projection.vectors(batch)) {
        // SAFETY: the chunk's vectors are of the columns' types, as the caller says, and have so
        // many rows.
        unsafe {
            let capacity = ffi::duckdb_vector_size() as usize;
            let vector = ffi::duckdb_data_chunk_get_vector(output, index);
            Results::new(vector, column.data_type, capacity).accept(0, column)?;
        }
    }
    Ok(())
}

unsafe extern "C" fn init<T: Table>(info: ffi::duckdb_init_info) {
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_init_set_error(info, text) };
    // SAFETY: DuckDB passes its own info, and what was registered and bound.
    run(set_error, || unsafe {
        let table = &*ffi::duckdb_init_get_extra_info(info).cast::<T>();
        let bound = &*ffi::duckdb_init_get_bind_data(info).cast::<Bound>();
        let projection = Projection::of(info, &bound.rows)?;
        let running = Running::<T>::new(table.begin(bound.context)?, bound, projection)?;
        let threads = running.parts.count().clamp(1, bound.context.threads);
        let running = Box::into_raw(Box::new(running)).cast();
        ffi::duckdb_init_set_init_data(info, running, Some(drop_box::<Running<T>>));
        ffi::duckdb_init_set_max_threads(info, threads as ffi::idx_t);
        Ok(())
    });
}

unsafe extern "C" fn local_init<T: Table>(info: ffi::duckdb_init_info) {
    let part = Box::into_raw(Box::new(Part::<T>::Next)).cast();
    // SAFETY: DuckDB passes its own info, and frees the part.
    unsafe { ffi::duckdb_init_set_init_data(info, part, Some(drop_box::<Part<T>>)) };
}

unsafe extern "C" fn execute<T: Table>(info: ffi::duckdb_function_info, output: ffi::duckdb_data_chunk) {
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_function_set_error(info, text) };
    // SAFETY: DuckDB passes its own info, what `init` made, this worker's part (to one thread at a
    // time), and a chunk of the declared columns.
    run(set_error, || unsafe {
        let running = &*ffi::duckdb_function_get_init_data(info).cast::<Running<T>>();
        let part = &mut *ffi::duckdb_function_get_local_init_data(info).cast::<Part<T>>();
        let rows = running.query.settle(part.next(running, output)).inspect_err(|_| *part = Part::Over)?;
        ffi::duckdb_data_chunk_set_size(output, rows as ffi::idx_t);
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Table for Nobody {
        type Zygote = crosslane_process::Zygote;
        type Query = Nobody;
        fn function(&self) -> Result<Arc<Function>, Error> {
            unreachable!()
        }
        fn begin(&self, _: Context) -> Result<Nobody, Error> {
            unreachable!()
        }
    }

    impl Query<crosslane_process::Zygote> for Nobody {
        fn library(&self) -> &Arc<Library<crosslane_process::Zygote>> {
            unreachable!()
        }
        fn function(&self) -> &Arc<Function> {
            unreachable!()
        }
        fn group(&self) -> &CallGroup {
            unreachable!()
        }
    }

    #[test]
    fn other_functions_are_refused() {
        for kind in ["scalar", "aggregate"] {
            let spec = serde_json::json!({ "signature": "f() -> BIGINT", "kind": kind, "admits_null": [] });
            let function = Function::new(0, serde_json::from_value(spec).unwrap()).unwrap();
            // SAFETY: it is refused before the connection is used.
            let refused = unsafe { register_table(std::ptr::null_mut(), &function, Nobody) };
            let text = refused.unwrap_err().to_string();
            assert_eq!(text, format!("f is of the kind {kind}, which has no entry Scan"));
        }
    }

    #[test]
    fn each_part_is_for_one_worker() {
        let whole = Parts::of(None);
        assert_eq!((whole.count(), whole.next(), whole.next()), (1, Some(None), None));
        let parts = Parts::of(Some(vec![b"a".to_vec(), b"b".to_vec()]));
        let taken = [parts.next(), parts.next(), parts.next()];
        assert_eq!(taken, [Some(Some(b"a".to_vec())), Some(Some(b"b".to_vec())), None]);
        assert_eq!(Parts::of(Some(Vec::new())).next(), None);
    }
}
