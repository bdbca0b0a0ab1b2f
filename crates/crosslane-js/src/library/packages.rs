//! Finds the packages that npm has installed in `node_modules` beside a file, as Node does: by
//! `exports` in their `package.json`, by `module` or `main`, or by `index.js`. The conditions of
//! browsers come first, because functions have no more than a browser has.

use serde_json::Value;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The conditions of `exports` for `import`, the first that is there counts.
pub(super) const IMPORTED: &[&str] = &["browser", "import", "module", "default"];
/// The same for `require`.
pub(super) const REQUIRED: &[&str] = &["browser", "require", "default"];

const FOLDER: &str = "node_modules";
/// What can follow a path that names no file.
const ENDINGS: [&str; 8] =
    [".js", ".mjs", ".cjs", ".json", "/index.js", "/index.mjs", "/index.cjs", "/index.json"];
/// Modules of Node that have no prefix.
const OF_NODE: [&str; 18] = [
    "assert",
    "buffer",
    "child_process",
    "crypto",
    "dns",
    "events",
    "fs",
    "http",
    "https",
    "net",
    "os",
    "path",
    "process",
    "stream",
    "tls",
    "url",
    "util",
    "zlib",
];

/// Whether a folder belongs to a package.
pub(super) fn holds(folder: &Path) -> bool {
    folder.components().any(|part| part.as_os_str() == FOLDER)
}

/// The path with symbolic links resolved, if it is there and in one of the folders. What is elsewhere
/// is as if it were not there, so errors do not show whether it is.
fn held(path: &Path, roots: &[PathBuf]) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|path| roots.iter().any(|root| path.starts_with(root)))
}

/// A path, with an ending if it names no file of the folders. `None` if there is no such file.
pub(super) fn completed(path: &Path, roots: &[PathBuf]) -> Option<PathBuf> {
    let with = |ending: &&str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let is_there = |path: &PathBuf| held(path, roots).is_some_and(|path| path.is_file());
    [""].iter().chain(&ENDINGS).map(with).find(is_there)
}

/// Whether a file is a CommonJS script, which may require other files: by its ending `.cjs`, or as a
/// part of a package.
pub(super) fn is_script(path: &Path, text: &str, roots: &[PathBuf]) -> bool {
    let is_module = |line: &str| {
        let line = line.trim_start();
        ["import ", "import{", "import\"", "import'", "export ", "export{", "export*"]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let ending = path.extension().unwrap_or_default();
    ending == "cjs"
        || ending == "js"
            && path.parent().is_some_and(|folder| holds(folder) && !is_of_modules(folder, roots))
            && text.contains("require(")
            && !text.lines().any(is_module)
}

/// Whether the files of a folder are modules, by the `package.json` of their package.
fn is_of_modules(folder: &Path, roots: &[PathBuf]) -> bool {
    let read = |folder: &Path| read(&folder.join("package.json"), roots);
    folder.ancestors().find_map(read).is_some_and(|package| package["type"] == "module")
}

/// The file that a package gives for a name such as `luxon`, `lodash/fp` or `@scope/name`.
///
/// # Errors
/// If the package is not installed in `node_modules` of a folder from `from` up to one of `roots`,
/// or has no such file.
pub(super) fn find(
    specifier: &str,
    from: &Path,
    roots: &[PathBuf],
    conditions: &[&str],
) -> Result<PathBuf, String> {
    let refused = |why: String| format!("cannot import \"{specifier}\": {why}");
    let no_system = || refused("functions have no files, sockets or processes".into());
    if specifier.starts_with("node:") {
        return Err(no_system());
    }
    let (name, rest) = split(specifier);
    if !is_name(name) {
        return Err(refused("it is neither a path, such as \"./file.js\", nor the name of a package".into()));
    }
    let inside = from.ancestors().take_while(|folder| roots.iter().any(|root| folder.starts_with(root)));
    let at = |folder: &Path| held(&folder.join(FOLDER).join(name), roots).filter(|package| package.is_dir());
    let package = inside.into_iter().find_map(at);
    let Some(package) = package else {
        if OF_NODE.contains(&name) {
            return Err(no_system());
        }
        let folder = roots.first().map_or(from, PathBuf::as_path);
        let lists =
            read(&folder.join("package.json"), roots).is_some_and(|package| is_listed(&package, name));
        let (why, command) = if lists {
            ("package.json lists it, but it is not installed", "npm install".to_owned())
        } else {
            ("there is no such package in node_modules", format!("npm install {name}"))
        };
        return Err(refused(format!("{why}. Run `{command}` in {}", folder.display())));
    };
    let described = read(&package.join("package.json"), roots).unwrap_or_default();
    let file = file(&described, rest, conditions).filter(|file| is_inside(file));
    let file = file.ok_or_else(|| refused(format!("the package {name} exports no such module")))?;
    completed(&package.join(&file), roots).ok_or_else(|| {
        refused(format!("the package {name} has no file {file}; is it installed whole (`npm install`)?"))
    })
}

/// Whether a path cannot leave its folder.
fn is_inside(file: &str) -> bool {
    Path::new(file).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// The package's name, and the path in it.
fn split(specifier: &str) -> (&str, &str) {
    let parts = if specifier.starts_with('@') { 2 } else { 1 };
    match specifier.match_indices('/').nth(parts - 1) {
        Some((at, _)) => (&specifier[..at], &specifier[at + 1..]),
        None => (specifier, ""),
    }
}

fn is_name(name: &str) -> bool {
    let part =
        |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains([':', '\\', '#', '%']);
    name.strip_prefix('@').map_or(!name.contains('@'), |scoped| scoped.contains('/'))
        && name.split('/').all(part)
}

fn read(path: &Path, roots: &[PathBuf]) -> Option<Value> {
    let path = held(path, roots).filter(|path| path.is_file())?;
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn is_listed(package: &Value, name: &str) -> bool {
    ["dependencies", "devDependencies", "optionalDependencies", "peerDependencies"]
        .iter()
        .any(|kind| package[kind].get(name).is_some())
}

/// The file for a path in a package, by its `package.json`.
fn file(package: &Value, rest: &str, conditions: &[&str]) -> Option<String> {
    let clean = |file: &str| file.trim_start_matches("./").to_owned();
    match &package["exports"] {
        Value::Null => {}
        exports => return exported(exports, rest, conditions).map(|file| clean(&file)),
    }
    if !rest.is_empty() {
        return Some(rest.to_owned());
    }
    let fields: &[&str] = if conditions == REQUIRED { &["main"] } else { &["module", "main"] };
    let named = fields.iter().find_map(|field| package[field].as_str());
    Some(named.map_or("index.js".to_owned(), clean))
}

fn exported(exports: &Value, rest: &str, conditions: &[&str]) -> Option<String> {
    let has_paths = exports.as_object().is_some_and(|map| map.keys().any(|key| key.starts_with('.')));
    if !has_paths {
        return if rest.is_empty() { chosen(exports, conditions) } else { None };
    }
    let wanted = if rest.is_empty() { ".".to_owned() } else { format!("./{rest}") };
    if let Some(target) = exports.get(&wanted) {
        return chosen(target, conditions);
    }
    // The longest pattern that fits counts, also if it leads to nothing.
    let fits = |(pattern, _): &(&String, &Value)| star(pattern, &wanted).is_some();
    let fitting = exports.as_object()?.iter().filter(fits);
    let (pattern, target) = fitting.max_by_key(|(pattern, _)| pattern.find('*'))?;
    Some(chosen(target, conditions)?.replace('*', star(pattern, &wanted)?))
}

/// What the star of a pattern stands for.
fn star<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let (before, after) = pattern.split_once('*')?;
    path.strip_prefix(before)?.strip_suffix(after)
}

/// The target for the first condition that leads to a file.
fn chosen(target: &Value, conditions: &[&str]) -> Option<String> {
    match target {
        Value::String(file) => Some(file.clone()),
        Value::Array(targets) => targets.iter().find_map(|target| chosen(target, conditions)),
        Value::Object(_) => conditions.iter().find_map(|name| chosen(&target[*name], conditions)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_cut_into_package_and_path() {
        for (specifier, parts) in [
            ("luxon", ("luxon", "")),
            ("lodash/fp/add", ("lodash", "fp/add")),
            ("@scope/name", ("@scope/name", "")),
            ("@scope/name/a/b.js", ("@scope/name", "a/b.js")),
        ] {
            assert_eq!(split(specifier), parts);
        }
        for name in ["", "#internal", "@scope", ".", "..", "https://x.y", "a\\b", "%2e"] {
            assert!(!is_name(split(name).0), "{name}");
        }
    }

    #[test]
    fn files_of_packages_are_inside_them() {
        for file in ["/etc/passwd", "../x.js", "a/../../x.js", "a/.."] {
            assert!(!is_inside(file), "{file}");
        }
        for file in ["x.js", "a/b", "./a//b"] {
            assert!(is_inside(file), "{file}");
        }
    }

    #[test]
    fn a_package_says_which_file_it_is() {
        let import = |package: Value, rest: &str| file(&package, rest, IMPORTED);
        let some = |file: &str| Some(file.to_owned());
        assert_eq!(import(json!({}), ""), some("index.js"));
        assert_eq!(import(json!({ "main": "./lib/x.js" }), ""), some("lib/x.js"));
        assert_eq!(import(json!({ "main": "x.js", "module": "es/x.js" }), ""), some("es/x.js"));
        assert_eq!(file(&json!({ "main": "x.js", "module": "es/x.js" }), "", REQUIRED), some("x.js"));
        assert_eq!(import(json!({}), "a/b"), some("a/b"));
        assert_eq!(import(json!({ "exports": "./x.js", "main": "y.js" }), ""), some("x.js"));
        assert_eq!(import(json!({ "exports": "./x.js" }), "y"), None);
        let both = json!({ "exports": { "require": "./x.cjs", "import": "./x.mjs", "node": "./n.js" } });
        assert_eq!(import(both.clone(), ""), some("x.mjs"));
        assert_eq!(file(&both, "", REQUIRED), some("x.cjs"));
        let paths = json!({ "exports": {
            ".": [{ "worker": "./w.js" }, { "import": { "node": "./n.js", "default": "./d.js" } }],
            "./fp/*": "./lib/fp/*.js",
            "./fp/a*": "./lib/a/*.js",
            "./fp/private/*": null,
        } });
        assert_eq!(import(paths.clone(), ""), some("d.js"));
        assert_eq!(import(paths.clone(), "fp/zip"), some("lib/fp/zip.js"));
        assert_eq!(import(paths.clone(), "fp/add"), some("lib/a/dd.js"));
        assert_eq!(import(paths.clone(), "fp/private/x"), None);
        assert_eq!(import(paths, "other"), None);
    }
}
