//! Methods of `str`.

use super::builder::Value;
use super::{Compiled, Compiler, Unsupported};
use crate::program::{Characters, Step, TextCount, TextFunction, TextTest, Texts};
use crate::source::{Expression, Node};

impl Compiler {
    pub(super) fn method(
        &mut self,
        name: &str,
        object: &Expression,
        arguments: &[Expression],
    ) -> Compiled<Value> {
        let constant = |argument: &Expression| match &argument.1 {
            Node::Text(value) => Some(value.as_bytes().to_vec()),
            _ => None,
        };
        // `separator.join(text.split())`, without the list.
        if let ("join", Some(separator), [Expression(_, Node::Method(split, text, of))]) =
            (name, constant(object), arguments)
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
        let value = self.value(object)?;
        let text = self.builder.text_of(value)?;
        let strip = |bytes| {
            let (left, right) = (name != "rstrip", name != "lstrip");
            TextFunction::Strip { left, right, bytes }
        };
        let function = match (name, arguments) {
            ("lower", []) => TextFunction::Lower,
            ("upper", []) => TextFunction::Upper,
            ("strip" | "lstrip" | "rstrip", []) => strip(None),
            ("strip" | "lstrip" | "rstrip", [bytes]) => {
                let bytes = constant(bytes).filter(|bytes| bytes.is_ascii());
                strip(Some(bytes.ok_or_else(|| self.not_constant(name))?))
            }
            ("replace", [old, new]) => {
                let (old, new) = (constant(old).filter(|old| !old.is_empty()), constant(new));
                match (old, new) {
                    (Some(old), Some(new)) => TextFunction::Replace { old, new },
                    _ => return Err(self.not_constant(name)),
                }
            }
            _ => return self.question(name, text, arguments),
        };
        Ok(self.builder.make(|out| Step::Text(function, text, out)).into())
    }

    /// A method that gives a bool or an int.
    fn question(&mut self, name: &str, text: Texts, arguments: &[Expression]) -> Compiled<Value> {
        let characters = match (name, arguments) {
            ("isdigit" | "isdecimal" | "isnumeric", []) => Some(Characters::Digits),
            ("isalpha", []) => Some(Characters::Letters),
            ("isalnum", []) => Some(Characters::LettersOrDigits),
            ("isspace", []) => Some(Characters::Spaces),
            _ => None,
        };
        if let Some(characters) = characters {
            return Ok(self.builder.make(|out| Step::Characters(characters, text, out)).into());
        }
        let [part] = arguments else {
            return Err(self.builder.refuse(format!("the method {name} with such arguments")));
        };
        let part = self.value(part)?;
        let test = match name {
            "startswith" => Some(TextTest::StartsWith),
            "endswith" => Some(TextTest::EndsWith),
            _ => None,
        };
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

    fn not_constant(&self, name: &str) -> Unsupported {
        self.builder.refuse(format!("{name} with arguments that are no constant texts"))
    }
}
