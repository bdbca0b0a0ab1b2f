//! Calls of builtin functions, of functions of `math`, and of classes of `datetime`.

use super::builder::{Number, Value};
use super::{Compiled, Compiler, Unsupported};
use crate::format::Format;
use crate::program::{
    FloatFunction, FloatOp, FloatTest, IntOp, Register, Rounding, Step, TextCount, TextFunction, Texts,
};
use crate::source::{Expression, Node};

impl Compiler {
    pub(super) fn call(&mut self, name: &str, arguments: &[Expression]) -> Compiled<Value> {
        if let ("round", [number, Expression(_, Node::Int(digits))]) = (name, arguments) {
            return self.round(number, *digits);
        }
        match (name, arguments) {
            ("format", [value, Expression(_, Node::Text(format))]) => return self.formatted(value, format),
            ("datetime.strptime", [text, Expression(_, Node::Text(format))]) => {
                return self.strptime(text, format);
            }
            _ => {}
        }
        let values = arguments.iter().map(|argument| self.value(argument));
        let values = values.collect::<Compiled<Vec<_>>>()?;
        if let Some(made) = self.time_call(name, &values) {
            return made;
        }
        match (name, &values[..]) {
            ("bool", [value]) => Ok(self.builder.truth_of(*value)?.into()),
            ("len", [value]) => {
                let text = self.builder.text_of(*value)?;
                Ok(self.builder.make(|out| Step::Count(TextCount::Length, text, text, out)).into())
            }
            ("str" | "format", [value]) => Ok(self.as_text(*value)?.into()),
            ("int", [value]) if matches!(value.register, Some(Register::Text(_))) => {
                let text = self.builder.text_of(*value)?;
                Ok(self.builder.make(|out| Step::TextToInt(text, out)).into())
            }
            ("min" | "max", [first, rest @ ..]) if !rest.is_empty() => self.extreme(name, *first, rest),
            (_, [value]) => {
                let number = self.builder.number(*value)?;
                self.of_one(name, number)
            }
            (_, [a, b]) => {
                let (a, b) = (self.builder.number(*a)?, self.builder.number(*b)?);
                self.of_two(name, a, b)
            }
            _ => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &str) -> Unsupported {
        self.builder.refuse(format!("a call of {name} with such arguments"))
    }

    /// A value as `str` and f-strings have it.
    pub(super) fn as_text(&mut self, value: Value) -> Compiled<Texts> {
        match self.builder.require(value)? {
            Register::Text(texts) => Ok(texts),
            Register::Int(ints) => Ok(self.builder.make(|out| Step::IntToText(ints, out))),
            Register::Float(floats) => Ok(self.builder.make(|out| Step::FloatToText(floats, out))),
            Register::Bool(truth) => {
                let (yes, no) = (self.builder.text("True"), self.builder.text("False"));
                Ok(self.builder.make(|out| Step::SelectText(truth, yes, no, out)))
            }
            Register::Time(time, ints) => self.time_as_text(time, ints),
        }
    }

    /// `format(value, format)`, also in an f-string.
    fn formatted(&mut self, value: &Expression, format: &str) -> Compiled<Value> {
        let value = self.value(value)?;
        let register = self.builder.require(value)?;
        if format.is_empty() {
            return Ok(self.as_text(value)?.into());
        }
        if let Register::Time(time, ints) = register {
            return Ok(self.strftime(time, ints, format)?.into());
        }
        let parsed = Format::parse(format);
        let made = match (register, parsed) {
            (Register::Int(ints), Some(format)) if format.is_for_ints() => {
                self.builder.make(|out| Step::FormatInt(format, ints, out))
            }
            (Register::Int(ints), Some(format)) if format.is_for_floats() => {
                let floats = self.builder.exact_float_of(Number::Int(ints));
                self.builder.make(|out| Step::FormatFloat(format, floats, out))
            }
            (Register::Float(floats), Some(format)) if format.is_for_floats() => {
                self.builder.make(|out| Step::FormatFloat(format, floats, out))
            }
            (Register::Text(texts), Some(format)) if format.is_for_texts() => {
                self.builder.make(|out| Step::Text(TextFunction::Format(format), texts, out))
            }
            _ => return Err(self.builder.refuse(format!("the format {format:?} of such a value"))),
        };
        Ok(made.into())
    }

    fn round(&mut self, number: &Expression, digits: i64) -> Compiled<Value> {
        let value = self.value(number)?;
        let digits = i32::try_from(digits).ok().filter(|digits| (0..=15).contains(digits));
        let digits = digits.ok_or_else(|| self.builder.refuse("round to such a number of digits"))?;
        Ok(match self.builder.number(value)? {
            Number::Int(ints) => ints.into(),
            Number::Float(floats) => self.builder.make(|out| Step::RoundDigits(floats, digits, out)).into(),
        })
    }

    /// `min` or `max`: the first of the least or greatest values.
    fn extreme(&mut self, name: &str, first: Value, rest: &[Value]) -> Compiled<Value> {
        use Register as R;
        let (of_ints, of_floats) = match name {
            "min" => (IntOp::Minimum, FloatOp::Minimum),
            _ => (IntOp::Maximum, FloatOp::Maximum),
        };
        let mut best = self.builder.require(first)?;
        for value in rest {
            best = match (best, self.builder.require(*value)?) {
                (R::Int(a), R::Int(b)) => self.builder.make(|out| Step::Int(of_ints, a, b, out)).into(),
                (R::Time(time, a), R::Time(other, b)) if time == other => {
                    R::Time(time, self.builder.make(|out| Step::Int(of_ints, a, b, out)))
                }
                (R::Float(a), R::Float(b)) => {
                    self.builder.make(|out| Step::Float(of_floats, a, b, out)).into()
                }
                _ => {
                    return Err(self
                        .builder
                        .refuse(format!("{name} of values of several types, or of bools and texts")));
                }
            };
        }
        Ok(best.into())
    }

    fn of_one(&mut self, name: &str, number: Number) -> Compiled<Value> {
        let rounding = match name {
            "int" | "math.trunc" => Some(Rounding::Truncate),
            "math.floor" => Some(Rounding::Floor),
            "math.ceil" => Some(Rounding::Ceiling),
            "round" => Some(Rounding::HalfEven),
            _ => None,
        };
        match (name, number, rounding) {
            (_, Number::Int(ints), Some(_)) => return Ok(ints.into()),
            (_, Number::Float(floats), Some(rounding)) => {
                return Ok(self.builder.make(|out| Step::Round(rounding, floats, out)).into());
            }
            ("abs", Number::Int(ints), _) => {
                return Ok(self.builder.make(|out| Step::AbsoluteInt(ints, out)).into());
            }
            ("math.isqrt", Number::Int(ints), _) => {
                return Ok(self.builder.make(|out| Step::SquareRoot(ints, out)).into());
            }
            ("math.isqrt", Number::Float(_), _) => return Err(self.unknown(name)),
            _ => {}
        }
        let floats = self.builder.float_of(number);
        let test = match name {
            "math.isnan" => Some(FloatTest::Nan),
            "math.isinf" => Some(FloatTest::Infinite),
            "math.isfinite" => Some(FloatTest::Finite),
            _ => None,
        };
        if let Some(test) = test {
            return Ok(self.builder.make(|out| Step::Test(test, floats, out)).into());
        }
        let function = match name {
            "float" => return Ok(floats.into()),
            "abs" | "math.fabs" => FloatFunction::Absolute,
            "math.sin" => FloatFunction::Sin,
            "math.cos" => FloatFunction::Cos,
            "math.tan" => FloatFunction::Tan,
            "math.asin" => FloatFunction::Asin,
            "math.acos" => FloatFunction::Acos,
            "math.atan" => FloatFunction::Atan,
            "math.sinh" => FloatFunction::Sinh,
            "math.cosh" => FloatFunction::Cosh,
            "math.tanh" => FloatFunction::Tanh,
            "math.exp" => FloatFunction::Exp,
            "math.expm1" => FloatFunction::Expm1,
            "math.log" => FloatFunction::Log,
            "math.log2" => FloatFunction::Log2,
            "math.log10" => FloatFunction::Log10,
            "math.log1p" => FloatFunction::Log1p,
            "math.asinh" => FloatFunction::Asinh,
            "math.acosh" => FloatFunction::Acosh,
            "math.atanh" => FloatFunction::Atanh,
            "math.exp2" => FloatFunction::Exp2,
            "math.erf" => FloatFunction::Erf,
            "math.erfc" => FloatFunction::Erfc,
            "math.sqrt" => FloatFunction::Sqrt,
            "math.radians" => FloatFunction::Radians,
            "math.degrees" => FloatFunction::Degrees,
            _ => return Err(self.unknown(name)),
        };
        Ok(self.builder.make(|out| Step::Function(function, floats, out)).into())
    }

    fn of_two(&mut self, name: &str, a: Number, b: Number) -> Compiled<Value> {
        match (name, a, b) {
            ("math.gcd", Number::Int(a), Number::Int(b)) => {
                return Ok(self.builder.make(|out| Step::Int(IntOp::Gcd, a, b, out)).into());
            }
            ("math.lcm", Number::Int(a), Number::Int(b)) => {
                return Ok(self.builder.make(|out| Step::Int(IntOp::Lcm, a, b, out)).into());
            }
            ("math.log", ..) => {
                // As CPython does it, for ints and for floats.
                let [a, b] = [a, b].map(|number| {
                    let float = self.builder.float_of(number);
                    self.builder.make(|out| Step::Function(FloatFunction::Log, float, out))
                });
                return Ok(self.builder.make(|out| Step::Float(FloatOp::Divide, a, b, out)).into());
            }
            _ => {}
        }
        let operation = match name {
            "math.atan2" => FloatOp::Atan2,
            "math.fmod" => FloatOp::Fmod,
            "math.copysign" => FloatOp::CopySign,
            "math.pow" => FloatOp::Power,
            _ => return Err(self.unknown(name)),
        };
        let (a, b) = (self.builder.float_of(a), self.builder.float_of(b));
        Ok(self.builder.make(|out| Step::Float(operation, a, b, out)).into())
    }
}
