//! Which Python interpreter runs the functions.

use crosslane::{Error, Settings};
use std::env;
use std::path::{Path, PathBuf};

/// The interpreter: the setting's, the active virtual environment's, or the first on PATH.
pub(crate) fn find(settings: &Settings) -> Result<PathBuf, Error> {
    if !settings.python.is_empty() {
        let path = PathBuf::from(&settings.python);
        return if is_file(&path) {
            Ok(path)
        } else {
            on_path(&settings.python).ok_or_else(|| missing(&path))
        };
    }
    if let Some(environment) = env::var_os("VIRTUAL_ENV").filter(|path| !path.is_empty()) {
        let path = Path::new(&environment).join("bin/python");
        if is_file(&path) {
            return Ok(path);
        }
    }
    on_path("python3").or_else(|| on_path("python")).ok_or_else(|| {
        Error::Boot(
            "no Python interpreter: there is no active virtual environment, and PATH has neither python3 nor \
             python; name one with CALL crosslane_set('python', '/path/to/python')"
                .into(),
        )
    })
}

fn missing(path: &Path) -> Error {
    Error::Boot(format!("the setting python names {}, which does not exist", path.display()))
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file())
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|candidate| is_file(candidate))
}
