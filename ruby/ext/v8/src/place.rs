//! Where a context runs: in this program, or in a process of its own.

use crate::stack;
use crate::watch::Ends;
use crosslane_js::embed::process::{Failed, Process};
use crosslane_js::embed::{self, Program, Refused, Script};
use crosslane_js::isolate::{Snapshot, Thrown};
use std::path::PathBuf;
use std::sync::Arc;

/// A snapshot. Each V8 can only use its own.
#[derive(Clone)]
pub(crate) enum Made {
    Here(Arc<Snapshot>),
    /// Its bytes, and the program of the processes.
    InProcess(Arc<Vec<u8>>, PathBuf),
}

impl Made {
    /// Runs a script for a snapshot.
    pub(crate) fn of(
        script: (&str, &str),
        program: Program,
        host: Option<PathBuf>,
        started: &dyn Fn(Arc<dyn Ends>),
    ) -> Result<Self, Failed> {
        let Some(host) = host else {
            let here = Snapshot::of_script(here(script), program, |handle| started(handle.clone()));
            return here.map(|made| Self::Here(Arc::new(made))).map_err(refused);
        };
        let bytes = Process::build(&host, &[], script, &*program, |ender| started(ender.clone()))?;
        Ok(Self::InProcess(Arc::new(bytes), host))
    }

    /// Runs a script in a context of this snapshot, which keeps the compiled code only.
    pub(crate) fn warmed_up(
        &self,
        script: (&str, &str),
        program: Program,
        started: &dyn Fn(Arc<dyn Ends>),
    ) -> Result<Self, Failed> {
        match self {
            Self::Here(cold) => {
                let warm = cold.warmed_up(here(script), program, |handle| started(handle.clone()));
                warm.map(|made| Self::Here(Arc::new(made))).map_err(refused)
            }
            Self::InProcess(cold, host) => {
                let bytes = Process::build(host, cold, script, &*program, |ender| started(ender.clone()))?;
                Ok(Self::InProcess(Arc::new(bytes), host.clone()))
            }
        }
    }

    /// The snapshot of the bytes that [`Made::dump`] returned. The process of a context checks its own.
    pub(crate) fn load(bytes: Vec<u8>, host: Option<PathBuf>) -> Result<Self, Failed> {
        match host {
            Some(host) => Ok(Self::InProcess(Arc::new(bytes), host)),
            None => Snapshot::load(&bytes).map(|made| Self::Here(Arc::new(made))).map_err(refused),
        }
    }

    pub(crate) fn dump(&self) -> Result<Vec<u8>, Failed> {
        match self {
            Self::Here(snapshot) => snapshot.dump().map_err(refused),
            Self::InProcess(bytes, _) => Ok(bytes.to_vec()),
        }
    }

    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Here(snapshot) => snapshot.bytes().len(),
            Self::InProcess(bytes, _) => bytes.len(),
        }
    }
}

fn here<'a>((source, name): (&'a str, &'a str)) -> Script<'a> {
    Script { source, name, stack: stack::left() }
}

fn refused(refused: Refused) -> Failed {
    match refused {
        Refused::Thrown(thrown) => Failed::Thrown(thrown),
        other => Failed::Refused(other.to_string()),
    }
}

/// A context, and the functions of the program that it calls.
pub(crate) enum Place {
    Here(embed::Context),
    InProcess(Process, Program),
}

impl Place {
    /// Boots a context in a process that runs `host`, or in this program. `started` gets what ends the boot
    /// of a process.
    pub(crate) fn boot(
        snapshot: Option<Made>,
        program: Program,
        memory: usize,
        host: Option<PathBuf>,
        started: &dyn Fn(Arc<dyn Ends>),
    ) -> Result<Self, Failed> {
        let other = |what: &str| Failed::Refused(format!("the snapshot was made {what} (process: true)"));
        match (host, snapshot) {
            (None, Some(Made::InProcess(..))) => Err(other("for contexts in processes of their own")),
            (Some(_), Some(Made::Here(_))) => Err(other("for contexts in this program, and not for others")),
            (None, snapshot) => {
                let snapshot =
                    snapshot.and_then(|made| if let Made::Here(made) = made { Some(made) } else { None });
                embed::Context::boot(snapshot, program, memory, stack::left())
                    .map(Self::Here)
                    .map_err(refused)
            }
            (Some(host), snapshot) => {
                let bytes = match &snapshot {
                    Some(Made::InProcess(bytes, _)) => &bytes[..],
                    _ => &[],
                };
                let process = Process::boot(&host, bytes, &*program, memory, |ender| started(ender.clone()))?;
                Ok(Self::InProcess(process, program))
            }
        }
    }

    /// What ends its calls.
    pub(crate) fn ends(&self) -> Arc<dyn Ends> {
        match self {
            Self::Here(context) => context.handle().clone(),
            Self::InProcess(process, _) => process.ender().clone(),
        }
    }

    /// Whether this process may use the context.
    pub(crate) fn is_here(&self) -> bool {
        match self {
            Self::Here(context) => context.is_here(),
            Self::InProcess(process, _) => process.is_here(),
        }
    }

    /// Whether its process runs.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Here(_) => true,
            Self::InProcess(process, _) => process.is_here() && process.is_alive(),
        }
    }

    /// Why a fork may not use the context.
    pub(crate) fn forked(&self) -> &'static str {
        match self {
            Self::Here(_) => {
                "this process was forked after the context was booted, and V8 does not survive that; \
                 boot contexts in the child only, or before V8 runs in the parent"
            }
            Self::InProcess(..) => {
                "this process was forked after the context was booted: it is the parent's; boot contexts in the child"
            }
        }
    }

    pub(crate) fn eval(&self, source: &str, name: &str) -> Result<Vec<u8>, Thrown> {
        match self {
            Self::Here(context) => context.eval(here((source, name))),
            Self::InProcess(process, program) => process.eval(source, name, &**program),
        }
    }

    pub(crate) fn invoke(&self, path: &str, arguments: &[u8]) -> Result<Vec<u8>, Thrown> {
        match self {
            Self::Here(context) => context.invoke(path, arguments, stack::left()),
            Self::InProcess(process, program) => process.invoke(path, arguments, &**program),
        }
    }

    pub(crate) fn attach(&self, path: &str, number: u32) -> Result<(), Thrown> {
        match self {
            Self::Here(context) => context.attach(path, number, stack::left()),
            Self::InProcess(process, program) => process.attach(path, number, &**program),
        }
    }

    pub(crate) fn collect(&self) -> Result<(), Thrown> {
        match self {
            Self::Here(context) => context.collect(stack::left()),
            Self::InProcess(process, program) => process.collect(&**program),
        }
    }

    pub(crate) fn heap_stats(&self) -> Result<Vec<u8>, Thrown> {
        match self {
            Self::Here(context) => context.heap_stats(stack::left()),
            Self::InProcess(process, program) => process.heap_stats(&**program),
        }
    }

    pub(crate) fn memory(&self) -> Result<usize, Thrown> {
        match self {
            Self::Here(context) => Ok(context.memory()),
            Self::InProcess(process, program) => process.memory(&**program),
        }
    }
}
