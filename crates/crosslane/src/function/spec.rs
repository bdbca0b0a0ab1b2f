//! What a guest says of its functions.

use super::kind::Kind;
use super::on_error::{ErrorPolicy, OnError};
use crate::error::bounded;
use serde::{Deserialize, Serialize};

/// How a guest calls a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Calling {
    /// With one row after the other.
    #[default]
    Row,
    /// With whole columns.
    Vectorized,
    /// With several rows at once, each of which may wait.
    Async,
}

impl Calling {
    /// Its name, as guests and users see it.
    pub fn name(self) -> &'static str {
        match self {
            Calling::Row => "row",
            Calling::Vectorized => "vectorized",
            Calling::Async => "async",
        }
    }
}

/// What a guest says about one of its functions.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct FunctionSpec {
    /// The signature as text.
    pub signature: String,
    /// What the function is.
    #[serde(default)]
    pub kind: Kind,
    /// For each parameter, whether the function wants to see NULL.
    pub admits_null: Vec<bool>,
    /// Whether equal arguments give equal results, so that the engine may call once for many.
    #[serde(default = "yes")]
    pub deterministic: bool,
    /// How it is called.
    #[serde(default)]
    pub calling: Calling,
    /// Whether the guest ends calls that take longer than `timeout` itself, and its lane goes on.
    #[serde(default)]
    pub ends_late_calls: bool,
    /// How many rows are in flight at once inside one lane; 1 unless it is called with several.
    #[serde(default = "one")]
    pub concurrency: u32,
    /// Seconds after which a call is ended.
    #[serde(default)]
    pub timeout: Option<f64>,
    /// Bytes that the function may allocate.
    #[serde(default)]
    pub memory_limit: Option<u64>,
    /// What becomes of a row whose call failed.
    #[serde(default)]
    pub on_error: OnError,
    /// How often a failed call is tried again.
    #[serde(default)]
    pub retries: u32,
    /// The user's file.
    #[serde(default)]
    pub file: String,
    /// The line of the definition, from 1.
    #[serde(default)]
    pub line: u32,
    /// For each parameter, whether SQL names it and may leave it out. One that is left out travels as NULL, and the guest
    /// leaves it out in its turn, so that the function's own default counts.
    #[serde(default)]
    pub named: Vec<bool>,
    /// How many of a table's parameters, the last, are the engine's own: SQL and errors do not know of them.
    #[serde(default)]
    pub hidden: usize,
    /// Whether a table has partitions, which several lanes may scan at once.
    #[serde(default)]
    pub partitions: bool,
    /// How many rows a table has, about.
    #[serde(default)]
    pub cardinality: Option<u64>,
    /// Whether the function prepares something on each lane before its first use.
    #[serde(default)]
    pub set_up: bool,
    /// How many seconds a guest that ends late calls itself may take for that within a call: of a lane that has lost what it had
    /// prepared.
    #[serde(default)]
    pub set_up_timeout: Option<f64>,
    /// Whether a stream function is called once, with an iterator of all batches ([`Entry::Iterate`]).
    #[serde(default)]
    pub iterates: bool,
    /// Whether a batch goes to a lane as the engine gives it, because what the function makes of a row may depend on the others.
    #[serde(default)]
    pub whole_batches: bool,
    /// Whether it stays beside functions of its name that take other types. Otherwise it replaces them.
    #[serde(default)]
    pub overload: bool,
    /// What the user says about it: a docstring, or the comment above it.
    #[serde(default, deserialize_with = "bounded")]
    pub description: String,
}

/// The longest `timeout`, in seconds: 31 years. A clock can still add it to what it shows.
pub const LONGEST_TIMEOUT: f64 = 1e9;
/// The largest `retries`.
pub const MOST_RETRIES: u32 = 1_000_000;
/// The largest `concurrency`.
pub const MOST_CONCURRENCY: u32 = 65_536;
/// The largest `memory_limit`: a PiB.
pub const LARGEST_MEMORY_LIMIT: u64 = 1 << 50;

impl FunctionSpec {
    /// A scalar function without options, which admits no NULL.
    pub fn new(signature: String) -> Self {
        Self {
            signature,
            kind: Kind::Scalar,
            admits_null: Vec::new(),
            deterministic: yes(),
            calling: Calling::Row,
            ends_late_calls: false,
            concurrency: one(),
            timeout: None,
            memory_limit: None,
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

    /// What becomes of its calls that fail.
    pub fn error_policy(&self) -> ErrorPolicy {
        ErrorPolicy { retries: self.retries, on_error: self.on_error }
    }

    /// Whether each option can be what it is said to be. Guests check this where a function is declared; what they
    /// say is checked again, because they may say anything.
    ///
    /// # Errors
    /// What an option is, and should be.
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

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}
