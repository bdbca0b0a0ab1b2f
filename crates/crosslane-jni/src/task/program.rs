//! What a program consists of, and the check that its parts fit.

use super::counts::Counts;
use crosslane::call::Spent;
use crosslane::pool::Zygote;
use crosslane::{DataType, Error, Function, Kind, Library};
use serde::Deserialize;
use std::fmt;
use std::sync::Arc;

/// Where an argument of a step comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Argument {
    /// A column of the batch.
    Input(usize),
    /// The results of an earlier step.
    Result(usize),
}

/// A call of a function with each batch.
pub struct Step<Z: Zygote> {
    /// The library of the function.
    pub library: Arc<Library<Z>>,
    /// The function.
    pub function: Arc<Function>,
    /// An argument for each parameter.
    pub arguments: Vec<Argument>,
    /// Whether a function that is called with an iterator gives one result for each row, in their
    /// order.
    pub aligned: bool,
    /// The calls of the query, if the function has a budget.
    pub spent: Option<Arc<Spent>>,
}

impl<Z: Zygote> fmt::Debug for Step<Z> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.function.name();
        f.debug_struct("Step")
            .field("function", &name)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}

/// What happens with each batch.
#[derive(Debug)]
pub struct Program<Z: Zygote> {
    /// The types of a batch's columns.
    pub(super) inputs: Vec<DataType>,
    pub(super) steps: Vec<Step<Z>>,
    /// How many batches a lane may have.
    pub(super) depth: usize,
}

impl<Z: Zygote> Program<Z> {
    /// A program of these steps: calls of scalar functions, or one call of a table or stream
    /// function.
    ///
    /// Each input has the type of the parameter that takes it.
    ///
    /// # Errors
    /// [`Error::Engine`] if arguments do not fit their parameters, or one program cannot have these
    /// functions.
    pub fn new(inputs: usize, steps: Vec<Step<Z>>, depth: usize) -> Result<Self, Error> {
        let mut types: Vec<Option<DataType>> = vec![None; inputs];
        for (number, step) in steps.iter().enumerate() {
            let function = &step.function;
            let parameters = &function.signature.parameters;
            let wrong =
                |what: &str| Error::Engine(format!("{}: {what} {:?}", function.name(), step.arguments));
            if !(function.spec.kind == Kind::Scalar || steps.len() == 1) {
                return Err(wrong("it is the only step of a program:"));
            }
            if parameters.len() != step.arguments.len() {
                return Err(wrong("its arguments are"));
            }
            for (parameter, argument) in parameters.iter().zip(&step.arguments) {
                let data_type = &parameter.data_type;
                match argument {
                    Argument::Input(input) => {
                        let known = types.get_mut(*input).ok_or_else(|| wrong("there is no such input:"))?;
                        if known.get_or_insert_with(|| data_type.clone()) != data_type {
                            return Err(wrong("an input has two types:"));
                        }
                    }
                    Argument::Result(result) => {
                        let made = steps[..number].get(*result).map(|step| &step.function.signature.returns);
                        if made != Some(data_type) {
                            return Err(wrong("a result has another type:"));
                        }
                    }
                }
            }
        }
        let inputs = types.into_iter().collect::<Option<Vec<_>>>();
        let inputs = inputs.ok_or_else(|| Error::Engine("an input that no function takes".into()))?;
        Ok(Self { inputs, steps, depth: depth.max(1) })
    }

    /// What the functions have counted on this thread so far.
    pub(super) fn counted(&self) -> Counts {
        let mut counts = Counts::default();
        for (number, step) in self.steps.iter().enumerate() {
            // Several steps may call one function.
            if self.steps[..number].iter().any(|other| Arc::ptr_eq(&other.function, &step.function)) {
                continue;
            }
            let here = step.function.stats.here();
            counts.worked += here.guest.get();
            counts.errors += here.errors.get();
            counts.retries += here.retries.get();
            counts.deaths += here.deaths.get();
        }
        counts
    }
}
