//! What all exchanges of Arrow Flight use: the functions, and the check which clients may call them.

use super::function::FlightFunction;
use super::status;
use crate::client::RemoteZygote;
use arrow_flight::FlightDescriptor;
use crosslane::{Library, lock};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use subtle::ConstantTimeEq;
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Status};

/// The functions of a server at a time.
pub(super) struct Offered {
    pub(super) library: Arc<Library<RemoteZygote>>,
    /// By their names in lower case; or why a function cannot be called.
    pub(super) functions: HashMap<String, Result<Arc<FlightFunction>, String>>,
}

impl Offered {
    pub(super) fn new(library: Library<RemoteZygote>) -> Self {
        let functions = library
            .functions
            .iter()
            .map(|function| (function.name().to_lowercase(), FlightFunction::new(function).map(Arc::new)));
        Self { functions: functions.collect(), library: Arc::new(library) }
    }

    /// The function that a path names.
    pub(super) fn function(&self, descriptor: &FlightDescriptor) -> Result<&Arc<FlightFunction>, Status> {
        let [name] = &descriptor.path[..] else {
            return Err(Status::invalid_argument("a function is named by a path of one part, its name"));
        };
        match self.functions.get(&name.to_lowercase()) {
            Some(Ok(function)) => Ok(function),
            Some(Err(why)) => Err(Status::unimplemented(status::shortened(why))),
            None => Err(Status::not_found(status::shortened(&format!("there is no function {name}")))),
        }
    }
}

/// What all exchanges use.
pub(super) struct Context {
    pub(super) offered: Mutex<Arc<Offered>>,
    pub(super) token: Option<String>,
    pub(super) largest: usize,
    /// Of exchanges, and of calls.
    pub(super) places: Arc<Semaphore>,
    pub(super) slots: Arc<Semaphore>,
    /// Whether the server is shutting down.
    pub(super) ending: watch::Sender<bool>,
}

impl Context {
    /// Lets clients in that have the token.
    pub(super) fn admit(&self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(due) = &self.token else { return Ok(request) };
        let given = request.metadata().get("authorization").map(|value| value.as_bytes());
        let given = given.and_then(|value| value.split_at_checked("Bearer ".len()));
        match given {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"Bearer ") => {
                let same = bool::from(token.ct_eq(due.as_bytes()));
                if same { Ok(request) } else { Err(Status::unauthenticated("the token is another")) }
            }
            _ => Err(Status::unauthenticated("it needs a token: authorization: Bearer TOKEN")),
        }
    }

    /// The functions that the server has now.
    pub(super) fn offered(&self) -> Arc<Offered> {
        Arc::clone(&lock(&self.offered))
    }
}
