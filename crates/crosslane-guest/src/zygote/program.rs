//! The program of a guest. It is a zygote, or checks a file.

use super::control::control_socket;
use super::fork_server;
use super::guest::Guest;
use super::lanes::Zygote;
use super::load::{identity, load};
use super::log::say;
use super::restart::{INSTEAD, RESTARTED, Restart, become_program, read_restart, restart};
use super::sandbox::{Restrictions, own_sandboxes, restrict};
use super::threads::lost_threads_note;
use crosslane::{Failure, Net, Sandbox, Settings, TypeNames};
use crosslane_process::control::{ControlSocket, Report, Request};
use crosslane_process::{Source, guests, reaper};
use crosslane_sandbox::LaneFilter;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

/// The word before the name of a file that is checked.
const CHECK: &str = "check";

/// Runs a guest's program. Without arguments it is a zygote. `check FILE` prints the functions of a
/// file, as JSON in the last line. `version` prints the name and version of the runtime.
pub fn main(mut guest: impl Guest) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] | [RESTARTED | INSTEAD | CHECK, _] => live(&mut guest, &arguments),
        ["version"] => {
            println!("{}", guest.runtime());
            Ok(())
        }
        _ => Err(io::Error::other("use: with a control socket as descriptor 3, or: check FILE, or: version")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            ExitCode::FAILURE
        }
    }
}

/// Runs as a zygote in a language's own program, with the words behind [`Guest::command`], or
/// checks a file as [`main`] does.
///
/// # Errors
/// If the engine broke the protocol, or the library does not let the zygote work.
pub fn live(guest: &mut impl Guest, arguments: &[String]) -> io::Result<()> {
    let outcome = match arguments {
        [word, descriptor] if word == RESTARTED => {
            read_restart(descriptor).and_then(|state| run_restarted(guest, state))
        }
        [word, descriptor] if word == INSTEAD => {
            read_restart(descriptor).and_then(|state| run_instead(guest, state))
        }
        [word, path] if word == CHECK => check(guest, path.into()),
        _ => run(guest),
    };
    match outcome {
        // The engine has ended, so no process reads the error.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(())
        }
        outcome => outcome,
    }
}

fn run(guest: &mut impl Guest) -> io::Result<()> {
    // From here on this is a child of the process that the engine started. That process kills
    // everything that is left in the end.
    reaper::supervise(|| guest.fork())?;
    let control = control_socket()?;
    let mut first = control.receive()?;
    if let Some((Request::Zygote { modules }, descriptors)) = first {
        if !fork_server::serve(guest, &control, (modules, descriptors))? {
            return Ok(());
        }
        reaper::supervise(|| guest.fork())?;
        first = control.receive()?;
    }
    let Some((Request::Load { source, types, sandbox, .. }, descriptors)) = first else { return Ok(()) };
    let mut descriptors = descriptors.into_iter();
    let pickles = matches!(source, Source::Pickle { .. }).then(|| descriptors.next()).flatten();
    let connections = descriptors.next();
    // What is made for a file runs code of packages. The engine starts a library for which that is done
    // already in its own program.
    let elsewhere = if sandbox.is_some() { Ok(None) } else { guest.elsewhere(&source) };
    let failure = match elsewhere {
        Ok(None) => return run_library(guest, control, source, types, pickles, sandbox, connections),
        Ok(Some(words)) => {
            let state = Restart { source, types, pickles: None, loaded: String::new(), sandbox };
            let why = become_program(guest, &words, INSTEAD, state, pickles.as_ref(), |_| {});
            let program = words.first().map(|word| word.display().to_string()).unwrap_or_default();
            Failure { class: "OSError".into(), message: format!("{program}: {why}"), ..Failure::default() }
        }
        Err(failure) => failure,
    };
    control.send(&Report::Failed { failure })
}

/// Runs in place of a zygote that has read the request to load a library.
fn run_instead(guest: &mut impl Guest, mut state: Restart) -> io::Result<()> {
    let pickles = state.take_pickles()?;
    run_library(guest, control_socket()?, state.source, state.types, pickles, state.sandbox, None)
}

fn run_library(
    guest: &mut impl Guest,
    control: ControlSocket,
    source: Source,
    types: TypeNames,
    pickles: Option<OwnedFd>,
    sandbox: Option<Sandbox>,
    connections: Option<OwnedFd>,
) -> io::Result<()> {
    let reads = |guest: &mut _| {
        let mut runtime = Guest::reads(guest, pickles.as_ref())?;
        // A library that has started threads makes the zygote start itself again.
        runtime.programs.extend(std::env::current_exe());
        Ok(runtime)
    };
    let library = match restrict(sandbox.as_ref(), &source, || reads(guest), connections) {
        Ok(library) => library,
        Err(failure) => return control.send(&Report::Failed { failure }),
    };
    types.clone().know();
    let environment: Vec<_> = std::env::vars_os().filter(|(name, _)| name != reaper::ZYGOTE).collect();
    let folder = std::env::current_dir();
    let noting = if is_recorded(sandbox.as_ref()) { guest.note_variables() } else { Ok(()) };
    let loaded = noting.and_then(|()| load(guest, &source, pickles.as_ref()));
    let prepared = loaded.and_then(|loaded| {
        let lost = lost_threads(guest, &source, sandbox.as_ref())?;
        let own = match is_recorded(sandbox.as_ref()) {
            true => HashMap::new(),
            false => own_sandboxes(&loaded.functions, sandbox.as_ref(), &source, || reads(guest))?,
        };
        match lost.is_empty() || own.is_empty() {
            true => Ok((loaded, lost, own)),
            false => {
                let why = "where a function has a sandbox of its own, which forbids that";
                Err(refused_threads(&source, &lost, why))
            }
        }
    });
    let (loaded, lost, own) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => return control.send(&Report::Failed { failure }),
    };
    let files = loaded.files.clone();
    let what = identity(&loaded);
    let (functions, runtime) = (loaded.functions, guest.runtime());
    control.send(&Report::Loaded {
        functions,
        runtime,
        files,
        reloads: !lost.is_empty(),
        sandboxed: library.is_some(),
    })?;
    if !lost.is_empty() {
        say(format_args!("{}: {}.", source.name(), lost_threads_note(&lost)));
        let state = Restart { source, types, pickles: None, loaded: what, sandbox };
        restart(guest, state, pickles.as_ref(), environment, folder.ok());
        // The restart failed. Forks may be good enough.
    }
    drop(pickles);
    Zygote::new(control, None, Restrictions { library, own })?.serve(guest)
}

fn run_restarted(guest: &mut impl Guest, mut state: Restart) -> io::Result<()> {
    let pickles = state.take_pickles()?;
    state.types.know();
    // This program is in the sandbox already.
    let library = state.sandbox.as_ref().map(LaneFilter::new).transpose().map_err(io::Error::other)?;
    let restrictions = Restrictions { library, ..Restrictions::default() };
    match &state.sandbox {
        Some(Sandbox { recorded: true, .. }) => {
            guest.note_variables().map_err(|failure| io::Error::other(failure.to_string()))?;
        }
        Some(sandbox) => crosslane_process::guest::is_sandboxed(sandbox.strict),
        None => {}
    }
    let reloaded = Some((state.source, pickles, state.loaded));
    Zygote::new(control_socket()?, reloaded, restrictions)?.serve(guest)
}

fn is_recorded(sandbox: Option<&Sandbox>) -> bool {
    sandbox.is_some_and(|sandbox| sandbox.recorded)
}

/// The names of the threads that the library has started.
fn lost_threads(
    guest: &mut impl Guest,
    source: &Source,
    sandbox: Option<&Sandbox>,
) -> Result<Vec<String>, Failure> {
    let lost = guest.lost_threads()?;
    match !lost.is_empty() && sandbox.is_some_and(|sandbox| sandbox.strict) {
        true => Err(refused_threads(source, &lost, "which a strict sandbox forbids")),
        false => Ok(lost),
    }
}

/// The failure of a library whose lanes load it themselves, if that is not possible.
fn refused_threads(source: &Source, lost: &[String], why: &str) -> Failure {
    let (name, note) = (source.name(), lost_threads_note(lost));
    let message = format!("each worker would load {name} itself, {why}: {note}");
    Failure { class: "SandboxError".into(), message, ..Failure::default() }
}

/// Prints the functions of a file, or why it cannot be loaded, as JSON in one line. The output of
/// the file itself goes to stderr. A file that asks for a sandbox is loaded in it, without a network.
fn check(guest: &mut impl Guest, path: PathBuf) -> io::Result<()> {
    let mut answer = File::from(rustix::io::dup(rustix::stdio::stdout())?);
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    let path = fs::canonicalize(&path).unwrap_or(path);
    let source = Source::File { path };
    let asked = guests::settings_of(&source, Settings::default()).map(|settings| settings.sandbox());
    let asked = asked.map_err(|error| Failure { message: error.to_string(), ..Failure::default() });
    let (sandbox, restricted) = match asked {
        Ok(sandbox) => {
            let alone = sandbox.clone().map(|sandbox| Sandbox { net: Net::Nothing, ..sandbox });
            let restricted = restrict(alone.as_ref(), &source, || guest.reads(None), None);
            (sandbox, restricted)
        }
        Err(failure) => (None, Err(failure)),
    };
    let loaded = restricted.and_then(|_| load(guest, &source, None));
    let lost = loaded.and_then(|loaded| {
        let lost = lost_threads(guest, &source, sandbox.as_ref())?;
        own_sandboxes(&loaded.functions, sandbox.as_ref(), &source, || guest.reads(None))?;
        Ok((loaded, lost))
    });
    let json = match lost {
        Ok((loaded, lost)) => serde_json::json!({ "functions": loaded.functions, "lost": lost }),
        Err(failure) => serde_json::json!({ "failure": failure }),
    };
    guest.flush();
    writeln!(answer, "{json}")
}
