//! A function as clients of Arrow Flight see it.

use super::types;
use arrow_flight::{FlightDescriptor, FlightInfo};
use arrow_schema::{DataType as Arrow, Field, Fields, Schema, SchemaRef};
use crosslane::{DataType, Function, Kind};
use std::collections::HashMap;
use std::sync::Arc;
use tonic::Status;

/// Where Databend's clients look for how many of the columns are arguments.
const INPUTS: &str = "x-databend-udf-input-count";
/// The column that says for which row of the batch a table's row is.
const ROW: &str = "row_index";

/// A function that can be called over Arrow Flight.
#[derive(Debug)]
pub(super) struct FlightFunction {
    pub(super) function: Arc<Function>,
    pub(super) inputs: Fields,
    /// The columns of the results: of a scalar function one, of a table function the row's number and the value.
    pub(super) results: SchemaRef,
}

impl FlightFunction {
    /// # Errors
    /// Why it cannot be called so.
    pub(super) fn new(function: &Arc<Function>) -> Result<Self, String> {
        let (signature, spec) = (&function.signature, &function.spec);
        let wrong = |what: &str| format!("{} cannot be called over Arrow Flight: {what}", function.name());
        let kind = spec.kind;
        if !matches!(kind, Kind::Scalar | Kind::Table) {
            return Err(wrong(&format!(
                "its contract has scalar and table functions, and this is of the kind {}",
                kind.name()
            )));
        }
        if signature.variadic || signature.takes_any() {
            return Err(wrong("its parameters must have a number and types"));
        }
        if spec.hidden > 0 {
            return Err(wrong("it takes what only an engine knows"));
        }
        let field =
            |name: &str, data_type: &DataType| types::field(name, data_type).map_err(|what| wrong(&what));
        let inputs =
            signature.parameters.iter().map(|parameter| field(&parameter.name, &parameter.data_type));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let results = match (&signature.returns, kind) {
            (returns, Kind::Scalar) => vec![field(function.name(), returns)?],
            // A table of one column gives its values, and another a STRUCT of them.
            (DataType::Struct(columns), _) if columns.len() == 1 => {
                vec![Field::new(ROW, Arrow::Int32, true), field(&columns[0].name, &columns[0].data_type)?]
            }
            (returns, _) => vec![Field::new(ROW, Arrow::Int32, true), field(function.name(), returns)?],
        };
        Ok(Self { function: Arc::clone(function), inputs, results: Arc::new(Schema::new(results)) })
    }

    /// The type of a result's values.
    pub(super) fn value(&self) -> &Arrow {
        self.results.field(self.results.fields().len() - 1).data_type()
    }

    /// What says how the function is called: a schema of the arguments and the results behind them.
    pub(super) fn info(&self) -> Result<FlightInfo, Status> {
        let fields: Vec<_> = self.inputs.iter().chain(self.results.fields()).cloned().collect();
        let count = self.inputs.len();
        let schema =
            Schema::new_with_metadata(fields, HashMap::from([(INPUTS.to_owned(), count.to_string())]));
        let descriptor = FlightDescriptor::new_path(vec![self.function.name().to_owned()]);
        let info = FlightInfo::new()
            .try_with_schema(&schema)
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(info.with_descriptor(descriptor).with_total_records(count as i64).with_total_bytes(0))
    }
}
