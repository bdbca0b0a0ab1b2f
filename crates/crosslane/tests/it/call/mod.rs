//! Calls over fake lanes.

mod budget;
mod fake;
mod losses;
mod once;
mod paced;
mod slices;
