//! What boots the lanes of a library: those of all functions, and those of functions that have lanes
//! of their own (`workers`). All share one process.

use super::devices::{Devices, Visible};
use super::process::{Loaded, Parent, ZygoteOptions};
use crate::lane::ProcessLane;
use crosslane::pool::{self, Reserved, SetUp, Stop};
use crosslane::{Error, Failure, Function};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The functions whose lanes a zygote boots.
#[derive(Debug)]
enum Lanes {
    /// Those that have no lanes of their own.
    Shared,
    /// This one, on these GPUs if it wants any.
    Own(u32, Option<Devices>),
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
        Ok((Self { parent: Arc::new(Mutex::new(parent)), lanes: Lanes::Shared }, loaded))
    }

    fn parent(&self) -> MutexGuard<'_, Parent> {
        self.parent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first function of each declaration with lanes of its own, and the numbers of all of them. A
/// declaration gives several functions if it has defaults.
fn declarations(functions: &[Arc<Function>]) -> Vec<(&Function, Vec<u32>)> {
    let mut found: Vec<(&Function, Vec<u32>)> = Vec::new();
    for function in functions.iter().filter(|function| function.has_own_lanes()) {
        let is_same = |other: &Function| {
            let place = |function: &Function| (function.spec.line, function.spec.file.clone());
            other.name() == function.name() && place(other) == place(function)
        };
        match found.iter_mut().find(|(other, _)| is_same(other)) {
            Some((_, numbers)) => numbers.push(function.index),
            None => found.push((function, vec![function.index])),
        }
    }
    found
}

/// The GPUs of a function's lanes, if it wants any.
fn devices(function: &Function, is_thread: bool) -> Result<Option<Devices>, Error> {
    let Some(each) = function.spec.gpus else { return Ok(None) };
    let devices = if is_thread {
        Err("gpus is for worker processes, and its workers are threads of this program".to_owned())
    } else {
        Devices::share(Visible::find(), each)
    };
    devices.map(Some).map_err(|message| Error::Load {
        library: function.spec.file.clone(),
        failure: Box::new(Failure {
            class: "DeclarationError".into(),
            message: format!("function {}: {message}", function.name()),
            traceback: format!("  at {}:{}", function.spec.file, function.spec.line),
            ..Failure::default()
        }),
    })
}

impl pool::Zygote for Zygote {
    type Lane = ProcessLane;

    fn boot(&mut self) -> Result<ProcessLane, Error> {
        let mut parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner);
        let Lanes::Own(_, Some(devices)) = &mut self.lanes else { return parent.boot(&BTreeMap::new()) };
        let (share, environment) = devices.next();
        let lane = parent.boot(&environment)?;
        devices.give(share, lane.record());
        Ok(lane)
    }

    fn set_up(&self) -> Option<SetUp> {
        let parent = self.parent();
        let only = if let Lanes::Own(function, _) = self.lanes { Some(function) } else { None };
        let is_ours = |function: &&Arc<Function>| match only {
            Some(number) => function.index == number,
            None => !function.has_own_lanes(),
        };
        let stateful = parent.functions().iter().filter(|function| function.spec.set_up).filter(is_ours);
        let named = stateful.map(|one| format!("{} ({}:{})", one.name(), one.spec.file, one.spec.line));
        let functions: Vec<_> = named.collect();
        (!functions.is_empty()).then(|| SetUp {
            functions: functions.join(", "),
            only,
            limit: parent.load_timeout(),
        })
    }

    fn reserved(&self) -> Result<Vec<(Reserved, Self)>, Error> {
        let parent = self.parent();
        let own = declarations(parent.functions()).into_iter().map(|(function, functions)| {
            let devices = devices(function, parent.is_thread())?;
            let most = function
                .spec
                .workers
                .map_or_else(|| devices.as_ref().map_or(1, Devices::count), |workers| workers as usize);
            let lanes = Lanes::Own(function.index, devices);
            Ok((Reserved { functions, most }, Self { parent: Arc::clone(&self.parent), lanes }))
        });
        own.collect()
    }
}
