//! The parser of definitions.

use super::lexer::{Kind, Token, tokens};
use crate::types::Signature;
use std::fmt;

/// A function that SQL defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// Whether it may take the place of another function.
    pub or_replace: bool,
    /// Whether it ends with the database's process.
    pub temporary: bool,
    /// Whether nothing happens if there is such a function.
    pub if_not_exists: bool,
    /// The function's name, parameters and result.
    pub signature: Signature,
    /// The language, in lower case.
    pub language: String,
    /// The options, by their names in lower case, in order.
    pub options: Vec<(String, Value)>,
    /// The text of the function in its language.
    pub body: String,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `true` or `false`.
    Boolean(bool),
    /// A number, as it was written.
    Number(String),
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
}

/// The reason why a definition cannot be understood, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionError {
    /// What is wrong.
    pub what: String,
    /// The line of the statement, from 1 on.
    pub line: usize,
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for DefinitionError {}

impl Definition {
    /// Parses a definition.
    ///
    /// ```text
    /// CREATE [OR REPLACE] [TEMP | TEMPORARY] FUNCTION [IF NOT EXISTS] name(parameters)
    ///     RETURNS type | TABLE(columns) LANGUAGE word [option = value [,]]... AS body
    /// ```
    ///
    /// Parameters, types and columns are those of [`Signature`]. The body is a text, best between `$$`.
    ///
    /// # Errors
    /// What is wrong, and the line.
    pub fn parse(text: &str) -> Result<Self, DefinitionError> {
        let tokens: Vec<_> = tokens(text).filter(|token| !token.is_symbol(';')).collect();
        Parser { text, tokens, next: 0 }.definition()
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
}

impl<'a> Parser<'a> {
    fn definition(mut self) -> Result<Definition, DefinitionError> {
        self.expect("CREATE")?;
        let or_replace = self.takes("OR");
        if or_replace {
            self.expect("REPLACE")?;
        }
        let temporary = self.takes("TEMP") || self.takes("TEMPORARY");
        self.expect("FUNCTION")?;
        let if_not_exists = self.takes("IF");
        if if_not_exists {
            self.expect("NOT")?;
            self.expect("EXISTS")?;
            if or_replace {
                return Err(self.wrong_before("write OR REPLACE or IF NOT EXISTS, not both"));
            }
        }
        let head = self.until("RETURNS", "RETURNS and the type of the result")?;
        let result = self.until("LANGUAGE", "LANGUAGE and a language")?;
        let signature = format!("{head} -> {result}").parse().map_err(|error| {
            let error: crate::types::SignatureError = error;
            self.wrong_before(&error.to_string())
        })?;
        let language = self.take(&[Kind::Word, Kind::Text], "a language")?;
        let language = text_of(&language).unwrap_or(language.text.to_owned()).to_lowercase();
        let mut options: Vec<(String, Value)> = Vec::new();
        while !self.takes("AS") {
            let name = self.take(&[Kind::Word], "an option, or AS and the text of the function")?;
            let name = name.text.to_lowercase();
            if options.iter().any(|(known, _)| *known == name) {
                return Err(self.wrong_before(&format!("the option {name} is given twice")));
            }
            if !self.takes_symbol('=') {
                return Err(self.wrong_here(&format!("expected = after the option {name}")));
            }
            options.push((name, self.value()?));
            self.takes_symbol(',');
        }
        let texts = [Kind::Dollar, Kind::Text, Kind::Escaped];
        let body = self.take(&texts, "the text of the function, between $$ and $$")?;
        let body = text_of(&body).unwrap_or_default();
        if self.next < self.tokens.len() {
            return Err(self.wrong_here("expected the end after the text of the function"));
        }
        Ok(Definition { or_replace, temporary, if_not_exists, signature, language, options, body })
    }

    fn value(&mut self) -> Result<Value, DefinitionError> {
        const EXPECTED: &str =
            "a value: true, false, a number, a text between single quotes, or a list of such";
        if self.takes_symbol('[') {
            let mut texts = Vec::new();
            while !self.takes_symbol(']') {
                let text = self.take(&[Kind::Text, Kind::Dollar, Kind::Escaped], "a text, or ]")?;
                texts.extend(text_of(&text));
                self.takes_symbol(',');
            }
            return Ok(Value::Texts(texts));
        }
        let sign = if self.takes_symbol('-') { "-" } else { "" };
        let token =
            self.take(&[Kind::Word, Kind::Number, Kind::Text, Kind::Dollar, Kind::Escaped], EXPECTED)?;
        match token.kind {
            Kind::Number if token.text.parse::<f64>().is_ok() => {
                Ok(Value::Number(format!("{sign}{}", token.text)))
            }
            Kind::Word if token.is_word("true") => Ok(Value::Boolean(true)),
            Kind::Word if token.is_word("false") => Ok(Value::Boolean(false)),
            _ => match text_of(&token) {
                Some(text) if sign.is_empty() => Ok(Value::Text(text)),
                _ => Err(self.wrong_before(&format!("expected {EXPECTED}, and not {}", token.text))),
            },
        }
    }

    /// The text up to a word that is in no parentheses, without comments.
    fn until(&mut self, word: &str, expected: &str) -> Result<String, DefinitionError> {
        let mut text = String::new();
        let mut end = self.tokens.get(self.next).map_or(self.text.len(), |token| token.at);
        let mut depth = 0;
        while let Some(token) = self.tokens.get(self.next) {
            self.next += 1;
            if depth == 0 && token.is_word(word) {
                return Ok(text);
            }
            let space = if token.at > end { " " } else { "" };
            text += &format!("{space}{}", token.text);
            depth += i32::from(token.is_symbol('(')) - i32::from(token.is_symbol(')'));
            end = token.end();
        }
        Err(self.wrong_here(&format!("expected {expected}")))
    }

    fn takes(&mut self, word: &str) -> bool {
        let takes = self.tokens.get(self.next).is_some_and(|token| token.is_word(word));
        self.next += usize::from(takes);
        takes
    }

    fn takes_symbol(&mut self, symbol: char) -> bool {
        let takes = self.tokens.get(self.next).is_some_and(|token| token.is_symbol(symbol));
        self.next += usize::from(takes);
        takes
    }

    fn expect(&mut self, word: &str) -> Result<(), DefinitionError> {
        if self.takes(word) { Ok(()) } else { Err(self.wrong_here(&format!("expected {word}"))) }
    }

    fn take(&mut self, kinds: &[Kind], expected: &str) -> Result<Token<'a>, DefinitionError> {
        match self.tokens.get(self.next) {
            Some(token) if kinds.contains(&token.kind) => {
                self.next += 1;
                Ok(*token)
            }
            _ => Err(self.wrong_here(&format!("expected {expected}"))),
        }
    }

    /// An error at the next token.
    fn wrong_here(&self, what: &str) -> DefinitionError {
        let token = self.tokens.get(self.next);
        let found = match token {
            Some(token) if token.kind == Kind::Endless => "a text or a comment without an end",
            Some(token) => token.text,
            None => "the end",
        };
        let what = format!("{what}, and not {}", crate::shortened(found.to_owned()));
        self.wrong(token.map_or(self.text.len(), |token| token.at), what)
    }

    /// An error at the last token that was taken.
    fn wrong_before(&self, what: &str) -> DefinitionError {
        self.wrong(self.tokens[self.next - 1].at, what.to_owned())
    }

    fn wrong(&self, at: usize, what: String) -> DefinitionError {
        DefinitionError { what, line: 1 + self.text[..at].matches('\n').count() }
    }
}

/// A name as SQL knows it.
pub(super) fn unquoted(token: &Token<'_>) -> String {
    match token.kind {
        Kind::Name => token.text[1..token.text.len() - 1].replace("\"\"", "\""),
        _ => token.text.to_owned(),
    }
}

/// The content of a text.
fn text_of(token: &Token<'_>) -> Option<String> {
    let text = token.text;
    match token.kind {
        Kind::Text => Some(text[1..text.len() - 1].replace("''", "'")),
        Kind::Dollar => {
            let tag = 2 + text[1..].find('$')?;
            Some(text[tag..text.len() - tag].to_owned())
        }
        Kind::Escaped => Some(unescaped(&text[2..text.len() - 1])),
        _ => None,
    }
}

/// A text without its escapes, as DuckDB and PostgreSQL read `E'...'`.
fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some('b') => '\u{8}',
                Some('f') => '\u{c}',
                Some(other) => other,
                None => break,
            },
            '\'' => {
                characters.next();
                '\''
            }
            other => other,
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_have_options_and_any_types() {
        let text = "create or replace temporary function Shop(a DECIMAL(9, 2), \"b c\" STRUCT(returns INT[])) -- what?\n\
                    returns TABLE(language VARCHAR) language Python timeout = 2.5, memoize='200 MB'\n\
                    handler = $$ it's $$ inline = FALSE packages = ['a', 'b>=2'] retries = -1 as $body$ x $$ $body$;";
        let parsed = Definition::parse(text).unwrap();
        assert!(parsed.or_replace && parsed.temporary && !parsed.if_not_exists);
        let signature = "Shop(a DECIMAL(9,2), \"b c\" STRUCT(returns INTEGER[])) -> TABLE(language VARCHAR)";
        assert_eq!(parsed.signature, signature.parse().unwrap());
        assert_eq!((parsed.language.as_str(), parsed.body.as_str()), ("python", " x $$ "));
        let text = |text: &str| Value::Text(text.into());
        let options = [
            ("timeout", Value::Number("2.5".into())),
            ("memoize", text("200 MB")),
            ("handler", text(" it's ")),
            ("inline", Value::Boolean(false)),
            ("packages", Value::Texts(vec!["a".into(), "b>=2".into()])),
            ("retries", Value::Number("-1".into())),
        ];
        assert_eq!(parsed.options, options.map(|(name, value)| (name.to_owned(), value)));
        let plain =
            Definition::parse("CREATE FUNCTION IF NOT EXISTS f() RETURNS INT LANGUAGE 'js' AS E'a\\n\\'''b'")
                .unwrap();
        assert!(plain.if_not_exists && !plain.or_replace);
        assert_eq!(plain.body, "a\n''b");
    }

    #[test]
    fn errors_say_what_and_where() {
        for (text, line, what) in [
            (
                "CREATE FUNCTION f(x INT) LANGUAGE python AS ''",
                1,
                "expected RETURNS and the type of the result, and not the end",
            ),
            (
                "CREATE FUNCTION f(x INT)\nRETURNS INT AS ''",
                2,
                "expected LANGUAGE and a language, and not the end",
            ),
            ("CREATE FUNCTION f(x IN)\nRETURNS INT LANGUAGE python AS ''", 2, "a SQL type"),
            (
                "CREATE FUNCTION f() RETURNS INT LANGUAGE python\nAS f",
                2,
                "the text of the function, between $$ and $$, and not f",
            ),
            (
                "CREATE FUNCTION f() RETURNS INT LANGUAGE python AS\n$$ x",
                2,
                "and not a text or a comment without an end",
            ),
            (
                "CREATE FUNCTION f() RETURNS INT LANGUAGE python a 1 AS ''",
                1,
                "expected = after the option a, and not 1",
            ),
            ("CREATE FUNCTION f() RETURNS INT LANGUAGE python a = b AS ''", 1, "expected a value"),
            (
                "CREATE FUNCTION f() RETURNS INT LANGUAGE python a = 1 A = 2 AS ''",
                1,
                "the option a is given twice",
            ),
            ("CREATE FUNCTION f() RETURNS INT LANGUAGE python AS '' '' x", 1, "expected the end"),
            ("CREATE OR REPLACE FUNCTION IF NOT EXISTS f() RETURNS INT LANGUAGE python AS ''", 1, "not both"),
        ] {
            let error = Definition::parse(text).unwrap_err();
            assert!(error.what.contains(what), "{text}: {error}");
            assert_eq!(error.line, line, "{text}: {error}");
        }
    }
}
