//! The zygote: `crosslane_guest` with the Ruby code of `crosslane/worker/zygote.rb`.

use crate::errors::{argument_error, io_error};
use crate::lane::failure::describe;
use crate::lane::poll::poll;
use crate::worker::serve;
use crosslane::Failure;
use crosslane_guest::{Guest, Loaded, Runtime};
use crosslane_gvl::{Unwind, constant};
use crosslane_process::Source;
use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use magnus::{Error, TryConvert, Value};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Runs a zygote's process, with its `Crosslane::Zygote` and the arguments of its command.
pub(crate) fn zygote(half: Value, arguments: Vec<String>) -> Result<(), Error> {
    let mut guest = Ruby { half, raised: None };
    let lived = crosslane_guest::live(&mut guest, &arguments);
    // If an exception of Ruby ended the process's work, it is raised again.
    lived.map_err(|error| guest.raised.unwrap_or_else(|| io_error(error)))
}

/// Tells the recorder of the engine that a variable of the environment is read.
pub(crate) fn note_variable(name: String) {
    crosslane_guest::note_variable(name.as_ref());
}

/// Stays on the stack, where the collector finds its objects.
struct Ruby {
    /// The `Crosslane::Zygote`.
    half: Value,
    /// The exception of Ruby code that ends this process.
    raised: Option<Error>,
}

impl Ruby {
    /// Stores the exception until the process ends.
    fn ends<T>(&mut self, result: Result<T, Error>) -> io::Result<T> {
        result.map_err(|error| {
            let text = error.to_string();
            self.raised = Some(error);
            io::Error::other(text)
        })
    }

    /// Describes the exception for the engine's users.
    fn fails<T>(&mut self, result: Result<T, Error>) -> Result<T, Failure> {
        let described = |error| describe(Unwind::from(error), false);
        result.map_err(|error| {
            described(error).unwrap_or_else(|unwind| {
                let error = Error::from(unwind);
                let message = error.to_string();
                self.raised = Some(error);
                Failure { class: "Error".into(), message, ..Failure::default() }
            })
        })
    }

    fn call<T: TryConvert>(&self, method: &str) -> Result<T, Error> {
        self.half.funcall(method, ())
    }

    fn try_load(&self, source: &Source) -> Result<Loaded, Error> {
        let Source::File { path } = source else {
            return Err(Error::new(constant("Crosslane::DeclarationError")?, "a Ruby library is a file"));
        };
        let loaded = self.half.funcall("load", (path.display().to_string(),))?;
        let (functions, files): (String, HashMap<String, String>) = loaded;
        let functions = serde_json::from_str(&functions).map_err(argument_error)?;
        Ok(Loaded { functions, files: Some(files.into_iter().collect::<BTreeMap<_, _>>().into()) })
    }
}

impl Guest for Ruby {
    const FORK: &'static str = "Process.fork";
    // Ruby's waits for children (`system`) need Ruby's own handler of SIGCHLD. This is so in hooks
    // of forks, too.
    const SIGNALS: &'static [libc::c_int] = &[libc::SIGINT];

    fn runtime(&self) -> String {
        self.call("runtime").unwrap_or_default()
    }

    fn load(&mut self, source: &Source, _: Option<&OwnedFd>) -> Result<Loaded, Failure> {
        let loaded = self.try_load(source);
        self.fails(loaded)
    }

    fn reads(&mut self, _: Option<&OwnedFd>) -> Result<Runtime, Failure> {
        let reads = self.call::<(Vec<String>, Vec<String>)>("reads");
        let (packages, modules) = self.fails(reads)?;
        let [packages, modules] =
            [packages, modules].map(|paths| paths.into_iter().map(PathBuf::from).collect());
        Ok(Runtime {
            packages,
            modules,
            sources: ["rb", "so"].map(String::from).to_vec(),
            ..Runtime::default()
        })
    }

    fn note_variables(&mut self) -> Result<(), Failure> {
        let noting = self.call::<Value>("note_variables");
        self.fails(noting.map(drop))
    }

    fn open_streams(&mut self) -> Result<(), Failure> {
        let opened = self.call::<Value>("open_streams");
        self.fails(opened.map(drop))
    }

    fn lost_threads(&mut self) -> Result<Vec<String>, Failure> {
        let lost = self.call("lost_threads");
        self.fails(lost)
    }

    fn command(&self) -> Vec<OsString> {
        let words: Vec<String> = self.call("command").unwrap_or_default();
        words.into_iter().map(OsString::from).collect()
    }

    fn settle(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let settled = self.half.funcall::<_, _, Value>("settle", (bell.as_raw_fd(),));
        self.ends(settled.map(drop))
    }

    fn wait(&mut self, fds: [BorrowedFd<'_>; 2]) -> io::Result<[bool; 2]> {
        let waited = poll(fds.iter().map(AsRawFd::as_raw_fd).collect(), Vec::new());
        let ready = self.ends(waited)?;
        Ok(fds.map(|fd| ready.contains(&fd.as_raw_fd())))
    }

    fn fork(&mut self) -> io::Result<i32> {
        let this = std::process::id();
        let forked = self.call::<Option<i32>>("fork");
        if std::process::id() == this {
            return forked.map(|pid| pid.unwrap_or(0)).map_err(|error| io::Error::other(error.to_string()));
        }
        self.ends(forked).map(|_| 0)
    }

    fn begin(&mut self) -> io::Result<()> {
        let begun = self.call::<bool>("begin");
        if self.ends(begun)? {
            crosslane_process::guest::tells_stack();
        }
        Ok(())
    }

    fn serve(&mut self, memory: OwnedFd, socket: OwnedFd, spin: Duration) -> io::Result<()> {
        let served = self.call("functions").and_then(|functions| {
            let [memory, socket] = [memory, socket].map(IntoRawFd::into_raw_fd);
            serve::serve(memory, socket, functions, spin.as_micros() as u64, false)
        });
        self.ends(served)
    }

    fn explain(&mut self, error: io::Error) -> i32 {
        let raised = self.raised.take().unwrap_or_else(|| io_error(error));
        let Unwind::Raise(exception) = Unwind::from(raised) else { return 1 };
        // SAFETY: the exception lies on this stack.
        let exception = unsafe { Value::from_raw(exception) };
        self.half.funcall("explain", (exception,)).unwrap_or(1)
    }

    fn flush(&mut self) {
        let _ = self.call::<Value>("flush");
    }
}
