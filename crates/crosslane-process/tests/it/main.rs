//! The integration tests of process lanes that may run at the same time. They are one program, so that
//! they are linked once. Tests that must run alone are in `alone`.

mod aggregate;
mod garbage;
mod iterate;
mod lane;
mod large;
mod map;
mod mixed;
mod scan;
mod set_up;
