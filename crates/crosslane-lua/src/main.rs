//! The Lua guest. All that is not special to Lua is in `crosslane-guest`.
//!
//! `values.rs` has the conversion of values, this file the declaration, calls and forks.

mod values;

use crosslane::Failure;
use crosslane_guest::{Declarations, Declared, Guest, GuestLane, Invoke, Language, Loaded, Runtime, Wrong};
use crosslane_process::Source;
use mlua::{Error, Function, MultiValue, Table, Value};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt::Display;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// How to declare a function.
const EXAMPLE: &str = "udf(\"double(x BIGINT) -> BIGINT\", function(x) return 2 * x end)";
/// The text that Lua writes between a message and its traceback.
const TRACEBACK: &str = "\nstack traceback:\n";
/// Lua shortens the names of longer files.
const LONGEST_NAME: usize = 58;

/// A Lua state with a library in it.
pub(crate) struct Lua {
    pub(crate) vm: mlua::Lua,
    functions: Vec<Declared<Function>>,
    /// The library's file, and Lua's name for it.
    file: (String, String),
}

/// The error of a wrong declaration or file.
fn wrong(message: impl Display) -> Error {
    Error::external(Wrong::new("DeclarationError", message))
}

impl Lua {
    fn new() -> Self {
        // SAFETY: a user's file may load modules written in C, as in any Lua program.
        let vm = unsafe { mlua::Lua::unsafe_new() };
        Self { vm, functions: Vec::new(), file: Default::default() }
    }

    /// Runs a file. Returns its functions, and the files that were read.
    fn run(&mut self, path: &Path) -> Result<(Vec<Declared<Function>>, Vec<String>), Error> {
        let file = path.display().to_string();
        let text = fs::read(path).map_err(|error| wrong(format!("{file}: {error}")))?;
        let declarations = Declarations::new(&file, &String::from_utf8_lossy(&text), "--");
        let declarations = Rc::new(RefCell::new(Some(declarations)));
        let adding = Rc::clone(&declarations);
        let udf = self.vm.create_function(move |lua, arguments: MultiValue| {
            let line = lua.inspect_stack(1, |caller| caller.current_line()).flatten().unwrap_or(0);
            let declare = || -> Result<(), String> {
                let (signature, options, function) = match &arguments.iter().collect::<Vec<_>>()[..] {
                    [Value::String(signature), Value::Function(function)] => (signature, None, function),
                    [Value::String(signature), Value::Table(options), Value::Function(function)] => {
                        (signature, Some(options), function)
                    }
                    _ => return Err(format!("udf takes a signature, options and a function: {EXAMPLE}")),
                };
                let options = options.map(options_of).transpose()?.unwrap_or_default();
                let mut place = adding.borrow_mut();
                let declarations = place.as_mut().ok_or("udf declares functions while the file is loaded")?;
                declarations.add(&signature.to_string_lossy(), &options, line, function.clone())
            };
            declare().map_err(wrong)
        })?;
        let globals = self.vm.globals();
        globals.raw_set("udf", udf)?;
        globals.raw_set("null", Value::NULL)?;
        let folder = path.parent().unwrap_or(path).display().to_string();
        let package: Table = globals.get("package")?;
        let known: String = package.get("path")?;
        package.set("path", format!("{folder}/?.lua;{folder}/?/init.lua;{known}"))?;
        self.vm.load("io.stdout:setvbuf('line')").exec()?;
        let long = file.len() > LONGEST_NAME;
        let name =
            if long { path.file_name().unwrap_or_default().display().to_string() } else { file.clone() };
        self.file = (file, name.clone());
        self.vm.load(&text[..]).set_name(format!("@{name}")).exec()?;
        let declared = declarations.borrow_mut().take().map(|declared| declared.finish(EXAMPLE));
        let functions = declared.unwrap_or_else(|| Ok(Vec::new())).map_err(wrong)?;
        // The modules that the file has required from its own folder.
        let mut files = vec![path.display().to_string()];
        let search: Function = package.get("searchpath")?;
        for pair in package.get::<Table>("loaded")?.pairs::<Value, Value>() {
            let (module, _) = pair?;
            let found: Value = search.call((module, package.get::<Value>("path")?))?;
            files.extend(
                found
                    .as_string()
                    .map(|found| found.to_string_lossy())
                    .filter(|found| found.starts_with(&folder)),
            );
        }
        Ok((functions, files))
    }
}

/// The options of a declaration.
fn options_of(table: &Table) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    let mut options = serde_json::Map::new();
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair.map_err(|error| error.to_string())?;
        let value = match value {
            Value::Boolean(value) => value.into(),
            Value::Integer(value) => value.into(),
            Value::Number(value) => value.into(),
            Value::String(value) => value.to_string_lossy().into(),
            other => other.type_name().into(),
        };
        options.insert(name.to_string().map_err(|error| error.to_string())?, value);
    }
    Ok(options)
}

impl Invoke for Lua {
    type Callee = Function;
    type Arguments = Vec<Value>;

    fn enter(&self, _: &Function, mut work: impl FnMut(&mut Vec<Value>)) -> Result<(), Error> {
        work(&mut Vec::new());
        Ok(())
    }

    fn argument(&self, arguments: &mut Vec<Value>, value: Value) {
        arguments.push(value);
    }

    fn call(&self, function: &Function, arguments: &mut Vec<Value>) -> Result<Value, Error> {
        match arguments.len() {
            0 => function.call(()),
            1 => function.call(arguments.pop()),
            _ => function.call(MultiValue::from_vec(std::mem::take(arguments))),
        }
    }
}

impl Language for Lua {
    fn describe(&self, error: Error) -> Result<Failure, Error> {
        Ok(self.failure(&error))
    }

    fn limited<R>(&self, bytes: u64, work: impl FnOnce() -> R) -> R {
        let limit = self.vm.used_memory().saturating_add(bytes as usize);
        let _ = self.vm.set_memory_limit(limit);
        let result = work();
        let _ = self.vm.set_memory_limit(0);
        // A call that reached its limit may leave garbage. It is collected, because the next limit
        // counts from the memory in use.
        if self.vm.used_memory() > limit - bytes as usize / 2 {
            let _ = self.vm.gc_collect();
        }
        result
    }
}

impl Lua {
    /// An error as the engine's users should read it.
    fn failure(&self, error: &Error) -> Failure {
        let (class, text) = match error {
            Error::RuntimeError(text) => ("Error", text.clone()),
            Error::SyntaxError { message, .. } => ("SyntaxError", message.clone()),
            Error::MemoryError(text) => ("MemoryError", text.clone()),
            Error::CallbackError { traceback, cause } => {
                let failure = self.failure(cause);
                let traceback =
                    if failure.traceback.is_empty() { self.places(traceback) } else { failure.traceback };
                return Failure { traceback, ..failure };
            }
            Error::ExternalError(error) => match error.downcast_ref::<Wrong>() {
                Some(wrong) => (wrong.class, wrong.message.clone()),
                None => ("Error", error.to_string()),
            },
            other => ("Error", other.to_string()),
        };
        let (message, traceback) = text.split_once(TRACEBACK).unwrap_or((&text, ""));
        // The first place in a file is the place of the error. Lua also puts it before the message.
        let place =
            traceback.lines().find_map(|line| line.trim().split_once(": in ").filter(|(at, _)| *at != "[C]"));
        let place = place.map(|(place, _)| format!("{place}: "));
        let message = place.and_then(|place| message.strip_prefix(&place)).unwrap_or(message);
        let traceback = self.places(traceback);
        Failure { class: class.into(), message: message.into(), traceback, ..Failure::default() }
    }

    /// The places in users' files of Lua's traceback.
    fn places(&self, text: &str) -> String {
        let (path, name) = &self.file;
        crosslane_guest::traceback(text.lines().filter_map(|line| {
            let mut parts = line.trim().splitn(3, ':');
            let (file, line) = (parts.next()?, parts.next()?.parse().ok()?);
            // The rest of the line is such as: in function 'name', in local 'name', in upvalue
            // 'name', in function <file:line>.
            let function = parts.next().and_then(|rest| rest.split('\'').nth(1));
            Some((if file == name { path } else { file }, line, function))
        }))
    }
}

impl Guest for Lua {
    fn runtime(&self) -> String {
        let version: String = self.vm.globals().get("_VERSION").unwrap_or_default();
        version
    }

    fn load(&mut self, source: &Source, _: Option<&OwnedFd>) -> Result<Loaded, Failure> {
        let Source::File { path } = source else {
            return Err(self.failure(&wrong("a Lua library is a file")));
        };
        let (functions, files) = self.run(path).map_err(|error| self.failure(&error))?;
        self.functions = functions;
        Ok(Loaded::new(&self.functions, &files))
    }

    fn reads(&mut self, _: Option<&OwnedFd>) -> Result<Runtime, Failure> {
        // Lua's own folders for modules are below those that all programs may read.
        Ok(Runtime { sources: ["lua", "so"].map(String::from).to_vec(), ..Runtime::default() })
    }

    fn note_variables(&mut self) -> Result<(), Failure> {
        let noted = || -> Result<(), Error> {
            let os: Table = self.vm.globals().get("os")?;
            let getenv: Function = os.get("getenv")?;
            let noting = self.vm.create_function(move |_, name: mlua::String| {
                crosslane_guest::note_variable(OsStr::from_bytes(&name.as_bytes()));
                getenv.call::<Value>(name)
            })?;
            os.set("getenv", noting)
        };
        noted().map_err(|error| self.failure(&error))
    }

    fn settle(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        let _ = self.vm.gc_collect();
        Ok(())
    }

    fn begin(&mut self) -> io::Result<()> {
        // Each lane has random numbers of its own.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i64);
        let seed = self.vm.load("math.randomseed(...)").into_function();
        let _ = seed.and_then(|seed| seed.call::<()>((now, std::process::id())));
        Ok(())
    }

    fn serve(&mut self, memory: OwnedFd, socket: OwnedFd, spin: Duration) -> io::Result<()> {
        // SAFETY: the engine sent them for this lane, which is opened here alone.
        let mut lane = unsafe { GuestLane::open(memory, socket, spin) }?;
        let served = crosslane_guest::serve(self, &self.functions, &mut lane);
        served.map_err(|error| io::Error::other(error.to_string()))
    }
}

fn main() -> ExitCode {
    crosslane_guest::main(Lua::new())
}
