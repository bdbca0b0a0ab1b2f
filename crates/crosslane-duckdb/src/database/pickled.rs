//! Functions that a program has serialised.

use crosslane::Signature;

/// A function that a program has serialised, and a signature for each number of its arguments.
#[derive(Debug, Clone)]
pub(crate) struct Pickled {
    pub(crate) signatures: Vec<Signature>,
    pub(crate) bytes: Vec<u8>,
}

impl Pickled {
    /// Whether the other function replaces this one. An overload replaces only functions with the
    /// same types.
    pub(super) fn is_replaced_by(&self, other: &Self, overload: bool) -> bool {
        let mut pairs =
            self.signatures.iter().flat_map(|one| other.signatures.iter().map(move |new| (one, new)));
        pairs.any(|(one, new)| {
            one.name.eq_ignore_ascii_case(&new.name) && (!overload || one.takes_the_same(new))
        })
    }
}
