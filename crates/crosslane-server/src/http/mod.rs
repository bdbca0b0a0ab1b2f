//! What a server shows over HTTP to people and to monitoring: its health, its metrics, a page, and
//! traces.

mod metrics;
mod monitor;
mod runtime;
mod service;
mod tracing;

pub use runtime::HttpRuntime;
pub use service::{Access, Http};
