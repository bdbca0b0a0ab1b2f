//! The description that a guest gives of its functions.

use super::kind::Kind;
use super::on_error::{ErrorPolicy, OnError};
use crate::error::bounded;
use crate::sandbox::Sandbox;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The way in which a guest calls a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Calling {
    /// One row at a time.
    #[default]
    Row,
    /// A whole batch of columns at a time.
    Vectorized,
    /// Several rows at a time, each of which may wait.
    Async,
}

impl Calling {
    /// The name of the calling, for guests and users.
    pub fn name(self) -> &'static str {
        match self {
            Calling::Row => "row",
            Calling::Vectorized => "vectorized",
            Calling::Async => "async",
        }
    }
}

/// The description that a guest gives of one function.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct FunctionSpec {
    /// The signature as text.
    pub signature: String,
    /// The kind of the function.
    pub kind: Kind,
    /// For each parameter, whether the function gets NULLs.
    pub admits_null: Vec<bool>,
    /// Whether equal arguments give equal results. If so, the engine may call the function once for
    /// many rows.
    pub deterministic: bool,
    /// The way in which the guest calls it.
    pub calling: Calling,
    /// Whether the guest itself ends calls that exceed `timeout`. Its lane then stays in use.
    pub ends_late_calls: bool,
    /// The number of rows in flight at once in one lane. It is 1 unless the calling has several
    /// rows at a time.
    pub concurrency: u32,
    /// The seconds after which a call is ended.
    pub timeout: Option<f64>,
    /// The bytes that the function may allocate.
    pub memory_limit: Option<u64>,
    /// The bytes that kept results may take. Without it, no results are kept.
    pub memoize: Option<u64>,
    /// The most calls in a time, such as "50/s".
    pub rate: Option<String>,
    /// The most calls within one query.
    pub budget: Option<u64>,
    /// The most rows of a call that gets many rows.
    pub batch: Option<u32>,
    /// What the function may do. The engine knows it, and not the guest. `None` if it is in no sandbox.
    #[serde(skip)]
    pub sandbox: Option<Arc<Sandbox>>,
    /// The sandbox that its lanes enter, in addition to that of the library. It then has lanes of its
    /// own.
    pub own_sandbox: Option<Sandbox>,
    /// The file of results that are kept for later programs. It is "" for a file in the user's cache.
    pub cache: Option<String>,
    /// The seconds after which a kept result holds no more.
    pub ttl: Option<f64>,
    /// Whether a server calls it that keeps its results for all clients. Then only the server counts its
    /// calls for the `rate`, because it knows which rows it calls. Results with a `ttl` are kept only
    /// there.
    #[serde(skip)]
    pub kept_by_server: bool,
    /// The most lanes that call the function. It then has lanes of its own.
    pub workers: Option<u32>,
    /// The GPUs that each of its own lanes sees.
    pub gpus: Option<u32>,
    /// The result of a row whose call failed.
    pub on_error: OnError,
    /// The number of times that a failed call is tried again.
    pub retries: u32,
    /// The user's file.
    pub file: String,
    /// The line of the definition, from 1.
    pub line: u32,
    /// For each parameter, whether SQL names it and may omit it. An omitted argument is sent as
    /// NULL. The guest omits it in the call, so the function uses its own default.
    pub named: Vec<bool>,
    /// The number of parameters at the end that only the engine uses. SQL and errors do not show
    /// them. Only tables have such parameters.
    pub hidden: usize,
    /// Whether a table has partitions, which several lanes can scan at once.
    pub partitions: bool,
    /// The approximate number of rows of a table.
    pub cardinality: Option<u64>,
    /// Whether the function prepares each lane before its first use there.
    pub set_up: bool,
    /// The seconds that a set-up may take inside a call. This applies to guests that end late calls
    /// themselves, if a lane has lost its set-up.
    pub set_up_timeout: Option<f64>,
    /// Whether a stream function is called once, with an iterator over all batches
    /// ([`Entry::Iterate`]).
    pub iterates: bool,
    /// Whether the engine must not cut batches, because the result of a row may depend on the other
    /// rows.
    pub whole_batches: bool,
    /// Whether the function is an overload: it leaves functions of its name with other types in
    /// place. Otherwise it replaces them.
    pub overload: bool,
    /// The user's description: a docstring, or the comment above the function.
    #[serde(deserialize_with = "bounded")]
    pub description: String,
}

/// The longest `timeout`, in seconds: 31 years. Adding it to the current time does not overflow.
pub const LONGEST_TIMEOUT: f64 = 1e9;
/// The largest `retries`.
pub const MOST_RETRIES: u32 = 1_000_000;
/// The largest `concurrency`.
pub const MOST_CONCURRENCY: u32 = 65_536;
/// The largest `workers`, and the largest `gpus`.
pub const MOST_WORKERS: u32 = 1024;
/// The largest `batch`.
pub const MOST_BATCH: u32 = 1_000_000;
/// The largest `budget`. Each language can count so far.
pub const MOST_BUDGET: u64 = 1_000_000_000_000_000;
/// The largest `memory_limit`: 1 PiB.
pub const LARGEST_MEMORY_LIMIT: u64 = 1 << 50;

impl Default for FunctionSpec {
    fn default() -> Self {
        Self::new(String::new())
    }
}

impl FunctionSpec {
    /// A scalar function without options. It gets no NULLs.
    pub fn new(signature: String) -> Self {
        Self {
            signature,
            kind: Kind::Scalar,
            admits_null: Vec::new(),
            deterministic: true,
            calling: Calling::Row,
            ends_late_calls: false,
            concurrency: 1,
            timeout: None,
            memory_limit: None,
            memoize: None,
            rate: None,
            budget: None,
            batch: None,
            sandbox: None,
            own_sandbox: None,
            cache: None,
            ttl: None,
            kept_by_server: false,
            workers: None,
            gpus: None,
            on_error: OnError::Fail,
            retries: 0,
            file: String::new(),
            line: 0,
            named: Vec::new(),
            hidden: 0,
            partitions: false,
            cardinality: None,
            set_up: false,
            set_up_timeout: None,
            iterates: false,
            whole_batches: false,
            overload: false,
            description: String::new(),
        }
    }

    /// Where it is defined: file and line.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    /// The options for calls that fail.
    pub fn error_policy(&self) -> ErrorPolicy {
        ErrorPolicy { retries: self.retries, on_error: self.on_error }
    }

    /// Checks the value of each option. Guests check these values at the declaration. The engine
    /// checks them again, because it does not trust guests.
    ///
    /// # Errors
    /// A text with the wrong value and the allowed values.
    pub fn check(&self) -> Result<(), String> {
        if let Some(timeout) = self.timeout.filter(|seconds| !(*seconds > 0.0 && *seconds <= LONGEST_TIMEOUT))
        {
            return Err(format!(
                "timeout is a positive number of seconds, at most {LONGEST_TIMEOUT}, not {timeout}"
            ));
        }
        if self.set_up_timeout.is_some_and(|seconds| !(seconds > 0.0 && seconds <= LONGEST_TIMEOUT)) {
            return Err(format!("set_up_timeout is a positive number of seconds, at most {LONGEST_TIMEOUT}"));
        }
        if let Some(limit) = self.memory_limit.filter(|limit| !(1..=LARGEST_MEMORY_LIMIT).contains(limit)) {
            return Err(format!(
                "memory_limit is at least 1 and at most {LARGEST_MEMORY_LIMIT} bytes, not {limit}"
            ));
        }
        if self.memoize.is_some_and(|bytes| !(1..=LARGEST_MEMORY_LIMIT).contains(&bytes)) {
            return Err(format!("memoize is at least 1 and at most {LARGEST_MEMORY_LIMIT} bytes"));
        }
        let has_own_results = self.kind == Kind::Scalar && self.deterministic && !self.whole_batches;
        for (option, is_set) in [("memoize", self.memoize.is_some()), ("cache", self.cache.is_some())] {
            if is_set && !has_own_results {
                return Err(format!(
                    "{option} is for scalar functions whose result depends on the row's arguments alone"
                ));
            }
        }
        if self.ttl.is_some_and(|seconds| !(seconds > 0.0 && seconds <= LONGEST_TIMEOUT)) {
            return Err(format!("ttl is a positive number of seconds, at most {LONGEST_TIMEOUT}"));
        }
        if self.ttl.is_some() && self.memoize.is_none() && self.cache.is_none() {
            return Err("ttl is for functions whose results are kept: with memoize or cache".into());
        }
        if self.rate.is_some() && (self.kind != Kind::Scalar || self.calling == Calling::Vectorized) {
            return Err("rate is for scalar functions that are called for each row".into());
        }
        if let Some(budget) = self.budget {
            if self.kind != Kind::Scalar {
                return Err("budget is for scalar functions".into());
            }
            if !(1..=MOST_BUDGET).contains(&budget) {
                return Err(format!("budget is 1 to {MOST_BUDGET} calls, not {budget}"));
            }
        }
        if self.batch.is_some_and(|rows| !(1..=MOST_BATCH).contains(&rows)) {
            return Err(format!("batch is 1 to {MOST_BATCH} rows"));
        }
        let gets_many = self.calling != Calling::Row || self.concurrency > 1;
        if self.batch.is_some() && (self.kind != Kind::Scalar || self.whole_batches || !gets_many) {
            return Err(
                "batch is for scalar functions that get many rows at once: vectorized ones, and those with \
                        concurrency"
                    .into(),
            );
        }
        for (option, count) in [("workers", self.workers), ("gpus", self.gpus)] {
            let Some(count) = count else { continue };
            if !(1..=MOST_WORKERS).contains(&count) {
                return Err(format!("{option} is 1 to {MOST_WORKERS}, not {count}"));
            }
            // Scans, streams and aggregates keep their lanes while their query calls other functions.
            if self.kind != Kind::Scalar {
                return Err(format!("{option} is for scalar functions"));
            }
        }
        if self.own_sandbox.is_some() && self.kind != Kind::Scalar {
            return Err("sandbox is for scalar functions; others have that of their file".into());
        }
        if !(1..=MOST_CONCURRENCY).contains(&self.concurrency) {
            return Err(format!("concurrency is 1 to {MOST_CONCURRENCY}, not {}", self.concurrency));
        }
        if self.retries > MOST_RETRIES {
            return Err(format!("retries is 0 to {MOST_RETRIES}, not {}", self.retries));
        }
        if self.overload && self.kind != Kind::Scalar {
            return Err(format!(
                "only scalar functions have overloads, and it is of the kind {}; give it another name",
                self.kind.name()
            ));
        }
        let not_table = self.kind != Kind::Table;
        if not_table && (self.partitions || self.cardinality.is_some() || self.named.contains(&true)) {
            return Err(format!(
                "only table functions have partitions, a cardinality and parameters with defaults, and it is of the kind {}",
                self.kind.name()
            ));
        }
        Ok(())
    }
}
