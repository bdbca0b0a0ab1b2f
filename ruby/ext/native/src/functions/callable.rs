//! Functions that lanes can call, by number.
//!
//! The first call of a function prepares it for all lanes of the process. A lane holds the function
//! only during a call. So Ruby can collect a block that no database of the program knows any more.

use crate::functions::aggregate::Aggregate;
use crate::functions::scalar::Function;
use crate::functions::table::Table;
use crate::values::Vm;
use crosslane::{Instances, Kind};
use magnus::value::ReprValue;
use magnus::{Error, Value};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A function that lanes can call. It is dropped with the GVL.
#[derive(Debug)]
pub(crate) enum Callable {
    /// A scalar function.
    Scalar(Box<Function>),
    /// A table function or a stream function.
    Table(Table),
    /// An aggregate. Each lane has its own states.
    Aggregate(Aggregate),
}

/// Numbers of blocks (`true`) and numbers of a guest's functions are separate, because a guest may
/// open a database too.
type Key = (bool, u32);

/// The prepared forms of a function.
#[derive(Default)]
struct Known {
    plain: Option<Arc<Callable>>,
    /// The form for each list of argument types, as a text. Only functions with parameters of type
    /// ANY have such forms.
    instances: Instances<Box<str>, Arc<Callable>>,
}

impl Known {
    fn get(&self, types: Option<&str>) -> Option<Arc<Callable>> {
        match types {
            None => self.plain.clone(),
            Some(types) => self.instances.get(types).cloned(),
        }
    }
}

/// The known functions, with their prepared forms. It is locked only with the GVL, and never while
/// Ruby code runs.
static KNOWN: Mutex<Option<HashMap<Key, Known>>> = Mutex::new(None);

fn with<T>(body: impl FnOnce(&mut HashMap<Key, Known>) -> T) -> T {
    let mut known: MutexGuard<'_, _> = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    body(known.get_or_insert_default())
}

/// Registers the number of a block.
pub(crate) fn expect(number: u32) {
    with(|known| known.insert((true, number), Known::default()));
}

/// Forgets a block.
pub(crate) fn forget(number: u32) {
    with(|known| known.remove(&(true, number)));
}

/// The function of a number. `types` are the arguments' types if a parameter has the type ANY.
/// `functions` has the declarations by number.
pub(crate) fn callable(
    vm: &Vm,
    functions: Value,
    number: u32,
    types: Option<&str>,
) -> Result<Arc<Callable>, Error> {
    let key = (vm.host, number);
    if let Some(known) = with(|known| known.get(&key)?.get(types)) {
        return Ok(known);
    }
    let declared: Value = functions.funcall("[]", (number,))?;
    if declared.is_nil() {
        return Err(crate::errors::argument_error(format!(
            "a call of function {number}, which is not known"
        )));
    }
    let kind: String = declared.funcall("kind", ())?;
    let made =
        Arc::new(match kind.parse().map_err(|error: String| crate::errors::argument_error(error))? {
            Kind::Scalar => Callable::Scalar(Box::new(Function::new(vm, declared, types)?)),
            Kind::Table | Kind::Stream => Callable::Table(Table::new(vm, declared)?),
            Kind::Aggregate => Callable::Aggregate(Aggregate::new(vm, declared)?),
        });
    // Dropped after the lock is released.
    let mut forgotten = Instances::default();
    Ok(with(|known| {
        if !vm.host {
            known.entry(key).or_default();
        }
        // The function may have been forgotten meanwhile. Then it is prepared for this call only,
        // and no other call uses it.
        let Some(known) = known.get_mut(&key) else { return made };
        // Another thread may have prepared it first.
        if let Some(other) = known.get(types) {
            return other;
        }
        match types {
            None => known.plain = Some(Arc::clone(&made)),
            Some(types) => forgotten = known.instances.keep(types.into(), Arc::clone(&made)),
        }
        made
    }))
}
