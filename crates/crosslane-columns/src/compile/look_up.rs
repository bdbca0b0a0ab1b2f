//! Look-ups in constants: `in`, and elements of dicts and tuples.
//!
//! A look-up finds the place of a key among the constants, or -1, and picks the value at this place.

use super::builder::{NewRegister, Value};
use super::{Compiled, Compiler};
use crate::program::{Bools, Comparison, Constant, IntOp, Ints, Places, Register, Step, Time};
use crate::source::{Expression, Node};
use std::hash::Hash;

/// The places of constants. The last of equal ones counts. None if one of them has another type.
fn places<K: Hash + Eq, M: FromIterator<(K, u32)>>(
    constants: &[Expression],
    key: impl Fn(&Node) -> Option<K>,
) -> Option<M> {
    constants.iter().zip(0..).map(|(constant, place)| Some((key(&constant.1)?, place))).collect()
}

/// The days or microseconds of a constant of this kind.
fn time(kind: Time, node: &Node) -> Option<i64> {
    node.time().filter(|(of, _)| *of == kind).map(|(_, value)| value)
}

impl Compiler {
    /// The place of a value among constants, or -1.
    fn place(&mut self, value: Value, constants: &[Expression]) -> Compiled<Ints> {
        let several = |this: &Self| this.builder.refuse("a look-up among constants of other types");
        let register = self.builder.require(value)?;
        Ok(match register {
            Register::Int(ints) => {
                let places = places(constants, Node::int).ok_or_else(|| several(self))?;
                self.builder.make(|out| Step::IntPlace(ints, Places::Ints(places), out))
            }
            Register::Time(kind, ints) => {
                let places = places(constants, |node| time(kind, node)).ok_or_else(|| several(self))?;
                self.builder.make(|out| Step::IntPlace(ints, Places::Ints(places), out))
            }
            Register::Text(texts) => {
                let places = places(constants, Node::text).ok_or_else(|| several(self))?;
                self.builder.make(|out| Step::TextPlace(texts, Places::Texts(places), out))
            }
            Register::Bool(_) | Register::Float(_) => {
                return Err(self.builder.refuse("a look-up of a bool or a float"));
            }
        })
    }

    /// Whether a value is among constants, and its place.
    fn found(&mut self, value: Value, constants: &[Expression]) -> Compiled<(Bools, Ints)> {
        let place = self.place(value, constants)?;
        let first = self.builder.int(0);
        let is_found =
            self.builder.make(|out| Step::CompareInts(Comparison::GreaterOrEqual, place, first, out));
        Ok((is_found, place))
    }

    /// `value in constants`.
    pub(super) fn is_among(&mut self, value: Value, constants: &[Expression]) -> Compiled<Bools> {
        Ok(self.found(value, constants)?.0)
    }

    /// `dict[key]`. A row leaves if there is no such key.
    pub(super) fn item(&mut self, dict: (&[Expression], &[Expression]), key: Value) -> Compiled<Value> {
        let (is_found, place) = self.found(key, dict.0)?;
        let missing = self.builder.make(|out| Step::Not(is_found, out));
        self.builder.add(Step::Leave(missing));
        self.pick(place, dict.1)
    }

    /// `dict.get(key, default)`.
    pub(super) fn item_or(
        &mut self,
        dict: (&[Expression], &[Expression]),
        key: Value,
        default: Value,
    ) -> Compiled<Value> {
        if dict.0.is_empty() {
            return Ok(default);
        }
        let (is_found, place) = self.found(key, dict.0)?;
        let picked = self.pick(place, dict.1)?;
        let merged = self.builder.merged(is_found, picked, default);
        merged.ok_or_else(|| self.builder.refuse("a dict and a default of several types"))
    }

    /// `tuple[index]`. A row leaves if there is no such element.
    pub(super) fn element(&mut self, elements: &[Expression], index: Value) -> Compiled<Value> {
        let index = self.builder.int_of(index)?;
        let length = elements.len() as i64;
        self.builder.add(Step::Within(index, -length, length - 1));
        // Negative indices count from the end.
        let length = self.builder.int(length);
        let place = self.builder.make(|out| Step::Int(IntOp::Add, index, length, out));
        let twice: Vec<_> = elements.iter().chain(elements).cloned().collect();
        self.pick(place, &twice)
    }

    /// The value at a place among constants.
    fn pick(&mut self, place: Ints, values: &[Expression]) -> Compiled<Value> {
        let known = values.iter().map(|value| &value.1).find(|node| !matches!(node, Node::None));
        let register = match known {
            None if values.is_empty() => return Err(self.builder.refuse("a look-up in nothing")),
            None => return Ok(Value::NONE),
            Some(Node::Bool(_)) => {
                let values = self.all(values, |node| match node {
                    Node::Bool(value) => Some(u8::from(*value)),
                    _ => None,
                })?;
                self.pick_from(Constant::Bools, values, |table, out| Step::PickBool(place, table, out))
            }
            Some(Node::Int(_)) => Register::Int(self.pick_int(place, self.all(values, Node::int)?)),
            Some(Node::Float(_)) => {
                let values = self.all(values, Node::float)?;
                self.pick_from(Constant::Floats, values, |table, out| Step::PickFloat(place, table, out))
            }
            Some(Node::Text(_)) => {
                let values = self.all(values, Node::text)?;
                self.pick_from(Constant::Texts, values, |table, out| Step::PickText(place, table, out))
            }
            Some(node) => {
                let kind = node.time().map(|(kind, _)| kind);
                let kind =
                    kind.ok_or_else(|| self.builder.refuse("a look-up whose values are no constants"))?;
                let values = self.all(values, |node| time(kind, node))?;
                Register::Time(kind, self.pick_int(place, values))
            }
        };
        let nones: Vec<_> = values.iter().map(|value| u8::from(matches!(value.1, Node::None))).collect();
        let none = nones.contains(&1).then(|| {
            let table = self.builder.constant(|out| Constant::Bools(nones, out));
            self.builder.make(|out| Step::PickBool(place, table, out))
        });
        Ok(Value { register: Some(register), none })
    }

    fn pick_int(&mut self, place: Ints, values: Vec<i64>) -> Ints {
        let table = self.builder.constant(|out| Constant::Ints(values, out));
        self.builder.make(|out| Step::PickInt(place, table, out))
    }

    fn pick_from<T, R: NewRegister>(
        &mut self,
        constant: impl FnOnce(Vec<T>, R) -> Constant,
        values: Vec<T>,
        step: impl FnOnce(R, R) -> Step,
    ) -> Register {
        let table = self.builder.constant(|out| constant(values, out));
        self.builder.make(|out| step(table, out)).into()
    }

    /// All constants, with any value in place of None.
    fn all<T: Default>(
        &self,
        constants: &[Expression],
        value: impl Fn(&Node) -> Option<T>,
    ) -> Compiled<Vec<T>> {
        let values = constants.iter().map(|constant| match &constant.1 {
            Node::None => Some(T::default()),
            node => value(node),
        });
        let values: Option<_> = values.collect();
        values.ok_or_else(|| self.builder.refuse("a look-up whose values have several types"))
    }
}
