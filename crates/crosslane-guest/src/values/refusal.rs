//! The reasons why a value cannot be written, and their errors.

use crosslane::builder::Overflow;

/// The reason why a value cannot be written.
#[derive(Debug)]
pub enum Refusal<E> {
    /// It is of another type.
    Mismatch,
    /// It is of another type. The text follows "returned" and the value.
    Type(String),
    /// It does not fit.
    TooLarge,
    /// What it is (such as `, which is binary,`), and the advice.
    Due(&'static str, &'static str),
    /// Another reason. The text follows "returned" and the value.
    Other(String),
    /// The language had an error.
    Failed(E),
}

impl<E> Refusal<E> {
    /// The error about a value where a value of the type `due` is due. `shown` gives the text of
    /// the value.
    pub fn told(self, shown: impl FnOnce() -> Result<String, E>, due: impl std::fmt::Display) -> Fault<E> {
        let (class, what) = match self {
            Refusal::Mismatch => (Class::Type, format!(" where {due} is due")),
            Refusal::Type(what) => (Class::Type, what),
            Refusal::TooLarge => (Class::Range, format!(", which does not fit {due}")),
            Refusal::Due(what, advice) => (Class::Value, format!("{what} where {due} is due; {advice}")),
            Refusal::Other(what) => (Class::Value, what),
            Refusal::Failed(error) => return Fault::Failed(error),
        };
        match shown() {
            Ok(shown) => Fault::refused(class, format!("returned {shown}{what}")),
            Err(error) => Fault::Failed(error),
        }
    }
}

/// The error of a MAP that has NULL as a key.
pub const NULL_KEY: &str = "returned a MAP with the key NULL; keys cannot be NULL";

/// The kind of an error about a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It is of another type.
    Type,
    /// It does not fit.
    Range,
    /// It is of the type, and is wrong.
    Value,
    /// There is no memory for it.
    NoMemory,
}

impl Class {
    /// The name of such errors, for languages without classes of errors.
    pub fn name(self) -> &'static str {
        match self {
            Class::Type => "TypeError",
            Class::Range => "RangeError",
            Class::Value => "ValueError",
            Class::NoMemory => "MemoryError",
        }
    }
}

/// An error that the guest itself makes, for languages whose errors can hold an error of Rust.
#[derive(Debug)]
pub struct Wrong {
    /// Its class.
    pub class: &'static str,
    /// The text of the error.
    pub message: String,
}

impl Wrong {
    /// An error of a class ([`Class::name`], or another).
    pub fn new(class: &'static str, message: impl std::fmt::Display) -> Self {
        Self { class, message: message.to_string() }
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Wrong {}

/// Why a result could not be written. It is as small as the language's errors allow, so that it is
/// returned in registers.
#[derive(Debug)]
pub enum Fault<E> {
    /// It is no value of the type.
    Refused(Box<(Class, String)>),
    /// The language had an error.
    Failed(E),
}

impl<E> Fault<E> {
    /// A refusal.
    #[cold]
    pub fn refused(class: Class, message: String) -> Self {
        Fault::Refused(Box::new((class, message)))
    }
}

impl<E> From<Overflow> for Fault<E> {
    fn from(overflow: Overflow) -> Self {
        let class = match overflow {
            Overflow::TooLarge => Class::Range,
            Overflow::NoMemory => Class::NoMemory,
        };
        Fault::refused(class, overflow.to_string())
    }
}
