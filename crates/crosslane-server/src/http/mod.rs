//! What a server shows over HTTP to people and to monitoring: its health, its metrics, and a page.

mod metrics;
mod monitor;
mod runtime;
mod service;

pub use runtime::HttpRuntime;
pub use service::{Access, Http};
