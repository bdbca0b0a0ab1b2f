//! Finds and defines classes and modules of Ruby.

use magnus::{Error, Module, RClass, RModule, Ruby, TryConvert, TypedData};

/// A constant by its path, such as `Crosslane::Errors`. With the GVL.
///
/// # Errors
/// If there is no such constant, or it is another kind of object.
pub fn constant<T: TryConvert>(path: &str) -> Result<T, Error> {
    match path.rsplit_once("::") {
        Some((module, name)) => constant::<RModule>(module)?.const_get(name),
        None => Ruby::get().expect("with the GVL").class_object().const_get(path),
    }
}

/// Defines a class whose objects Rust makes. The class is looked up at once: the first use might
/// happen while the thread is killed or interrupted, and the lookup would fail then.
///
/// # Errors
/// If the module has another constant of this name.
pub fn define<T: TypedData>(ruby: &Ruby, module: RModule, name: &str) -> Result<RClass, Error> {
    module.define_class(name, ruby.class_object())?;
    Ok(T::class(ruby))
}
