//! Names of types that a database defines (`CREATE TYPE mood AS ENUM ('sad', 'ok')`). Signatures
//! may use them as SQL does.
//!
//! The engine looks the names up when it loads a library, and sends them to the guest. A guest's
//! process has one library, and so one set of names ([`TypeNames::know`]). An engine's process may
//! have several databases. Each of its threads sets the names while it reads a signature
//! ([`TypeNames::within`]).

use crate::types::DataType;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Names of types, with the types.
///
/// ```
/// use crosslane::{DataType, Signature, TypeNames};
/// let mood: DataType = "ENUM('sad', 'ok')".parse()?;
/// let names: TypeNames = [("shop.Mood".to_owned(), mood)].into_iter().collect();
/// let signature = names.within(|| "f(x SHOP.mood[]) -> INT".parse::<Signature>())?;
/// assert_eq!(signature.to_string(), "f(x ENUM('sad', 'ok')[]) -> INTEGER");
/// # Ok::<(), crosslane::signature::SignatureError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct TypeNames(Arc<BTreeMap<String, DataType>>);

static OF_PROCESS: OnceLock<TypeNames> = OnceLock::new();

thread_local! {
    static OF_THREAD: RefCell<Option<TypeNames>> = const { RefCell::new(None) };
}

/// Restores the thread's names when it is dropped, also after a panic.
struct Within(Option<TypeNames>);

impl Drop for Within {
    fn drop(&mut self) {
        OF_THREAD.set(self.0.take());
    }
}

impl TypeNames {
    /// Runs `body` with these names for the signatures that this thread reads.
    pub fn within<T>(&self, body: impl FnOnce() -> T) -> T {
        let _before = Within(OF_THREAD.replace(Some(self.clone())));
        body()
    }

    /// Sets the names for all signatures in this process, for good. Later calls have no effect.
    pub fn know(self) {
        let _ = OF_PROCESS.set(self);
    }

    /// The names that apply to this thread.
    fn here() -> Option<Self> {
        OF_THREAD.with_borrow(Clone::clone).or_else(|| OF_PROCESS.get().cloned())
    }

    /// The type of a name in this thread. The case of the name does not matter.
    pub(crate) fn find(name: &str) -> Option<DataType> {
        Self::here()?.0.get(&name.to_lowercase()).cloned()
    }

    /// The known names, as a hint in an error message; empty without names.
    pub(crate) fn hint() -> String {
        const MOST: usize = 5;
        let Some(Self(names)) = Self::here().filter(|names| !names.is_empty()) else { return String::new() };
        let some: Vec<_> = names.keys().take(MOST).map(String::as_str).collect();
        let more = if names.len() > MOST { ", ..." } else { "" };
        format!("; types of this database are {}{more}", some.join(", "))
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names in lower case, and their types.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &DataType)> {
        self.0.iter().map(|(name, data_type)| (name.as_str(), data_type))
    }
}

/// If a name comes twice, its first type counts.
impl FromIterator<(String, DataType)> for TypeNames {
    fn from_iter<T: IntoIterator<Item = (String, DataType)>>(all: T) -> Self {
        let mut names = BTreeMap::new();
        for (name, data_type) in all {
            names.entry(name.to_lowercase()).or_insert(data_type);
        }
        Self(Arc::new(names))
    }
}

/// Texts that are not types are ignored.
impl From<BTreeMap<String, String>> for TypeNames {
    fn from(texts: BTreeMap<String, String>) -> Self {
        texts.into_iter().filter_map(|(name, text)| Some((name, text.parse().ok()?))).collect()
    }
}

impl From<TypeNames> for BTreeMap<String, String> {
    fn from(names: TypeNames) -> Self {
        names.iter().map(|(name, data_type)| (name.to_owned(), data_type.to_string())).collect()
    }
}
