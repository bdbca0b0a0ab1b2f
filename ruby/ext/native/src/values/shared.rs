//! Ruby objects that the values of a type share: the class of a STRUCT's values, the Strings of an
//! ENUM.

use crate::values::primitives::Held;
use crosslane::Field;
use crosslane_gvl::{constant, made};
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, RModule, Ruby, Value};
use rb_sys::VALUE;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// An object that stays alive, and is not moved, while it is shared. It is dropped with the GVL.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    object: VALUE,
    _held: Arc<Held>,
}

impl Shared {
    /// The object. With the GVL.
    #[inline(always)]
    pub(crate) fn get(&self) -> VALUE {
        self.object
    }
}

/// A cache of the last objects, by their shape and names. So a type that many results have is made
/// once.
static MADE: Mutex<Option<Made>> = Mutex::new(None);

type Made = HashMap<(Shape, Vec<String>), Shared>;

/// The most objects in the cache. A program may make new types without end.
const MOST: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Shape {
    Strings,
    Class,
    Symbol,
    String,
}

/// The cached object, or a new one.
fn shared(
    shape: Shape,
    names: Vec<String>,
    make: impl FnOnce(&Ruby, Vec<String>) -> Result<Value, Error>,
) -> Result<Shared, Error> {
    let made = || MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (shape, names);
    if let Some(known) = made().get_or_insert_default().get(&key) {
        return Ok(known.clone());
    }
    // Runs without the lock: this calls Ruby, and other threads may run meanwhile.
    let object = make(&Ruby::get().expect("only called with the GVL"), key.1.clone())?;
    let new = Shared { object: object.as_raw(), _held: Arc::new(Held::new(object)?) };
    let mut places = made();
    let known = places.get_or_insert_default();
    let old = if known.len() >= MOST { std::mem::take(known) } else { Made::new() };
    let shared = known.entry(key).or_insert(new).clone();
    drop(places);
    drop(old);
    Ok(shared)
}

/// Calls a method of the module `Crosslane` with the names.
fn by(method: &'static str) -> impl FnOnce(&Ruby, Vec<String>) -> Result<Value, Error> {
    move |_, names| constant::<RModule>("Crosslane")?.funcall(method, (names,))
}

/// Frozen Strings.
pub(crate) fn strings(values: &[String]) -> Result<Shared, Error> {
    shared(Shape::Strings, values.to_vec(), by("strings"))
}

/// The Struct class for these fields. The same names have the same class, so values of equal types
/// are equal.
pub(crate) fn class(fields: &[Field]) -> Result<Shared, Error> {
    shared(Shape::Class, fields.iter().map(|field| field.name.clone()).collect(), by("struct_class"))
}

/// A Symbol.
pub(crate) fn symbol(name: &str) -> Result<Shared, Error> {
    shared(Shape::Symbol, vec![name.into()], |ruby, _| Ok(made(|| ruby.to_symbol(name).as_value())?))
}

/// A frozen String.
pub(crate) fn string(name: &str) -> Result<Shared, Error> {
    shared(Shape::String, vec![name.into()], |ruby, _| {
        let string = made(|| ruby.str_new(name))?;
        string.freeze();
        Ok(string.as_value())
    })
}
