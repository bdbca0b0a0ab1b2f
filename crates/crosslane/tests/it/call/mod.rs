//! Calls over lanes that are made up.

mod fake;
mod losses;
mod slices;
