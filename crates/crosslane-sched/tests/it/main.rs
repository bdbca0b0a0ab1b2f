//! The integration tests of the scheduler that may run at the same time. They are one program, so that
//! they are linked once. Tests that must run alone are in `alone`.

mod busy;
mod dispatchers;
mod futures_io;
mod hostile;
mod tasks;
