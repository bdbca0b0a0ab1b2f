//! Calls over fake lanes.

mod fake;
mod losses;
mod once;
mod paced;
mod slices;
