//! Makes a program of a function: finds the types of its values, and turns branches into masks.
//!
//! A condition gives a register of booleans. The statements of a branch are compiled under a mask:
//! the rows that come to them. Behind the condition, a select chooses between the values that a
//! variable has in both branches. A `return` takes its rows out of the mask.

mod builder;
mod call;
mod compare;
mod expression;
mod look_up;
mod method;
mod time;

use crate::program::{BoolOp, Bools, Input, Program, Register, Results, Step};
use crate::source::{Expression, Node, Source, Statement};
use builder::{Builder, Reach, Value};
use crosslane::{DataType, Field};
use std::collections::HashMap;

/// Why a function cannot be a program, and in which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// The line in the function's file.
    pub line: u32,
    /// The reason.
    pub reason: String,
}

type Compiled<T> = Result<T, Unsupported>;

/// Makes a program of a function with parameters of these types. The flag of a parameter says
/// whether the function is called for its NULLs. If results are `exact`, an int is no result of a
/// function that returns floats.
///
/// # Errors
/// Why that is not possible.
pub fn compile(
    source: &Source,
    parameters: &[(DataType, bool)],
    returns: &DataType,
    exact: bool,
) -> Compiled<Program> {
    let returned = match returns {
        DataType::Struct(fields) => Returned::Fields(fields.iter().cloned().collect()),
        other => Returned::One(other.clone()),
    };
    let mut compiler =
        Compiler { builder: Builder::default(), scope: HashMap::new(), result: None, returned, exact };
    if source.parameters.len() != parameters.len() {
        return Err(compiler.builder.refuse("it has another number of parameters"));
    }
    let inputs = source.parameters.iter().zip(parameters);
    let inputs = inputs.map(|(name, (data_type, admits_null))| {
        let values = compiler.builder.input(data_type)?;
        let nulls = admits_null.then(|| compiler.builder.bools());
        if let Register::Time(time, ints) = values {
            if let Some(nulls) = nulls {
                let given = compiler.builder.make(|out| Step::Not(nulls, out));
                compiler.builder.reach = Reach::Some(given);
            }
            compiler.require_years(time, ints);
            compiler.builder.reach = Reach::All;
        }
        let value = Value { register: Some(values), none: nulls };
        compiler.scope.insert(name.clone(), Ok(value));
        Ok(Input { data_type: data_type.clone(), values, nulls })
    });
    let inputs = inputs.collect::<Compiled<Vec<_>>>()?;
    compiler.block(&source.body)?;
    // A function without a `return` returns None.
    compiler.give_back(compiler.returned.none())?;
    let Compiler { mut builder, result, returned, .. } = compiler;
    builder.line = 0;
    let result = result.unwrap_or_else(|| returned.none());
    let results = match (returned, &result[..]) {
        (Returned::Fields(fields), [whole, values @ ..]) => {
            let outputs = fields.iter().zip(values);
            let outputs = outputs.map(|(field, value)| builder.output(*value, &field.data_type));
            let outputs = outputs.collect::<Compiled<_>>()?;
            // A function that always returns None gives NULL.
            let always = whole.register.is_none().then(|| builder.bool(true));
            Results::Fields(outputs, always.or(whole.none))
        }
        _ => Results::One(builder.output(result[0], returns)?),
    };
    let Builder { steps, constants, counts, .. } = builder;
    Ok(Program { inputs, constants, steps, counts, results })
}

/// What the function returns.
#[derive(Debug, Clone)]
enum Returned {
    One(DataType),
    /// The fields of a STRUCT. Its value is a register that says where it is None, and those of its
    /// fields.
    Fields(Vec<Field>),
    /// The function is part of another one.
    Any,
}

impl Returned {
    /// None, as a result.
    fn none(&self) -> Vec<Value> {
        let fields = if let Returned::Fields(fields) = self { fields.len() } else { 0 };
        vec![Value::NONE; 1 + fields]
    }
}

/// The variables. One that cannot be used has the reason in place of its value.
type Scope = HashMap<String, Result<Value, &'static str>>;

struct Compiler {
    builder: Builder,
    scope: Scope,
    /// The result of the rows that have returned.
    result: Option<Vec<Value>>,
    returned: Returned,
    /// Whether an int is no result where a float is due.
    exact: bool,
}

impl Compiler {
    /// Compiles statements. Then the builder's mask has the rows that come behind them.
    fn block(&mut self, body: &[Statement]) -> Compiled<()> {
        for statement in body {
            if self.builder.reach == Reach::Nobody {
                break;
            }
            match statement {
                Statement::Assign(name, expression) => {
                    let value = self.value(expression)?;
                    self.scope.insert(name.clone(), Ok(value));
                }
                Statement::Return(expression) => {
                    let value = self.returned(expression)?;
                    self.builder.line = expression.0;
                    self.give_back(value)?;
                }
                Statement::Leave(line) => {
                    self.builder.line = *line;
                    if self.builder.reach == Reach::All {
                        return Err(self
                            .builder
                            .refuse("all rows come to a statement that only CPython runs"));
                    }
                    let rows = self.builder.bool(true);
                    self.builder.add(Step::Leave(rows));
                    self.builder.reach = Reach::Nobody;
                }
                Statement::If(condition, body, other) => self.branch(condition, body, other)?,
            }
        }
        Ok(())
    }

    /// The value of an expression that is returned, or of the fields of a STRUCT.
    fn returned(&mut self, expression: &Expression) -> Compiled<Vec<Value>> {
        let Expression(line, node) = expression;
        let fields = match (&self.returned, node) {
            (_, Node::If(condition, yes, no)) => {
                self.builder.line = *line;
                return self.conditional(condition, [yes, no], Self::returned);
            }
            (Returned::Fields(fields), _) => fields.clone(),
            (Returned::Any, _) => return Ok(vec![self.value(expression)?]),
            (Returned::One(data_type), _) => {
                let data_type = data_type.clone();
                let value = self.value(expression)?;
                return Ok(vec![self.for_column(value, &data_type)]);
            }
        };
        self.builder.line = *line;
        let values = match node {
            Node::Record(named) => {
                let values = named.iter().map(|(name, expression)| Ok((name, self.value(expression)?)));
                let values = values.collect::<Compiled<HashMap<_, _>>>()?;
                let value = |field: &Field| values.get(&field.name).copied();
                fields.iter().map(value).collect::<Option<Vec<_>>>()
            }
            Node::Tuple(elements) if elements.len() == fields.len() => {
                Some(elements.iter().map(|element| self.value(element)).collect::<Compiled<_>>()?)
            }
            Node::None => return Ok(self.returned.none()),
            _ => None,
        };
        let values =
            values.ok_or_else(|| self.builder.refuse("a result without the fields of the STRUCT"))?;
        let mut made = vec![Value::from(self.builder.bool(false))];
        for (field, value) in fields.iter().zip(values) {
            made.push(self.for_column(value, &field.data_type));
        }
        Ok(made)
    }

    /// A value as a column of this type takes it: a column of floats takes ints.
    fn for_column(&mut self, value: Value, data_type: &DataType) -> Value {
        let is_float = !self.exact && matches!(data_type, DataType::Float | DataType::Double);
        let ints = match value.register {
            Some(Register::Int(ints)) if is_float => ints,
            Some(Register::Bool(bools)) if is_float => self.builder.make(|out| Step::BoolToInt(bools, out)),
            _ => return value,
        };
        let floats = self.builder.make(|out| Step::IntToFloat(ints, out));
        Value { register: Some(floats.into()), ..value }
    }

    /// The rows of the mask return this value.
    fn give_back(&mut self, value: Vec<Value>) -> Compiled<()> {
        let rows = std::mem::replace(&mut self.builder.reach, Reach::Nobody);
        let value = match (rows, self.result.take()) {
            (Reach::Nobody, old) => {
                self.result = old;
                return Ok(());
            }
            (Reach::All, _) | (_, None) => value,
            (Reach::Some(rows), Some(old)) => self
                .builder
                .all_merged(rows, value, old)
                .ok_or_else(|| self.builder.refuse("it returns values of several types"))?,
        };
        self.result = Some(value);
        Ok(())
    }

    /// A call of another function.
    fn inline(&mut self, source: &Source, arguments: &[Expression]) -> Compiled<Value> {
        let values = arguments.iter().map(|argument| self.value(argument));
        let values = values.collect::<Compiled<Vec<_>>>()?;
        let scope = source.parameters.iter().cloned().zip(values.into_iter().map(Ok)).collect();
        let before = self.builder.reach;
        let scope = std::mem::replace(&mut self.scope, scope);
        let result = self.result.take();
        let returned = std::mem::replace(&mut self.returned, Returned::Any);
        self.block(&source.body)?;
        self.give_back(vec![Value::NONE])?;
        self.returned = returned;
        self.scope = scope;
        self.builder.reach = before;
        let value = std::mem::replace(&mut self.result, result);
        Ok(value.map_or(Value::NONE, |value| value[0]))
    }

    fn branch(&mut self, condition: &Expression, body: &[Statement], other: &[Statement]) -> Compiled<()> {
        let truth = self.truth(condition)?;
        let before = self.builder.reach;
        let outer = self.scope.clone();
        let yes = self.builder.only(before, truth, true);
        self.builder.reach = yes;
        self.block(body)?;
        let (after_yes, yes_scope) = (self.builder.reach, std::mem::replace(&mut self.scope, outer));
        if other.is_empty() && after_yes == yes {
            self.builder.reach = before;
            self.merge(truth, yes_scope);
            return Ok(());
        }
        let no = self.builder.only(before, truth, false);
        self.builder.reach = no;
        self.block(other)?;
        let after_no = self.builder.reach;
        self.builder.reach = match (after_yes, after_no) {
            (Reach::Nobody, rest) => rest,
            (rest, Reach::Nobody) => {
                self.scope = yes_scope;
                rest
            }
            (one, another) => {
                // The values of variables are chosen for all rows that came to the condition.
                self.merge(truth, yes_scope);
                if (one, another) == (yes, no) { before } else { self.builder.either(one, another) }
            }
        };
        Ok(())
    }

    /// Merges the variables of both branches.
    fn merge(&mut self, truth: Bools, mut yes: Scope) {
        let no = std::mem::take(&mut self.scope);
        for (name, no) in no {
            let merged = match (yes.remove(&name), no) {
                (Some(Ok(yes)), Ok(no)) => {
                    self.builder.merged(truth, yes, no).ok_or("its type depends on a condition")
                }
                (Some(Err(why)), _) | (_, Err(why)) => Err(why),
                (None, Ok(_)) => Err(UNBOUND),
            };
            self.scope.insert(name, merged);
        }
        self.scope.extend(yes.into_keys().map(|name| (name, Err(UNBOUND))));
    }

    /// The truth of an expression, as in a condition.
    fn truth(&mut self, expression: &Expression) -> Compiled<Bools> {
        match &expression.1 {
            Node::Unary(operator, of) if operator == "not" => {
                let truth = self.truth(of)?;
                Ok(self.builder.make(|out| Step::Not(truth, out)))
            }
            Node::And(parts) => self.chain(parts, true),
            Node::Or(parts) => self.chain(parts, false),
            _ => {
                let value = self.value(expression)?;
                self.builder.truth_of(value)
            }
        }
    }

    /// The truth of `and` or of `or`. A part is evaluated for the rows that are not decided yet.
    fn chain(&mut self, parts: &[Expression], goes_on: bool) -> Compiled<Bools> {
        let before = self.builder.reach;
        let operation = if goes_on { BoolOp::And } else { BoolOp::Or };
        let mut decided: Option<Bools> = None;
        for part in parts {
            if let Some(truth) = decided {
                self.builder.reach = self.builder.only(before, truth, goes_on);
            }
            let truth = self.truth(part)?;
            self.builder.reach = before;
            decided = Some(match decided {
                Some(so_far) => self.builder.make(|out| Step::Bool(operation, so_far, truth, out)),
                None => truth,
            });
        }
        decided.ok_or_else(|| self.builder.refuse("an expression without operands"))
    }
}

/// The reason against a variable that only one branch assigns.
const UNBOUND: &str = "only one branch of a condition assigns it";
