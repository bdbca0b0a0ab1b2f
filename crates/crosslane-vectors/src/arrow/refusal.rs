//! Why a value of an array is refused.

use crosslane::builder::Overflow;

/// Why a value cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The rows are too many, or there is no memory.
    Overflow(Overflow),
    /// What is wrong with the array, or with a value.
    Wrong(String),
}

impl From<Overflow> for Refusal {
    fn from(overflow: Overflow) -> Self {
        Refusal::Overflow(overflow)
    }
}

impl From<String> for Refusal {
    fn from(what: String) -> Self {
        Refusal::Wrong(what)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Overflow(overflow) => overflow.fmt(f),
            Refusal::Wrong(what) => f.write_str(what),
        }
    }
}
