//! The instructions of a program that is being made, and the values in its registers.

use super::{Compiled, Unsupported};
use crate::program::{
    BoolOp, Bools, Constant, Counts, Floats, Ints, Mask, Output, Register, Step, Texts, Time,
};
use crosslane::DataType;

/// A value of Python's: a register, and where it is None.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    /// None if the value is `None` in all rows.
    pub(super) register: Option<Register>,
    /// 1 where the value is `None`. None if it is `None` nowhere.
    pub(super) none: Option<Bools>,
}

impl Value {
    pub(super) const NONE: Self = Self { register: None, none: None };
}

impl<T: Into<Register>> From<T> for Value {
    fn from(register: T) -> Self {
        Self { register: Some(register.into()), none: None }
    }
}

/// A number, which is no bool any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    Int(Ints),
    Float(Floats),
}

/// The rows that come to an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    All,
    Some(Bools),
    Nobody,
}

/// A type of registers.
pub(super) trait NewRegister: Copy + Into<Register> {
    fn new(counts: &mut Counts) -> Self;
}

macro_rules! new_register {
    ($($type:ident $field:ident $variant:ident),+) => {
        $(impl NewRegister for $type {
            fn new(counts: &mut Counts) -> Self {
                counts.$field += 1;
                Self(counts.$field - 1)
            }
        }
        impl From<$type> for Register {
            fn from(register: $type) -> Self {
                Register::$variant(register)
            }
        })+
    };
}

new_register!(Bools bools Bool, Ints ints Int, Floats floats Float, Texts texts Text);

#[derive(Debug)]
pub(super) struct Builder {
    pub(super) steps: Vec<(Step, Mask)>,
    pub(super) constants: Vec<Constant>,
    pub(super) counts: Counts,
    /// The rows that come to the next instruction.
    pub(super) reach: Reach,
    /// The line of the expression that is being compiled.
    pub(super) line: u32,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            constants: Vec::new(),
            counts: Counts::default(),
            reach: Reach::All,
            line: 0,
        }
    }
}

impl Builder {
    pub(super) fn refuse(&self, reason: impl Into<String>) -> Unsupported {
        Unsupported { line: self.line, reason: reason.into() }
    }

    pub(super) fn bools(&mut self) -> Bools {
        Bools::new(&mut self.counts)
    }

    /// The register of a parameter.
    pub(super) fn input(&mut self, data_type: &DataType) -> Compiled<Register> {
        use DataType as T;
        Ok(match data_type {
            T::Boolean => self.bools().into(),
            T::TinyInt | T::SmallInt | T::Integer | T::BigInt | T::UTinyInt | T::USmallInt | T::UInteger => {
                Ints::new(&mut self.counts).into()
            }
            T::Float | T::Double => Floats::new(&mut self.counts).into(),
            T::Varchar => Texts::new(&mut self.counts).into(),
            T::Date => Register::Time(Time::Date, Ints::new(&mut self.counts)),
            T::Timestamp => Register::Time(Time::Datetime, Ints::new(&mut self.counts)),
            other => return Err(self.refuse(format!("it has a parameter of type {other}"))),
        })
    }

    /// Adds an instruction for the rows of the mask. Returns its result.
    pub(super) fn make<R: NewRegister>(&mut self, step: impl FnOnce(R) -> Step) -> R {
        let register = R::new(&mut self.counts);
        self.add(step(register));
        register
    }

    /// Adds an instruction that has no result.
    pub(super) fn add(&mut self, step: Step) {
        let mask = match self.reach {
            Reach::Some(rows) => Some(rows),
            Reach::All | Reach::Nobody => None,
        };
        self.steps.push((step, mask));
    }

    pub(super) fn constant<R: NewRegister>(&mut self, constant: impl FnOnce(R) -> Constant) -> R {
        let register = R::new(&mut self.counts);
        self.constants.push(constant(register));
        register
    }

    pub(super) fn bool(&mut self, value: bool) -> Bools {
        self.constant(|out| Constant::Bool(value, out))
    }

    pub(super) fn int(&mut self, value: i64) -> Ints {
        self.constant(|out| Constant::Int(value, out))
    }

    pub(super) fn float(&mut self, value: f64) -> Floats {
        self.constant(|out| Constant::Float(value, out))
    }

    pub(super) fn text(&mut self, value: &str) -> Texts {
        self.constant(|out| Constant::Text(value.as_bytes().to_vec(), out))
    }

    /// Those of some rows for which a condition is true, or for which it is false.
    pub(super) fn only(&mut self, rows: Reach, truth: Bools, is: bool) -> Reach {
        match (rows, is) {
            (Reach::All, true) => Reach::Some(truth),
            (Reach::All, false) => Reach::Some(self.make(|out| Step::Not(truth, out))),
            (Reach::Some(rows), _) => {
                let operation = if is { BoolOp::And } else { BoolOp::AndNot };
                Reach::Some(self.make(|out| Step::Bool(operation, rows, truth, out)))
            }
            (Reach::Nobody, _) => Reach::Nobody,
        }
    }

    /// The rows of both.
    pub(super) fn either(&mut self, one: Reach, another: Reach) -> Reach {
        match (one, another) {
            (Reach::Nobody, rest) | (rest, Reach::Nobody) => rest,
            (Reach::All, _) | (_, Reach::All) => Reach::All,
            (Reach::Some(one), Reach::Some(another)) => {
                Reach::Some(self.make(|out| Step::Bool(BoolOp::Or, one, another, out)))
            }
        }
    }

    /// One value where a condition is true, and the other elsewhere. None if they have several
    /// types.
    pub(super) fn merged(&mut self, truth: Bools, yes: Value, no: Value) -> Option<Value> {
        // The registers are read for all rows, whatever rows come here.
        let reach = std::mem::replace(&mut self.reach, Reach::All);
        let merged = self.select(truth, yes, no);
        self.reach = reach;
        merged
    }

    /// As [`Builder::merged`], for several values.
    pub(super) fn all_merged(&mut self, truth: Bools, yes: Vec<Value>, no: Vec<Value>) -> Option<Vec<Value>> {
        yes.into_iter().zip(no).map(|(yes, no)| self.merged(truth, yes, no)).collect()
    }

    fn select(&mut self, truth: Bools, yes: Value, no: Value) -> Option<Value> {
        use Register as R;
        let register = match (yes.register, no.register) {
            (one, another) if one == another => one,
            (Some(only), None) | (None, Some(only)) => Some(only),
            (Some(R::Bool(yes)), Some(R::Bool(no))) => {
                Some(self.make(|out| Step::SelectBool(truth, yes, no, out)).into())
            }
            (Some(R::Int(yes)), Some(R::Int(no))) => {
                Some(self.make(|out| Step::SelectInt(truth, yes, no, out)).into())
            }
            (Some(R::Float(yes)), Some(R::Float(no))) => {
                Some(self.make(|out| Step::SelectFloat(truth, yes, no, out)).into())
            }
            (Some(R::Text(yes)), Some(R::Text(no))) => {
                Some(self.make(|out| Step::SelectText(truth, yes, no, out)).into())
            }
            (Some(R::Time(time, yes)), Some(R::Time(other, no))) if time == other => {
                Some(R::Time(time, self.make(|out| Step::SelectInt(truth, yes, no, out))))
            }
            _ => return None,
        };
        if register.is_none() {
            return Some(Value::NONE);
        }
        let mut none = |value: Value| match value {
            Value { register: None, .. } => Some(self.bool(true)),
            Value { none, .. } => none,
        };
        let none = match (none(yes), none(no)) {
            (None, None) => None,
            (one, another) if one == another => one,
            (one, another) => {
                let one = one.unwrap_or_else(|| self.bool(false));
                let another = another.unwrap_or_else(|| self.bool(false));
                Some(self.make(|out| Step::SelectBool(truth, one, another, out)))
            }
        };
        Some(Value { register, none })
    }

    /// The register of a value that is not `None`. Rows for which it is `None` leave the program.
    pub(super) fn require(&mut self, value: Value) -> Compiled<Register> {
        if let Some(none) = value.none {
            self.add(Step::Leave(none));
        }
        value.register.ok_or_else(|| self.refuse("an operand is None"))
    }

    /// A number. A bool is an int.
    pub(super) fn number(&mut self, value: Value) -> Compiled<Number> {
        match self.require(value)? {
            Register::Bool(bools) => Ok(Number::Int(self.make(|out| Step::BoolToInt(bools, out)))),
            Register::Int(ints) => Ok(Number::Int(ints)),
            Register::Float(floats) => Ok(Number::Float(floats)),
            Register::Text(_) => Err(self.refuse("an operand is a str, where a number is known")),
            Register::Time(..) => Err(self.refuse("an operand is a date, where a number is known")),
        }
    }

    pub(super) fn float_of(&mut self, number: Number) -> Floats {
        match number {
            Number::Int(ints) => self.make(|out| Step::IntToFloat(ints, out)),
            Number::Float(floats) => floats,
        }
    }

    /// A float of the same value. An int that is no exact float leaves.
    pub(super) fn exact_float_of(&mut self, number: Number) -> Floats {
        /// The greatest int below which all ints are floats, too.
        const EXACT: i64 = 1 << 53;
        if let Number::Int(ints) = number {
            self.add(Step::Within(ints, -EXACT, EXACT));
        }
        self.float_of(number)
    }

    /// An int, or the reason against another type.
    pub(super) fn int_of(&mut self, value: Value) -> Compiled<Ints> {
        match self.number(value)? {
            Number::Int(ints) => Ok(ints),
            Number::Float(_) => Err(self.refuse("a float, where an int is known")),
        }
    }

    pub(super) fn text_of(&mut self, value: Value) -> Compiled<Texts> {
        match self.require(value)? {
            Register::Text(texts) => Ok(texts),
            Register::Time(..) => Err(self.refuse("a date, where a str is known")),
            _ => Err(self.refuse("a number, where a str is known")),
        }
    }

    /// Whether a value counts as true.
    pub(super) fn truth_of(&mut self, value: Value) -> Compiled<Bools> {
        let truth = match value.register {
            None => return Ok(self.bool(false)),
            Some(Register::Bool(bools)) => bools,
            Some(Register::Int(ints) | Register::Time(Time::Timedelta, ints)) => {
                self.make(|out| Step::IntTruth(ints, out))
            }
            Some(Register::Time(..)) => self.bool(true),
            Some(Register::Float(floats)) => self.make(|out| Step::FloatTruth(floats, out)),
            Some(Register::Text(texts)) => self.make(|out| Step::TextTruth(texts, out)),
        };
        Ok(match value.none {
            Some(none) => self.make(|out| Step::Bool(BoolOp::AndNot, truth, none, out)),
            None => truth,
        })
    }

    /// The results of a column of this type.
    pub(super) fn output(&mut self, value: Value, data_type: &DataType) -> Compiled<Output> {
        self.reach = Reach::All;
        if let Some(register) = value.register {
            // Only results that are not NULL count.
            if let Some(none) = value.none {
                self.reach = Reach::Some(self.make(|out| Step::Not(none, out)));
            }
            self.check(register, data_type)?;
        }
        Ok(Output { values: value.register, nulls: value.none, data_type: data_type.clone() })
    }

    /// Rows leave whose value does not fit a column of this type.
    fn check(&mut self, register: Register, returns: &DataType) -> Compiled<()> {
        use DataType as T;
        match (register, returns) {
            (Register::Bool(_), T::Boolean)
            | (Register::Float(_), T::Double)
            | (Register::Text(_), T::Varchar)
            | (Register::Time(Time::Date, _), T::Date)
            | (Register::Time(Time::Datetime, _), T::Timestamp)
            | (Register::Int(_), T::BigInt) => {}
            (Register::Float(floats), T::Float) => self.add(Step::Narrow(floats)),
            (Register::Int(ints), _) => {
                let (least, most) = bounds(returns).ok_or_else(|| self.no_result(returns))?;
                self.add(Step::Within(ints, least, most));
            }
            _ => return Err(self.no_result(returns)),
        }
        Ok(())
    }

    fn no_result(&self, returns: &DataType) -> Unsupported {
        self.refuse(format!("its results are not of type {returns}"))
    }
}

/// The least and the greatest int of a type with less than 64 bits.
fn bounds(data_type: &DataType) -> Option<(i64, i64)> {
    Some(match data_type {
        DataType::TinyInt => (i8::MIN.into(), i8::MAX.into()),
        DataType::SmallInt => (i16::MIN.into(), i16::MAX.into()),
        DataType::Integer => (i32::MIN.into(), i32::MAX.into()),
        DataType::UTinyInt => (0, u8::MAX.into()),
        DataType::USmallInt => (0, u16::MAX.into()),
        DataType::UInteger => (0, u32::MAX.into()),
        _ => return None,
    })
}
