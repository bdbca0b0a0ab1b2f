//! What V8 gets of a file: an ES module, whatever the file is. Lines stay where they are, for messages.

use std::path::Path;
use std::sync::{Arc, Mutex};
use swc_common::errors::{DiagnosticBuilder, Emitter, Handler};
use swc_common::sync::Lrc;
use swc_common::{FilePathMapping, GLOBALS, Globals, SourceMap};
use swc_ts_fast_strip::Options;

/// The endings of files that are modules, for advice.
pub(crate) const ENDINGS: [&str; 5] = ["js", "mjs", "cjs", "ts", "json"];

/// Why a file is no module: a message, and the line and column if they are known.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) message: String,
    pub(crate) place: Option<(usize, usize)>,
}

/// The module that a file is, by its ending.
///
/// # Errors
/// If it is none.
pub(crate) fn module(path: &Path, text: Vec<u8>) -> Result<Vec<u8>, Unreadable> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => json(&text),
        Some("cjs") => Ok(common_js(&String::from_utf8_lossy(&text)).into_bytes()),
        Some("ts") => typescript(String::from_utf8_lossy(&text).into_owned()).map(String::into_bytes),
        _ => Ok(text),
    }
}

fn json(text: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let checked: Result<serde_json::Value, _> = serde_json::from_slice(text);
    if let Err(error) = checked {
        return Err(Unreadable { message: error.to_string(), place: Some((error.line(), error.column())) });
    }
    // As text, because an object that is written as code takes a "__proto__" for its prototype.
    let literal = serde_json::Value::from(String::from_utf8_lossy(text)).to_string();
    Ok(format!("export default globalThis[Symbol.for(\"crosslane.json\")]({literal});").into_bytes())
}

/// A script that puts what it gives into `module.exports`, and gets other scripts and JSON by `require("./path")`: those
/// it names are imported, and what they give is at hand when it asks.
fn common_js(text: &str) -> String {
    use std::fmt::Write;
    let mut head = String::new();
    let mut files = String::new();
    for (index, name) in required(text).iter().enumerate() {
        let literal = serde_json::Value::from(*name);
        // (An `import *` could not be in a snapshot.)
        let _ = write!(head, "import required{index} from {literal}; ");
        let _ = write!(files, "[{literal}, required{index}], ");
    }
    format!(
        "{head}const module = {{ exports: {{}} }}; (function (module, exports, require) {{ {text}\n\
         }}).call(module.exports, module, module.exports, ((files) => (name) => {{ \
         if (!files.has(name)) throw new Error(`cannot require \"${{name}}\": only \"./paths\" of scripts and \
         JSON files, as literals`); \
         return files.get(name); \
         }})(new Map([[\"crosslane\", {{ udf: globalThis.udf, Timestamp: globalThis.Timestamp }}], {files}]))); \
         export default module.exports;"
    )
}

/// The paths in `require("./path")`, each once.
fn required(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for rest in text.split("require(").skip(1) {
        let Some(quote @ ('"' | '\'')) = rest.chars().next() else { continue };
        let Some((name, rest)) = rest[1..].split_once(quote) else { continue };
        let is_path = ["./", "../", "/"].iter().any(|start| name.starts_with(start));
        if is_path && rest.starts_with(')') && !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// Replaces types by blanks.
fn typescript(text: String) -> Result<String, Unreadable> {
    let map = Lrc::new(SourceMap::new(FilePathMapping::empty()));
    let first = First { map: Lrc::clone(&map), found: Arc::new(Mutex::new(None)) };
    let found = Arc::clone(&first.found);
    let handler = Handler::with_emitter(false, false, Box::new(first));
    let options = Options { module: Some(true), ..Options::default() };
    let stripped = GLOBALS.set(&Globals::new(), || swc_ts_fast_strip::operate(&map, &handler, text, options));
    stripped.map(|output| output.code).map_err(|error| {
        let first = found.lock().ok().and_then(|mut found| found.take());
        first.unwrap_or(Unreadable { message: error.message, place: None })
    })
}

/// Keeps the first message, which the others follow from.
struct First {
    map: Lrc<SourceMap>,
    found: Arc<Mutex<Option<Unreadable>>>,
}

impl Emitter for First {
    fn emit(&mut self, message: &mut DiagnosticBuilder<'_>) {
        let Ok(mut found) = self.found.lock() else { return };
        found.get_or_insert_with(|| {
            let place = message.span.primary_span().map(|span| self.map.lookup_char_pos(span.lo));
            Unreadable { message: message.message(), place: place.map(|at| (at.line, at.col.0 + 1)) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<String, Unreadable> {
        module(Path::new(name), text.into()).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn types_become_blanks() {
        let text = "type A = {\n  a: number;\n};\nexport const f = (a: A): number => a.a as number;\n";
        let code = read("a.ts", text).unwrap();
        assert_eq!(code.lines().count(), 4);
        assert_eq!(code.lines().nth(3).unwrap().split_whitespace().collect::<Vec<_>>().join(" "), {
            "export const f = (a ) => a.a ;"
        });
    }

    #[test]
    fn what_cannot_be_read_has_a_place() {
        let wrong = read("a.ts", "const a: = 1;").unwrap_err();
        assert_eq!(wrong.place.map(|(line, _)| line), Some(1));
        let not_only_types = read("a.ts", "\nenum A { B }\n").unwrap_err();
        assert!(not_only_types.message.contains("enum"), "{not_only_types:?}");
        assert_eq!(not_only_types.place, Some((2, 1)));
        assert_eq!(read("a.json", "{\n]").unwrap_err().place, Some((2, 1)));
    }

    #[test]
    fn required_paths_are_found() {
        let text =
            "a = require('./a'); b = require(\"../b.cjs\").c; require(x); require('fs'); require('./a')";
        assert_eq!(required(text), ["./a", "../b.cjs"]);
    }
}
