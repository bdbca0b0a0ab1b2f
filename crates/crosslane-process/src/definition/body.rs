//! What can be said of a function's text without its language's parser: what of it is code, and whether
//! it is an expression.

/// The language of a text, as far as strings and comments differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    Python,
    JavaScript,
    Ruby,
    Lua,
}

/// A text with a mark for each byte of a string or a comment.
pub(super) struct Body<'a> {
    pub(super) text: &'a str,
    syntax: Syntax,
    /// For each byte, what it belongs to.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    String,
    Comment,
}

/// The words with which a statement begins that is no expression.
const STATEMENTS: [&str; 4] = [
    " if for while with try return raise import from def class assert del global nonlocal pass match async yield ",
    " if for while do switch try return throw const let var function class async yield ",
    "",
    " if for while do repeat function local return goto break error ",
];

impl<'a> Body<'a> {
    pub(super) fn new(text: &'a str, syntax: Syntax) -> Self {
        let mut parts = vec![Part::Code; text.len()];
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let length = syntax.length_at(rest);
            let (part, length) =
                length.unwrap_or((Part::Code, rest.chars().next().map_or(1, char::len_utf8)));
            parts[at..at + length].fill(part);
            at += length;
        }
        Self { text, syntax, parts }
    }

    /// The words of the code.
    pub(super) fn words(&self) -> impl Iterator<Item = &'a str> {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let mut rest = 0;
        std::iter::from_fn(move || {
            loop {
                let begin = rest + self.text[rest..].find(is_word)?;
                let length = self.text[begin..].find(|c| !is_word(c)).unwrap_or(self.text.len() - begin);
                rest = begin + length;
                if self.parts[begin] == Part::Code {
                    return Some(&self.text[begin..rest]);
                }
            }
        })
    }

    pub(super) fn has_word(&self, wanted: &str) -> bool {
        self.words().any(|word| word == wanted)
    }

    /// Whether there is nothing but spaces and comments.
    pub(super) fn is_empty(&self) -> bool {
        let is_blank =
            |(at, character): (usize, char)| character.is_whitespace() || self.parts[at] == Part::Comment;
        self.text.char_indices().all(is_blank)
    }

    /// Whether the whole text is an expression. What is neither this nor statements is left to the
    /// language, whose error is loud.
    pub(super) fn is_expression(&self) -> bool {
        let first = self.code().next().map(|(at, _)| at);
        let first = first.and_then(|at| self.words_from(at));
        if first.is_some_and(|word| STATEMENTS[self.syntax as usize].contains(&format!(" {word} "))) {
            return false;
        }
        let end = self.end();
        let mut depth = 0_usize;
        let mut last = None;
        for (at, character) in self.text.char_indices().take_while(|(at, _)| *at < end) {
            match (self.parts[at], character) {
                (Part::Code, '(' | '[' | '{') => depth += 1,
                (Part::Code, ')' | ']' | '}') => depth = depth.saturating_sub(1),
                (Part::Code, ';') if depth == 0 => return false,
                // JavaScript's expressions may have several lines.
                (Part::Code, '\n')
                    if depth == 0
                        && self.syntax != Syntax::JavaScript
                        && last.is_some()
                        && last != Some('\\') =>
                {
                    return false;
                }
                _ => {}
            }
            if !character.is_whitespace() && self.parts[at] != Part::Comment {
                last = Some(character);
            }
        }
        !self.returns_outside(end)
    }

    /// The expression, without comments and semicolons behind it. It keeps the lines before it, so that
    /// errors name its own lines.
    pub(super) fn expression(&self) -> &'a str {
        self.text[..self.end()].trim_start_matches([' ', '\t'])
    }

    /// Whether a line begins in a string, so that spaces before it would change the string.
    pub(super) fn is_in_string(&self, line: usize) -> bool {
        line > 0 && self.parts[line - 1] == Part::String
    }

    /// The characters of the code that are no spaces, and their places.
    fn code(&self) -> impl DoubleEndedIterator<Item = (usize, char)> {
        let is_code =
            |(at, character): &(usize, char)| !character.is_whitespace() && self.parts[*at] != Part::Comment;
        self.text.char_indices().filter(is_code)
    }

    fn words_from(&self, at: usize) -> Option<&'a str> {
        let rest = &self.text[at..];
        let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        (length > 0 && self.parts[at] == Part::Code).then(|| &rest[..length])
    }

    /// The place after the last character of the code that is no semicolon.
    fn end(&self) -> usize {
        let last = self.code().rfind(|(_, character)| *character != ';');
        last.map_or(0, |(at, character)| at + character.len_utf8())
    }

    /// Whether there is a `return` or a `throw` that is in no parentheses.
    fn returns_outside(&self, end: usize) -> bool {
        let mut depth = 0_usize;
        let mut before = ' ';
        for (at, character) in self.text.char_indices().take_while(|(at, _)| *at < end) {
            if self.parts[at] == Part::Code {
                match character {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ if depth == 0 && !(before.is_alphanumeric() || before == '_') => {
                        if matches!(self.words_from(at), Some("return" | "throw" | "raise")) {
                            return true;
                        }
                    }
                    _ => {}
                }
            }
            before = character;
        }
        false
    }
}

impl Syntax {
    /// The length of the string or the comment with which a text begins.
    fn length_at(self, text: &str) -> Option<(Part, usize)> {
        let to_line = || Some((Part::Comment, text.find('\n').unwrap_or(text.len())));
        let up_to = |part, begin: usize, end: &str| {
            let found = text[begin..].find(end).map(|at| begin + at + end.len());
            Some((part, found.unwrap_or(text.len())))
        };
        match self {
            Syntax::Python | Syntax::Ruby if text.starts_with('#') => to_line(),
            Syntax::JavaScript if text.starts_with("//") => to_line(),
            Syntax::JavaScript if text.starts_with("/*") => up_to(Part::Comment, 2, "*/"),
            Syntax::Lua if text.starts_with("--[[") => up_to(Part::Comment, 4, "]]"),
            Syntax::Lua if text.starts_with("--") => to_line(),
            Syntax::Lua if text.starts_with("[[") => up_to(Part::String, 2, "]]"),
            Syntax::Python if text.starts_with("\"\"\"") => {
                Some((Part::String, quoted(text, "\"\"\"", true)))
            }
            Syntax::Python if text.starts_with("'''") => Some((Part::String, quoted(text, "'''", true))),
            Syntax::JavaScript if text.starts_with('`') => Some((Part::String, quoted(text, "`", true))),
            _ if text.starts_with('"') => Some((Part::String, quoted(text, "\"", false))),
            _ if text.starts_with('\'') => Some((Part::String, quoted(text, "'", false))),
            _ => None,
        }
    }
}

/// The length of a string with its quotes. One that may not have lines ends with its line, unless
/// the line's end is escaped.
fn quoted(text: &str, quote: &str, lines: bool) -> usize {
    let mut rest = text.char_indices().skip(quote.len());
    while let Some((at, character)) = rest.next() {
        match character {
            '\\' => drop(rest.next()),
            '\n' if !lines => return at,
            _ if text[at..].starts_with(quote) => return at + quote.len(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_told_from_statements() {
        use Syntax::*;
        for (syntax, text) in [
            (Python, " x + 1 # return;\n"),
            (Python, "'return: ' + x['error']"),
            (Python, "\n\"-\".join(\n  word for word in x\n)\n"),
            (Python, "x + \\\n 1"),
            (JavaScript, "[...s].map(c => { return c.charCodeAt(0); }).length;"),
            (JavaScript, "JSON.parse(x).error // return"),
            (JavaScript, "\n(title.match(/[aeiou]/gi)\n ?? []).length\n"),
            (JavaScript, "`return ${x};\n`"),
            (Lua, "x .. ' error' -- return"),
        ] {
            assert!(Body::new(text, syntax).is_expression(), "{text}");
        }
        for (syntax, text) in [
            (Python, "y = 1\ny"),
            (Python, "y = 1; y"),
            (Python, "if x: return 1"),
            (Python, "yield x"),
            (Python, "# only\n"),
            (JavaScript, "if (x) { return 1 } else { return 2 }"),
            (JavaScript, "f(x)\nreturn 1"),
            (JavaScript, "const y = x; return y"),
            (JavaScript, "y = 1; y"),
            (Lua, "local y = x return y"),
        ] {
            assert!(!Body::new(text, syntax).is_expression() || Body::new(text, syntax).is_empty(), "{text}");
        }
        assert_eq!(Body::new(" x + 1; // add", JavaScript).expression(), "x + 1");
        let words: Vec<_> = Body::new("a 'b' \"\"\"c\"\"\" # d\né", Python).words().collect();
        assert_eq!(words, ["a", "é"]);
    }
}
