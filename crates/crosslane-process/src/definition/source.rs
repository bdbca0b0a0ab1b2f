//! The text of a file, in its language, with a function that SQL defines.
//!
//! The body begins on the first line of the file, behind the head of the function. So line 2 of the
//! body is line 2 of the file, where the body begins with a new line.

use super::body::{Body, Syntax};
use crosslane::ddl::{Definition, Value};
use crosslane::{Sandbox, Settings};

/// The languages, and the suffixes of their files.
const LANGUAGES: [(&str, &str); 5] =
    [("python", "py"), ("javascript", "js"), ("typescript", "ts"), ("ruby", "rb"), ("lua", "lua")];
/// Words that no name may be.
const PYTHON_WORDS: &str = " False None True and as assert async await break class continue def del elif else except finally \
                            for from global if import in is lambda nonlocal not or pass raise return try while with yield ";
const JAVASCRIPT_WORDS: &str = " arguments await break case catch class const continue debugger default delete do else enum \
                                eval export extends false finally for function if import in instanceof let new null \
                                return static super switch this throw true try typeof var void while with yield ";
const RUBY_WORDS: &str = " __FILE__ __LINE__ alias and begin break case class def defined do else elsif end ensure false for \
                          if in module next nil not or redo rescue retry return self super then true undef unless until \
                          when while yield ";
const LUA_WORDS: &str = " and break do else elseif end false for function goto if in local nil not or repeat return then true until while ";

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
    let mut written =
        Written { definition, handler: None, packages: None, sandbox: Vec::new(), options: Vec::new() };
    let of_sandbox: Vec<_> = Settings::of_sandbox().collect();
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
            (name, value) if of_sandbox.contains(&name) => {
                if Sandbox::PATHS.contains(&name) && !is_absolute(value) {
                    return Err(format!("the option {name} needs absolute paths"));
                }
                written.sandbox.push((name, value));
            }
            _ => written.options.push((name, value)),
        }
    }
    check_parameters(definition)?;
    let (text, mark) = match language {
        "python" => (written.python()?, "#"),
        "ruby" => (written.ruby()?, "#"),
        "lua" => (written.lua()?, "--"),
        _ => (written.javascript()?, "//"),
    };
    Ok((suffix, text + &written.metadata(mark)))
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

/// Checks that the language takes the names of the parameters.
fn check_parameters(definition: &Definition) -> Result<(), String> {
    let language = definition.language.as_str();
    let reserved = match language {
        "python" => PYTHON_WORDS,
        "ruby" => RUBY_WORDS,
        "lua" => LUA_WORDS,
        _ => JAVASCRIPT_WORDS,
    };
    let is_plain = |name: &str| match language {
        "lua" => name.is_ascii() && is_name(name),
        "ruby" => is_name(name) && !name.starts_with(char::is_uppercase),
        _ => is_name(name),
    };
    let mut names = definition.signature.parameters.iter().map(|field| field.name.as_str());
    match names.find(|name| !is_plain(name) || reserved.contains(&format!(" {name} "))) {
        Some(name) => {
            Err(format!("the parameter {name} cannot have this name in {language}; give it another one"))
        }
        None => Ok(()),
    }
}

/// Whether a text is a name in most languages.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
        && text.chars().all(|character| character.is_alphanumeric() || character == '_')
}

fn is_path(text: &str) -> bool {
    text.split('.').all(is_name)
}

/// A definition, with the options that need words of their own.
struct Written<'a> {
    definition: &'a Definition,
    handler: Option<&'a str>,
    packages: Option<&'a [String]>,
    /// What it may do.
    sandbox: Vec<(&'a str, &'a Value)>,
    options: Vec<(&'a str, &'a Value)>,
}

/// What the body of a function is.
enum Form<'a> {
    /// An expression, whose value is the result.
    Expression(&'a str),
    Statements,
}

impl<'a> Written<'a> {
    fn body(&self, syntax: Syntax) -> Result<Body<'a>, String> {
        let body = Body::new(&self.definition.body, syntax);
        if body.is_empty() { Err("the text of the function is empty".to_owned()) } else { Ok(body) }
    }

    /// The form of a body in a language whose functions return what `return` says.
    fn form(&self, body: &Body<'a>) -> Result<Form<'a>, String> {
        if self.definition.signature.table {
            let gives = body.has_word("yield") || body.has_word("return");
            let missing = "the text of a table function has no `yield`, which gives a row";
            return if gives { Ok(Form::Statements) } else { Err(missing.to_owned()) };
        }
        if body.is_expression() {
            return Ok(Form::Expression(body.expression()));
        }
        let gives = |word| matches!(word, "return" | "yield" | "raise" | "throw" | "error");
        let missing = "the text of the function returns nothing; write `return`";
        if body.words().any(gives) { Ok(Form::Statements) } else { Err(missing.to_owned()) }
    }

    /// Whether the function itself waits: a function in it may be `async`, too.
    fn is_async(body: &Body<'_>, inner: &str) -> bool {
        let words: Vec<_> = body.words().collect();
        let inner: Vec<_> = inner.split(' ').collect();
        words.contains(&"await") && !words.windows(inner.len()).any(|pair| *pair == inner[..])
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
        let option = |(name, value): &(&str, &Value)| format!("{name}{sign}{}", written(value, words, list));
        self.options.iter().map(option).collect::<Vec<_>>().join(", ")
    }

    /// The block with the metadata of the file, if it needs one. It is behind all else, so that the lines
    /// keep their numbers.
    fn metadata(&self, mark: &str) -> String {
        let words = (["false", "true"], ['[', ']']);
        let packages = self.packages.map(|packages| {
            let packages: Vec<_> = packages.iter().map(|package| quoted(package)).collect();
            format!("dependencies = [{}]", packages.join(", "))
        });
        let head = (!self.sandbox.is_empty()).then(|| "[tool.crosslane]".to_owned());
        let sandbox =
            self.sandbox.iter().map(|(name, value)| format!("{name} = {}", written(value, words.0, words.1)));
        let lines: Vec<_> = packages.into_iter().chain(head).chain(sandbox).collect();
        if lines.is_empty() {
            return String::new();
        }
        let lines: String = lines.iter().map(|line| format!("{mark} {line}\n")).collect();
        format!("\n{mark} /// script\n{lines}{mark} ///\n")
    }

    fn python(&self) -> Result<String, String> {
        let options = self.options("=", ["False", "True"], ['[', ']']);
        let separator = if options.is_empty() { "" } else { ", " };
        let call = format!("({}{separator}{options})", self.signature());
        let import = format!("\n\n\nfrom crosslane import {} as _declare\n\n", self.declares());
        Ok(if let Some(handler) = self.handler {
            format!("{}{import}_declared = _declare{call}({handler})\n", self.definition.body)
        } else {
            let body = self.body(Syntax::Python)?;
            let form = self.form(&body)?;
            // The text may call a built-in function of the same name.
            let mut name = identifier(&self.definition.signature.name);
            while body.has_word(&name) {
                name.push('_');
            }
            let head = if Self::is_async(&body, "async def") { "async def" } else { "def" };
            let head = format!("{head} {name}({}):", self.parameters("*"));
            let body = match form {
                Form::Expression(expression) => format!(" return ({expression}\n)"),
                Form::Statements => indented(&body),
            };
            format!("{head}{body}{import}{name} = _declare{call}({name})\n")
        })
    }

    fn javascript(&self) -> Result<String, String> {
        let options = self.options(": ", ["false", "true"], ['[', ']']);
        let options = if options.is_empty() { options } else { format!("{{ {options} }}, ") };
        let call = format!("{}({}, {options}", self.declares(), self.signature());
        if let Some(handler) = self.handler {
            return Ok(format!("{}\n{call}{handler});\n", self.definition.body));
        }
        let body = self.body(Syntax::JavaScript)?;
        let is_async = if Self::is_async(&body, "async") { "async " } else { "" };
        let parameters = self.parameters("...");
        let text = body.text;
        Ok(match self.form(&body)? {
            Form::Expression(expression) => format!("{call}{is_async}({parameters}) => ({expression}\n));\n"),
            Form::Statements if self.definition.signature.table => {
                format!("{call}{is_async}function* ({parameters}) {{{text}\n}});\n")
            }
            Form::Statements => format!("{call}{is_async}({parameters}) => {{{text}\n}});\n"),
        })
    }

    fn ruby(&self) -> Result<String, String> {
        let options = self.options(": ", ["false", "true"], ['[', ']']);
        let separator = if options.is_empty() { "" } else { ", " };
        let call = format!("{}({}{separator}{options}, ", self.declares(), self.signature());
        let text = self.body(Syntax::Ruby)?.text;
        Ok(match self.handler.map(|handler| handler.rsplit_once('.').unwrap_or(("self", handler))) {
            Some((of, handler)) => format!("{text}\n{call}&{of}.method(:{handler}))\n"),
            // In a lambda, `return` returns from the function.
            None => format!("{call}&lambda {{ |{}| {text}\n}})\n", self.parameters("*")),
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
        let body = self.body(Syntax::Lua)?;
        let body = match self.form(&body)? {
            Form::Expression(expression) => format!("return {expression}"),
            Form::Statements => body.text.to_owned(),
        };
        Ok(format!("{call}function({}){rest} {body}\nend)\n", parameters.join(", ")))
    }
}

/// Whether a value has no path that would begin at the folder of the file.
fn is_absolute(value: &Value) -> bool {
    match value {
        Value::Text(text) => text.starts_with('/'),
        Value::Texts(texts) => texts.iter().all(|text| text.starts_with('/')),
        _ => true,
    }
}

/// A value as a language writes it.
fn written(value: &Value, words: [&str; 2], list: [char; 2]) -> String {
    match value {
        Value::Boolean(value) => words[usize::from(*value)].to_owned(),
        Value::Number(number) => number.clone(),
        Value::Text(text) => quoted(text),
        Value::Texts(texts) => {
            let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
            format!("{}{}{}", list[0], texts.join(", "), list[1])
        }
    }
}

/// A text between double quotes, as Python, JavaScript, Ruby and Lua read it.
fn quoted(text: &str) -> String {
    let mut escaped =
        text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\r', "\\r");
    // Only Ruby reads these as expressions. What replaces them is the same text in all languages.
    for expression in ["#{", "#$", "#@"] {
        escaped = escaped.replace(expression, &expression.replace('#', "\\x23"));
    }
    format!("\"{escaped}\"")
}

/// Statements of Python that stand behind `def`: further in than it, on lines of their own. Lines that
/// begin in a string stay as they are.
fn indented(body: &Body<'_>) -> String {
    let mut places = Vec::new();
    let mut at = 0;
    for line in body.text.split('\n') {
        let is_code = !line.trim().is_empty() && !body.is_in_string(at);
        places.push((line, is_code));
        at += line.len() + 1;
    }
    let margin = |line: &str| line.len() - line.trim_start().len();
    let (first, rest) = places.split_first().map_or(("", &[][..]), |((first, _), rest)| (*first, rest));
    let least = rest.iter().filter(|(_, is_code)| *is_code).map(|(line, _)| margin(line)).min();
    let extra = if least == Some(0) { "    " } else { "" };
    let mut text = String::new();
    if !first.trim().is_empty() {
        // The first line is as far in as the others.
        let margin = rest.iter().find(|(line, is_code)| *is_code && Some(margin(line)) == least);
        let margin = margin.map_or("    ", |(line, _)| &line[..line.len() - line.trim_start().len()]);
        text += &format!("\n{extra}{margin}{}", first.trim_start());
    }
    for (line, is_code) in rest {
        text += &format!("\n{}{line}", if *is_code { extra } else { "" });
    }
    text
}
