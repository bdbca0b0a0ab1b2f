//! A function as the translator writes it: its statements, with all names resolved.

use crate::program::Time;
use serde::Deserialize;

/// A function of rows.
#[derive(Debug, Clone, Deserialize)]
pub struct Source {
    /// The names of its parameters.
    pub parameters: Vec<String>,
    /// Its statements.
    pub body: Vec<Statement>,
}

/// A statement.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statement {
    /// A variable gets a value.
    Assign(String, Expression),
    /// A condition, the statements if it is true, and those if it is not.
    If(Expression, Vec<Statement>, Vec<Statement>),
    /// The function ends.
    Return(Expression),
    /// What CPython alone can do, such as an exception.
    Leave(u32),
}

/// An expression, and its line in the function's file.
#[derive(Debug, Clone, Deserialize)]
pub struct Expression(pub u32, pub Node);

/// What an expression is.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Node {
    /// The value of a variable.
    Variable(String),
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An int.
    Int(i64),
    /// A float, by its bits.
    Float(u64),
    /// A str.
    Text(String),
    /// A date, as days since 1970-01-01.
    Date(i64),
    /// A datetime without a zone, as microseconds since 1970-01-01.
    Datetime(i64),
    /// A timedelta, as microseconds.
    Timedelta(i64),
    /// A set or list of constants, on the right side of `in`.
    Set(Vec<Expression>),
    /// A tuple of constants.
    Tuple(Vec<Expression>),
    /// A dict of constants, and its values.
    Dict(Vec<Expression>, Vec<Expression>),
    /// An object or a dict that is made of values with names.
    Record(Vec<(String, Expression)>),
    /// An operator with one operand: `-`, `+`, `~` or `not`.
    Unary(String, Box<Expression>),
    /// An operator with two operands.
    Binary(String, Box<Expression>, Box<Expression>),
    /// A chain of comparisons: the first operand, and operators with the others.
    Compare(Box<Expression>, Vec<(String, Expression)>),
    /// `and`.
    And(Vec<Expression>),
    /// `or`.
    Or(Vec<Expression>),
    /// A conditional expression: the condition, and both values.
    If(Box<Expression>, Box<Expression>, Box<Expression>),
    /// A call of a builtin function, of a function of `math` (`math.sqrt`), or of a class of
    /// `datetime` with all its arguments.
    Call(String, Vec<Expression>),
    /// A call of another function whose source is known.
    Inline(Box<Source>, Vec<Expression>),
    /// A call of a method.
    Method(String, Box<Expression>, Vec<Expression>),
    /// An attribute.
    Attribute(String, Box<Expression>),
    /// `object.replace(name=value)`: a date or datetime with other fields.
    Replaced(Box<Expression>, Vec<(String, Expression)>),
    /// `separator.join([part, part])`.
    Join(Box<Expression>, Vec<Expression>),
    /// An element.
    Index(Box<Expression>, Box<Expression>),
    /// A slice with a step of 1.
    Slice(Box<Expression>, Option<Box<Expression>>, Option<Box<Expression>>),
    /// The parts of an f-string. One with a format is a call of `format`.
    Format(Vec<Expression>),
}

impl Node {
    /// The int of a constant.
    pub(crate) fn int(&self) -> Option<i64> {
        if let Node::Int(value) = self { Some(*value) } else { None }
    }

    /// The float of a constant.
    pub(crate) fn float(&self) -> Option<f64> {
        if let Node::Float(bits) = self { Some(f64::from_bits(*bits)) } else { None }
    }

    /// The bytes of a str that is a constant.
    pub(crate) fn text(&self) -> Option<Vec<u8>> {
        if let Node::Text(value) = self { Some(value.as_bytes().to_vec()) } else { None }
    }

    /// The days or microseconds of a constant.
    pub(crate) fn time(&self) -> Option<(Time, i64)> {
        match self {
            Node::Date(value) => Some((Time::Date, *value)),
            Node::Datetime(value) => Some((Time::Datetime, *value)),
            Node::Timedelta(value) => Some((Time::Timedelta, *value)),
            _ => None,
        }
    }
}
