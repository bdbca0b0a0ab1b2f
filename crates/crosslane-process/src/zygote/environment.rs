//! The environments of Python files with inline script metadata (PEP 723).
//!
//! The package's `_runtime/environments.py` makes an environment, and writes a *note*: the command of
//! a zygote in it. The engine reads the note, so that a file whose environment is there loads as fast
//! as any other. Without a note, the zygote starts in the engine's own interpreter, and makes the
//! environment before it loads the file.

use crate::control::text;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// What a file needs, and where the note of its environment is or will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// The metadata, as TOML.
    pub metadata: String,
    /// The path of the note.
    pub note: PathBuf,
}

impl Needs {
    /// What a file needs that this interpreter would load. None if it has no metadata, or cannot be
    /// read.
    ///
    /// # Errors
    /// What is wrong with the metadata.
    pub fn of(file: &Path, interpreter: &Path) -> Result<Option<Self>, String> {
        let Ok(content) = fs::read_to_string(file) else { return Ok(None) };
        let Some(metadata) = metadata(&content)? else { return Ok(None) };
        let lock = fs::read(lock_of(file)).unwrap_or_default();
        let parts: [(&[u8], &[u8]); 3] = [
            (b"metadata", metadata.as_bytes()),
            (b"lock", &lock),
            (b"interpreter", interpreter.as_os_str().as_encoded_bytes()),
        ];
        let note = cache().join("notes").join(text(parts));
        Ok(Some(Self { metadata, note }))
    }
}

/// The path of a file's lock, which uv writes.
pub fn lock_of(file: &Path) -> PathBuf {
    let mut lock = file.as_os_str().to_owned();
    lock.push(".lock");
    lock.into()
}

/// The folder of what is made for this user.
pub fn cache() -> PathBuf {
    let home = || env::home_dir().unwrap_or_default().join(".cache");
    let folder = env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    folder.unwrap_or_else(home).join("crosslane")
}

/// The command of a zygote in the environment of a file, if it is there.
pub(super) fn command(file: &Path, interpreter: &Path) -> Option<Vec<String>> {
    let needs = Needs::of(file, interpreter).ok()??;
    let command: Vec<String> = serde_json::from_slice(&fs::read(needs.note).ok()?).ok()?;
    Path::new(command.first()?).exists().then_some(command)
}

/// The content of the block `script` of a file, as PEP 723 defines it.
fn metadata(text: &str) -> Result<Option<String>, String> {
    let lines: Vec<_> = text.lines().collect();
    let mut found = None;
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        let Some(kind) = line.strip_prefix("# /// ").filter(|kind| is_kind(kind)) else { continue };
        let comments = lines[at..].iter().take_while(|line| **line == "#" || line.starts_with("# "));
        let comments: Vec<_> = comments.collect();
        let Some(end) = comments.iter().rposition(|line| ***line == *"# ///") else { continue };
        at += end + 1;
        if kind == "script" {
            let content = comments[..end].iter().map(|line| line.get(2..).unwrap_or_default());
            if found.replace(content.map(|line| format!("{line}\n")).collect()).is_some() {
                return Err("it has two blocks `# /// script`, where one is allowed".to_owned());
            }
        }
    }
    Ok(found)
}

fn is_kind(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_pep_723() {
        let of = |text: &str| metadata(text);
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
        assert_eq!(of("# /// script\n# a = 1\n\n# ///\n"), Ok(None));
        assert_eq!(of("# /// other\n# /// script\n# ///\n"), Ok(None));
        assert_eq!(of("# /// script\r\n# a = 1\r\n# ///\r\n"), Ok(Some("a = 1\n".into())));
        assert!(of("# /// script\n# ///\n# x\n\n# /// script\n# ///\n").is_err());
    }
}
