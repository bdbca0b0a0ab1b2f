//! Functions and the libraries that they come from.

use crate::cost::Cost;
use crate::error::Error;
use crate::pool::{Pool, Zygote};
use crate::signature::Signature;
use crate::stats::FunctionStats;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// What a row becomes whose call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The query fails.
    #[default]
    Fail,
    /// The row becomes NULL.
    Null,
}

/// What a guest says about one of its functions.
#[derive(Debug, Clone, Deserialize)]
pub struct FunctionSpec {
    /// The signature as text.
    pub signature: String,
    /// For each parameter, whether the function wants to see NULL.
    pub admits_null: Vec<bool>,
    /// Whether equal arguments give equal results, so that the engine may call once for many.
    #[serde(default = "yes")]
    pub deterministic: bool,
    /// Whether the function takes whole columns.
    #[serde(default)]
    pub vectorized: bool,
    /// Whether it is `async`.
    #[serde(default)]
    pub asynchronous: bool,
    /// Whether the guest ends calls that take longer than `timeout` itself, and its lane goes on.
    #[serde(default)]
    pub ends_late_calls: bool,
    /// How many rows are in flight at once inside one lane; 1 unless the function is `async`.
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
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

/// A named, typed piece of guest code.
#[derive(Debug)]
pub struct Function {
    /// The index in its library.
    pub index: u32,
    /// Name and types.
    pub signature: Signature,
    /// Options and origin.
    pub spec: FunctionSpec,
    /// What calling it has cost so far.
    pub stats: FunctionStats,
    pub(crate) cost: Cost,
}

impl Function {
    /// A function from what its guest says.
    ///
    /// # Errors
    /// [`Error::Signature`] if the signature cannot be read.
    pub fn new(index: u32, mut spec: FunctionSpec) -> Result<Self, Error> {
        let signature: Signature = spec.signature.parse()?;
        spec.admits_null.resize(signature.parameters.len(), false);
        Ok(Self { index, signature, spec, stats: FunctionStats::default(), cost: Cost::default() })
    }

    /// The name, as SQL calls it.
    pub fn name(&self) -> &str {
        &self.signature.name
    }

    /// Whether any parameter admits NULL.
    pub fn admits_null(&self) -> bool {
        self.spec.admits_null.contains(&true)
    }

    /// Whether a batch had better go to the lanes, because several would share it, or nobody knows yet what it
    /// costs.
    pub fn wants_lanes(&self, rows: usize, width: usize) -> bool {
        let advice = self.cost.advise(rows, width, self.spec.concurrency.max(1) as usize);
        advice.lanes > 1 || advice.probe
    }

    /// Learns what a batch cost that went to no lane, in nanoseconds.
    pub fn learn(&self, rows: usize, nanoseconds: u64) {
        self.cost.learn(rows, nanoseconds);
    }

    /// After how long without progress a lane is given up.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let timeout = Duration::from_secs_f64(self.spec.timeout?);
        if !self.spec.ends_late_calls {
            return Some(timeout);
        }
        // Such a guest is only given up if it cannot: after all tries at a row, the pauses between them, and
        // a second.
        let pauses = (0..self.spec.retries.min(60)).map(crate::call::backoff).sum::<Duration>();
        Some(timeout.saturating_mul(self.spec.retries.saturating_add(1)) + pauses + Duration::from_secs(1))
    }
}

/// The functions of one loaded file, and the pool that runs them.
#[derive(Debug)]
pub struct Library<Z: Zygote> {
    /// The file, or the name under which the functions were given.
    pub name: String,
    /// Counts the loads of this name, from 1.
    pub version: u32,
    /// The functions.
    pub functions: Vec<Arc<Function>>,
    /// The warm lanes.
    pub pool: Pool<Z>,
}
