//! The library that runs the JavaScript host in place of Node ([`crosslane_js::start`]).

crosslane_js::main_in_node!(crosslane_js::host::main);
