//! Expressions: variables, constants and operators.

use super::builder::{Number, Value};
use super::{Compiled, Compiler};
use crate::program::{BoolOp, FloatFunction, FloatOp, IntOp, Ints, Register, Step, TextFunction, Time};
use crate::source::{Expression, Node};

impl Compiler {
    /// The value of an expression.
    pub(super) fn value(&mut self, expression: &Expression) -> Compiled<Value> {
        let Expression(line, node) = expression;
        let outer = std::mem::replace(&mut self.builder.line, *line);
        let value = self.value_of(node)?;
        self.builder.line = outer;
        Ok(value)
    }

    fn value_of(&mut self, node: &Node) -> Compiled<Value> {
        Ok(match node {
            Node::Variable(name) => match self.scope.get(name) {
                Some(Ok(value)) => *value,
                Some(Err(why)) => return Err(self.builder.refuse(format!("the variable {name}: {why}"))),
                None => return Err(self.builder.refuse(format!("the variable {name} is not assigned"))),
            },
            Node::None => Value::NONE,
            Node::Bool(value) => self.builder.bool(*value).into(),
            Node::Int(value) => self.builder.int(*value).into(),
            Node::Float(bits) => self.builder.float(f64::from_bits(*bits)).into(),
            Node::Text(value) => self.builder.text(value).into(),
            Node::Date(value) => Register::Time(Time::Date, self.builder.int(*value)).into(),
            Node::Datetime(value) => Register::Time(Time::Datetime, self.builder.int(*value)).into(),
            Node::Timedelta(value) => Register::Time(Time::Timedelta, self.builder.int(*value)).into(),
            Node::Set(_) | Node::Tuple(_) | Node::Dict(..) | Node::Record(_) => {
                return Err(self.builder.refuse("a collection that is neither returned nor looked up in"));
            }
            Node::Unary(operator, of) => self.unary(operator, of)?,
            Node::Binary(operator, left, right) => self.binary(operator, left, right)?,
            Node::Compare(first, rest) => self.compare(first, rest)?.into(),
            Node::And(parts) => self.operands(parts, true)?,
            Node::Or(parts) => self.operands(parts, false)?,
            Node::If(condition, yes, no) => {
                self.conditional(condition, [yes, no], |this, of| Ok(vec![this.value(of)?]))?[0]
            }
            Node::Call(name, arguments) => self.call(name, arguments)?,
            Node::Inline(source, arguments) => self.inline(source, arguments)?,
            Node::Method(name, object, arguments) => self.method(name, object, arguments)?,
            Node::Attribute(name, object) => self.attribute(name, object)?,
            Node::Replaced(object, fields) => self.replaced(object, fields)?,
            Node::Join(separator, parts) => self.join(separator, parts)?,
            Node::Index(object, index) => self.index(object, index)?,
            Node::Slice(object, from, to) => self.slice(object, from.as_deref(), to.as_deref())?,
            Node::Format(parts) => self.format(parts)?,
        })
    }

    fn unary(&mut self, operator: &str, of: &Expression) -> Compiled<Value> {
        if operator == "not" {
            let truth = self.truth(of)?;
            return Ok(self.builder.make(|out| Step::Not(truth, out)).into());
        }
        let value = self.value(of)?;
        if let ("~", Some(Register::Bool(_))) = (operator, value.register) {
            // CPython warns.
            return Err(self.builder.refuse("~ of a bool"));
        }
        if let ("-", Some(Register::Time(Time::Timedelta, ints))) = (operator, value.register) {
            self.builder.require(value)?;
            let negative = self.builder.make(|out| Step::NegateInt(ints, out));
            return Ok(Register::Time(Time::Timedelta, negative).into());
        }
        let number = self.builder.number(value)?;
        Ok(match (operator, number) {
            ("+", Number::Int(ints)) => ints.into(),
            ("+", Number::Float(floats)) => floats.into(),
            ("-", Number::Int(ints)) => self.builder.make(|out| Step::NegateInt(ints, out)).into(),
            ("-", Number::Float(floats)) => {
                self.builder.make(|out| Step::Function(FloatFunction::Negate, floats, out)).into()
            }
            ("~", Number::Int(ints)) => self.builder.make(|out| Step::InvertInt(ints, out)).into(),
            _ => return Err(self.builder.refuse(format!("the operator {operator}"))),
        })
    }

    fn binary(&mut self, operator: &str, left: &Expression, right: &Expression) -> Compiled<Value> {
        let a = self.value(left)?;
        let b = self.value(right)?;
        if let Some(made) = self.time_binary(operator, a, b) {
            return made;
        }
        match (operator, a.register, b.register) {
            ("+", Some(Register::Text(_)), Some(Register::Text(_))) => {
                let parts = vec![self.builder.text_of(a)?, self.builder.text_of(b)?];
                return Ok(self.builder.make(|out| Step::Concatenate(parts, out)).into());
            }
            ("*", Some(Register::Text(_)), Some(Register::Int(_))) => {
                let (text, times) = (self.builder.text_of(a)?, self.builder.int_of(b)?);
                return Ok(self.builder.make(|out| Step::Repeat(text, times, out)).into());
            }
            ("&" | "|" | "^", Some(Register::Bool(_)), Some(Register::Bool(_))) => {
                let operation = match operator {
                    "&" => BoolOp::And,
                    "|" => BoolOp::Or,
                    _ => BoolOp::Xor,
                };
                let (Register::Bool(a), Register::Bool(b)) =
                    (self.builder.require(a)?, self.builder.require(b)?)
                else {
                    unreachable!("these are bools");
                };
                return Ok(self.builder.make(|out| Step::Bool(operation, a, b, out)).into());
            }
            _ => {}
        }
        let (a, b) = (self.builder.number(a)?, self.builder.number(b)?);
        match (a, b) {
            (Number::Int(a), Number::Int(b)) => {
                let operation = match operator {
                    "+" => IntOp::Add,
                    "-" => IntOp::Subtract,
                    "*" => IntOp::Multiply,
                    "//" => IntOp::FloorDivide,
                    "%" => IntOp::Modulo,
                    "&" => IntOp::And,
                    "|" => IntOp::Or,
                    "^" => IntOp::Xor,
                    "<<" => IntOp::ShiftLeft,
                    ">>" => IntOp::ShiftRight,
                    "/" => return Ok(self.quotient(a, b)),
                    "**" => {
                        let Node::Int(exponent) = right.1 else {
                            return Err(self.builder.refuse("** of ints whose exponent is no constant"));
                        };
                        let exponent = u32::try_from(exponent);
                        let exponent =
                            exponent.map_err(|_| self.builder.refuse("** with such an exponent"))?;
                        return Ok(self.builder.make(|out| Step::IntPower(a, exponent, out)).into());
                    }
                    _ => return Err(self.builder.refuse(format!("the operator {operator}"))),
                };
                Ok(self.builder.make(|out| Step::Int(operation, a, b, out)).into())
            }
            _ => {
                let operation = match operator {
                    "+" => FloatOp::Add,
                    "-" => FloatOp::Subtract,
                    "*" => FloatOp::Multiply,
                    "/" => FloatOp::Divide,
                    "//" => FloatOp::FloorDivide,
                    "%" => FloatOp::Modulo,
                    "**" => FloatOp::Power,
                    _ => return Err(self.builder.refuse(format!("the operator {operator} of floats"))),
                };
                let (a, b) = (self.builder.float_of(a), self.builder.float_of(b));
                Ok(self.builder.make(|out| Step::Float(operation, a, b, out)).into())
            }
        }
    }

    /// The float that is closest to the quotient of two ints. The quotient of two exact floats is rounded
    /// once, as Python's is.
    pub(super) fn quotient(&mut self, a: Ints, b: Ints) -> Value {
        let [a, b] = [a, b].map(|ints| self.builder.exact_float_of(Number::Int(ints)));
        self.builder.make(|out| Step::Float(FloatOp::Divide, a, b, out)).into()
    }

    /// `and` and `or` give one of their operands.
    fn operands(&mut self, parts: &[Expression], goes_on: bool) -> Compiled<Value> {
        let [first, rest @ ..] = parts else { return Err(self.builder.refuse("no operands")) };
        let value = self.value(first)?;
        if rest.is_empty() {
            return Ok(value);
        }
        let truth = self.builder.truth_of(value)?;
        let before = self.builder.reach;
        self.builder.reach = self.builder.only(before, truth, goes_on);
        let other = self.operands(rest, goes_on)?;
        self.builder.reach = before;
        let merged = if goes_on {
            self.builder.merged(truth, other, value)
        } else {
            self.builder.merged(truth, value, other)
        };
        merged.ok_or_else(|| self.builder.refuse("operands of `and` or `or` with several types"))
    }

    /// A conditional expression. `value` compiles each of its values.
    pub(super) fn conditional(
        &mut self,
        condition: &Expression,
        [yes, no]: [&Expression; 2],
        value: fn(&mut Self, &Expression) -> Compiled<Vec<Value>>,
    ) -> Compiled<Vec<Value>> {
        let truth = self.truth(condition)?;
        let before = self.builder.reach;
        self.builder.reach = self.builder.only(before, truth, true);
        let yes = value(self, yes)?;
        self.builder.reach = self.builder.only(before, truth, false);
        let no = value(self, no)?;
        self.builder.reach = before;
        let merged = self.builder.all_merged(truth, yes, no);
        merged.ok_or_else(|| self.builder.refuse("a conditional expression with values of several types"))
    }

    fn index(&mut self, object: &Expression, index: &Expression) -> Compiled<Value> {
        // `text.split(separator)[index]`, without the list.
        if let Node::Method(name, text, arguments) = &object.1
            && name == "split"
        {
            let Node::Int(index) = index.1 else {
                return Err(self.builder.refuse("split with an index that is no constant"));
            };
            let part = match &arguments[..] {
                [] | [Expression(_, Node::None)] => TextFunction::Word { index },
                [Expression(_, Node::Text(separator))] if !separator.is_empty() => {
                    TextFunction::Element { separator: separator.as_bytes().to_vec(), index }
                }
                _ => return Err(self.builder.refuse("split with such arguments")),
            };
            let value = self.value(text)?;
            let text = self.builder.text_of(value)?;
            return Ok(self.builder.make(|out| Step::Text(part, text, out)).into());
        }
        match &object.1 {
            Node::Dict(keys, values) => {
                let key = self.value(index)?;
                return self.item((keys, values), key);
            }
            Node::Tuple(elements) => {
                let index = self.value(index)?;
                return self.element(elements, index);
            }
            _ => {}
        }
        let (value, index) = (self.value(object)?, self.value(index)?);
        let (text, index) = (self.builder.text_of(value)?, self.builder.int_of(index)?);
        Ok(self.builder.make(|out| Step::Character(text, index, out)).into())
    }

    fn slice(
        &mut self,
        object: &Expression,
        from: Option<&Expression>,
        to: Option<&Expression>,
    ) -> Compiled<Value> {
        let value = self.value(object)?;
        let mut bound = |bound: Option<&Expression>| match bound {
            None | Some(Expression(_, Node::None)) => Ok(None),
            Some(bound) => {
                let value = self.value(bound)?;
                self.builder.int_of(value).map(Some)
            }
        };
        let (from, to) = (bound(from)?, bound(to)?);
        let text = self.builder.text_of(value)?;
        Ok(self.builder.make(|out| Step::Slice(text, from, to, out)).into())
    }

    /// `separator.join([part, part])`.
    fn join(&mut self, separator: &Expression, parts: &[Expression]) -> Compiled<Value> {
        let value = self.value(separator)?;
        let separator = self.builder.text_of(value)?;
        let mut texts = Vec::new();
        for part in parts {
            let value = self.value(part)?;
            texts.extend((!texts.is_empty()).then_some(separator));
            texts.push(self.builder.text_of(value)?);
        }
        Ok(self.builder.make(|out| Step::Concatenate(texts, out)).into())
    }

    fn format(&mut self, parts: &[Expression]) -> Compiled<Value> {
        let texts = parts.iter().map(|part| {
            let value = self.value(part)?;
            self.as_text(value)
        });
        let texts = texts.collect::<Compiled<Vec<_>>>()?;
        Ok(self.builder.make(|out| Step::Concatenate(texts, out)).into())
    }
}
