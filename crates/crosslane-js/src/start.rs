//! Runs a library's `main` in Node's program, for its V8.
//!
//! Node's program exports the whole C++ interface of its V8. The dynamic loader loads the library before
//! that program (`LD_PRELOAD`). The program's first function asks the C library to run the program's `main`,
//! by a function that the library defines, too ([`main_in_node`]). It runs the library's `main` instead. So
//! nothing of Node runs: no isolate, no thread, and nothing reads its options from the environment.

use crate::isolate;
use crosslane_process::control::ControlSocket;
use std::ffi::{c_char, c_int, c_void};
use std::io::Write;
use std::mem::transmute;
use std::os::fd::{FromRawFd, OwnedFd};

/// A main function in C.
pub type Main = extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
/// A function that runs before `main` or after it.
pub type Hook = Option<extern "C" fn()>;
/// The type of the C library's function.
pub type Start = unsafe extern "C" fn(Main, c_int, *mut *mut c_char, Hook, Hook, Hook, *mut c_void) -> c_int;

/// V8's function that returns its version, as the linker names it.
const VERSION: &std::ffi::CStr = c"_ZN2v82V810GetVersionEv";

/// Where a descriptor is a path, of a library whose own path cannot be in a list.
const OWN: &str = "/proc/self/fd/";

/// Defines the C library's function `__libc_start_main` in a library that is loaded before Node's program. It
/// runs this `main`, a `fn() -> c_int`, in place of Node's.
#[macro_export]
macro_rules! main_in_node {
    ($main:expr) => {
        /// # Safety
        /// Only the first function of a program calls it.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn __libc_start_main(
            program: $crate::start::Main,
            count: ::std::ffi::c_int,
            arguments: *mut *mut ::std::ffi::c_char,
            init: $crate::start::Hook,
            fini: $crate::start::Hook,
            loader_fini: $crate::start::Hook,
            stack_end: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            extern "C" fn in_place_of_main(
                _: ::std::ffi::c_int,
                _: *mut *mut ::std::ffi::c_char,
                _: *mut *mut ::std::ffi::c_char,
            ) -> ::std::ffi::c_int {
                $crate::start::run($main)
            }
            let (start, main) = $crate::start::start_of(in_place_of_main, program);
            // SAFETY: the first function of the program has passed these.
            unsafe { start(main, count, arguments, init, fini, loader_fini, stack_end) }
        }
    };
}

/// Returns the C library's own `__libc_start_main`, and the function that it must run: `main` if the program
/// has a V8. Another program, such as a script that starts Node, runs as it is, and hands this library on.
pub fn start_of(main: Main, program: Main) -> (Start, Main) {
    // SAFETY: the C library's function has this type, and the loader has found it for this program before.
    unsafe {
        let start: Start = transmute(libc::dlsym(libc::RTLD_NEXT, c"__libc_start_main".as_ptr()));
        let has_v8 = !libc::dlsym(libc::RTLD_DEFAULT, VERSION.as_ptr()).is_null();
        (start, if has_v8 { main } else { program })
    }
}

/// Runs `main` as the program, if Node's V8 is the one for which this was compiled. Returns the exit code.
pub fn run(main: fn() -> c_int) -> c_int {
    // The types of V8's functions differ from version to version.
    let (version, expected) = (isolate::version(), isolate::built_for());
    if !version.starts_with(&format!("{expected}.")) {
        let why = format!(
            "this Node.js has V8 {version}, and JavaScript functions need V8 {expected}, of Node.js 24: \
             pip install 'crosslane[javascript]', or put Node.js 24 on PATH, or set CROSSLANE_NODE to its program"
        );
        if std::env::args_os().nth(2).is_some_and(|argument| argument == "context") {
            let _ = writeln!(std::io::stdout(), "{why}");
            return 1;
        }
        eprintln!("crosslane-js: {why}");
        // SAFETY: nothing has used the descriptor. It is the control socket, if an engine started this.
        let _ = unsafe { ControlSocket::inherited() }.and_then(|control| control.refuse(&why));
        return 1;
    }
    if let Some(library) =
        std::env::var("LD_PRELOAD").ok().and_then(|path| path.strip_prefix(OWN)?.parse().ok())
    {
        // SAFETY: the program that started this one opened the descriptor for the loader, and nothing else.
        drop(unsafe { OwnedFd::from_raw_fd(library) });
    }
    // SAFETY: no other thread runs yet. The calls change this process only.
    unsafe {
        std::env::remove_var("LD_PRELOAD");
        // As the main function of a program in Rust does.
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::prctl(libc::PR_SET_NAME, c"crosslane-js".as_ptr());
    }
    main()
}
