//! Operations of texts, which are UTF-8.
//!
//! | operation | rows that leave |
//! |---|---|
//! | `lower`, `title`, `strip()`, `split()`, `zfill`, formats, slices, indices, `isdigit` and the like | what is not ASCII |
//! | `find` | what is not ASCII, since Python counts characters |
//! | `[i]`, `split()[i]`, `split(separator)[i]` | no such element: CPython raises |
//! | `count("")` | all |
//! | `int(text)` | anything but up to 18 digits with a sign |
//! | what makes new bytes | texts beyond 16 MiB in all, and the end of the process's memory |
//!
//! `replace`, `removeprefix`, `startswith`, `endswith`, `in`, `count`, `==`, `<` and `len` agree with UTF-8.

use crate::program::{Characters, TextCount, TextTest};
use memchr::memmem;
use std::cell::Cell;
use std::ops::Range;

/// The most bytes of texts that are made for the rows of one chunk.
pub(super) const MOST_BYTES: usize = 16 << 20;
/// How many of them a lane keeps for the next chunk.
pub(super) const KEPT_BYTES: usize = 1 << 20;

/// Where a text is: in the data of an input, or in the bytes of a register. The registers are
/// numbered behind the inputs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Span {
    pub(super) source: u32,
    pub(super) start: u32,
    pub(super) length: u32,
}

impl Span {
    /// The text, of the bytes of its source.
    #[inline(always)]
    pub(super) fn of(self, source: &[u8]) -> &[u8] {
        &source[self.start as usize..][..self.length as usize]
    }

    /// A part of the text.
    pub(super) fn part(self, part: &Range<usize>) -> Self {
        Self { start: self.start + part.start as u32, length: part.len() as u32, ..self }
    }
}

/// The texts of a register.
#[derive(Debug, Default)]
pub(super) struct TextColumn {
    /// The number of this register as a source.
    pub(super) number: u32,
    pub(super) spans: Vec<Span>,
    /// The bytes of texts that were made here.
    pub(super) bytes: Vec<u8>,
    /// Whether all texts are ASCII.
    pub(super) ascii: bool,
    /// A source, and a part of it in which all texts lie that are not empty.
    pub(super) region: Option<(u32, Range<u32>)>,
}

impl TextColumn {
    pub(super) fn clear(&mut self) {
        self.spans.clear();
        self.bytes.clear();
    }

    /// Adds a text of at most this length, which `write` makes. Returns false if there is no room for
    /// it. `room` is how many bytes may still be made.
    pub(super) fn push(&mut self, room: &Cell<usize>, most: usize, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let start = self.bytes.len();
        let has_room = self.has_room(room, most);
        if has_room {
            write(&mut self.bytes);
            let length = self.bytes.len() - start;
            room.set(room.get() + most - length);
            self.spans.push(Span { source: self.number, start: start as u32, length: length as u32 });
        }
        has_room
    }

    /// Takes so many bytes from the room, if they are there. The memory of the process may be limited,
    /// too.
    pub(super) fn has_room(&mut self, room: &Cell<usize>, bytes: usize) -> bool {
        let fits = bytes <= room.get() && self.bytes.try_reserve(bytes).is_ok();
        if fits {
            room.set(room.get() - bytes);
        }
        fits
    }
}

/// Python's white space among ASCII.
fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | 0x1c..=0x1f | b' ')
}

/// The part that `strip` and its kind leave. They remove these bytes, or white space. None if the row
/// leaves.
#[inline(always)]
pub(super) fn strip(
    text: &[u8],
    left: bool,
    right: bool,
    bytes: Option<&[u8]>,
    ascii: bool,
) -> Option<Range<usize>> {
    // Bytes of the set are ASCII, and so never part of a longer character.
    if bytes.is_none() && !ascii && !text.is_ascii() {
        return None;
    }
    let stays = |byte: &u8| bytes.map_or_else(|| !is_space(*byte), |set| !set.contains(byte));
    let start = if left { text.iter().position(stays).unwrap_or(text.len()) } else { 0 };
    let rest = &text[start..];
    let length = if right { rest.iter().rposition(stays).map_or(0, |last| last + 1) } else { rest.len() };
    Some(start..start + length)
}

/// `text[from:to]`. None if the row leaves.
pub(super) fn slice(text: &[u8], from: Option<i64>, to: Option<i64>, ascii: bool) -> Option<Range<usize>> {
    let length = text.len() as i64;
    let at = |bound: i64| if bound < 0 { bound.saturating_add(length).max(0) } else { bound.min(length) };
    let from = from.map_or(0, at);
    let to = to.map_or(length, at).max(from);
    (ascii || text.is_ascii()).then_some(from as usize..to as usize)
}

/// `text[index]`. None if the row leaves.
pub(super) fn character(text: &[u8], index: i64, ascii: bool) -> Option<Range<usize>> {
    let at = if index < 0 { index.checked_add(text.len() as i64)? } else { index };
    let at = usize::try_from(at).ok().filter(|at| *at < text.len())?;
    (ascii || text.is_ascii()).then_some(at..at + 1)
}

/// An element of `split(separator)`. None if the row leaves.
pub(super) fn element(text: &[u8], separator: &memmem::Finder<'_>, index: i64) -> Option<Range<usize>> {
    let index = if index < 0 {
        let count = separator.find_iter(text).count() as i64 + 1;
        count.checked_add(index)?
    } else {
        index
    };
    let mut ends = separator.find_iter(text);
    let start = match usize::try_from(index).ok()? {
        0 => 0,
        index => ends.nth(index - 1)? + separator.needle().len(),
    };
    Some(start..ends.next().unwrap_or(text.len()))
}

/// `separator.join(text.split())` of a text that is ASCII.
pub(super) fn join_words(text: &[u8], separator: &[u8], out: &mut Vec<u8>) {
    let words = text.split(|byte| is_space(*byte)).filter(|word| !word.is_empty());
    for (number, word) in words.enumerate() {
        if number > 0 {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(word);
    }
}

/// An element of `split()` of a text that is ASCII.
pub(super) fn word(text: &[u8], index: i64) -> Option<Range<usize>> {
    let words = || {
        let mut end = 0;
        text.split(|byte| is_space(*byte)).filter_map(move |word| {
            let start = end;
            end = start + word.len() + 1;
            (!word.is_empty()).then_some(start..start + word.len())
        })
    };
    let index = if index < 0 { (words().count() as i64).checked_add(index)? } else { index };
    words().nth(usize::try_from(index).ok()?)
}

/// `capitalize` of a text that is ASCII.
pub(super) fn capitalize(text: &[u8], out: &mut Vec<u8>) {
    out.extend(text.iter().take(1).map(u8::to_ascii_uppercase));
    out.extend(text.iter().skip(1).map(u8::to_ascii_lowercase));
}

/// `title` of a text that is ASCII.
pub(super) fn title(text: &[u8], out: &mut Vec<u8>) {
    let mut inside = false;
    out.extend(text.iter().map(|byte| {
        let changed = if inside { byte.to_ascii_lowercase() } else { byte.to_ascii_uppercase() };
        inside = byte.is_ascii_alphabetic();
        changed
    }));
}

pub(super) fn swap_case(text: &mut [u8]) {
    for byte in text.iter_mut().filter(|byte| byte.is_ascii_alphabetic()) {
        *byte ^= 0x20;
    }
}

/// `zfill` of a text that is ASCII.
pub(super) fn zero_fill(text: &[u8], width: usize, out: &mut Vec<u8>) {
    let signs = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let (sign, digits) = text.split_at(signs);
    out.extend_from_slice(sign);
    out.resize(out.len() + width.saturating_sub(text.len()), b'0');
    out.extend_from_slice(digits);
}

pub(super) fn test(test: TextTest, text: &[u8], part: &[u8]) -> bool {
    match test {
        TextTest::StartsWith => text.starts_with(part),
        TextTest::EndsWith => text.ends_with(part),
        TextTest::Contains => memmem::find(text, part).is_some(),
    }
}

/// None if the row leaves.
pub(super) fn characters(characters: Characters, text: &[u8], ascii: bool) -> Option<bool> {
    let is: fn(u8) -> bool = match characters {
        Characters::Digits => |byte| byte.is_ascii_digit(),
        Characters::Letters => |byte| byte.is_ascii_alphabetic(),
        Characters::LettersOrDigits => |byte| byte.is_ascii_alphanumeric(),
        Characters::Spaces => is_space,
        Characters::Upper => |byte| byte.is_ascii_uppercase(),
        Characters::Lower => |byte| byte.is_ascii_lowercase(),
    };
    // `isupper` and `islower` ask the letters alone.
    let of_case = matches!(characters, Characters::Upper | Characters::Lower);
    let mut asked = text.iter().filter(|byte| !of_case || byte.is_ascii_alphabetic()).peekable();
    (ascii || text.is_ascii()).then(|| asked.peek().is_some() && asked.all(|byte| is(*byte)))
}

/// None if the row leaves.
pub(super) fn count(count: TextCount, text: &[u8], part: &[u8], ascii: bool) -> Option<i64> {
    match count {
        TextCount::Length if ascii => Some(text.len() as i64),
        // The bytes that begin a character.
        TextCount::Length => Some(text.iter().filter(|byte| (**byte as i8) >= -0x40).count() as i64),
        TextCount::Find if !(ascii || text.is_ascii()) => None,
        TextCount::Find => Some(memmem::find(text, part).map_or(-1, |at| at as i64)),
        TextCount::Count if part.is_empty() => None,
        TextCount::Count => Some(memmem::find_iter(text, part).count() as i64),
    }
}

/// `int(text)` of a short number.
pub(super) fn int(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0i64, |value, digit| value * 10 + i64::from(digit - b'0'));
    Some(if negative { -value } else { value })
}
