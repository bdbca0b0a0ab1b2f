//! The zygote: what Python adds to the zygote of `crosslane_guest` (`crosslane/_worker/zygote.py`).

use crate::lane::describe;
use crate::serve;
use crosslane::Failure;
use crosslane_guest::{Guest, Loaded, Runtime};
use crosslane_process::{Files, Source};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::time::Duration;

/// Runs as a zygote, with an object of `crosslane._worker.zygote` and the words behind its command.
///
/// Raises the exceptions of the library's own signal handlers.
#[pyfunction]
pub(crate) fn zygote(guest: Bound<'_, PyAny>, arguments: Vec<String>) -> PyResult<()> {
    Ok(crosslane_guest::live(&mut Python { guest }, &arguments)?)
}

struct Python<'py> {
    /// The object of `crosslane._worker.zygote`.
    guest: Bound<'py, PyAny>,
}

impl Python<'_> {
    /// An exception as the engine's users should read it.
    fn failure(&self, error: PyErr) -> Failure {
        describe(self.guest.py(), error).unwrap_or_else(|error| Failure {
            class: "Error".into(),
            message: error.to_string(),
            ..Failure::default()
        })
    }

    fn try_load(&self, source: &Source, pickles: Option<&OwnedFd>) -> PyResult<Loaded> {
        let pickles = pickles.map(AsRawFd::as_raw_fd);
        let name = intern!(self.guest.py(), "load");
        let (functions, files): (String, Option<BTreeMap<String, String>>) =
            self.guest.call_method1(name, (source.name(), pickles))?.extract()?;
        let functions =
            serde_json::from_str(&functions).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Loaded { functions, files: files.map(Files::from) })
    }
}

impl Guest for Python<'_> {
    const FORK: &'static str = "os.fork";

    fn runtime(&self) -> String {
        let version = self.guest.py().version_info();
        format!("Python {}.{}.{}", version.major, version.minor, version.patch)
    }

    fn load(&mut self, source: &Source, pickles: Option<&OwnedFd>) -> Result<Loaded, Failure> {
        self.try_load(source, pickles).map_err(|error| self.failure(error))
    }

    fn reads(&mut self, pickles: Option<&OwnedFd>) -> Result<Runtime, Failure> {
        let pickles = pickles.map(AsRawFd::as_raw_fd);
        let reads = self.guest.call_method1(intern!(self.guest.py(), "reads"), (pickles,));
        let (packages, modules) =
            reads.and_then(|reads| reads.extract()).map_err(|error| self.failure(error))?;
        Ok(Runtime {
            packages,
            modules,
            sources: ["py", "pyc", "so"].map(String::from).to_vec(),
            ..Runtime::default()
        })
    }

    fn note_variables(&mut self) -> Result<(), Failure> {
        let noting = self.guest.call_method0(intern!(self.guest.py(), "note_variables"));
        noting.map(drop).map_err(|error| self.failure(error))
    }

    fn elsewhere(&mut self, source: &Source) -> Result<Option<Vec<OsString>>, Failure> {
        let Source::File { .. } = source else { return Ok(None) };
        let command = self.guest.call_method1(intern!(self.guest.py(), "elsewhere"), (source.name(),));
        command.and_then(|command| command.extract()).map_err(|error| self.failure(error))
    }

    fn open_streams(&mut self) -> Result<(), Failure> {
        let opened = self.guest.call_method0(intern!(self.guest.py(), "open_streams"));
        opened.map(drop).map_err(|error| self.failure(error))
    }

    fn lost_threads(&mut self) -> Result<Vec<String>, Failure> {
        let lost = self.guest.call_method0(intern!(self.guest.py(), "lost_threads"));
        lost.and_then(|lost| lost.extract()).map_err(|error| self.failure(error))
    }

    fn import(&mut self, modules: &[String]) -> io::Result<()> {
        self.guest.call_method1(intern!(self.guest.py(), "import_modules"), (modules.to_vec(),))?;
        Ok(())
    }

    fn command(&self) -> Vec<OsString> {
        let command = self.guest.call_method0(intern!(self.guest.py(), "command"));
        command.and_then(|words| words.extract()).unwrap_or_default()
    }

    fn settle(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        self.guest.call_method1(intern!(self.guest.py(), "settle"), (bell.as_raw_fd(),))?;
        Ok(())
    }

    fn wait(&mut self, fds: [BorrowedFd<'_>; 2]) -> io::Result<[bool; 2]> {
        let py = self.guest.py();
        let ready = py.detach(|| crosslane_guest::readable(fds))?;
        py.check_signals()?;
        Ok(ready)
    }

    fn fork(&mut self) -> io::Result<i32> {
        Ok(self.guest.call_method0(intern!(self.guest.py(), "fork"))?.extract::<i32>()?)
    }

    fn set_environment(&mut self, variables: &BTreeMap<String, String>) -> io::Result<()> {
        if !variables.is_empty() {
            // Python's `os.environ` sets the variables of the process, too.
            let environment = self.guest.py().import("os")?.getattr("environ")?;
            environment.call_method1("update", (variables,))?;
        }
        Ok(())
    }

    fn begin(&mut self) -> io::Result<()> {
        let tells_stack: bool = self.guest.call_method0(intern!(self.guest.py(), "begin"))?.extract()?;
        if tells_stack {
            crosslane_process::guest::tells_stack();
        }
        Ok(())
    }

    fn serve(&mut self, memory: OwnedFd, socket: OwnedFd, spin: Duration) -> io::Result<()> {
        let (memory, socket) = (memory.into_raw_fd(), socket.into_raw_fd());
        let functions = self.guest.getattr(intern!(self.guest.py(), "functions"))?.extract()?;
        Ok(serve::serve(self.guest.py(), memory, socket, functions, spin.as_micros() as u64)?)
    }

    fn explain(&mut self, error: io::Error) -> i32 {
        let py = self.guest.py();
        let explained = self.guest.call_method1(intern!(py, "explain"), (PyErr::from(error).into_value(py),));
        explained.and_then(|code| code.extract()).unwrap_or(1)
    }

    fn flush(&mut self) {
        let _ = self.guest.call_method0(intern!(self.guest.py(), "flush"));
    }
}
