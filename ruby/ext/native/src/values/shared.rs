//! Ruby objects that values of a type share: the class of a STRUCT's values, the Strings of an ENUM.

use crate::values::primitives::Held;
use crosslane::Field;
use crosslane_gvl::made;
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Module, RModule, Ruby, Value};
use rb_sys::VALUE;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// An object that lives, and stays where it is, as long as something shares it. Dropped with the GVL.
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

/// What was made last, by how and of which names: a type that results have again and again is made once.
static MADE: Mutex<Option<Made>> = Mutex::new(None);

type Made = HashMap<(Shape, Vec<String>), Shared>;

/// The most objects in the cache: a program may have new types without end.
const MOST: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Shape {
    Strings,
    Class,
    Symbol,
    String,
}

/// An object that was made before, or is made now.
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
    // Without the lock: this calls Ruby, where other threads may run.
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

/// What a method of the module `Crosslane` makes of names.
fn by(method: &'static str) -> impl FnOnce(&Ruby, Vec<String>) -> Result<Value, Error> {
    move |ruby, names| {
        let module: RModule = ruby.class_object().const_get("Crosslane")?;
        module.funcall(method, (names,))
    }
}

/// Frozen Strings.
pub(crate) fn strings(values: &[String]) -> Result<Shared, Error> {
    shared(Shape::Strings, values.to_vec(), by("strings"))
}

/// The Struct class of these fields: the same for the same names, so that values of equal types are equal.
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
