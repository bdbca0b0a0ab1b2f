//! Ruby objects that values of a type share: the class of a STRUCT's values, the Strings of an ENUM.

use crosslane::Field;
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Module, RModule, Ruby, Value};
use rb_sys::VALUE;

/// Calls a method of the module `Crosslane` and pins what it returns.
fn shared(method: &str, names: Vec<String>) -> Result<VALUE, Error> {
    let ruby = Ruby::get().expect("only called with the GVL");
    let module: RModule = ruby.class_object().const_get("Crosslane")?;
    let object: Value = module.funcall(method, (names,))?;
    crate::values::pin(object);
    Ok(object.as_raw())
}

/// Frozen Strings.
pub(crate) fn strings(values: &[String]) -> Result<VALUE, Error> {
    shared("strings", values.to_vec())
}

/// The codes of Strings, as a Hash.
pub(crate) fn codes(values: &[String]) -> Result<VALUE, Error> {
    shared("codes", values.to_vec())
}

/// The Struct class of these fields: the same for the same names, so that values of equal types are equal.
pub(crate) fn class(fields: &[Field]) -> Result<VALUE, Error> {
    shared("struct_class", fields.iter().map(|field| field.name.clone()).collect())
}

/// A pinned Symbol.
pub(crate) fn symbol(name: &str) -> VALUE {
    let ruby = Ruby::get().expect("only called with the GVL");
    let symbol = ruby.to_symbol(name);
    crate::values::pin(symbol);
    symbol.as_raw()
}

/// A pinned, frozen String.
pub(crate) fn string(name: &str) -> VALUE {
    let ruby = Ruby::get().expect("only called with the GVL");
    let string = ruby.str_new(name);
    string.freeze();
    crate::values::pin(string);
    string.as_raw()
}
