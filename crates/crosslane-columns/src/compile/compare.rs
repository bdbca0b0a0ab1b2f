//! Comparisons, alone and in chains.

use super::builder::{Number, Value};
use super::{Compiled, Compiler};
use crate::program::{BoolOp, Bools, Comparison, Register, Step, TextTest};
use crate::source::{Expression, Node};

impl Compiler {
    /// A chain of comparisons. An operand is evaluated once, for the rows whose comparisons before
    /// it are true.
    pub(super) fn compare(&mut self, first: &Expression, rest: &[(String, Expression)]) -> Compiled<Bools> {
        let before = self.builder.reach;
        let mut left = self.value(first)?;
        let mut all: Option<Bools> = None;
        for (number, (operator, right)) in rest.iter().enumerate() {
            if matches!(&operator[..], "in" | "not in") && number + 1 < rest.len() {
                return Err(self.builder.refuse("a comparison behind `in`"));
            }
            if let Some(truth) = all {
                self.builder.reach = self.builder.only(before, truth, true);
            }
            let (truth, right) = self.one(operator, left, right)?;
            left = right;
            self.builder.reach = before;
            all = Some(match all {
                Some(so_far) => self.builder.make(|out| Step::Bool(BoolOp::And, so_far, truth, out)),
                None => truth,
            });
        }
        all.ok_or_else(|| self.builder.refuse("a comparison without an operator"))
    }

    /// One comparison, and the value of its right side.
    fn one(&mut self, operator: &str, left: Value, right: &Expression) -> Compiled<(Bools, Value)> {
        if let "in" | "not in" = operator {
            let found = self.contains(left, right)?;
            let found = match operator {
                "in" => found,
                _ => self.builder.make(|out| Step::Not(found, out)),
            };
            return Ok((found, Value::NONE));
        }
        let value = self.value(right)?;
        let truth = match (operator, &right.1) {
            ("is" | "==", Node::None) => self.is_none(left),
            ("is not" | "!=", Node::None) => {
                let none = self.is_none(left);
                self.builder.make(|out| Step::Not(none, out))
            }
            ("is" | "is not", _) => return Err(self.builder.refuse(format!("`{operator}` without None"))),
            ("<", _) => self.ordered(Comparison::Less, left, value)?,
            ("<=", _) => self.ordered(Comparison::LessOrEqual, left, value)?,
            ("==", _) => self.ordered(Comparison::Equal, left, value)?,
            ("!=", _) => self.ordered(Comparison::NotEqual, left, value)?,
            (">", _) => self.ordered(Comparison::Greater, left, value)?,
            (">=", _) => self.ordered(Comparison::GreaterOrEqual, left, value)?,
            _ => return Err(self.builder.refuse(format!("the operator {operator}"))),
        };
        Ok((truth, value))
    }

    fn is_none(&mut self, value: Value) -> Bools {
        match value {
            Value { register: None, .. } => self.builder.bool(true),
            Value { none: Some(none), .. } => none,
            Value { none: None, .. } => self.builder.bool(false),
        }
    }

    fn ordered(&mut self, comparison: Comparison, left: Value, right: Value) -> Compiled<Bools> {
        if let (Some(Register::Text(_)), Some(Register::Text(_))) = (left.register, right.register) {
            let (a, b) = (self.builder.text_of(left)?, self.builder.text_of(right)?);
            return Ok(self.builder.make(|out| Step::CompareTexts(comparison, a, b, out)));
        }
        if let (Some(Register::Time(time, a)), Some(Register::Time(other, b))) =
            (left.register, right.register)
            && time == other
        {
            self.builder.require(left)?;
            self.builder.require(right)?;
            return Ok(self.builder.make(|out| Step::CompareInts(comparison, a, b, out)));
        }
        let (a, b) = (self.builder.number(left)?, self.builder.number(right)?);
        if let (Number::Int(a), Number::Int(b)) = (a, b) {
            return Ok(self.builder.make(|out| Step::CompareInts(comparison, a, b, out)));
        }
        // CPython compares an int with a float without rounding.
        let (a, b) = (self.builder.exact_float_of(a), self.builder.exact_float_of(b));
        Ok(self.builder.make(|out| Step::CompareFloats(comparison, a, b, out)))
    }

    fn contains(&mut self, left: Value, right: &Expression) -> Compiled<Bools> {
        match &right.1 {
            Node::Set(constants) | Node::Tuple(constants) | Node::Dict(constants, _) => {
                self.is_among(left, constants)
            }
            _ => {
                let text = self.value(right)?;
                let (text, part) = (self.builder.text_of(text)?, self.builder.text_of(left)?);
                Ok(self.builder.make(|out| Step::TextTest(TextTest::Contains, text, part, out)))
            }
        }
    }
}
