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

use crosslane::{Error, Settings};
use std::path::Path;
use toml::{Table, Value};

/// The name of Crosslane's part.
const TOOL: &str = "crosslane";
/// The settings whose values are paths.
const PATHS: [&str; 3] = ["allow_read", "allow_write", "allow_run"];
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
            format!("its block `{mark} /// script` is no TOML: {}", error.to_string().trim_end())
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
        let asked = asked.as_table().ok_or_else(|| wrong("is no table"))?;
        let known: Vec<_> = Settings::of_sandbox().collect();
        let mut own = Settings::default();
        for (name, value) in asked {
            if !known.contains(&&name[..]) {
                let known = known.join(", ");
                return Err(wrong(&format!("has {name}, which is no option; there are: {known}")));
            }
            let folder = file.parent().filter(|_| PATHS.contains(&&name[..]));
            let value = text(value, folder)
                .ok_or_else(|| wrong(&format!("has a {name} that is no text or list of texts")))?;
            own.set(name, &value).map_err(|error| wrong(&format!("has a wrong value: {error}")))?;
        }
        match (own.sandbox(), settings.sandbox()) {
            (None, None) if asked.keys().all(|name| name == SANDBOX) => Ok(settings),
            (None, None) => Err(wrong("allows nothing without sandbox = \"on\"")),
            (None, Some(_)) => Err(wrong("asks for no sandbox, and the settings have one")),
            (Some(asked), Some(allowed)) if !asked.beyond(&allowed).is_empty() => Err(wrong(&format!(
                "asks for {}, which the settings do not allow; if you agree, allow it with these settings",
                asked.beyond(&allowed).join(", ")
            ))),
            (own, _) => Ok(settings.with_sandbox(own)),
        }
    }
}

/// A value as the text of a setting. Paths may begin at the folder of the file.
fn text(value: &Value, folder: Option<&Path>) -> Option<String> {
    match value {
        Value::Boolean(value) => Some(value.to_string()),
        Value::String(text) => Some(match folder {
            Some(folder) => folder.join(text).display().to_string(),
            None => text.clone(),
        }),
        Value::Array(values) => {
            let texts: Option<Vec<_>> = values.iter().map(|value| text(value, folder)).collect();
            texts.map(|texts| texts.join(","))
        }
        _ => None,
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
    // Whoever writes this wants an environment.
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
        // The last end counts.
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

    fn applied(text: &str, settings: &[(&str, &str)]) -> Result<Option<String>, String> {
        let mut all = Settings::default();
        settings.iter().for_each(|(name, value)| all.set(name, value).unwrap());
        let text: String = text.lines().map(|line| format!("-- {line}\n")).collect();
        let metadata = Metadata::of(&format!("-- /// script\n{text}-- ///\n"), "--")?.unwrap();
        let settings =
            metadata.apply(all, Path::new("/home/functions.lua")).map_err(|error| error.to_string())?;
        Ok(settings.sandbox().map(|sandbox| sandbox.words().collect::<Vec<_>>().join(" ")))
    }

    const ASKS: &str = "[tool.crosslane]\nsandbox = 'on'\nallow_read = ['data', '/etc/hostname']\n\
                        allow_net = ['a.example:443']\nallow_env = 'KEY'";

    #[test]
    fn a_file_has_the_sandbox_that_it_asks_for() {
        let expected = "sandbox=on allow_read=/home/data,/etc/hostname allow_net=a.example:443 allow_env=KEY";
        assert_eq!(applied(ASKS, &[]), Ok(Some(expected.into())));
        let allowed = [
            ("sandbox", "on"),
            ("allow_read", "/home,/etc"),
            ("allow_net", "true"),
            ("allow_env", "KEY,TOKEN"),
        ];
        assert_eq!(applied(ASKS, &allowed), Ok(Some(expected.into())));
        assert_eq!(applied("[tool.crosslane]\nsandbox = true", &allowed), Ok(Some("sandbox=on".into())));
        assert_eq!(applied("[tool.crosslane]\nsandbox = false", &[]), Ok(None));
        assert_eq!(applied("[tool.other]\nx = 1", &[]), Ok(None));
    }

    #[test]
    fn a_file_gets_no_more_than_the_settings_allow() {
        let asks = applied(ASKS, &[("sandbox", "on"), ("allow_env", "KEY")]).unwrap_err();
        assert!(asks.contains("/home/functions.lua") && asks.contains("allow_net=a.example:443"), "{asks}");
        assert!(
            asks.contains("allow_read=/home/data,/etc/hostname") && !asks.contains("allow_env"),
            "{asks}"
        );
        for (text, why) in [
            ("[tool.crosslane]\nsandbox = 'off'", "asks for no sandbox"),
            ("[tool.crosslane]\nsandbox = 'on'\nallow_nett = true", "there are: sandbox, allow_read"),
            ("[tool.crosslane]\nallow_net = 5", "no text or list of texts"),
            ("[tool.crosslane]\nallow_net = 'https://a'", "a wrong value"),
            ("tool.crosslane = 5", "is no table"),
            ("[tool", "is no TOML"),
        ] {
            let error = applied(text, &[("sandbox", "on")]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(applied("[tool.crosslane]\nallow_net = true", &[]).unwrap_err().contains("allows nothing"));
    }

    #[test]
    fn what_crosslane_reads_needs_no_environment() {
        let has_needs = |text: &str| Metadata::of(text, "#").unwrap().unwrap().has_needs();
        assert!(!has_needs("# /// script\n# [tool.crosslane]\n# sandbox = true\n# ///\n"));
        assert!(has_needs("# /// script\n# dependencies = []\n# ///\n"));
        assert!(has_needs("# /// script\n# [tool.uv]\n# ///\n"));
    }
}
