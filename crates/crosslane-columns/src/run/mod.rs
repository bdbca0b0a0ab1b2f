//! Evaluates a program over the rows of a batch.

mod floats;
mod ints;
mod make_text;
mod sink;
mod texts;
mod time;

use crate::program::{
    BoolOp, Bools, CHUNK, Constant, Floats, Input, Ints, Mask, Output, Places, Program, Register, Results,
    Step, Texts, Time,
};
use crate::strftime;
use crosslane::batch::Column;
use crosslane::builder::Overflow;
use crosslane::{ColumnBuilder, DataType};
use sink::{Sink, pairs};
use std::cell::Cell;
use std::mem;
use std::ops::Range;
use texts::{Span, TextColumn};

/// The registers of a program. One call evaluates up to [`CHUNK`] rows.
#[derive(Debug)]
pub struct Evaluator {
    program: Program,
    registers: Registers,
}

#[derive(Debug, Default)]
struct Registers {
    bools: Vec<Vec<u8>>,
    ints: Vec<Vec<i64>>,
    floats: Vec<Vec<f64>>,
    texts: Vec<TextColumn>,
    /// 1 for the rows that have left the program.
    left: Vec<u8>,
    /// 1 for the rows whose result is NULL in the column.
    null: Vec<u8>,
    /// The number of rows.
    rows: usize,
    /// How many bytes of texts may still be made for these rows.
    room: Cell<usize>,
}

impl Evaluator {
    /// An evaluator of a program.
    pub fn new(program: Program) -> Self {
        let counts = program.counts;
        let mut registers = Registers {
            bools: vec![vec![0; CHUNK]; counts.bools],
            ints: vec![vec![0; CHUNK]; counts.ints],
            floats: vec![vec![0.0; CHUNK]; counts.floats],
            texts: (program.inputs.len()..program.inputs.len() + counts.texts)
                .map(|number| TextColumn { number: number as u32, ..TextColumn::default() })
                .collect(),
            left: vec![0; CHUNK],
            null: vec![0; CHUNK],
            rows: 0,
            room: Cell::new(0),
        };
        for constant in &program.constants {
            match constant {
                Constant::Bool(value, out) => registers.bools[out.0].fill(u8::from(*value)),
                Constant::Int(value, out) => registers.ints[out.0].fill(*value),
                Constant::Float(value, out) => registers.floats[out.0].fill(*value),
                Constant::Text(value, out) => {
                    let text = &mut registers.texts[out.0];
                    let span = Span { source: text.number, start: 0, length: value.len() as u32 };
                    text.spans = vec![span; CHUNK];
                    text.ascii = value.is_ascii();
                    text.bytes = value.clone();
                }
                Constant::Bools(values, out) => registers.bools[out.0] = values.clone(),
                Constant::Ints(values, out) => registers.ints[out.0] = values.clone(),
                Constant::Floats(values, out) => registers.floats[out.0] = values.clone(),
                Constant::Texts(values, out) => {
                    let text = &mut registers.texts[out.0];
                    for value in values {
                        let (start, length) = (text.bytes.len() as u32, value.len() as u32);
                        text.spans.push(Span { source: text.number, start, length });
                        text.bytes.extend_from_slice(value);
                    }
                    text.ascii = text.bytes.is_ascii();
                }
            }
        }
        Self { program, registers }
    }

    /// Evaluates some rows of a batch, and adds their results to a column. Returns how many rows have
    /// left the program. Such a row is NULL in the column, and its bit in `left` is set. A row whose
    /// bit in `active` is not set is NULL, too, and does not leave. Without bits, all rows are
    /// active.
    ///
    /// # Errors
    /// If the column cannot grow.
    ///
    /// # Panics
    /// If there are more rows than [`CHUNK`], their first one is no multiple of 8, or the columns are
    /// not those of the program.
    pub fn run(
        &mut self,
        columns: &[Column<'_>],
        rows: Range<usize>,
        active: Option<&[u8]>,
        left: &mut [u8],
        out: &mut ColumnBuilder,
    ) -> Result<usize, Overflow> {
        let Self { program, registers } = self;
        registers.rows = rows.len();
        registers.room.set(texts::MOST_BYTES);
        registers.left[..rows.len()].fill(0);
        let sources: Vec<&[u8]> = columns.iter().map(|column| column.data).collect();
        for (number, (input, column)) in program.inputs.iter().zip(columns).enumerate() {
            registers.read(number as u32, input, column, rows.clone());
        }
        for (step, mask) in &program.steps {
            registers.step(step, *mask, &sources);
        }
        let count = registers.end(program, rows, active, left);
        let appended = registers.append(program, &sources, out);
        // The lane lives on, without the memory of large texts.
        if texts::MOST_BYTES - registers.room.get() > texts::KEPT_BYTES {
            registers.release(program);
        }
        appended.map(|()| count)
    }
}

/// The bits of some rows, as bytes that are 0 or 1. The first row is a multiple of 8.
fn expand(bits: &[u8], rows: Range<usize>, out: &mut [u8]) {
    assert_eq!(rows.start % 8, 0, "{rows:?}");
    for (out, byte) in out[..rows.len()].chunks_mut(8).zip(&bits[rows.start / 8..]) {
        out.iter_mut().enumerate().for_each(|(bit, out)| *out = byte >> bit & 1);
    }
}

/// Whether all parts of some bytes are UTF-8. The first byte is at this place.
fn are_texts(bytes: &[u8], start: i32, spans: &[Span]) -> bool {
    let begins = |text: &str, span: &Span| text.is_char_boundary(span.start as usize - start as usize);
    std::str::from_utf8(bytes).is_ok_and(|text| spans.iter().all(|span| begins(text, span)))
}

/// The values of an input as wider ones.
fn widen<T: bytemuck::Pod, U>(column: &Column<'_>, rows: Range<usize>, out: &mut [U], to: impl Fn(T) -> U) {
    match column.values::<T>() {
        Some(values) => out.iter_mut().zip(&values[rows]).for_each(|(out, value)| *out = to(*value)),
        None => out.iter_mut().zip(rows).for_each(|(out, row)| *out = to(column.value(row))),
    }
}

impl Registers {
    /// Reads an input into its registers.
    fn read(&mut self, number: u32, input: &Input, column: &Column<'_>, rows: Range<usize>) {
        let count = rows.len();
        match input.values {
            Register::Bool(Bools(out)) => {
                expand(column.data, rows.clone(), &mut self.bools[out]);
            }
            Register::Int(Ints(out)) | Register::Time(_, Ints(out)) => {
                let out = &mut self.ints[out][..count];
                match input.data_type {
                    DataType::TinyInt => widen::<i8, _>(column, rows.clone(), out, i64::from),
                    DataType::SmallInt => widen::<i16, _>(column, rows.clone(), out, i64::from),
                    DataType::Integer | DataType::Date => {
                        widen::<i32, _>(column, rows.clone(), out, i64::from)
                    }
                    DataType::UTinyInt => widen::<u8, _>(column, rows.clone(), out, i64::from),
                    DataType::USmallInt => widen::<u16, _>(column, rows.clone(), out, i64::from),
                    DataType::UInteger => widen::<u32, _>(column, rows.clone(), out, i64::from),
                    _ => widen::<i64, _>(column, rows.clone(), out, |value| value),
                }
            }
            Register::Float(Floats(out)) => {
                let out = &mut self.floats[out][..count];
                match input.data_type {
                    DataType::Float => widen::<f32, _>(column, rows.clone(), out, f64::from),
                    _ => widen::<f64, _>(column, rows.clone(), out, |value| value),
                }
            }
            Register::Text(Texts(out)) => {
                let text = &mut self.texts[out];
                text.spans.clear();
                text.spans.extend(rows.clone().map(|row| {
                    let (start, end) = (column.offsets[row] as u32, column.offsets[row + 1] as u32);
                    Span { source: number, start, length: end - start }
                }));
                let (start, end) = (column.offsets[rows.start], column.offsets[rows.end]);
                let bytes = &column.data[start as usize..end as usize];
                text.ascii = bytes.is_ascii();
                text.region = Some((number, start as u32..end as u32));
                if !text.ascii && !are_texts(bytes, start, &text.spans) {
                    // CPython has no str of other bytes.
                    for (span, left) in text.spans.iter().zip(&mut self.left) {
                        *left |= u8::from(std::str::from_utf8(span.of(column.data)).is_err());
                    }
                }
            }
        }
        if let Some(nulls) = input.nulls {
            let out = &mut self.bools[nulls.0];
            match column.validity {
                None => out.fill(0),
                Some(bits) => {
                    expand(bits, rows, out);
                    out.iter_mut().for_each(|valid| *valid ^= 1);
                }
            }
        }
    }

    /// Finds which rows have no result. Marks those that have left and are active, and counts them.
    fn end(
        &mut self,
        program: &Program,
        rows: Range<usize>,
        active: Option<&[u8]>,
        marks: &mut [u8],
    ) -> usize {
        let (left, null) = (&mut self.left[..rows.len()], &mut self.null[..rows.len()]);
        match active {
            None => null.copy_from_slice(left),
            Some(bits) => {
                expand(bits, rows.clone(), null);
                left.iter_mut().zip(&mut *null).for_each(|(left, active)| {
                    *left &= *active;
                    *active = *active ^ 1 | *left;
                });
            }
        }
        let (Results::One(Output { nulls, .. }) | Results::Fields(_, nulls)) = &program.results;
        if let Some(nones) = nulls {
            null.iter_mut().zip(&self.bools[nones.0]).for_each(|(null, none)| *null |= none);
        }
        let mut count = 0;
        if left.contains(&1) {
            for row in rows.clone().filter(|row| left[row - rows.start] != 0) {
                count += 1;
                marks[row / 8] |= 1 << (row % 8);
            }
        }
        count
    }

    /// Frees the memory of all texts but the constants.
    fn release(&mut self, program: &Program) {
        for out in program.steps.iter().filter_map(|(step, _)| step.text()) {
            self.texts[out.0].bytes = Vec::new();
        }
    }

    /// The bytes of a source.
    fn bytes<'a>(&'a self, sources: &[&'a [u8]], source: u32) -> &'a [u8] {
        let number = source as usize;
        match sources.get(number) {
            Some(source) => source,
            None => &self.texts[number - sources.len()].bytes,
        }
    }

    fn text<'a>(&'a self, sources: &[&'a [u8]], span: Span) -> &'a [u8] {
        span.of(self.bytes(sources, span.source))
    }

    fn text_at<'a>(&'a self, sources: &[&'a [u8]], texts: Texts, row: usize) -> &'a [u8] {
        self.text(sources, self.texts[texts.0].spans[row])
    }

    /// Runs an instruction.
    fn step(&mut self, step: &Step, mask: Mask, sources: &[&[u8]]) {
        match *step {
            Step::Int(operation, a, b, out) => self.ints(mask, out, |this, sink| {
                ints::binary(operation, this.int(a), this.int(b), sink);
            }),
            Step::IntPower(a, exponent, out) => self.ints(mask, out, |this, sink| {
                sink.checked(this.int(a).iter().map(|a| a.overflowing_pow(exponent)));
            }),
            Step::NegateInt(a, out) => self.ints(mask, out, |this, sink| {
                sink.checked(this.int(a).iter().map(|a| a.overflowing_neg()));
            }),
            Step::AbsoluteInt(a, out) => self.ints(mask, out, |this, sink| {
                sink.checked(this.int(a).iter().map(|a| a.overflowing_abs()));
            }),
            Step::InvertInt(a, out) => {
                self.ints(mask, out, |this, sink| sink.all(this.int(a).iter().map(|a| !a)));
            }
            Step::SquareRoot(a, out) => self.ints(mask, out, |this, sink| {
                sink.costly(|row| option(this.int(a)[row].checked_isqrt()));
            }),
            Step::BoolToInt(a, out) => {
                self.ints(mask, out, |this, sink| sink.all(this.bool(a).iter().map(|a| i64::from(*a))));
            }
            Step::Round(rounding, x, out) => {
                self.ints(mask, out, |this, sink| floats::round(rounding, this.float(x), sink));
            }
            Step::SelectInt(truth, yes, no, out) => self.ints(mask, out, |this, sink| {
                select(this.bool(truth), this.int(yes), this.int(no), sink);
            }),
            Step::Count(count, text, part, out) => self.ints(mask, out, |this, sink| {
                let ascii = this.texts[text.0].ascii;
                sink.costly(|row| {
                    let (text, part) = (this.text_at(sources, text, row), this.text_at(sources, part, row));
                    option(texts::count(count, text, part, ascii))
                });
            }),
            Step::IntPlace(a, Places::Ints(ref places), out) => self.ints(mask, out, |this, sink| {
                sink.costly(|row| (place(places.get(&this.int(a)[row])), false));
            }),
            Step::TextPlace(text, Places::Texts(ref places), out) => self.ints(mask, out, |this, sink| {
                sink.costly(|row| (place(places.get(this.text_at(sources, text, row))), false));
            }),
            Step::PickInt(place, Ints(table), out) => self.ints(mask, out, |this, sink| {
                sink.all(picked(this.int(place), &this.ints[table]));
            }),
            Step::PickFloat(place, Floats(table), out) => self.floats(mask, out, |this, sink| {
                sink.all(picked(this.int(place), &this.floats[table]));
            }),
            Step::TimeField(field, a, out) => {
                self.ints(mask, out, |this, sink| time::field(field, this.int(a), sink));
            }
            Step::MakeDate(year, month, day, out) => self.ints(mask, out, |this, sink| {
                let (year, month, day) = (this.int(year), this.int(month), this.int(day));
                sink.costly(|row| option(strftime::date(year[row], month[row], day[row])));
            }),
            Step::TextToTime(time, ref formats, text, out) => self.ints(mask, out, |this, sink| {
                sink.costly(|row| option(time::read(time, formats, this.text_at(sources, text, row))));
            }),
            Step::TextToInt(text, out) => self.ints(mask, out, |this, sink| {
                sink.costly(|row| option(texts::int(this.text_at(sources, text, row))));
            }),
            Step::Float(operation, a, b, out) => self.floats(mask, out, |this, sink| {
                floats::binary(operation, this.float(a), this.float(b), sink);
            }),
            Step::Function(function, x, out) => {
                self.floats(mask, out, |this, sink| floats::function(function, this.float(x), sink));
            }
            Step::RoundDigits(x, digits, out) => self.floats(mask, out, |this, sink| {
                let scale = 10f64.powi(digits);
                sink.checked(this.float(x).iter().map(|x| floats::round_digits(*x, scale)));
            }),
            Step::IntToFloat(a, out) => {
                self.floats(mask, out, |this, sink| sink.all(this.int(a).iter().map(|a| *a as f64)));
            }
            Step::SelectFloat(truth, yes, no, out) => self.floats(mask, out, |this, sink| {
                select(this.bool(truth), this.float(yes), this.float(no), sink);
            }),
            _ if step.text().is_some() => self.make_text(step, mask, sources),
            Step::Leave(rows) => {
                self.leave(mask, |this, sink| {
                    sink.checked(this.bool(rows).iter().map(|row| ((), *row != 0)))
                });
            }
            Step::Within(a, least, most) => self.leave(mask, |this, sink| {
                sink.checked(this.int(a).iter().map(|a| ((), !(least..=most).contains(a))));
            }),
            Step::Narrow(x) => self.leave(mask, |this, sink| {
                sink.checked(this.float(x).iter().map(|x| ((), x.is_finite() && (*x as f32).is_infinite())));
            }),
            _ => self.ask(step, mask, sources),
        }
    }

    /// Runs an instruction that gives bools.
    fn ask(&mut self, step: &Step, mask: Mask, sources: &[&[u8]]) {
        match step {
            Step::Test(test, x, out) => {
                self.bools(mask, *out, |this, sink| floats::test(*test, this.float(*x), sink));
            }
            Step::CompareInts(comparison, a, b, out) => self.bools(mask, *out, |this, sink| {
                sink.compare(*comparison, pairs(this.int(*a), this.int(*b)));
            }),
            Step::CompareFloats(comparison, a, b, out) => self.bools(mask, *out, |this, sink| {
                sink.compare(*comparison, pairs(this.float(*a), this.float(*b)));
            }),
            // UTF-8 has the order of the characters.
            Step::CompareTexts(comparison, a, b, out) => self.bools(mask, *out, |this, sink| {
                let text = |texts, row| this.text_at(sources, texts, row);
                sink.compare(*comparison, (0..this.rows).map(|row| (text(*a, row), text(*b, row))));
            }),
            Step::IntTruth(a, out) => {
                self.bools(mask, *out, |this, sink| sink.all(this.int(*a).iter().map(|a| u8::from(*a != 0))));
            }
            Step::FloatTruth(x, out) => self.bools(mask, *out, |this, sink| {
                sink.all(this.float(*x).iter().map(|x| u8::from(*x != 0.0)));
            }),
            Step::TextTruth(text, out) => self.bools(mask, *out, |this, sink| {
                sink.all(this.texts[text.0].spans.iter().map(|span| u8::from(span.length > 0)));
            }),
            Step::PickBool(place, Bools(table), out) => self.bools(mask, *out, |this, sink| {
                sink.all(picked(this.int(*place), &this.bools[*table]));
            }),
            Step::TextTest(test, text, part, out) => self.bools(mask, *out, |this, sink| {
                sink.costly(|row| {
                    let (text, part) = (this.text_at(sources, *text, row), this.text_at(sources, *part, row));
                    (u8::from(texts::test(*test, text, part)), false)
                });
            }),
            Step::TextTestAny(test, text, parts, out) => self.bools(mask, *out, |this, sink| {
                sink.costly(|row| {
                    let text = this.text_at(sources, *text, row);
                    (u8::from(parts.iter().any(|part| texts::test(*test, text, part))), false)
                });
            }),
            Step::Characters(characters, text, out) => self.bools(mask, *out, |this, sink| {
                let ascii = this.texts[text.0].ascii;
                sink.costly(|row| {
                    let all = texts::characters(*characters, this.text_at(sources, *text, row), ascii);
                    (u8::from(all == Some(true)), all.is_none())
                });
            }),
            Step::Bool(operation, a, b, out) => self.bools(mask, *out, |this, sink| {
                let rows = pairs(this.bool(*a), this.bool(*b));
                match operation {
                    BoolOp::And => sink.all(rows.map(|(a, b)| a & b)),
                    BoolOp::AndNot => sink.all(rows.map(|(a, b)| a & (b ^ 1))),
                    BoolOp::Or => sink.all(rows.map(|(a, b)| a | b)),
                    BoolOp::Xor => sink.all(rows.map(|(a, b)| a ^ b)),
                }
            }),
            Step::Not(a, out) => {
                self.bools(mask, *out, |this, sink| sink.all(this.bool(*a).iter().map(|a| a ^ 1)));
            }
            Step::SelectBool(truth, yes, no, out) => self.bools(mask, *out, |this, sink| {
                select(this.bool(*truth), this.bool(*yes), this.bool(*no), sink);
            }),
            other => unreachable!("{other:?} gives no bools"),
        }
    }

    fn bool(&self, register: Bools) -> &[u8] {
        &self.bools[register.0][..self.rows]
    }

    fn int(&self, register: Ints) -> &[i64] {
        &self.ints[register.0][..self.rows]
    }

    fn float(&self, register: Floats) -> &[f64] {
        &self.floats[register.0][..self.rows]
    }

    /// Runs an instruction that has no result, and by which rows leave.
    fn leave(&mut self, mask: Mask, run: impl FnOnce(&Self, Sink<'_, ()>)) {
        let mut left = mem::take(&mut self.left);
        let (out, mask) = (&mut vec![(); self.rows][..], mask.map(|mask| self.bool(mask)));
        run(self, Sink { out, left: &mut left[..self.rows], mask });
        self.left = left;
    }

    /// Adds the results to a column.
    fn append(&self, program: &Program, sources: &[&[u8]], out: &mut ColumnBuilder) -> Result<(), Overflow> {
        let null = &self.null[..self.rows];
        let fields = match &program.results {
            Results::One(output) => return self.append_one(output, null, sources, out),
            Results::Fields(fields, _) => fields,
        };
        for (field, out) in fields.iter().zip(&mut out.children) {
            match field.nulls {
                Some(nulls) => {
                    let null: Vec<_> = pairs(null, self.bool(nulls)).map(|(a, b)| a | b).collect();
                    self.append_one(field, &null, sources, out)?;
                }
                None => self.append_one(field, null, sources, out)?,
            }
        }
        let first = out.rows();
        (0..self.rows).try_for_each(|_| out.nested())?;
        (0..self.rows).filter(|row| null[*row] != 0).for_each(|row| out.make_null(first + row));
        Ok(())
    }

    /// Adds the results of a column. Those whose byte in `null` is 1 are NULL.
    fn append_one(
        &self,
        output: &Output,
        null: &[u8],
        sources: &[&[u8]],
        out: &mut ColumnBuilder,
    ) -> Result<(), Overflow> {
        use DataType as T;
        let is_null = |row: usize| null[row] != 0;
        macro_rules! narrowed {
            ($register:expr, $type:ty) => {
                for (row, value) in self.int($register).iter().enumerate() {
                    if is_null(row) { out.null() } else { out.fixed(*value as $type) }
                }
            };
        }
        match (output.values, &output.data_type) {
            (None, _) => (0..self.rows).for_each(|_| out.null()),
            (Some(Register::Bool(result)), _) => {
                for (row, value) in self.bool(result).iter().enumerate() {
                    if is_null(row) { out.null() } else { out.boolean(*value != 0) }
                }
            }
            (Some(Register::Int(result)), T::TinyInt) => narrowed!(result, i8),
            (Some(Register::Int(result)), T::SmallInt) => narrowed!(result, i16),
            (Some(Register::Int(result)), T::Integer) => narrowed!(result, i32),
            (Some(Register::Int(result)), T::UTinyInt) => narrowed!(result, u8),
            (Some(Register::Int(result)), T::USmallInt) => narrowed!(result, u16),
            (Some(Register::Int(result)), T::UInteger) => narrowed!(result, u32),
            (Some(Register::Time(Time::Date, result)), _) => narrowed!(result, i32),
            (Some(Register::Int(result) | Register::Time(_, result)), _) => {
                fixed(self.int(result), null, out)
            }
            (Some(Register::Float(result)), T::Float) => {
                for (row, value) in self.float(result).iter().enumerate() {
                    if is_null(row) { out.null() } else { out.fixed(*value as f32) }
                }
            }
            (Some(Register::Float(result)), _) => fixed(self.float(result), null, out),
            (Some(Register::Text(result)), _) => {
                let texts = &self.texts[result.0];
                let base = texts.region.as_ref().map(|(source, _)| self.bytes(sources, *source));
                for (row, span) in texts.spans[..self.rows].iter().enumerate() {
                    match base {
                        _ if is_null(row) => out.null(),
                        Some(base) if span.length > 0 => out.bytes(span.of(base))?,
                        _ => out.bytes(self.text(sources, *span))?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// Adds values of 64 bits to a column.
fn fixed<T: bytemuck::Pod>(values: &[T], null: &[u8], out: &mut ColumnBuilder) {
    let first = out.rows();
    out.fixed_all(values);
    if null.contains(&1) {
        (0..values.len()).filter(|row| null[*row] != 0).for_each(|row| out.make_null(first + row));
    }
}

/// A value, and whether there is none.
fn option<T: Default>(value: Option<T>) -> (T, bool) {
    let leaves = value.is_none();
    (value.unwrap_or_default(), leaves)
}

/// A place, or -1.
fn place(found: Option<&u32>) -> i64 {
    found.map_or(-1, |place| i64::from(*place))
}

/// The values at some places. A place without a value belongs to a row for which it does not count.
fn picked<T: Copy + Default>(places: &[i64], table: &[T]) -> impl Iterator<Item = T> {
    places.iter().map(|place| table.get(*place as usize).copied().unwrap_or_default())
}

fn select<T: Copy>(truth: &[u8], yes: &[T], no: &[T], sink: Sink<'_, T>) {
    let rows = truth.iter().zip(pairs(yes, no));
    sink.all(rows.map(|(truth, (yes, no))| if *truth != 0 { yes } else { no }));
}

macro_rules! writes {
    ($($name:ident $type:ty, $register:ident);+) => {
        impl Registers {
            $(/// Runs an instruction that writes such a register. No other instruction writes it, so
            /// its operands are in other registers.
            fn $name(&mut self, mask: Mask, out: $register, run: impl FnOnce(&Self, Sink<'_, $type>)) {
                let mut values = mem::take(&mut self.$name[out.0]);
                let mut left = mem::take(&mut self.left);
                let sink = Sink {
                    out: &mut values[..self.rows],
                    left: &mut left[..self.rows],
                    mask: mask.map(|mask| self.bool(mask)),
                };
                run(self, sink);
                self.$name[out.0] = values;
                self.left = left;
            })+
        }
    };
}

writes!(bools u8, Bools; ints i64, Ints; floats f64, Floats);
