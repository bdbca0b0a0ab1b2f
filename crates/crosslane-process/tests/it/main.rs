//! The integration tests of process lanes that may run at the same time, in one program, which is linked once. Those that may
//! not are in `alone`.

mod aggregate;
mod garbage;
mod iterate;
mod lane;
mod large;
mod map;
mod mixed;
mod scan;
mod set_up;
