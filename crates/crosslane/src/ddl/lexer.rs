//! The tokens of SQL text, without spaces and comments.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    /// A name between double quotes.
    Name,
    /// A text between single quotes, with `''` for one quote.
    Text,
    /// A text as `E'...'`, with escapes.
    Escaped,
    /// A text between `$$`, or between `$word$`.
    Dollar,
    Number,
    /// Any other character.
    Symbol,
    /// A comment, a name or a text without an end.
    Endless,
}

/// A part of SQL text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    /// The text of the token, with its quotes.
    pub(super) text: &'a str,
    /// The place of its first byte in the whole text.
    pub(super) at: usize,
}

impl Token<'_> {
    /// Whether it is this word, in upper or lower case.
    pub(super) fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(word)
    }

    pub(super) fn is_symbol(&self, symbol: char) -> bool {
        self.kind == Kind::Symbol && self.text.starts_with(symbol)
    }

    /// The place after its last byte.
    pub(super) fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

/// The tokens of a text.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let rest = &text[at..];
            let first = rest.chars().next()?;
            let (kind, length) = match first {
                _ if first.is_whitespace() || first == '\u{feff}' => (None, first.len_utf8()),
                '-' if rest.starts_with("--") => (None, rest.find(['\n', '\r']).unwrap_or(rest.len())),
                '/' if rest.starts_with("/*") => match block_comment(rest) {
                    Some(length) => (None, length),
                    None => (Some(Kind::Endless), rest.len()),
                },
                '"' => delimited(Kind::Name, quoted(rest, '"', false), rest),
                '\'' => delimited(Kind::Text, quoted(rest, '\'', false), rest),
                'e' | 'E' if rest[1..].starts_with('\'') => {
                    let length = quoted(&rest[1..], '\'', true).map(|length| length + 1);
                    delimited(Kind::Escaped, length, rest)
                }
                '$' => match tag(rest) {
                    Some(tag) => {
                        let end = rest[tag.len()..].find(tag);
                        delimited(Kind::Dollar, end.map(|end| end + 2 * tag.len()), rest)
                    }
                    None => (Some(Kind::Symbol), 1),
                },
                _ if first.is_alphabetic() || first == '_' => {
                    (Some(Kind::Word), length_of(rest, |c| c.is_alphanumeric() || c == '_' || c == '$'))
                }
                _ if first.is_ascii_digit() => (Some(Kind::Number), number(rest)),
                '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                    (Some(Kind::Number), number(rest))
                }
                _ => (Some(Kind::Symbol), first.len_utf8()),
            };
            let token = kind.map(|kind| Token { kind, text: &rest[..length], at });
            at += length;
            if token.is_some() {
                return token;
            }
        }
    })
}

fn delimited(kind: Kind, length: Option<usize>, rest: &str) -> (Option<Kind>, usize) {
    match length {
        Some(length) => (Some(kind), length),
        None => (Some(Kind::Endless), rest.len()),
    }
}

fn length_of(text: &str, mut belongs: impl FnMut(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

/// The length of a number, such as `1.5e-3`.
fn number(text: &str) -> usize {
    let mut before = ' ';
    length_of(text, |c| {
        let belongs = c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        let is_sign = matches!(c, '+' | '-') && matches!(before, 'e' | 'E');
        before = c;
        belongs || is_sign
    })
}

/// The length of a text that begins with a quote. A doubled quote does not end it.
fn quoted(text: &str, quote: char, escapes: bool) -> Option<usize> {
    let mut characters = text.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        if escapes && character == '\\' {
            characters.next();
        } else if character == quote && characters.next_if(|(_, next)| *next == quote).is_none() {
            return Some(at + 1);
        }
    }
    None
}

/// The length of a comment. It may have comments in it.
fn block_comment(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    loop {
        let next = at + text[at..].find(['/', '*'])?;
        match &text[next..] {
            rest if rest.starts_with("/*") => (depth, at) = (depth + 1, next + 2),
            rest if rest.starts_with("*/") => (depth, at) = (depth - 1, next + 2),
            _ => at = next + 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// `$$`, or `$word$`, at the beginning of a text.
fn tag(text: &str) -> Option<&str> {
    let length = length_of(&text[1..], |c| c.is_alphanumeric() || c == '_');
    let word = &text[1..=length];
    let is_tag = text[1 + length..].starts_with('$') && !word.starts_with(|c: char| c.is_ascii_digit());
    is_tag.then(|| &text[..length + 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        tokens(text).map(|token| (token.kind, token.text)).collect()
    }

    #[test]
    fn texts_and_comments_have_no_tokens_in_them() {
        use Kind::*;
        assert_eq!(
            kinds("a -- ' ;\n/* ; /* ' */ ; */ 'it''s;' \"na\"\"me;\" E'\\';'"),
            [(Word, "a"), (Text, "'it''s;'"), (Name, "\"na\"\"me;\""), (Escaped, "E'\\';'")]
        );
        assert_eq!(
            kinds("$$ ; ' $a$ $$ $a1$;$$;$a1$ $1"),
            [(Dollar, "$$ ; ' $a$ $$"), (Dollar, "$a1$;$$;$a1$"), (Symbol, "$"), (Number, "1")]
        );
        assert_eq!(
            kinds("\u{feff}1.5e-3 é='x"),
            [(Number, "1.5e-3"), (Word, "é"), (Symbol, "="), (Endless, "'x")]
        );
        assert_eq!(kinds("/* /* */"), [(Endless, "/* /* */")]);
        assert_eq!(kinds("$é"), [(Symbol, "$"), (Word, "é")]);
    }
}
