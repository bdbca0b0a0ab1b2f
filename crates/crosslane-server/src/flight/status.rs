//! Errors as statuses of gRPC.

use crosslane::Error;
use tonic::{Code, Status};

/// A status travels in a header, of which clients take 8 KiB. So much of a text is kept of its beginning, and of its
/// end, as it is encoded.
const SHOWN: (usize, usize) = (3 << 10, 2 << 10);

/// What a client is told of an error.
pub(super) fn of_error(error: &Error) -> Status {
    let code = match error {
        Error::Raised { failure, .. } if failure.class == "TooLarge" => Code::ResourceExhausted,
        // An error of the function's: gRPC has no code for it.
        Error::Raised { .. } => Code::Unknown,
        Error::TimedOut { .. } => Code::DeadlineExceeded,
        Error::OverBudget { .. } => Code::ResourceExhausted,
        Error::Cancelled { .. } => Code::Cancelled,
        Error::Boot(_) => Code::Unavailable,
        _ => Code::Internal,
    };
    Status::new(code, shortened(&error.to_string()))
}

/// The beginning and the end of a text that is too long for a header.
pub(super) fn shortened(text: &str) -> String {
    // As it travels, all but plain characters are written as %XX.
    let cost = |character: char| match character {
        ' '..='~' if character != '%' => 1,
        _ => 3 * character.len_utf8(),
    };
    let (first, last) = SHOWN;
    if text.chars().map(cost).sum::<usize>() <= first + last {
        return text.to_owned();
    }
    let fitting = |characters: &mut dyn Iterator<Item = char>, most: usize| {
        let mut spent = 0;
        let fitting = characters.take_while(|character| {
            spent += cost(*character);
            spent <= most
        });
        fitting.map(char::len_utf8).sum::<usize>()
    };
    let from = fitting(&mut text.chars(), first);
    let to = text.len() - fitting(&mut text.chars().rev(), last);
    format!("{} ... {} bytes are left out ... {}", &text[..from], to - from, &text[to..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_ends_and_fits_a_header() {
        assert_eq!(shortened("line 1\nline 2"), "line 1\nline 2");
        for letter in ["a", "ä", "\n", "語"] {
            let text = shortened(&format!("first{}last", letter.repeat(10_000)));
            assert!(text.starts_with("first") && text.ends_with("last"), "{text}");
            assert!(text.contains(" bytes are left out "), "{text}");
            let status = Status::unknown(text);
            let header = status.into_http::<()>();
            assert!(header.headers()["grpc-message"].len() < 6 << 10);
        }
    }
}
