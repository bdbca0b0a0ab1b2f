//! Commands as DuckDB's table functions: `CALL name(arguments)`, a few rows as the answer.

use crate::database::{Connection, Database};
use crate::signals::Asker;
use crosslane::{DataType, Error};
use crosslane_vectors::callback::{drop_box, run};
use crosslane_vectors::{Context, LogicalType, Value, add_result_columns};
use libduckdb_sys as ffi;
use std::ffi::CStr;
use std::sync::Arc;

/// A parameter of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Parameter {
    Text,
    /// A list of texts.
    Texts,
    Bytes,
    Integer,
    Boolean,
    /// A value of any type, as its text.
    Any,
    /// Texts that may be given by these names.
    Options(&'static [&'static CStr]),
}

impl Parameter {
    fn logical_type(self) -> Result<LogicalType, Error> {
        match self {
            Parameter::Text | Parameter::Options(_) => LogicalType::new(&DataType::Varchar),
            Parameter::Texts => LogicalType::new(&DataType::List(Arc::new(DataType::Varchar))),
            Parameter::Bytes => LogicalType::new(&DataType::Blob),
            Parameter::Integer => LogicalType::new(&DataType::BigInt),
            Parameter::Boolean => LogicalType::new(&DataType::Boolean),
            Parameter::Any => LogicalType::new(&DataType::Any),
        }
    }
}

/// An argument of a command.
#[derive(Debug, Clone)]
pub(crate) enum Argument {
    Text(String),
    Texts(Vec<String>),
    Bytes(Vec<u8>),
    Integer(i64),
    Flag(bool),
    /// The options that were given, by their names.
    Options(Vec<(&'static str, String)>),
}

/// A value of a command's answer.
#[derive(Debug, Clone)]
pub(crate) enum Cell {
    Null,
    Text(String),
    /// A text that many rows have.
    Shared(Arc<str>),
    Integer(i64),
    Double(f64),
    Boolean(bool),
}

type Answer = Vec<Vec<Cell>>;

/// What a command does for the connection that calls it.
type Run = fn(&Arc<Database>, &[Argument], Asker) -> Result<Answer, Error>;

/// A table function that does something once and answers with rows.
pub(crate) struct Command {
    pub(crate) name: &'static CStr,
    pub(crate) parameters: &'static [Parameter],
    /// Named parameters that are true or false, by default false. They come after the other
    /// arguments.
    pub(crate) flags: &'static [&'static CStr],
    /// The columns of its answer, as SQL writes those of a STRUCT.
    pub(crate) columns: &'static str,
    pub(crate) run: Run,
}

struct Registered {
    command: &'static Command,
    database: Arc<Database>,
}

/// The arguments of a statement that uses a command.
struct Bound {
    arguments: Vec<Argument>,
    asker: Asker,
}

/// The rows that DuckDB has not taken yet. The first call makes them.
struct Cursor(Option<std::vec::IntoIter<Vec<Cell>>>);

impl Command {
    pub(crate) fn register(
        &'static self,
        database: &Arc<Database>,
        connection: &Connection,
    ) -> Result<(), Error> {
        // SAFETY: all handles live across the calls; the extra info is freed by DuckDB.
        unsafe {
            let mut function = ffi::duckdb_create_table_function();
            ffi::duckdb_table_function_set_name(function, self.name.as_ptr());
            for parameter in self.parameters {
                let logical_type = parameter.logical_type()?;
                match parameter {
                    Parameter::Options(names) => names.iter().for_each(|name| {
                        ffi::duckdb_table_function_add_named_parameter(
                            function,
                            name.as_ptr(),
                            logical_type.raw(),
                        );
                    }),
                    _ => ffi::duckdb_table_function_add_parameter(function, logical_type.raw()),
                }
            }
            for flag in self.flags {
                let boolean = LogicalType::new(&DataType::Boolean)?;
                ffi::duckdb_table_function_add_named_parameter(function, flag.as_ptr(), boolean.raw());
            }
            let registered = Registered { command: self, database: Arc::clone(database) };
            let registered = Box::into_raw(Box::new(registered)).cast();
            ffi::duckdb_table_function_set_extra_info(function, registered, Some(drop_box::<Registered>));
            ffi::duckdb_table_function_set_bind(function, Some(bind));
            ffi::duckdb_table_function_set_init(function, Some(init));
            ffi::duckdb_table_function_set_function(function, Some(execute));
            let state = ffi::duckdb_register_table_function(connection.raw(), function);
            ffi::duckdb_destroy_table_function(&raw mut function);
            if state != ffi::duckdb_state_DuckDBSuccess {
                return Err(Error::Engine(format!("DuckDB refused {}", self.name.to_string_lossy())));
            }
        }
        Ok(())
    }
}

unsafe extern "C" fn bind(info: ffi::duckdb_bind_info) {
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_bind_set_error(info, text) };
    // SAFETY: DuckDB passes its own info and the extra info that was registered.
    run(set_error, || unsafe {
        let registered = &*ffi::duckdb_bind_get_extra_info(info).cast::<Registered>();
        let columns = format!("STRUCT({})", registered.command.columns);
        add_result_columns(info, &columns.parse()?)?;
        let mut arguments = Vec::new();
        for (index, parameter) in registered.command.parameters.iter().enumerate() {
            arguments.push(match parameter {
                Parameter::Options(names) => options(info, names)?,
                _ => {
                    let value = ffi::duckdb_bind_get_parameter(info, index as ffi::idx_t);
                    argument(&Value::owned(value), *parameter)?
                }
            });
        }
        for flag in registered.command.flags {
            let value = Value::owned(ffi::duckdb_bind_get_named_parameter(info, flag.as_ptr()));
            arguments.push(Argument::Flag(!value.is_null() && ffi::duckdb_get_bool(value.raw())));
        }
        let bound = Bound { arguments, asker: Asker::of(Context::of_bind(info).client) };
        ffi::duckdb_bind_set_bind_data(info, Box::into_raw(Box::new(bound)).cast(), Some(drop_box::<Bound>));
        Ok(())
    });
}

/// The options with these names that a statement gives.
///
/// # Safety
/// The info must be one that DuckDB passes to a bind function.
unsafe fn options(info: ffi::duckdb_bind_info, names: &'static [&'static CStr]) -> Result<Argument, Error> {
    let mut given = Vec::new();
    for name in names {
        // SAFETY: as the caller says. The value is ours.
        let value = unsafe { Value::owned(ffi::duckdb_bind_get_named_parameter(info, name.as_ptr())) };
        if let Some(value) = value.text() {
            given.push((name.to_str().map_err(|error| Error::Engine(error.to_string()))?, value));
        }
    }
    Ok(Argument::Options(given))
}

/// # Safety
/// The value must be of the parameter's type, which is not that of options.
unsafe fn argument(value: &Value, parameter: Parameter) -> Result<Argument, Error> {
    if value.is_null() {
        return Err(Error::Engine("an argument is NULL".into()));
    }
    // SAFETY: as the caller says; what DuckDB allocates for us is freed by us.
    unsafe {
        Ok(match parameter {
            Parameter::Integer => Argument::Integer(ffi::duckdb_get_int64(value.raw())),
            Parameter::Boolean => Argument::Flag(ffi::duckdb_get_bool(value.raw())),
            Parameter::Bytes => {
                let blob = ffi::duckdb_get_blob(value.raw());
                let bytes = std::slice::from_raw_parts(blob.data.cast::<u8>(), blob.size as usize).to_vec();
                ffi::duckdb_free(blob.data);
                Argument::Bytes(bytes)
            }
            Parameter::Texts => {
                let text = |index| Value::owned(ffi::duckdb_get_list_child(value.raw(), index)).text();
                let each = (0..ffi::duckdb_get_list_size(value.raw()))
                    .map(|index| text(index).ok_or_else(|| Error::Engine("an argument has a NULL".into())));
                Argument::Texts(each.collect::<Result<_, _>>()?)
            }
            Parameter::Text | Parameter::Any | Parameter::Options(_) => {
                Argument::Text(value.text().unwrap_or_default())
            }
        })
    }
}

unsafe extern "C" fn init(info: ffi::duckdb_init_info) {
    let cursor = Box::into_raw(Box::new(Cursor(None))).cast();
    // SAFETY: DuckDB passes its own info, and frees the cursor.
    unsafe {
        ffi::duckdb_init_set_init_data(info, cursor, Some(drop_box::<Cursor>));
        ffi::duckdb_init_set_max_threads(info, 1);
    }
}

unsafe extern "C" fn execute(info: ffi::duckdb_function_info, output: ffi::duckdb_data_chunk) {
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_function_set_error(info, text) };
    // SAFETY: DuckDB passes its own info, the data that bind and init set (the cursor to one thread
    // only), and a chunk of the declared columns.
    run(set_error, || unsafe {
        let registered = &*ffi::duckdb_function_get_extra_info(info).cast::<Registered>();
        let cursor = &mut *ffi::duckdb_function_get_init_data(info).cast::<Cursor>();
        let rows = match &mut cursor.0 {
            Some(rows) => rows,
            None => {
                let bound = &*ffi::duckdb_function_get_bind_data(info).cast::<Bound>();
                let answer = (registered.command.run)(&registered.database, &bound.arguments, bound.asker)?;
                cursor.0.insert(answer.into_iter())
            }
        };
        let capacity = ffi::duckdb_vector_size() as usize;
        let mut count = 0;
        for row in rows.take(capacity) {
            for (index, cell) in row.into_iter().enumerate() {
                let vector = ffi::duckdb_data_chunk_get_vector(output, index as ffi::idx_t);
                write(vector, count, cell);
            }
            count += 1;
        }
        ffi::duckdb_data_chunk_set_size(output, count as ffi::idx_t);
        Ok(())
    });
}

/// # Safety
/// The vector must be of the cell's type and have the row.
unsafe fn write(vector: ffi::duckdb_vector, row: usize, cell: Cell) {
    // SAFETY: as the caller says.
    unsafe {
        let data = ffi::duckdb_vector_get_data(vector);
        match cell {
            Cell::Null => {
                ffi::duckdb_vector_ensure_validity_writable(vector);
                ffi::duckdb_validity_set_row_invalid(
                    ffi::duckdb_vector_get_validity(vector),
                    row as ffi::idx_t,
                );
            }
            Cell::Integer(value) => data.cast::<i64>().add(row).write(value),
            Cell::Double(value) => data.cast::<f64>().add(row).write(value),
            Cell::Boolean(value) => data.cast::<bool>().add(row).write(value),
            Cell::Text(text) => write_text(vector, row, &text),
            Cell::Shared(text) => write_text(vector, row, &text),
        }
    }
}

/// # Safety
/// The vector must be one of texts and have the row.
unsafe fn write_text(vector: ffi::duckdb_vector, row: usize, text: &str) {
    let (start, length) = (text.as_ptr().cast(), text.len() as ffi::idx_t);
    // SAFETY: as the caller says; DuckDB copies the text.
    unsafe { ffi::duckdb_vector_assign_string_element_len(vector, row as ffi::idx_t, start, length) };
}
