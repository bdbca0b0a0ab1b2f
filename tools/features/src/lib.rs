//! Nothing. It asks for the features of other crates that a full build has: where the demo is built with them, a full build compiles none
//! of these crates again, nor those that depend on them. It asks for the same features of what build scripts use, and so one build serves both;
//! and for crates that in a full build the server needs too: Cargo builds in another way what only build scripts need.
