//! Makes an ES module of any file. Lines keep their numbers, so error messages have the right
//! lines.

#[cfg(feature = "typescript")]
use super::typescript::strip_types;
use super::unreadable::Unreadable;
use std::path::Path;

/// The file name extensions of modules, for hints in errors.
pub(crate) const ENDINGS: [&str; 5] = ["js", "mjs", "cjs", "ts", "json"];

/// Makes a module of a file that is no CommonJS script. The file's extension decides how.
///
/// # Errors
/// If the file is not a module.
pub(crate) fn module(path: &Path, text: Vec<u8>) -> Result<Vec<u8>, Unreadable> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => json(&text),
        Some("ts") => strip_types(String::from_utf8_lossy(&text).into_owned()).map(String::into_bytes),
        _ => {
            let place = whole_import(&String::from_utf8_lossy(&text));
            let message = || {
                "`import * as` makes an object that no snapshot can hold: import the names. A package that uses it is \
                 bundled into one file (npx esbuild PACKAGE --bundle --format=esm --outfile=PACKAGE.mjs)"
                    .to_owned()
            };
            place.map_or(Ok(text), |place| Err(Unreadable { message: message(), place: Some(place) }))
        }
    }
}

fn json(text: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let checked: Result<serde_json::Value, _> = serde_json::from_slice(text);
    if let Err(error) = checked {
        return Err(Unreadable { message: error.to_string(), place: Some((error.line(), error.column())) });
    }
    // The module gets the JSON as text, because `__proto__` in an object literal would set the
    // prototype.
    let literal = serde_json::Value::from(String::from_utf8_lossy(text)).to_string();
    Ok(format!("export default globalThis[Symbol.for(\"crosslane.json\")]({literal});").into_bytes())
}

/// The line and the column of the first statement `import * as`.
fn whole_import(text: &str) -> Option<(usize, usize)> {
    let is_one = |line: &str| {
        let line = line.trim_start();
        let rest = line.strip_prefix("import").map(str::trim_start).and_then(|rest| rest.strip_prefix('*'));
        let rest = rest.and_then(|rest| rest.trim_start().strip_prefix("as "));
        rest.is_some_and(|rest| rest.contains(" from") && rest.contains(['"', '\'']))
    };
    let at = text.lines().position(is_one)?;
    let line = text.lines().nth(at)?;
    Some((at + 1, line.len() - line.trim_start().len() + 1))
}

/// Makes a module of a CommonJS script. The script puts its exports into `module.exports`, and gets
/// other scripts and JSON by `require("./path")`, and packages by their names if they are there. The
/// module imports all these, and `require` returns the imported values.
pub(super) fn common_js(text: &str, is_there: impl Fn(&str) -> bool) -> String {
    use std::fmt::Write;
    let mut head = String::new();
    let mut files = String::new();
    for (index, name) in required(text, is_there).iter().enumerate() {
        let literal = serde_json::Value::from(*name);
        // This is not `import *`, because a snapshot cannot contain one.
        let _ = write!(head, "import required{index} from {literal}; ");
        let _ = write!(files, "[{literal}, required{index}], ");
    }
    format!(
        "{head}const module = {{ exports: {{}} }}; (function (module, exports, require) {{ {text}\n\
         }}).call(module.exports, module, module.exports, ((files) => (name) => {{ \
         if (!files.has(name)) throw new Error(`cannot require \"${{name}}\": only \"./paths\" of scripts and \
         JSON files, and packages in node_modules, as literals`); \
         return files.get(name); \
         }})(new Map([[\"crosslane\", {{ udf, udtf, udaf, Timestamp }}], {files}]))); \
         export default module.exports;"
    )
}

#[cfg(not(feature = "typescript"))]
fn strip_types(_: String) -> Result<String, Unreadable> {
    let message = "this build reads no TypeScript; `make setup` in Crosslane's folder makes one that does";
    Err(Unreadable { message: message.to_owned(), place: None })
}

/// Returns the paths and the packages of all `require("name")` that are there, without duplicates.
fn required(text: &str, is_there: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut found = Vec::new();
    for rest in text.split("require(").skip(1) {
        let Some(quote @ ('"' | '\'')) = rest.chars().next() else { continue };
        let Some((name, rest)) = rest[1..].split_once(quote) else { continue };
        if rest.starts_with(')') && name != "crosslane" && !found.contains(&name) && is_there(name) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<String, Unreadable> {
        module(Path::new(name), text.into()).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn the_error_of_a_wrong_file_has_a_place() {
        assert_eq!(read("a.json", "{\n]").unwrap_err().place, Some((2, 1)));
    }

    #[test]
    fn imports_of_whole_modules_are_found() {
        for text in ["import * as a from './a.js'", "import *as a from \"./a.js\";"] {
            assert_eq!(whole_import(&format!("x;\n  {text}")), Some((2, 3)));
        }
        for text in [
            "import { a } from './a.js'",
            "// import * as a from './a.js'",
            "import * as a",
            "f('import * as')",
        ] {
            assert_eq!(whole_import(text), None);
        }
    }

    #[test]
    fn required_paths_are_found() {
        let text =
            "a = require('./a'); b = require(\"../b.cjs\").c; require(x); require('fs'); require('./a')";
        assert_eq!(required(text, |name| name.starts_with('.')), ["./a", "../b.cjs"]);
        assert_eq!(required(text, |_| true), ["./a", "../b.cjs", "fs"]);
    }
}
