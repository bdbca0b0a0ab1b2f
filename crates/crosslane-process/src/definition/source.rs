//! The text of a file, in its language, with a function that SQL defines.
//!
//! The body begins on the first line of the file, behind the head of the function. So line 2 of the
//! body is line 2 of the file, where the body begins with a new line.

use crosslane::ddl::{Definition, Value};

/// The languages, and the suffixes of their files.
const LANGUAGES: [(&str, &str); 5] =
    [("python", "py"), ("javascript", "js"), ("typescript", "ts"), ("ruby", "rb"), ("lua", "lua")];
/// Words that no function of Python may have as its name.
const PYTHON_WORDS: &str = " False None True and as assert async await break class continue def del elif else except finally \
                            for from global if import in is lambda nonlocal not or pass raise return try while with yield ";

/// The suffix and the text of the file.
///
/// # Errors
/// Why there is no such file.
pub(super) fn source(definition: &Definition) -> Result<(&'static str, String), String> {
    let language = definition.language.as_str();
    let Some((_, suffix)) = LANGUAGES.iter().find(|(name, _)| *name == language) else {
        let known = LANGUAGES.map(|(name, _)| name).join(", ");
        return Err(format!("there is no language {language}; the languages are {known}"));
    };
    let mut written = Written { definition, handler: None, packages: None, options: Vec::new() };
    for (name, value) in &definition.options {
        match (name.as_str(), value) {
            ("handler", Value::Text(handler)) if is_path(handler) => written.handler = Some(handler),
            ("handler", _) => {
                return Err(
                    "the option handler is the name of a function in the text: handler = 'name'".into()
                );
            }
            ("packages", Value::Texts(packages)) if language == "python" => written.packages = Some(packages),
            ("packages", _) => {
                return Err(
                    "the option packages is for Python, and is a list: packages = ['numpy>=2']".into()
                );
            }
            _ => written.options.push((name, value)),
        }
    }
    let text = match language {
        "python" => written.python(),
        "ruby" => written.ruby(),
        "lua" => written.lua(),
        _ => written.javascript(),
    };
    Ok((suffix, text?))
}

/// A name that languages and file systems take, as much as possible like this one.
pub(super) fn identifier(name: &str) -> String {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_name = is_word && !name.starts_with(|first: char| first.is_ascii_digit()) && name.len() <= 100;
    if is_name && !PYTHON_WORDS.contains(&format!(" {name} ")) {
        name.to_owned()
    } else {
        "function".to_owned()
    }
}

fn is_path(name: &str) -> bool {
    let is_name = |part: &str| {
        let mut characters = part.chars();
        characters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
            && characters.all(|character| character.is_alphanumeric() || character == '_')
    };
    name.split('.').all(is_name)
}

/// A definition, with the options that need words of their own.
struct Written<'a> {
    definition: &'a Definition,
    handler: Option<&'a str>,
    packages: Option<&'a [String]>,
    options: Vec<(&'a str, &'a Value)>,
}

/// The body of a function.
enum Body<'a> {
    /// An expression, whose value is the result.
    Expression(&'a str),
    /// Statements.
    Statements(&'a str),
}

impl Written<'_> {
    /// The body in a language whose functions return what `return` says.
    fn body(&self) -> Result<Body<'_>, String> {
        let body = self.definition.body.as_str();
        let is_result = |word| matches!(word, "return" | "yield" | "raise" | "throw" | "error");
        if self.not_empty()?.contains('\n') || words(body).any(is_result) {
            if !words(body).any(is_result) {
                return Err("the text of the function returns nothing; write `return`".to_owned());
            }
            return Ok(Body::Statements(body));
        }
        if self.definition.signature.table {
            return Err("the text of a table function has no `yield`, which gives a row".to_owned());
        }
        Ok(Body::Expression(body.trim().trim_end_matches(';')))
    }

    fn not_empty(&self) -> Result<&str, String> {
        let body = self.definition.body.trim();
        if body.is_empty() { Err("the text of the function is empty".to_owned()) } else { Ok(body) }
    }

    fn is_async(&self) -> bool {
        words(&self.definition.body).any(|word| word == "await")
    }

    /// The name of what declares the function.
    fn declares(&self) -> &'static str {
        if self.definition.signature.table { "udtf" } else { "udf" }
    }

    /// The names of the parameters, after this mark if there are any number of arguments.
    fn parameters(&self, mark: &str) -> String {
        let signature = &self.definition.signature;
        let fixed = signature.fixed().len();
        let names = signature.parameters.iter().enumerate();
        let names = names.map(|(at, field)| format!("{}{}", if at < fixed { "" } else { mark }, field.name));
        names.collect::<Vec<_>>().join(", ")
    }

    fn signature(&self) -> String {
        quoted(&self.definition.signature.to_string())
    }

    /// The options, each before a comma, as `name` and `sign` and value.
    fn options(&self, sign: &str, words: [&str; 2], list: [char; 2]) -> String {
        let text = |(name, value): &(&str, &Value)| {
            let value = match value {
                Value::Boolean(value) => words[usize::from(*value)].to_owned(),
                Value::Number(number) => number.clone(),
                Value::Text(text) => quoted(text),
                Value::Texts(texts) => {
                    let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
                    format!("{}{}{}", list[0], texts.join(", "), list[1])
                }
            };
            format!("{name}{sign}{value}")
        };
        self.options.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    fn python(&self) -> Result<String, String> {
        let options = self.options("=", ["False", "True"], ['[', ']']);
        let separator = if options.is_empty() { "" } else { ", " };
        let call = format!("({}{separator}{options})", self.signature());
        let import = format!("\n\n\nfrom crosslane import {} as _declare\n\n", self.declares());
        let mut text = if let Some(handler) = self.handler {
            format!("{}{import}_declared = _declare{call}({handler})\n", self.definition.body)
        } else {
            let name = identifier(&self.definition.signature.name);
            let head = if self.is_async() { "async def" } else { "def" };
            let head = format!("{head} {name}({}):", self.parameters("*"));
            let body = match self.body()? {
                Body::Expression(expression) => format!(" return ({expression})"),
                Body::Statements(body) => indented(body),
            };
            format!("{head}{body}{import}{name} = _declare{call}({name})\n")
        };
        if let Some(packages) = self.packages {
            // Behind all else, so that the lines keep their numbers.
            let packages: Vec<_> = packages.iter().map(|package| quoted(package)).collect();
            text += &format!("\n# /// script\n# dependencies = [{}]\n# ///\n", packages.join(", "));
        }
        Ok(text)
    }

    fn javascript(&self) -> Result<String, String> {
        let options = self.options(": ", ["false", "true"], ['[', ']']);
        let options = if options.is_empty() { options } else { format!("{{ {options} }}, ") };
        let call = format!("{}({}, {options}", self.declares(), self.signature());
        if let Some(handler) = self.handler {
            return Ok(format!("{}\n{call}{handler});\n", self.definition.body));
        }
        let is_async = if self.is_async() { "async " } else { "" };
        let parameters = self.parameters("...");
        Ok(match self.body()? {
            Body::Expression(expression) => format!("{call}{is_async}({parameters}) => ({expression}));\n"),
            Body::Statements(body) if self.definition.signature.table => {
                format!("{call}{is_async}function* ({parameters}) {{{body}\n}});\n")
            }
            Body::Statements(body) => format!("{call}{is_async}({parameters}) => {{{body}\n}});\n"),
        })
    }

    fn ruby(&self) -> Result<String, String> {
        let options = self.options(": ", ["false", "true"], ['[', ']']);
        let separator = if options.is_empty() { "" } else { ", " };
        let call = format!("{}({}{separator}{options}, ", self.declares(), self.signature());
        let body = self.not_empty().map(|_| &self.definition.body)?;
        Ok(match self.handler {
            Some(handler) => format!("{body}\n{call}&method(:{handler}))\n"),
            // In a lambda, `return` returns from the function.
            None => format!("{call}&lambda {{ |{}| {body}\n}})\n", self.parameters("*")),
        })
    }

    fn lua(&self) -> Result<String, String> {
        if self.definition.signature.table {
            return Err("Lua has no table functions; Python, JavaScript and Ruby have".to_owned());
        }
        let options = self.options(" = ", ["false", "true"], ['{', '}']);
        let options = if options.is_empty() { options } else { format!("{{ {options} }}, ") };
        let call = format!("udf({}, {options}", self.signature());
        if let Some(handler) = self.handler {
            return Ok(format!("{}\n{call}{handler})\n", self.definition.body));
        }
        let signature = &self.definition.signature;
        let mut parameters: Vec<_> = signature.fixed().iter().map(|field| field.name.as_str()).collect();
        let rest = signature.parameters.last().filter(|_| signature.variadic);
        parameters.extend(rest.map(|_| "..."));
        let rest = rest.map_or_else(String::new, |last| format!(" local {} = table.pack(...)", last.name));
        let body = match self.body()? {
            Body::Expression(expression) => format!("return {expression}"),
            Body::Statements(body) => body.to_owned(),
        };
        Ok(format!("{call}function({}){rest} {body}\nend)\n", parameters.join(", ")))
    }
}

/// The words of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !(character.is_alphanumeric() || character == '_'))
}

/// A text between double quotes, as Python, JavaScript, Ruby, Lua and TOML read it.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\r', "\\r");
    // Only Ruby reads `#{` as an expression. What follows is the same text in all languages.
    format!("\"{}\"", escaped.replace("#{", "\\x23{"))
}

/// Statements of Python that stand behind `def`: further in than it, on lines of their own.
fn indented(body: &str) -> String {
    let body = match body.split_once('\n') {
        Some((first, rest)) if first.trim().is_empty() => format!("\n{rest}"),
        // The first line is as far in as the others.
        Some((first, rest)) => {
            let margin = rest.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let margin = &margin[..margin.len() - margin.trim_start().len()];
            format!("\n{margin}{}\n{rest}", first.trim_start())
        }
        None => format!("\n{}", body.trim_start()),
    };
    let lines = || body.lines().filter(|line| !line.trim().is_empty());
    if lines().all(|line| line.starts_with([' ', '\t'])) {
        return body;
    }
    let indent = |line: &str| if line.trim().is_empty() { String::new() } else { format!("    {line}") };
    body.lines().map(indent).collect::<Vec<_>>().join("\n")
}
