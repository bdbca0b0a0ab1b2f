//! What a file says about itself in a block of comments, as inline script metadata of Python does
//! (PEP 723). The other languages have the same block in their own comments.
//!
//! ```python
//! # /// script
//! # dependencies = ["httpx"]
//! # [tool.crosslane]
//! # sandbox = "on"
//! # allow_net = ["api.example.com:443"]
//! # ///
//! ```

use crosslane::{Error, Net, Sandbox, Settings};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The name of Crosslane's part.
const TOOL: &str = "crosslane";
/// The setting without which the others allow nothing.
const SANDBOX: &str = "sandbox";

/// The content of a block `script`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Metadata {
    /// As TOML.
    pub(crate) text: String,
    table: Table,
}

impl Metadata {
    /// The metadata of a file whose comments begin with this mark. `None` if it has none.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn of(text: &str, mark: &str) -> Result<Option<Self>, String> {
        let Some(text) = block(text, mark)? else { return Ok(None) };
        let table = text.parse().map_err(|error: toml::de::Error| {
            format!("its block `{mark} /// script` is not TOML: {}", error.to_string().trim_end())
        })?;
        Ok(Some(Self { text, table }))
    }

    /// Whether it says more than what Crosslane itself reads.
    pub(crate) fn has_needs(&self) -> bool {
        let tools = self.table.get("tool").and_then(Value::as_table);
        self.table.keys().any(|key| key != "tool")
            || tools.is_some_and(|tools| tools.keys().any(|key| key != TOOL))
    }

    /// The settings with the sandbox that the file asks for. `file` is its path.
    ///
    /// # Errors
    /// If it asks for more than the settings allow, or for what is no option.
    pub(crate) fn apply(&self, settings: Settings, file: &Path) -> Result<Settings, Error> {
        let Some(asked) = self.table.get("tool").and_then(|tools| tools.get(TOOL)) else {
            return Ok(settings);
        };
        let wrong = |why: &str| Error::Setting(format!("{}: its tool.{TOOL} {why}", file.display()));
        let asked = asked.as_table().ok_or_else(|| wrong("is not a table"))?;
        let own = settings_in(asked, file).map_err(|why| wrong(&why))?;
        let resolved = |sandbox: Option<Sandbox>| sandbox.map(Sandbox::resolved).transpose();
        let missing = |path: PathBuf| wrong(&format!("needs {}, which is not there", path.display()));
        let own = resolved(own.sandbox()).map_err(missing)?;
        let gone = |path: PathBuf| {
            Error::Setting(format!(
                "the sandbox of the settings names {}, which is not there",
                path.display()
            ))
        };
        match (own, resolved(settings.sandbox()).map_err(gone)?) {
            (None, None) if asked.keys().all(|name| name == SANDBOX) => Ok(settings),
            (None, None) => Err(wrong("allows nothing without sandbox = \"on\"")),
            (None, Some(_)) if asked.contains_key(SANDBOX) => {
                Err(wrong("asks for no sandbox, and the settings have one"))
            }
            (None, Some(_)) => Err(wrong("has no sandbox = \"on\"")),
            (Some(asked), Some(allowed)) if !asked.beyond(&allowed).is_empty() => Err(wrong(&format!(
                "asks for {}, which the settings do not allow; if you agree, allow it with these settings",
                asked.beyond(&allowed).join(", ")
            ))),
            (own, _) => Ok(settings.with_sandbox(own)),
        }
    }
}

/// The settings in a table. `file` is the path of the file in which it is.
///
/// # Errors
/// What the table has that is no setting of sandboxes, or no value.
fn settings_in(asked: &Table, file: &Path) -> Result<Settings, String> {
    let known: Vec<_> = Settings::of_sandbox().collect();
    let mut settings = Settings::default();
    for (name, value) in asked {
        if !known.contains(&&name[..]) {
            return Err(format!("has {name}, which is not an option; there are: {}", known.join(", ")));
        }
        let folder = file.parent().filter(|_| Sandbox::PATHS.contains(&&name[..]));
        let value = text(value, folder)
            .ok_or_else(|| format!("has a {name} that is not a text without commas, or a list of them"))?;
        settings.set(name, &value).map_err(|error| format!("has a wrong value: {error}"))?;
    }
    Ok(settings)
}

/// The names of the options with which a function asks for a sandbox of its own. `allow_env` is not among
/// them: the memory of a library has all its variables.
pub const OWN_SANDBOX: [&str; 5] = [SANDBOX, "allow_read", "allow_write", "allow_net", "allow_run"];

/// The sandbox that a function asks for by [`OWN_SANDBOX`], in addition to that of its library. `None` if
/// it asks for none. Paths may begin at the folder of `file`, which declares the function.
///
/// # Errors
/// What is wrong with an option.
pub fn own_sandbox(options: serde_json::Value, file: &Path) -> Result<Option<Sandbox>, String> {
    let asked: Table = serde_json::from_value(options)
        .map_err(|error| format!("the options of a sandbox are texts, true or false, and lists: {error}"))?;
    let settings = settings_in(&asked, file).map_err(|why| format!("it {why}"))?;
    match settings.sandbox() {
        None => match asked.keys().find(|name| *name != SANDBOX) {
            Some(name) => Err(format!("{name} allows nothing without sandbox=\"on\"")),
            None => Ok(None),
        },
        Some(sandbox) if !sandbox.env.is_empty() => {
            Err("allow_env is for whole files: the memory of a file's process has all its variables".into())
        }
        Some(Sandbox { net: Net::Hosts(_), .. }) => {
            Err("a list of hosts in allow_net is for whole files; a function of its own has true or false"
                .into())
        }
        sandbox => Ok(sandbox),
    }
}

/// A value as the text of a setting. Paths may begin at the folder of the file.
fn text(value: &Value, folder: Option<&Path>) -> Option<String> {
    let text = |value: &Value| {
        let text = value.as_str()?.trim();
        let path = folder.filter(|_| !text.is_empty()).map(|folder| folder.join(text).display().to_string());
        let text = path.unwrap_or_else(|| text.to_owned());
        // Settings have commas between texts.
        (!text.contains(',')).then_some(text)
    };
    match value {
        Value::Boolean(value) => Some(value.to_string()),
        Value::Array(values) => {
            values.iter().map(text).collect::<Option<Vec<_>>>().map(|texts| texts.join(","))
        }
        value => text(value),
    }
}

/// The content of the block `script` of a file, as PEP 723 defines it, with another mark of comments.
fn block(text: &str, mark: &str) -> Result<Option<String>, String> {
    let (begin, end_line) = (format!("{mark} /// "), format!("{mark} ///"));
    let prefix = format!("{mark} ");
    let lines: Vec<_> = text.trim_start_matches('\u{feff}').lines().collect();
    let mut found = None;
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        let Some(kind) = line.strip_prefix(&begin).filter(|kind| is_kind(kind)) else { continue };
        let comments = lines[at..].iter().take_while(|line| **line == mark || line.starts_with(&prefix));
        let comments: Vec<_> = comments.collect();
        let Some(end) = comments.iter().rposition(|line| ***line == *end_line) else { continue };
        at += end + 1;
        if kind == "script" {
            let content = comments[..end].iter().map(|line| line.get(prefix.len()..).unwrap_or_default());
            if found.replace(content.map(|line| format!("{line}\n")).collect()).is_some() {
                return Err(format!("it has two blocks `{mark} /// script`, where one is allowed"));
            }
        }
    }
    // A line like this shows that its author wants an environment.
    let is_meant = |line: &&&str| line.split_whitespace().eq([mark, "///", "script"]);
    match (&found, lines.iter().find(is_meant)) {
        (None, Some(_)) => Err(format!(
            "its block `{mark} /// script` has no end `{mark} ///`, or has lines that do not begin with `{mark} `"
        )),
        _ => Ok(found),
    }
}

fn is_kind(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_pep_723() {
        let of = |text: &str| block(text, "#");
        assert_eq!(of("import x\n"), Ok(None));
        assert_eq!(of("# /// script\n# a = 1\n#\n# b = 2\n# ///\n"), Ok(Some("a = 1\n\nb = 2\n".into())));
        // The last line that ends a block counts.
        assert_eq!(
            of("# /// script\n# a = \"\"\"\n# ///\n# \"\"\"\n# ///\nx\n# ///\n")
                .unwrap()
                .unwrap()
                .lines()
                .count(),
            3
        );
        assert_eq!(of("# /// other\n# x\n# ///\n"), Ok(None));
        assert!(of("# /// script\n# a = 1\n\n# ///\n").is_err());
        assert!(of("# /// script \n# a = 1\n# ///\n").is_err());
        assert_eq!(of("\u{feff}# /// script\n# ///\n"), Ok(Some(String::new())));
        assert_eq!(of("# /// script\r\n# a = 1\r\n# ///\r\n"), Ok(Some("a = 1\n".into())));
        assert!(of("# /// script\n# ///\n# x\n\n# /// script\n# ///\n").is_err());
    }

    /// The sandbox of a file in `folder` that has `text` in its block.
    fn applied(folder: &Path, text: &str, settings: &[(&str, &str)]) -> Result<Option<String>, String> {
        let mut all = Settings::default();
        settings.iter().for_each(|(name, value)| all.set(name, value).unwrap());
        let text: String = text.lines().map(|line| format!("-- {line}\n")).collect();
        let metadata = Metadata::of(&format!("-- /// script\n{text}-- ///\n"), "--")?.unwrap();
        let settings =
            metadata.apply(all, &folder.join("functions.lua")).map_err(|error| error.to_string())?;
        Ok(settings.sandbox().map(|sandbox| sandbox.words().collect::<Vec<_>>().join(" ")))
    }

    /// A folder with data, and with a link that leads out of it.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("crosslane-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("data")).unwrap();
        std::os::unix::fs::symlink("/etc", folder.join("data/link")).unwrap();
        folder.canonicalize().unwrap()
    }

    const ASKS: &str = "[tool.crosslane]\nsandbox = 'on'\nallow_read = ['data', '/etc/hostname']\n\
                        allow_net = ['a.example:443']\nallow_env = 'KEY'";

    #[test]
    fn a_file_has_the_sandbox_that_it_asks_for() {
        let folder = folder("asks");
        let here = folder.display();
        let expected =
            format!("sandbox=on allow_read={here}/data,/etc/hostname allow_net=a.example:443 allow_env=KEY");
        assert_eq!(applied(&folder, ASKS, &[]), Ok(Some(expected.clone())));
        let read = format!("{here},/etc");
        let allowed =
            [("sandbox", "on"), ("allow_read", &read), ("allow_net", "true"), ("allow_env", "KEY,TOKEN")];
        assert_eq!(applied(&folder, ASKS, &allowed), Ok(Some(expected)));
        let applied = |text: &str, settings: &[(&str, &str)]| applied(&folder, text, settings);
        for nothing in ["", "allow_read = ''", "allow_read = ['']"] {
            let text = format!("[tool.crosslane]\nsandbox = true\n{nothing}");
            assert_eq!(applied(&text, &allowed), Ok(Some("sandbox=on".into())));
        }
        assert_eq!(applied("[tool.crosslane]\nsandbox = false", &[]), Ok(None));
        assert_eq!(applied("[tool.other]\nx = 1", &[]), Ok(None));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_gets_no_more_than_the_settings_allow() {
        let folder = folder("more");
        let here = folder.display().to_string();
        let data = format!("{here}/data");
        let asks = applied(&folder, ASKS, &[("sandbox", "on"), ("allow_env", "KEY")]).unwrap_err();
        assert!(asks.contains(&here) && asks.contains("allow_net=a.example:443"), "{asks}");
        assert!(asks.contains("/data,/etc/hostname") && !asks.contains("allow_env"), "{asks}");
        for (text, why) in [
            ("[tool.crosslane]\nsandbox = 'off'", "asks for no sandbox"),
            ("[tool.crosslane]\nallow_net = true", "has no sandbox = \"on\""),
            ("[tool.crosslane]\nsandbox = 'on'\nallow_nett = true", "there are: sandbox, allow_read"),
            ("[tool.crosslane]\nallow_net = 5", "not a text without commas, or a list of them"),
            ("[tool.crosslane]\nallow_net = 'https://a'", "a wrong value"),
            ("[tool.crosslane]\nallow_net = ['a.example', 'true']", "a wrong value"),
            ("[tool.crosslane]\nallow_net = [true]", "a list of them"),
            ("[tool.crosslane]\nallow_read = ['a,b']", "a list of them"),
            ("[tool.crosslane]\nsandbox = 'on'\nallow_read = 'missing'", "missing, which is not there"),
            ("[tool.crosslane]\nsandbox = 'on'\nallow_read = 'data/../..'", "the settings do not allow"),
            ("[tool.crosslane]\nsandbox = 'on'\nallow_read = 'data/link'", "allow_read=/etc"),
            ("tool.crosslane = 5", "is not a table"),
            ("[tool", "is not TOML"),
        ] {
            let error = applied(&folder, text, &[("sandbox", "on"), ("allow_read", &data)]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let error = applied(&folder, "[tool.crosslane]\nallow_net = true", &[]).unwrap_err();
        assert!(error.contains("allows nothing"), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_crosslane_reads_needs_no_environment() {
        let has_needs = |text: &str| Metadata::of(text, "#").unwrap().unwrap().has_needs();
        assert!(!has_needs("# /// script\n# [tool.crosslane]\n# sandbox = true\n# ///\n"));
        assert!(has_needs("# /// script\n# dependencies = []\n# ///\n"));
        assert!(has_needs("# /// script\n# [tool.uv]\n# ///\n"));
    }
}
