//! The rows of a query: made into Ruby objects chunk by chunk, when they are asked for.

use crate::engine::database::{Link, Raw, in_own_process, text};
use crate::engine::session::failure;
use crate::reader::Reader;
use crosslane::DataType;
use crosslane::batch::{self, Header, Plan, Trust};
use crosslane::call::Input;
use crosslane_gvl::protect;
use crosslane_vectors::{Arguments, data_type};
use libduckdb_sys as ffi;
use magnus::rb_sys::FromRawValue;
use magnus::{Error, RArray, TryConvert, Value};
use rb_sys::{Qnil, VALUE};
use std::cell::RefCell;
use std::sync::Arc;

/// `Crosslane::Native::Rows`.
#[magnus::wrap(class = "Crosslane::Native::Rows", free_immediately)]
#[derive(Debug)]
pub(crate) struct Rows(RefCell<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) raw: ffi::duckdb_result,
    pub(crate) names: Vec<String>,
    /// Of columns that have no counterpart: why. They can still go out as Arrow.
    pub(crate) types: Vec<Result<DataType, String>>,
    readers: Vec<Reader>,
    pub(crate) link: Option<Arc<Link>>,
    process: u32,
}

// SAFETY: only used with the GVL, by one thread at a time.
unsafe impl Send for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let (raw, link) = (Raw(self.raw), self.link.take());
        in_own_process(self.process, move || {
            let Raw(mut raw) = { raw };
            // SAFETY: ours, destroyed once; destroying an empty result does nothing.
            unsafe { ffi::duckdb_destroy_result(&raw mut raw) };
            drop(link);
        });
    }
}

/// A chunk of rows, destroyed when dropped.
pub(crate) struct Chunk(pub(crate) ffi::duckdb_data_chunk);

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_data_chunk(&raw mut self.0) };
    }
}

impl Rows {
    pub(crate) fn empty() -> Self {
        // SAFETY: an all-zero result is an empty one.
        let raw = unsafe { std::mem::zeroed() };
        let inner = Inner {
            raw,
            names: Vec::new(),
            types: Vec::new(),
            readers: Vec::new(),
            link: None,
            process: std::process::id(),
        };
        Self(RefCell::new(inner))
    }

    pub(crate) fn raw_mut(&mut self) -> *mut ffi::duckdb_result {
        &raw mut self.0.get_mut().raw
    }

    pub(crate) fn inner(&self) -> std::cell::RefMut<'_, Inner> {
        self.0.borrow_mut()
    }

    /// Reads what the columns are.
    pub(crate) fn describe(&mut self, link: Arc<Link>) -> Result<(), Error> {
        let inner = self.0.get_mut();
        inner.link = Some(link);
        // SAFETY: the result is complete; the handles are destroyed.
        unsafe {
            for index in 0..ffi::duckdb_column_count(&raw mut inner.raw) {
                inner.names.push(text(ffi::duckdb_column_name(&raw mut inner.raw, index)));
                let mut logical = ffi::duckdb_column_logical_type(&raw mut inner.raw, index);
                inner.types.push(data_type(logical).map_err(|error| error.to_string()));
                ffi::duckdb_destroy_logical_type(&raw mut logical);
            }
        }
        Ok(())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.inner().names.clone()
    }

    /// The columns' types as SQL writes them; nil for those that Ruby cannot have.
    pub(crate) fn types(&self) -> Vec<Option<String>> {
        self.inner().types.iter().map(|data_type| data_type.as_ref().ok().map(DataType::to_string)).collect()
    }

    /// How many rows an INSERT, UPDATE or DELETE changed.
    pub(crate) fn changed(&self) -> u64 {
        // SAFETY: the result is complete.
        unsafe { ffi::duckdb_rows_changed(&raw mut self.inner().raw) }
    }

    /// The rows of the next chunk as Arrays; nil at the end.
    pub(crate) fn fetch(&self) -> Result<Option<RArray>, Error> {
        let mut inner = self.inner();
        let inner = &mut *inner;
        if inner.process != std::process::id() {
            return Err(failure(None, "this process was forked after the query; ask again in the child"));
        }
        let mut types = Vec::with_capacity(inner.types.len());
        for (name, data_type) in inner.names.iter().zip(&inner.types) {
            let known = data_type.as_ref();
            types.push(known.map_err(|why| failure(None, &format!("column {name}: {why}")))?);
        }
        if inner.readers.is_empty() {
            inner.readers = types.iter().map(|data_type| Reader::new(data_type)).collect::<Result<_, _>>()?;
        }
        // SAFETY: the result is complete; the chunk is ours.
        let chunk = Chunk(unsafe { ffi::duckdb_fetch_chunk(inner.raw) });
        if chunk.0.is_null() {
            return Ok(None);
        }
        // SAFETY: the chunk lives, and its columns are of these types.
        let arguments = unsafe { Arguments::new(chunk.0, types.clone()) };
        let frame = Frame::of(&arguments);
        let columns = batch::columns(frame.bytes(), types.iter().copied(), Trust::Values)
            .map_err(crate::argument_error)?;
        let mut rows = Qnil as VALUE;
        let readers = &inner.readers;
        let count = arguments.rows();
        // SAFETY: protected, and nothing in the closure is to be dropped.
        protect(|| unsafe {
            rows = rb_sys::rb_ary_new_capa(count as i64);
            for row in 0..count {
                let values = rb_sys::rb_ary_new_capa(columns.len() as i64);
                for (reader, column) in readers.iter().zip(&columns) {
                    rb_sys::rb_ary_push(values, reader.read(column, row));
                }
                rb_sys::rb_ary_push(rows, values);
            }
        })?;
        // SAFETY: the Array lies on this stack.
        Ok(Some(RArray::try_convert(unsafe { Value::from_raw(rows) })?))
    }
}

/// Columns in the format of a lane, outside of one.
pub(crate) struct Frame(Vec<u64>, usize);

impl Frame {
    /// All rows of a chunk.
    pub(crate) fn of(arguments: &Arguments<'_>) -> Self {
        let rows = arguments.rows();
        let source = arguments.slice(0..rows);
        let mut plan = Plan::default();
        source.plan(&mut plan);
        let mut words = vec![0u64; plan.size().div_ceil(8)];
        let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..plan.size()];
        source.write(&mut plan.start(bytes, Header { rows: rows as u32, ..Header::default() }));
        Self(words, plan.size())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }
}
