//! Which definitions this user has trusted.
//!
//! A definition in a database file is code. A file from elsewhere must not run any, so only
//! definitions are restored that this user has made or trusted on this machine. Trust belongs to
//! the text: a definition that has been changed since is not trusted any more.

use crosslane::Error;
use crosslane_process::hash;
use std::collections::HashSet;
use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// The definitions that are trusted, as hashes of their texts.
pub(super) struct Trusted(HashSet<String>);

impl Trusted {
    /// Reads what this user has trusted. Nothing is trusted if it cannot be read.
    pub(super) fn read() -> Self {
        Self(read().unwrap_or_default().lines().map(str::to_owned).collect())
    }

    pub(super) fn has(&self, definition: &str) -> bool {
        self.0.contains(&hash(definition.as_bytes()))
    }
}

/// Trusts definitions from now on.
pub(super) fn trust<'a>(definitions: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    let known = Trusted::read();
    let new = definitions.into_iter().filter(|definition| !known.has(definition));
    let lines: String = new.map(|definition| format!("{}\n", hash(definition.as_bytes()))).collect();
    write(&lines).map_err(|error| {
        Error::Engine(format!(
            "the definitions that you trust are noted in {}, which cannot be used: {error}; set XDG_CONFIG_HOME to a \
             folder of your own",
            path().display()
        ))
    })
}

fn path() -> PathBuf {
    let home = || env::home_dir().unwrap_or_default().join(".config");
    let folder = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    folder.unwrap_or_else(home).join("crosslane").join("trusted")
}

fn read() -> io::Result<String> {
    let mut file = File::open(path())?;
    let is_ours = file.metadata()?.uid() == rustix::process::geteuid().as_raw();
    let mut text = String::new();
    if is_ours {
        file.read_to_string(&mut text)?;
    }
    Ok(text)
}

fn write(lines: &str) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let path = path();
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    if fs::metadata(&path).is_ok_and(|file| file.uid() != rustix::process::geteuid().as_raw()) {
        return Err(io::Error::other("it belongs to another user"));
    }
    // One write, so that the lines of two programs do not mix.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)?.write_all(lines.as_bytes())
}
