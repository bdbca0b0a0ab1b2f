//! The error of a text that is not a signature.

/// The error of a text that is not a signature or not a type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at column {column}:\n{}", self.shown())]
pub struct SignatureError {
    /// The description of the error.
    pub what: String,
    /// The whole text.
    pub text: String,
    /// The place of the error, in characters from 1.
    pub column: usize,
}

impl SignatureError {
    /// The text around the place, with an arrow below the place.
    fn shown(&self) -> String {
        const AROUND: usize = 60;
        let (start, end) = (self.column.saturating_sub(AROUND), self.column + AROUND);
        let mut part: String = self.text.chars().skip(start).take(end - start).collect();
        let mut at = self.column - start;
        if start > 0 {
            part.insert_str(0, "...");
            at += 3;
        }
        if self.text.chars().nth(end).is_some() {
            part.push_str("...");
        }
        format!("  {part}\n  {:>at$}", '^')
    }
}
