//! What boots the lanes of a library: those of all functions, and those of functions that have lanes
//! of their own (`workers`, `gpus`, `sandbox`). All share one process.

use super::caches;
use super::devices::{Devices, Visible};
use super::process::{Loaded, Parent, ZygoteOptions};
use crate::lane::ProcessLane;
use crosslane::pool::{self, Reserved, SetUp, Stop};
use crosslane::{Error, Function, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The functions whose lanes a zygote boots.
#[derive(Debug)]
enum Lanes {
    /// Those that have no lanes of their own.
    Shared,
    /// This one, on these GPUs if it wants any; or why it cannot have them.
    Own(u32, Result<Option<Devices>, String>),
}

/// The parent process of the lanes of one library, or of those of one function.
#[derive(Debug)]
pub struct Zygote {
    parent: Arc<Mutex<Parent>>,
    lanes: Lanes,
}

impl Zygote {
    /// Starts a zygote and waits until it has loaded its library. The calling thread must live as
    /// long as the zygote: when that thread ends, the kernel kills the zygote.
    ///
    /// # Errors
    /// [`Error::Boot`] if the interpreter does not start. [`Error::Load`] if the library does not
    /// load, or its path is not UTF-8.
    pub fn start(options: ZygoteOptions, stop: Stop) -> Result<(Self, Loaded), Error> {
        let (parent, loaded) = Parent::start(options, stop)?;
        if parent.is_thread() {
            loaded.functions.iter().try_for_each(|function| refuse_own_sandbox(function))?;
        }
        Ok((Self { parent: Arc::new(Mutex::new(parent)), lanes: Lanes::Shared }, loaded))
    }

    /// Opens the files in which the functions keep results for later programs. Only engines and servers
    /// need them.
    ///
    /// # Errors
    /// [`Error::Load`] if a file cannot be used.
    pub fn open_caches(&self) -> Result<(), Error> {
        let parent = lock(&self.parent);
        caches::open(parent.source(), parent.functions(), parent.files())
    }
}

/// Refuses a function that runs in a thread of this program, and asks for a sandbox.
///
/// # Errors
/// [`Error::Setting`] if it asks for one.
fn refuse_own_sandbox(function: &Function) -> Result<(), Error> {
    match function.spec.own_sandbox {
        None => Ok(()),
        Some(_) => Err(Error::Setting(format!(
            "{}: function {}: sandbox is for functions in worker processes, and this one runs in the threads of this \
             program",
            function.spec.place(),
            function.name()
        ))),
    }
}

/// The first function of each declaration with lanes of its own, and the numbers of all of them.
fn declarations(functions: &[Arc<Function>]) -> Vec<(&Function, Vec<u32>)> {
    let mut found: Vec<(&Function, Vec<u32>)> = Vec::new();
    for function in functions.iter().filter(|function| function.has_own_lanes()) {
        let declaration = function.declaration();
        match found.iter_mut().find(|(other, _)| other.declaration() == declaration) {
            Some((_, numbers)) => numbers.push(function.index),
            None => found.push((function, vec![function.index])),
        }
    }
    found
}

/// The GPUs of a function's lanes, if it wants any. A machine may load a function that others call,
/// as the driver of a cluster does. So it is no error of the load if there are none.
fn devices(function: &Function, is_thread: bool) -> Result<Option<Devices>, String> {
    let Some(each) = function.spec.gpus else { return Ok(None) };
    let devices = if is_thread {
        Err("gpus is for worker processes, and its workers are threads of this program".to_owned())
    } else {
        Devices::share(Visible::find(), each)
    };
    let function = || format!("{}: function {}", function.spec.place(), function.name());
    devices.map(Some).map_err(|message| format!("{}: {message}", function()))
}

impl pool::Zygote for Zygote {
    type Lane = ProcessLane;

    fn boot(&mut self) -> Result<ProcessLane, Error> {
        let mut parent = lock(&self.parent);
        let (function, devices) = match &self.lanes {
            Lanes::Shared => return parent.boot(None, &BTreeMap::new()),
            Lanes::Own(function, Ok(None)) => return parent.boot(Some(*function), &BTreeMap::new()),
            Lanes::Own(function, Ok(Some(devices))) => (*function, devices),
            Lanes::Own(_, Err(message)) => return Err(Error::Boot(message.clone())),
        };
        let share = devices.take();
        let lane = parent.boot(Some(function), &share.environment())?;
        share.give(lane.record());
        Ok(lane)
    }

    fn set_up(&self) -> Option<SetUp> {
        let parent = lock(&self.parent);
        let only = if let Lanes::Own(function, _) = self.lanes { Some(function) } else { None };
        let is_ours = |function: &&Arc<Function>| match only {
            Some(number) => function.index == number,
            None => !function.has_own_lanes(),
        };
        let stateful = parent.functions().iter().filter(|function| function.spec.set_up).filter(is_ours);
        let named = stateful.map(|one| format!("{} ({})", one.name(), one.spec.place()));
        let functions: Vec<_> = named.collect();
        (!functions.is_empty()).then(|| SetUp {
            functions: functions.join(", "),
            only,
            limit: parent.load_timeout(),
        })
    }

    fn reserved(&self) -> Vec<(Reserved, Self)> {
        let parent = lock(&self.parent);
        let own = declarations(parent.functions()).into_iter().map(|(function, functions)| {
            let devices = devices(function, parent.is_thread());
            let count = devices.as_ref().ok().and_then(Option::as_ref).map(Devices::count);
            let most = match (function.spec.workers, function.spec.gpus) {
                (Some(workers), _) => workers as usize,
                (None, Some(_)) => count.unwrap_or(1),
                (None, None) => usize::MAX,
            };
            let lanes = Lanes::Own(function.index, devices);
            (Reserved { functions, most }, Self { parent: Arc::clone(&self.parent), lanes })
        });
        own.collect()
    }
}
