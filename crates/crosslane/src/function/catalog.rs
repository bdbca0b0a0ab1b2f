//! All loaded libraries, and the current meaning of each function that an engine knows.
//!
//! An engine may be unable to remove a function that it has registered. Prepared statements also
//! keep the function that they found. So the engine registers an [`Entry`] for each function, and
//! the catalog fills the entry. When a new version of a library is published, the catalog fills the
//! entries of the functions that stayed the same. It makes entries for the new functions, and marks
//! the entries of the others as gone. Dropping a function marks its entries as gone.
//!
//! A query reads its entry once, without a lock, when it starts on a worker. It keeps that version
//! until its end.

use crate::error::Error;
use crate::function::{Function, Kind, Library};
use crate::lock;
use crate::pool::{Pool, Zygote};
use arc_swap::ArcSwap;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

/// A function and the library that runs it.
#[derive(Debug)]
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

/// The reason why an entry has no function.
#[derive(Debug, Clone)]
struct Gone {
    /// The error of calls, with advice for the user.
    message: String,
    why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The entry has never had a function.
    New,
    /// A later load removed or replaced the function.
    Replaced,
    /// The user dropped the name.
    Dropped,
}

/// The current meaning of a function that an engine has registered.
#[derive(Debug)]
pub struct Entry<Z: Zygote>(ArcSwap<Result<Current<Z>, Gone>>);

impl<Z: Zygote> Entry<Z> {
    /// The current function.
    ///
    /// # Errors
    /// [`Error::Engine`] if a reload removed the function or a user dropped it, with advice for the
    /// user.
    pub fn current(&self) -> Result<Current<Z>, Error> {
        (**self.0.load()).clone().map_err(|gone| Error::Engine(gone.message))
    }

    /// Whether the entry has never been published.
    pub fn is_new(&self) -> bool {
        self.0.load().as_ref().as_ref().is_err_and(|gone| gone.why == Why::New)
    }

    fn end(&self, message: String, why: Why) {
        self.0.store(Arc::new(Err(Gone { message, why })));
    }
}

/// All that an engine learns about a function at its registration. For a table function, it asks
/// for the rest when a statement uses the function.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    name: String,
    table: bool,
    parameters: String,
    returns: String,
    admits_null: bool,
    deterministic: bool,
    kind: Kind,
}

impl Key {
    fn new(function: &Function) -> Self {
        let (signature, spec) = (&function.signature, &function.spec);
        let parameters: Vec<_> = if spec.kind == Kind::Stream {
            // The engine registers no stream functions. A caller that maps a stream finds the
            // function by its name.
            Vec::new()
        } else if signature.table {
            let parameters = signature.parameters.iter().zip(&spec.named);
            let parameters = parameters.map(|(field, named)| match named {
                true => format!("{} := {}", field.name.to_lowercase(), field.data_type),
                false => field.data_type.to_string(),
            });
            parameters.collect()
        } else {
            let fixed = signature.fixed().iter().map(|field| field.data_type.to_string());
            fixed.chain(signature.rest().map(|data_type| format!("*{data_type}"))).collect()
        };
        Self {
            name: signature.name.to_lowercase(),
            table: signature.table,
            parameters: parameters.join(", "),
            returns: if signature.table { String::new() } else { signature.returns.to_string() },
            admits_null: !signature.table && function.admits_null(),
            deterministic: signature.table || spec.deterministic,
            kind: spec.kind,
        }
    }

    /// Whether an engine cannot tell calls of the two functions apart.
    fn takes_the_same(&self, other: &Self) -> bool {
        let streams = (self.kind == Kind::Stream) == (other.kind == Kind::Stream);
        streams && self.name == other.name && self.table == other.table && self.parameters == other.parameters
    }
}

/// A function to register, and the entry that will have it.
pub type Registration<Z> = (Arc<Function>, Arc<Entry<Z>>);

/// All loaded libraries of one engine instance.
#[derive(Debug)]
pub struct Catalog<Z: Zygote> {
    libraries: Mutex<BTreeMap<String, Arc<Library<Z>>>>,
    entries: Mutex<HashMap<Key, Arc<Entry<Z>>>>,
}

impl<Z: Zygote> Default for Catalog<Z> {
    fn default() -> Self {
        Self { libraries: Mutex::default(), entries: Mutex::default() }
    }
}

/// Ends the processes of libraries, all at the same time, and waits for their ends. A library that
/// a running query still uses ends with that query.
fn end<Z: Zygote>(libraries: impl IntoIterator<Item = Arc<Library<Z>>>) {
    let unused = libraries.into_iter().filter_map(Arc::into_inner);
    Pool::end_all(unused.map(|library| library.pool));
}

impl<Z: Zygote> Catalog<Z> {
    /// The libraries, by name.
    pub fn libraries(&self) -> Vec<Arc<Library<Z>>> {
        lock(&self.libraries).values().cloned().collect()
    }

    /// Removes all libraries. The processes of a library end, all at the same time, when no query
    /// uses the library any more.
    pub fn clear(&self) {
        for (_, entry) in lock(&self.entries).drain() {
            entry.end("the database is being closed".into(), Why::Replaced);
        }
        let libraries = std::mem::take(&mut *lock(&self.libraries));
        end(libraries.into_values());
    }

    /// Whether a function of this name was registered. `table` selects table functions or all
    /// others.
    pub fn knows(&self, name: &str, table: bool) -> bool {
        let name = name.to_lowercase();
        let told = |key: &Key| key.name == name && key.table == table && key.kind != Kind::Stream;
        lock(&self.entries).keys().any(told)
    }

    /// The entry of the stream function of this name; `None` if there was never one.
    pub fn stream(&self, name: &str) -> Option<Arc<Entry<Z>>> {
        let name = name.to_lowercase();
        let entries = lock(&self.entries);
        let mut streams = entries.iter().filter(|(key, _)| key.kind == Kind::Stream && key.name == name);
        streams.next().map(|(_, entry)| Arc::clone(entry))
    }

    /// Whether the engine has registered this function with exactly these properties.
    pub fn knows_all(&self, function: &Function) -> bool {
        lock(&self.entries).contains_key(&Key::new(function))
    }

    /// Whether a function of this name and these parameters was registered with another result.
    pub fn changes_result(&self, function: &Function) -> bool {
        let new = Key::new(function);
        lock(&self.entries).keys().any(|key| key.takes_the_same(&new) && key.returns != new.returns)
    }

    /// Whether calls of this function run on that library.
    pub fn is_current(&self, library: &Library<Z>, function: &Function) -> bool {
        let entry = lock(&self.entries).get(&Key::new(function)).cloned();
        entry
            .and_then(|entry| entry.current().ok())
            .is_some_and(|current| current.library.name == library.name)
    }

    /// Names that the engine should remove, because some registered function of the name is gone.
    /// The reason is one of two: the name also has a current function, and the engine may choose
    /// the wrong one for a call; or the user dropped the name. Engines keep table functions, so
    /// their names are not in the list.
    pub fn outdated(&self) -> Vec<String> {
        let entries = lock(&self.entries);
        let named = |wanted: fn(&Result<Current<Z>, Gone>) -> bool| -> BTreeSet<&str> {
            let names = entries.iter().filter(|(key, entry)| !key.table && wanted(&entry.0.load()));
            names.map(|(key, _)| key.name.as_str()).collect()
        };
        let dropped = named(|state| state.as_ref().is_err_and(|gone| gone.why == Why::Dropped));
        let mixed: BTreeSet<_> = named(Result::is_ok).intersection(&named(Result::is_err)).copied().collect();
        mixed.union(&dropped).map(|name| (*name).to_owned()).collect()
    }

    /// The names that have a current function.
    pub fn names(&self) -> BTreeSet<String> {
        let entries = lock(&self.entries);
        let current = entries.values().filter_map(|entry| entry.current().ok());
        current.map(|current| current.function.name().to_owned()).collect()
    }

    /// Drops all functions of a name, whatever their parameters, until the name is published again.
    /// Returns the functions that it dropped, or nothing if there was none. A library without any
    /// remaining function ends as soon as no query uses it.
    pub fn forget(&self, name: &str) -> Vec<Arc<Function>> {
        let name = name.to_lowercase();
        let entries = lock(&self.entries);
        let named = entries.iter().filter(|(key, _)| key.name == name);
        let dropped: Vec<_> =
            named.filter_map(|(_, entry)| Some((entry.current().ok()?, Arc::clone(entry)))).collect();
        for (current, entry) in &dropped {
            let message = format!(
                "{} was dropped; to call it again, load {} or register it anew",
                current.function.signature, current.library.name
            );
            entry.end(message, Why::Dropped);
        }
        let unused = self.take_unused(&entries);
        drop(entries);
        let mut functions: Vec<_> = dropped.into_iter().map(|(current, _)| current.function).collect();
        functions.sort_by_key(|function| function.index);
        end(unused);
        functions
    }

    /// Removes the libraries without a current function from the catalog, and returns them.
    fn take_unused(&self, entries: &HashMap<Key, Arc<Entry<Z>>>) -> Vec<Arc<Library<Z>>> {
        let current: Vec<_> = entries.values().filter_map(|entry| entry.current().ok()).collect();
        let mut libraries = lock(&self.libraries);
        let used = |library: &Arc<Library<Z>>| current.iter().any(|it| Arc::ptr_eq(&it.library, library));
        let (kept, unused) = std::mem::take(&mut *libraries).into_iter().partition(|(_, it)| used(it));
        *libraries = kept;
        let unused: BTreeMap<_, _> = unused;
        unused.into_values().collect()
    }

    /// Registers the current functions of a name again, after the engine has removed the name.
    ///
    /// # Errors
    /// Those of `register`.
    pub fn renew(
        &self,
        name: &str,
        register: impl FnOnce(&[Registration<Z>]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let name = name.to_lowercase();
        let mut entries = lock(&self.entries);
        let current = |entry: &Arc<Entry<Z>>| entry.current().ok().map(|it| (it.function, Arc::clone(entry)));
        let named = entries.iter().filter(|(key, _)| key.name == name && !key.table);
        let registrations: Vec<_> = named.filter_map(|(_, entry)| current(entry)).collect();
        register(&registrations)?;
        entries.retain(|key, entry| key.name != name || key.table || entry.0.load().is_ok());
        Ok(())
    }

    /// Replaces the functions of a library's last version by `functions`: all of them, or none on
    /// an error. `register` registers them with the engine. It also gets functions that the engine
    /// already knows, because another library may have taken the name since. It gets no stream
    /// functions: [`Catalog::stream`] finds those.
    ///
    /// The first `kept` functions are those of the last version. Such a function replaces one of
    /// another library only if both take the same arguments. Any other function replaces all
    /// functions of its name, unless it is an overload.
    ///
    /// # Errors
    /// Those of `register`. On an error `register` must have undone its work, and the catalog stays
    /// as it was.
    pub fn publish(
        &self,
        name: String,
        functions: Vec<Arc<Function>>,
        kept: usize,
        pool: Pool<Z>,
        register: impl FnOnce(&[Registration<Z>]) -> Result<(), Error>,
    ) -> Result<Arc<Library<Z>>, Error> {
        let mut entries = lock(&self.entries);
        let version = lock(&self.libraries).get(&name).map_or(1, |library| library.version + 1);
        let library = Arc::new(Library { name: name.clone(), version, functions, pool });
        let unloaded = || {
            let message = format!("{name} was not loaded, because of an error at the time");
            Arc::new(Entry(ArcSwap::from_pointee(Err(Gone { message, why: Why::New }))))
        };
        let entry_of = |function: &Arc<Function>| {
            let entry = entries.get(&Key::new(function)).cloned().unwrap_or_else(unloaded);
            (Arc::clone(function), entry)
        };
        let (streams, registrations): (Vec<_>, Vec<_>) = library
            .functions
            .iter()
            .map(entry_of)
            .partition(|(function, _)| function.spec.kind == Kind::Stream);
        register(&registrations)?;
        for (function, entry) in streams.into_iter().chain(registrations) {
            let current = Current { library: Arc::clone(&library), function: Arc::clone(&function) };
            entry.0.store(Arc::new(Ok(current)));
            entries.insert(Key::new(&function), entry);
        }
        let new: Vec<_> = library.functions.iter().map(|function| (Key::new(function), function)).collect();
        for (key, entry) in entries.iter() {
            let content = entry.0.load();
            let Ok(current) = &**content else { continue };
            let Current { library: holder, function } = current;
            if Arc::ptr_eq(holder, &library) {
                continue;
            }
            // Of functions that take the same arguments, the engine calls the one that was
            // registered last. It does not remove table functions.
            let is_replaced = |(at, (new, by)): (usize, &(Key, &Arc<Function>))| {
                let by_name = new.name == key.name && !new.table && !key.table;
                let stays =
                    at < kept || by.spec.overload && !by.signature.takes_the_same(&function.signature);
                new.takes_the_same(key) || by_name && !stays
            };
            if holder.name == library.name || new.iter().enumerate().any(is_replaced) {
                entry.end(farewell(function, holder, &library), Why::Replaced);
            }
        }
        let old = lock(&self.libraries).insert(name, Arc::clone(&library));
        let unused = self.take_unused(&entries);
        drop(entries);
        end(old.into_iter().chain(unused));
        Ok(library)
    }
}

fn farewell<Z: Zygote>(gone: &Function, holder: &Library<Z>, library: &Library<Z>) -> String {
    let instead = library.functions.iter().find(|function| function.name().eq_ignore_ascii_case(gone.name()));
    let advice = match instead {
        Some(function) => format!(
            "it is now {}: prepare the statement again, or cast the arguments to these types",
            function.signature
        ),
        None => "the file does not declare it any more".into(),
    };
    let again = if holder.name == library.name { " again" } else { "" };
    format!("{} was removed when {} was loaded{again}; {advice}", gone.signature, library.name)
}
