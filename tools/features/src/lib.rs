//! Does nothing. It selects the features of other crates that a full build has. So a full build
//! after the demo compiles neither these crates again nor those that depend on them. It selects the
//! same features for build scripts, so that one build of a crate serves both. It also names crates
//! that the server needs in a full build, because Cargo builds crates for build scripts alone in
//! another way.
