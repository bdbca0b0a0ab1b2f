//! Dates, datetimes and timedeltas.

use super::builder::Value;
use super::{Compiled, Compiler};
use crate::program::{IntOp, Ints, Register, Step, Texts, Time, TimeField};
use crate::source::{Expression, Node};
use crate::strftime::{self, DAY, Directive, FIRST_DAY, LAST_DAY};

/// The ordinal of 1970-01-01.
const EPOCH: i64 = 719_163;

/// The microseconds of the arguments of `timedelta`, in order: days, seconds, microseconds,
/// milliseconds, minutes, hours, weeks.
const UNITS: [i64; 7] = [DAY, 1_000_000, 1, 1_000, 60_000_000, 3_600_000_000, 7 * DAY];

impl Compiler {
    /// Rows leave if these days or microseconds are not in the years 1 to 9999.
    pub(super) fn require_years(&mut self, time: Time, ints: Ints) {
        match time {
            Time::Date => self.builder.add(Step::Within(ints, FIRST_DAY, LAST_DAY)),
            Time::Datetime => {
                self.builder.add(Step::Within(ints, FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1));
            }
            Time::Timedelta => {}
        }
    }

    fn op(&mut self, operation: IntOp, a: Ints, b: Ints) -> Ints {
        self.builder.make(|out| Step::Int(operation, a, b, out))
    }

    fn with(&mut self, operation: IntOp, a: Ints, constant: i64) -> Ints {
        let constant = self.builder.int(constant);
        self.op(operation, a, constant)
    }

    fn field(&mut self, field: TimeField, of: Ints) -> Ints {
        self.builder.make(|out| Step::TimeField(field, of, out))
    }

    /// The whole days of a date or datetime.
    fn days(&mut self, time: Time, ints: Ints) -> Ints {
        if time == Time::Date { ints } else { self.field(TimeField::Days, ints) }
    }

    /// An operator between times, or between a timedelta and a number. None if it is none of these.
    pub(super) fn time_binary(&mut self, operator: &str, a: Value, b: Value) -> Option<Compiled<Value>> {
        use Register as R;
        use Time as T;
        let (left, right) = (a.register?, b.register?);
        if !matches!((left, right), (R::Time(..), _) | (_, R::Time(..))) {
            return None;
        }
        // The rows in which an operand is None leave.
        for operand in [a, b] {
            if let Err(why) = self.builder.require(operand) {
                return Some(Err(why));
            }
        }
        let value: Value = match (operator, left, right) {
            ("-", R::Time(T::Date, a), R::Time(T::Date, b)) => {
                let days = self.op(IntOp::Subtract, a, b);
                R::Time(T::Timedelta, self.with(IntOp::Multiply, days, DAY)).into()
            }
            ("-", R::Time(T::Datetime, a), R::Time(T::Datetime, b))
            | ("-", R::Time(T::Timedelta, a), R::Time(T::Timedelta, b)) => {
                R::Time(T::Timedelta, self.op(IntOp::Subtract, a, b)).into()
            }
            ("+", R::Time(T::Timedelta, a), R::Time(T::Timedelta, b)) => {
                R::Time(T::Timedelta, self.op(IntOp::Add, a, b)).into()
            }
            ("+", R::Time(T::Timedelta, delta), R::Time(time, ints))
            | ("+" | "-", R::Time(time, ints), R::Time(T::Timedelta, delta)) => {
                let operation = if operator == "+" { IntOp::Add } else { IntOp::Subtract };
                // A date moves by the whole days.
                let delta = if time == T::Date { self.field(TimeField::Days, delta) } else { delta };
                let moved = self.op(operation, ints, delta);
                self.require_years(time, moved);
                R::Time(time, moved).into()
            }
            ("*", R::Time(T::Timedelta, delta), R::Int(factor))
            | ("*", R::Int(factor), R::Time(T::Timedelta, delta)) => {
                R::Time(T::Timedelta, self.op(IntOp::Multiply, delta, factor)).into()
            }
            ("//", R::Time(T::Timedelta, a), R::Int(b)) => {
                R::Time(T::Timedelta, self.op(IntOp::FloorDivide, a, b)).into()
            }
            ("//", R::Time(T::Timedelta, a), R::Time(T::Timedelta, b)) => {
                self.op(IntOp::FloorDivide, a, b).into()
            }
            ("%", R::Time(T::Timedelta, a), R::Time(T::Timedelta, b)) => {
                R::Time(T::Timedelta, self.op(IntOp::Modulo, a, b)).into()
            }
            ("/", R::Time(T::Timedelta, a), R::Time(T::Timedelta, b)) => self.quotient(a, b),
            _ => return Some(Err(self.builder.refuse(format!("the operator {operator} of such values")))),
        };
        Some(Ok(value))
    }

    pub(super) fn attribute(&mut self, name: &str, object: &Expression) -> Compiled<Value> {
        let value = self.value(object)?;
        let Register::Time(time, ints) = self.builder.require(value)? else {
            return Err(self.builder.refuse(format!("the attribute {name}")));
        };
        let field = match (time, name) {
            (Time::Date | Time::Datetime, "year") => TimeField::Year,
            (Time::Date | Time::Datetime, "month") => TimeField::Month,
            (Time::Date | Time::Datetime, "day") => TimeField::Day,
            (Time::Datetime, "hour") => TimeField::Hour,
            (Time::Datetime, "minute") => TimeField::Minute,
            (Time::Datetime, "second") => TimeField::Second,
            (Time::Datetime, "microsecond") | (Time::Timedelta, "microseconds") => TimeField::Microsecond,
            (Time::Timedelta, "days") => TimeField::Days,
            (Time::Timedelta, "seconds") => TimeField::SecondOfDay,
            _ => return Err(self.builder.refuse(format!("the attribute {name}"))),
        };
        let of = match field {
            TimeField::Year | TimeField::Month | TimeField::Day => self.days(time, ints),
            _ => ints,
        };
        Ok(self.field(field, of).into())
    }

    /// A method of a time.
    pub(super) fn time_method(
        &mut self,
        name: &str,
        (time, ints): (Time, Ints),
        arguments: &[Expression],
    ) -> Compiled<Value> {
        Ok(match (time, name, arguments) {
            (Time::Timedelta, "total_seconds", []) => {
                let second = self.builder.int(1_000_000);
                self.quotient(ints, second)
            }
            (Time::Date | Time::Datetime, "weekday" | "isoweekday", []) => {
                let days = self.days(time, ints);
                let weekday = self.field(TimeField::Weekday, days);
                if name == "weekday" { weekday.into() } else { self.with(IntOp::Add, weekday, 1).into() }
            }
            (Time::Date | Time::Datetime, "toordinal", []) => {
                let days = self.days(time, ints);
                self.with(IntOp::Add, days, EPOCH).into()
            }
            (Time::Datetime, "date", []) => Register::Time(Time::Date, self.days(time, ints)).into(),
            (Time::Date, "isoformat", []) => self.time_text(time, ints, strftime::iso_date()).into(),
            (Time::Datetime, "isoformat", []) => {
                self.time_text(time, ints, strftime::iso_datetime(b'T')).into()
            }
            (Time::Date | Time::Datetime, "strftime", [Expression(_, Node::Text(format))]) => {
                self.strftime(time, ints, format)?.into()
            }
            _ => return Err(self.builder.refuse(format!("the method {name} with such arguments"))),
        })
    }

    /// A time as `str` has it.
    pub(super) fn time_as_text(&mut self, time: Time, ints: Ints) -> Compiled<Texts> {
        let format = match time {
            Time::Date => strftime::iso_date(),
            Time::Datetime => strftime::iso_datetime(b' '),
            Time::Timedelta => return Err(self.builder.refuse("the text of a timedelta")),
        };
        Ok(self.time_text(time, ints, format))
    }

    /// A date or datetime with a format of `strftime`.
    pub(super) fn strftime(&mut self, time: Time, ints: Ints, format: &str) -> Compiled<Texts> {
        let format = strftime::parse(format).filter(|_| time != Time::Timedelta);
        let format = format.ok_or_else(|| self.builder.refuse("such a format of a date"))?;
        Ok(self.time_text(time, ints, format))
    }

    fn time_text(&mut self, time: Time, ints: Ints, format: Vec<Directive>) -> Texts {
        self.builder.make(|out| Step::TimeToText(time, format, ints, out))
    }

    /// `object.replace(day=1)`.
    pub(super) fn replaced(
        &mut self,
        object: &Expression,
        fields: &[(String, Expression)],
    ) -> Compiled<Value> {
        let value = self.value(object)?;
        let Register::Time(time @ (Time::Date | Time::Datetime), ints) = self.builder.require(value)? else {
            return Err(self.builder.refuse("replace with keywords"));
        };
        let names: &[(&str, TimeField)] = &[
            ("year", TimeField::Year),
            ("month", TimeField::Month),
            ("day", TimeField::Day),
            ("hour", TimeField::Hour),
            ("minute", TimeField::Minute),
            ("second", TimeField::Second),
            ("microsecond", TimeField::Microsecond),
        ];
        let names = if time == Time::Date { &names[..3] } else { names };
        if let Some((name, _)) = fields.iter().find(|(name, _)| names.iter().all(|(known, _)| known != name))
        {
            return Err(self.builder.refuse(format!("replace with {name}")));
        }
        let days = self.days(time, ints);
        let mut parts = Vec::new();
        for (place, (name, field)) in names.iter().enumerate() {
            parts.push(match fields.iter().find(|(given, _)| given == name) {
                Some((_, expression)) => {
                    let value = self.value(expression)?;
                    self.builder.int_of(value)?
                }
                None => self.field(*field, if place < 3 { days } else { ints }),
            });
        }
        Ok(self.time_of(time, &parts).into())
    }

    /// A date of a year, month and day, or a datetime with hours, minutes, seconds and microseconds.
    fn time_of(&mut self, time: Time, parts: &[Ints]) -> Register {
        let (year, month, day) = (parts[0], parts[1], parts[2]);
        let days = self.builder.make(|out| Step::MakeDate(year, month, day, out));
        if time == Time::Date {
            return Register::Time(time, days);
        }
        let mut all = days;
        for (part, count) in parts[3..].iter().zip([24, 60, 60, 1_000_000]) {
            self.builder.add(Step::Within(*part, 0, count - 1));
            let scaled = self.with(IntOp::Multiply, all, count);
            all = self.op(IntOp::Add, scaled, *part);
        }
        Register::Time(time, all)
    }

    /// A call of a class of `datetime`, or of one of its class methods. None if it is none of these.
    pub(super) fn time_call(&mut self, name: &str, values: &[Value]) -> Option<Compiled<Value>> {
        let made = match (name, values) {
            ("date", [_, _, _]) => self.ints(values).map(|parts| self.time_of(Time::Date, &parts)),
            ("datetime", [_, _, _, _, _, _, _]) => {
                self.ints(values).map(|parts| self.time_of(Time::Datetime, &parts))
            }
            ("timedelta", [_, _, _, _, _, _, _]) => self.ints(values).map(|parts| {
                let mut sum = self.builder.int(0);
                for (part, unit) in parts.into_iter().zip(UNITS) {
                    let micros = self.with(IntOp::Multiply, part, unit);
                    sum = self.op(IntOp::Add, sum, micros);
                }
                Register::Time(Time::Timedelta, sum)
            }),
            ("date.fromordinal", [ordinal]) => self.builder.int_of(*ordinal).map(|ordinal| {
                let days = self.with(IntOp::Subtract, ordinal, EPOCH);
                self.require_years(Time::Date, days);
                Register::Time(Time::Date, days)
            }),
            ("date.fromisoformat", [text]) => self.read(Time::Date, *text, vec![strftime::iso_date()]),
            ("datetime.fromisoformat", [text]) => {
                let formats = [strftime::iso_datetime(b'T'), strftime::iso_datetime(b' ')];
                self.read(Time::Datetime, *text, formats.into_iter().chain([strftime::iso_date()]).collect())
            }
            _ => return None,
        };
        Some(made.map(Value::from))
    }

    /// `datetime.strptime(text, format)`.
    pub(super) fn strptime(&mut self, text: &Expression, format: &str) -> Compiled<Value> {
        let value = self.value(text)?;
        let format = strftime::parse(format).filter(|format| strftime::has_day(format));
        let format = format.ok_or_else(|| self.builder.refuse("strptime with such a format"))?;
        Ok(self.read(Time::Datetime, value, vec![format])?.into())
    }

    fn read(&mut self, time: Time, text: Value, formats: Vec<Vec<Directive>>) -> Compiled<Register> {
        let text = self.builder.text_of(text)?;
        Ok(Register::Time(time, self.builder.make(|out| Step::TextToTime(time, formats, text, out))))
    }

    fn ints(&mut self, values: &[Value]) -> Compiled<Vec<Ints>> {
        values.iter().map(|value| self.builder.int_of(*value)).collect()
    }
}
