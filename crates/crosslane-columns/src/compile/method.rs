//! Methods of `str`, and those of other classes by their objects.

use super::builder::Value;
use super::{Compiled, Compiler};
use crate::format::{Align, Format};
use crate::program::{Characters, Register, Step, TextCount, TextFunction, TextTest, Texts};
use crate::source::{Expression, Node};

/// The most zeros that `zfill` adds.
const MOST_ZEROS: i64 = 100;

impl Compiler {
    pub(super) fn method(
        &mut self,
        name: &str,
        object: &Expression,
        arguments: &[Expression],
    ) -> Compiled<Value> {
        // `separator.join(text.split())`, without the list.
        if let ("join", Some(separator), [Expression(_, Node::Method(split, text, of))]) =
            (name, object.1.text(), arguments)
            && split == "split"
            && of.is_empty()
        {
            let value = self.value(text)?;
            let text = self.builder.text_of(value)?;
            return Ok(self
                .builder
                .make(|out| Step::Text(TextFunction::Words { separator }, text, out))
                .into());
        }
        if let (Node::Dict(keys, values), "get", [key, default @ ..]) = (&object.1, name, arguments) {
            let key = self.value(key)?;
            let default = match default {
                [] => Value::NONE,
                [default] => self.value(default)?,
                _ => return Err(self.builder.refuse("get with such arguments")),
            };
            return self.item_or((keys, values), key, default);
        }
        let value = self.value(object)?;
        if let Some(Register::Time(time, ints)) = value.register {
            self.builder.require(value)?;
            return self.time_method(name, (time, ints), arguments);
        }
        if let Some(Register::Bool(_) | Register::Int(_) | Register::Float(_)) = value.register {
            return Err(self.builder.refuse(format!("the method {name} of a number")));
        }
        let text = self.builder.text_of(value)?;
        match self.text_function(name, arguments)? {
            Some(function) => Ok(self.builder.make(|out| Step::Text(function, text, out)).into()),
            None => self.question(name, text, arguments),
        }
    }

    /// A method that gives a text. None if it is none of these.
    fn text_function(&self, name: &str, arguments: &[Expression]) -> Compiled<Option<TextFunction>> {
        let strip = |bytes| {
            let (left, right) = (name != "rstrip", name != "lstrip");
            TextFunction::Strip { left, right, bytes }
        };
        let width = |width: i64| usize::try_from(width).unwrap_or(0);
        let function = match (name, arguments) {
            ("lower" | "casefold", []) => Some(TextFunction::Lower),
            ("upper", []) => Some(TextFunction::Upper),
            ("capitalize", []) => Some(TextFunction::Capitalize),
            ("title", []) => Some(TextFunction::Title),
            ("swapcase", []) => Some(TextFunction::SwapCase),
            ("strip" | "lstrip" | "rstrip", [] | [Expression(_, Node::None)]) => Some(strip(None)),
            ("strip" | "lstrip" | "rstrip", [bytes]) => {
                bytes.1.text().filter(|bytes| bytes.is_ascii()).map(|bytes| strip(Some(bytes)))
            }
            ("replace", [old, new]) => match (old.1.text(), new.1.text()) {
                (Some(old), Some(new)) if !old.is_empty() => Some(TextFunction::Replace { old, new }),
                _ => None,
            },
            ("removeprefix", [prefix]) => prefix.1.text().map(TextFunction::RemovePrefix),
            ("removesuffix", [suffix]) => suffix.1.text().map(TextFunction::RemoveSuffix),
            ("zfill", [Expression(_, Node::Int(digits))]) if *digits <= MOST_ZEROS => {
                Some(TextFunction::ZeroFill(width(*digits)))
            }
            ("ljust" | "rjust", [Expression(_, Node::Int(digits)), fill @ ..]) => {
                let fill = match fill {
                    [] => Some(b' '),
                    [fill] => {
                        fill.1.text().filter(|fill| fill.len() == 1 && fill.is_ascii()).map(|fill| fill[0])
                    }
                    _ => None,
                };
                let align = if name == "ljust" { Align::Left } else { Align::Right };
                fill.and_then(|fill| Format::aligned(align, fill, width(*digits))).map(TextFunction::Format)
            }
            _ => return Ok(None),
        };
        function.map(Some).ok_or_else(|| self.builder.refuse(format!("{name} with such arguments")))
    }

    /// A method that gives a bool or an int.
    fn question(&mut self, name: &str, text: Texts, arguments: &[Expression]) -> Compiled<Value> {
        let characters = match (name, arguments) {
            ("isdigit" | "isdecimal" | "isnumeric", []) => Some(Characters::Digits),
            ("isalpha", []) => Some(Characters::Letters),
            ("isalnum", []) => Some(Characters::LettersOrDigits),
            ("isspace", []) => Some(Characters::Spaces),
            ("isupper", []) => Some(Characters::Upper),
            ("islower", []) => Some(Characters::Lower),
            _ => None,
        };
        if let Some(characters) = characters {
            return Ok(self.builder.make(|out| Step::Characters(characters, text, out)).into());
        }
        let [part] = arguments else {
            return Err(self.builder.refuse(format!("the method {name} with such arguments")));
        };
        let test = match name {
            "startswith" => Some(TextTest::StartsWith),
            "endswith" => Some(TextTest::EndsWith),
            _ => None,
        };
        if let (Some(test), Node::Tuple(parts)) = (test, &part.1) {
            let parts: Option<_> = parts.iter().map(|part| part.1.text()).collect();
            let parts =
                parts.ok_or_else(|| self.builder.refuse(format!("{name} of texts that are no constants")))?;
            return Ok(self.builder.make(|out| Step::TextTestAny(test, text, parts, out)).into());
        }
        let part = self.value(part)?;
        let count = match name {
            "find" => Some(TextCount::Find),
            "count" => Some(TextCount::Count),
            _ => None,
        };
        match (test, count) {
            (Some(test), _) => {
                let part = self.builder.text_of(part)?;
                Ok(self.builder.make(|out| Step::TextTest(test, text, part, out)).into())
            }
            (_, Some(count)) => {
                let part = self.builder.text_of(part)?;
                Ok(self.builder.make(|out| Step::Count(count, text, part, out)).into())
            }
            _ => Err(self.builder.refuse(format!("the method {name}"))),
        }
    }
}
