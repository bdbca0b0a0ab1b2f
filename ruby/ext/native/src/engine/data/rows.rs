//! The rows of a query. They become Ruby objects chunk by chunk, when they are fetched.

use crate::engine::connection::closing::{Raw, briefly, in_own_process};
use crate::engine::connection::link::Link;
use crate::engine::connection::session::failure;
use crate::engine::library::text::text;
use crate::values::{Reader, columns};
use crosslane::DataType;
use crosslane::batch;
use crosslane::call::Input;
use crosslane_vectors::{Arguments, Chunk, data_type};
use libduckdb_sys as ffi;
use magnus::{Error, RArray};
use std::cell::{RefCell, RefMut};
use std::sync::Arc;

/// `Crosslane::Native::Rows`.
#[magnus::wrap(class = "Crosslane::Native::Rows", free_immediately)]
#[derive(Debug)]
pub(crate) struct Rows(RefCell<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) raw: ffi::duckdb_result,
    pub(crate) names: Vec<String>,
    /// The type of each column. For a column without a corresponding type, the reason. Such a
    /// column can still be exported as Arrow.
    pub(crate) types: Vec<Result<DataType, String>>,
    readers: Vec<Reader>,
    pub(crate) link: Option<Arc<Link>>,
    /// Whether the query still runs and makes the rows.
    streams: bool,
    process: u32,
    closed: bool,
}

// SAFETY: only used with the GVL, by one thread at a time.
unsafe impl Send for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        self.free();
    }
}

impl Inner {
    fn free(&mut self) {
        // SAFETY: an all-zero result is an empty one.
        let raw = std::mem::replace(&mut self.raw, unsafe { std::mem::zeroed() });
        let (raw, link, streams) = (Raw(raw), self.link.take(), std::mem::take(&mut self.streams));
        in_own_process(self.process, move || {
            let Raw(mut raw) = { raw };
            // SAFETY: ours, destroyed once; destroying an empty result does nothing.
            unsafe { ffi::duckdb_destroy_result(&raw mut raw) };
            if let Some(link) = link.filter(|_| streams) {
                link.end_stream();
            }
        });
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
            streams: false,
            process: std::process::id(),
            closed: false,
        };
        Self(RefCell::new(inner))
    }

    pub(crate) fn raw_mut(&mut self) -> *mut ffi::duckdb_result {
        &raw mut self.0.get_mut().raw
    }

    pub(crate) fn inner(&self) -> Result<RefMut<'_, Inner>, Error> {
        self.0.try_borrow_mut().map_err(|_| failure(None, "the rows are being read already"))
    }

    /// Reads the types of the columns.
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

    /// Marks the rows as those of a running query.
    pub(crate) fn stream(&mut self) {
        self.0.get_mut().streams = true;
    }

    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        Ok(self.inner()?.names.clone())
    }

    /// The SQL types of the columns; nil for types that Ruby cannot read.
    pub(crate) fn types(&self) -> Result<Vec<Option<String>>, Error> {
        let inner = self.inner()?;
        Ok(inner.types.iter().map(|data_type| data_type.as_ref().ok().map(DataType::to_string)).collect())
    }

    /// The number of rows that an INSERT, UPDATE or DELETE changed.
    pub(crate) fn changed(&self) -> Result<u64, Error> {
        // SAFETY: the result is complete.
        Ok(unsafe { ffi::duckdb_rows_changed(&raw mut self.inner()?.raw) })
    }

    /// Frees the unread rows, unless a thread is reading them.
    pub(crate) fn free(&self) {
        let Ok(mut inner) = self.0.try_borrow_mut() else { return };
        let inner = &mut *inner;
        inner.closed = true;
        briefly(|| inner.free());
    }

    /// The rows of the next chunk as Arrays; nil after the last one.
    pub(crate) fn fetch(&self) -> Result<Option<RArray>, Error> {
        let mut inner = self.inner()?;
        let inner = &mut *inner;
        if inner.closed {
            return Err(failure(None, "the database is closed"));
        }
        if inner.process != std::process::id() {
            return Err(failure(None, "this process was forked after the query; ask again in the child"));
        }
        let mut types = Vec::with_capacity(inner.types.len());
        for (name, data_type) in inner.names.iter().zip(&inner.types) {
            let known = data_type.as_ref();
            types.push(known.map_err(|why| failure(None, &format!("column {name}: {why}")))?);
        }
        if inner.readers.is_empty() {
            inner.readers = types.iter().map(|known| columns::reader(known)).collect::<Result<_, _>>()?;
        }
        let chunk = match (inner.streams, &inner.link) {
            // SAFETY: the result is one of this connection.
            (true, Some(link)) => unsafe { link.fetch(inner.raw) }?,
            // SAFETY: the result is complete.
            _ => Chunk(unsafe { ffi::duckdb_fetch_chunk(inner.raw) }),
        };
        let ended = chunk.0.is_null() && std::mem::take(&mut inner.streams);
        if let Some(link) = inner.link.as_ref().filter(|_| ended) {
            // SAFETY: the text belongs to the result.
            let failed = unsafe { text(ffi::duckdb_result_error(&raw mut inner.raw)) };
            if !failed.is_empty() {
                return Err(link.failure(&failed));
            }
            if let Some(left) = link.session.left_for_good() {
                return Err(failure(Some(left), "the query was left"));
            }
        }
        if chunk.0.is_null() {
            return Ok(None);
        }
        // SAFETY: the chunk lives, and its columns are of these types.
        let arguments = unsafe { Arguments::new(chunk.0, types.clone()) };
        let count = arguments.rows();
        let frame = arguments.frame(0..count).map_err(|error| failure(None, &error.to_string()))?;
        let columns =
            batch::columns(frame.bytes(), types.iter().copied()).map_err(crate::errors::argument_error)?;
        columns::rows(&inner.readers, &columns, 0..count).map(Some)
    }
}
