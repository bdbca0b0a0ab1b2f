//! Finds the statements in a text that define or drop functions.

use super::lexer::{Kind, Token, tokens};
use super::parser::unquoted;

/// A part of SQL text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement<'a> {
    /// A statement that defines a function in another language. It may have errors.
    Create(&'a str),
    /// `DROP FUNCTION`. The function may be a macro of the database.
    Drop {
        /// The statement.
        text: &'a str,
        /// The function's name, as SQL knows it.
        name: String,
        /// Whether it is no error if there is no such function.
        if_exists: bool,
    },
    /// Any number of other statements.
    Other(&'a str),
}

/// The statements of a text, in order. Statements have no semicolon, but those of
/// [`Statement::Other`].
///
/// ```
/// use crosslane::ddl::{Statement, statements};
/// let text = "SELECT 1; CREATE FUNCTION f(x INT) RETURNS INT LANGUAGE python AS $$ x; $$; SELECT 2";
/// let found = statements(text);
/// assert!(matches!(found[..], [Statement::Other("SELECT 1;"), Statement::Create(_), Statement::Other(_)]));
/// ```
pub fn statements(text: &str) -> Vec<Statement<'_>> {
    let mut found = Vec::new();
    // Where the statements begin that belong to no definition.
    let mut other = 0;
    let mut statement = Vec::new();
    let mut all = tokens(text).peekable();
    while let Some(token) = all.next() {
        let is_end = token.is_symbol(';');
        if !is_end {
            statement.push(token);
        }
        if !is_end && all.peek().is_some() {
            continue;
        }
        if let Some(ours) = ours(text, &statement) {
            push_other(&mut found, &text[other..statement[0].at]);
            found.push(ours);
            other = token.end();
        }
        statement.clear();
    }
    push_other(&mut found, &text[other..]);
    found
}

fn push_other<'a>(found: &mut Vec<Statement<'a>>, text: &'a str) {
    let mut meaningful = tokens(text).filter(|token| !token.is_symbol(';'));
    if meaningful.next().is_some() {
        found.push(Statement::Other(text.trim()));
    }
}

/// The statement of these tokens, if it defines a function in another language or drops a function.
fn ours<'a>(text: &'a str, tokens: &[Token<'a>]) -> Option<Statement<'a>> {
    let whole = &text[tokens.first()?.at..tokens.last()?.end()];
    let mut words = tokens.iter().peekable();
    let create = words.next_if(|token| token.is_word("create")).is_some();
    if create {
        words.next_if(|token| token.is_word("or")).and_then(|_| words.next_if(|it| it.is_word("replace")));
        words.next_if(|token| token.is_word("temp") || token.is_word("temporary"));
        words.next_if(|token| token.is_word("function"))?;
        if words.next_if(|token| token.is_word("if")).is_some() {
            words.next_if(|token| token.is_word("not"))?;
            words.next_if(|token| token.is_word("exists"))?;
        }
        // The name may be `language`, with a schema or without.
        while words.next_if(|token| !token.is_symbol('(')).is_some() {}
        // DuckDB's own definition of a macro has AS before any LANGUAGE.
        let mut depth = 0_usize;
        let mut outer = words.filter(|token| {
            match token.text {
                "(" if token.kind == Kind::Symbol => depth += 1,
                ")" if token.kind == Kind::Symbol => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0
        });
        let decides = |token: &&Token<'_>| token.is_word("as") || token.is_word("language");
        return outer.find(decides)?.is_word("language").then_some(Statement::Create(whole));
    }
    words.next_if(|token| token.is_word("drop"))?;
    words.next_if(|token| token.is_word("function"))?;
    let if_exists = words.next_if(|token| token.is_word("if")).is_some();
    if if_exists {
        words.next_if(|token| token.is_word("exists"))?;
    }
    let name = words.next().filter(|token| matches!(token.kind, Kind::Word | Kind::Name))?;
    words.next().is_none().then(|| Statement::Drop { text: whole, name: unquoted(name), if_exists })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_found_among_other_statements() {
        let f = "CREATE OR REPLACE TEMP FUNCTION f(a STRUCT(language INT)) RETURNS INT\nLANGUAGE python AS $$ ; $$";
        let text = format!(
            "-- CREATE FUNCTION\nSELECT ';'; {f} ; create function g(a) as language(a);\nDROP FUNCTION \"G\"; drop function \
             if exists h -- end"
        );
        let found = statements(&text);
        let dropped = |name: &str, if_exists, text| Statement::Drop { text, name: name.into(), if_exists };
        let expected = [
            Statement::Other("-- CREATE FUNCTION\nSELECT ';';"),
            Statement::Create(f),
            Statement::Other("; create function g(a) as language(a);"),
            dropped("G", false, "DROP FUNCTION \"G\""),
            dropped("h", true, "drop function if exists h"),
        ];
        // The semicolon of a definition belongs to it.
        assert_eq!(found[0..2], expected[0..2]);
        assert_eq!(found[2], Statement::Other("create function g(a) as language(a);"));
        assert_eq!(found[3..], expected[3..]);
    }

    #[test]
    fn other_texts_stay_whole() {
        for text in ["", " ; -- nothing\n;"] {
            assert_eq!(statements(text), []);
        }
        for text in [
            "SELECT 'x",
            "SELECT 1; SELECT 2",
            "DROP FUNCTION a.b",
            "CREATE FUNCTION f(x) AS x",
            "CREATE FUNCTION main.language(x) AS x",
            "-- c\rCREATE TABLE t(x INT)",
        ] {
            assert_eq!(statements(text), [Statement::Other(text)]);
        }
    }
}
