//! All loaded libraries, and what the functions that an engine knows stand for now.
//!
//! An engine may be unable to forget a function that it was told of, and prepared statements keep what they
//! found. So the engine registers an [`Entry`] for each function, and the catalog says what it stands for:
//! publishing a new version of a library fills the entries of the functions that stayed the same, makes
//! entries for the new ones, and marks the others as gone. A query reads its entry once, when it starts on
//! a worker, without a lock, and keeps that version until its end.

use crate::error::Error;
use crate::function::{Function, Library};
use crate::pool::{Pool, Zygote};
use crate::types::Field;
use arc_swap::ArcSwap;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A function and the library that runs it.
pub struct Current<Z: Zygote> {
    /// The library, in the version that the function belongs to.
    pub library: Arc<Library<Z>>,
    /// The function.
    pub function: Arc<Function>,
}

impl<Z: Zygote> Clone for Current<Z> {
    fn clone(&self) -> Self {
        Self { library: Arc::clone(&self.library), function: Arc::clone(&self.function) }
    }
}

impl<Z: Zygote> fmt::Debug for Current<Z> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").field("function", &self.function.signature).finish_non_exhaustive()
    }
}

/// What a function that an engine was told of stands for.
pub struct Entry<Z: Zygote>(ArcSwap<Result<Current<Z>, String>>);

impl<Z: Zygote> fmt::Debug for Entry<Z> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entry").field(&*self.0.load()).finish()
    }
}

impl<Z: Zygote> Entry<Z> {
    /// The function now.
    ///
    /// # Errors
    /// [`Error::Engine`] if a reload removed it, with what to do instead.
    pub fn current(&self) -> Result<Current<Z>, Error> {
        (**self.0.load()).clone().map_err(Error::Engine)
    }
}

/// All that an engine is told about a function when it is registered.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    signature: String,
    admits_null: bool,
    deterministic: bool,
}

impl Key {
    fn new(function: &Function) -> Self {
        let types = |fields: &[Field]| {
            fields.iter().map(|field| field.data_type.to_string()).collect::<Vec<_>>().join(", ")
        };
        let signature = &function.signature;
        let name = signature.name.to_lowercase();
        Self {
            signature: format!("{name}({}) -> {}", types(&signature.parameters), signature.returns),
            admits_null: function.admits_null(),
            deterministic: function.spec.deterministic,
        }
    }
}

/// All loaded libraries of one engine instance.
pub struct Catalog<Z: Zygote> {
    libraries: Mutex<BTreeMap<String, Arc<Library<Z>>>>,
    entries: Mutex<HashMap<Key, Arc<Entry<Z>>>>,
}

impl<Z: Zygote> Default for Catalog<Z> {
    fn default() -> Self {
        Self { libraries: Mutex::default(), entries: Mutex::default() }
    }
}

impl<Z: Zygote> fmt::Debug for Catalog<Z> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("libraries", &self.libraries().len()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<Z: Zygote> Catalog<Z> {
    /// The libraries, by name.
    pub fn libraries(&self) -> Vec<Arc<Library<Z>>> {
        lock(&self.libraries).values().cloned().collect()
    }

    /// Forgets the libraries. Their processes end when no query uses them any more.
    pub fn clear(&self) {
        lock(&self.entries).clear();
        lock(&self.libraries).clear();
    }

    /// Makes the functions of a library callable, in place of those of its last version. `register` tells
    /// the engine of a function; it is called for known ones too, because another library may have taken
    /// the name since.
    ///
    /// # Errors
    /// Those of `register`; the functions before the one that failed are callable then.
    pub fn publish(
        &self,
        name: String,
        functions: Vec<Arc<Function>>,
        pool: Pool<Z>,
        mut register: impl FnMut(&Function, Arc<Entry<Z>>) -> Result<(), Error>,
    ) -> Result<Arc<Library<Z>>, Error> {
        let mut entries = lock(&self.entries);
        let version = lock(&self.libraries).get(&name).map_or(1, |library| library.version + 1);
        let library = Arc::new(Library { name: name.clone(), version, functions, pool });
        for function in &library.functions {
            let current = Current { library: Arc::clone(&library), function: Arc::clone(function) };
            let current = Arc::new(Ok(current));
            let entry = entries
                .entry(Key::new(function))
                .or_insert_with(|| Arc::new(Entry(ArcSwap::new(Arc::clone(&current)))));
            entry.0.store(current);
            register(function, Arc::clone(entry))?;
        }
        for entry in entries.values() {
            let content = entry.0.load();
            let Ok(current) = &**content else { continue };
            if current.library.name == library.name && current.library.version < library.version {
                entry.0.store(Arc::new(Err(farewell(&current.function, &library))));
            }
        }
        let old = lock(&self.libraries).insert(name, Arc::clone(&library));
        drop(entries);
        // Its processes end here, unless a running query still uses them.
        drop(old);
        Ok(library)
    }
}

fn farewell<Z: Zygote>(gone: &Function, library: &Library<Z>) -> String {
    let instead = library.functions.iter().find(|function| function.name().eq_ignore_ascii_case(gone.name()));
    let advice = match instead {
        Some(function) => format!(
            "it is now {}: prepare the statement again, or cast the arguments to these types",
            function.signature
        ),
        None => "the file does not declare it any more".into(),
    };
    format!("{} was removed when {} was loaded again; {advice}", gone.signature, library.name)
}
