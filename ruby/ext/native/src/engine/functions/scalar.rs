//! The program's blocks as scalar functions.
//!
//! The calling thread decides where the block runs. A Ruby thread calls the block itself, and takes
//! the GVL if it does not hold it. Any other thread uses a host lane, which it keeps during the
//! call. A Ruby thread also uses host lanes if several lanes would share the work, and for
//! functions with a `timeout`, which only a lane can enforce.

use crate::engine::connection::connection::Connection;
use crate::engine::connection::session::{Session, Sessions, failure};
use crate::engine::functions::host::{self, Block};
use crate::functions::callable::Callable;
use crate::values::Vm;
use crosslane::batch;
use crosslane::call::{Caller, Input, Output, Spent, budgeted, call, deliver, once, place};
use crosslane::{ColumnBuilder, DataType, Entry, Error, Failure, Function, Library};
use crosslane_guest::{CallError, Progress};
use crosslane_gvl::{self as gvl, Stand, Unwind, stand};
use crosslane_process::Zygote;
use crosslane_vectors::{Arguments, Callee, Context, RecentFailure, Results, Scalar, register_scalar};
use std::sync::Arc;
use std::time::Instant;

/// The data of a registered function.
struct Registered {
    block: Block,
    sessions: Arc<Sessions>,
}

/// The state of one DuckDB thread for one occurrence of a function in a query.
struct State {
    callee: Callee,
    session: Arc<Session>,
    host: Arc<Library<Zygote>>,
    width: usize,
}

/// Registers a function that Ruby has added to the host's list.
pub(crate) fn register(connection: &Connection, number: u32, declared: String) -> Result<(), magnus::Error> {
    let block = Block::new(number, &declared)?;
    let link = connection.link()?;
    let function = Arc::clone(&block.function);
    let registered = Registered { block, sessions: Arc::clone(&link.database.sessions) };
    // SAFETY: the connection is open.
    unsafe { register_scalar(link.raw, &function, registered) }
        .map_err(|error| failure(None, &error.to_string()))
}

impl Scalar for Registered {
    type State = State;

    fn begin(&self, context: Context) -> Result<State, Error> {
        Ok(State {
            callee: Callee::new(Arc::clone(&self.block.function)),
            session: self.sessions.of(context.client.connection),
            host: host::current()?,
            width: context.threads,
        })
    }

    fn statement(state: &State) -> Option<u64> {
        Some(state.session.statement())
    }

    fn callee(state: &State) -> Result<&Callee, Error> {
        Ok(&state.callee)
    }

    fn call(
        state: &State,
        function: &Function,
        spent: &Spent,
        arguments: &Arguments<'_>,
        results: &mut Results<'_>,
    ) -> Result<(), Error> {
        if state.session.has_left() {
            return Err(Error::Cancelled { function: function.name().into() });
        }
        let stand = stand();
        let here = stand != Stand::Foreign
            && function.spec.timeout.is_none()
            && function.spec.rate.is_none()
            && !function.wants_lanes(arguments.rows(), state.width);
        if here || stand == Stand::Locked {
            return once(function, arguments, results, &mut |arguments, results| {
                budgeted(function, spent, arguments, results, &mut |arguments, results| {
                    call_here(function, Some(spent), &state.session, stand, arguments, results)
                })
            });
        }
        host::keep(&state.host, state.width);
        let caller = Caller::new(&state.session.group, state.width).spending(spent);
        call(&state.host, function, caller, arguments, results)
    }

    fn settle(
        state: &State,
        recent: Option<&RecentFailure>,
        outcome: Result<(), Error>,
    ) -> Result<(), Error> {
        // A failure during the planning of the query also ends the running query.
        let outcome = state.session.settle(outcome);
        if let (Some(recent), true) = (recent, state.session.has_jumped()) {
            recent.forget();
        }
        outcome
    }
}

/// Calls the block on this thread, which is a Ruby thread.
pub(crate) fn call_here(
    function: &Function,
    spent: Option<&Spent>,
    session: &Session,
    stand: Stand,
    arguments: &dyn Input,
    results: &mut dyn Output,
) -> Result<(), Error> {
    let rows = arguments.rows();
    let frame = arguments.frame(0..rows)?;
    let types = function.signature.parameters.iter().map(|parameter| -> &DataType { &parameter.data_type });
    let columns = batch::columns(frame.bytes(), types)?;
    let returns = &function.signature.returns;
    let mut out = ColumnBuilder::new(returns);
    let begun = Instant::now();
    let mut work = || {
        // SAFETY: with the GVL.
        let vm = unsafe { Vm::calling(true) };
        let callable = host::callable(&vm, function.index, function.types.as_deref()).map_err(Unwind::from);
        let progress = Progress { word: None, sequence: 0 };
        let outcome = callable.map_err(CallError::from).and_then(|callable| {
            let Callable::Scalar(function) = &*callable else { panic!("a scalar function is none") };
            function.ready.run(&vm, &function.callee, &columns, rows, progress, &mut out)
        });
        outcome.map_err(|CallError { error, row }| {
            let words = words(&error);
            (Failure { ticket: session.catch(error), ..words }, row)
        })
    };
    let outcome =
        if stand == Stand::Locked { Some(work()) } else { gvl::with(work, |unwind| session.stop(unwind)) };
    match outcome {
        Some(Ok(row_counts)) if !session.has_left() => {
            let stats = function.stats.here();
            stats.errors.add(u64::from(row_counts.errors));
            stats.retries.add(u64::from(row_counts.retries));
            spent.iter().for_each(|spent| spent.add(row_counts.retries.into()));
            function.learn(rows, begun.elapsed().as_nanos() as u64);
            deliver(function, Entry::Call, arguments, results, 0, &out.column(returns))
        }
        Some(Err((failure, row))) => Err(Error::Raised {
            function: function.name().into(),
            failure: Box::new(failure),
            place: place(function, Entry::Call, arguments, row),
        }),
        _ => Err(Error::Cancelled { function: function.name().into() }),
    }
}

/// The text for the query's error. The exception itself is raised afterwards. With the GVL.
fn words(unwind: &Unwind) -> Failure {
    use magnus::rb_sys::FromRawValue;
    use magnus::value::ReprValue;
    match unwind {
        Unwind::Raise(exception) => {
            // SAFETY: the exception is alive: its holder is on this stack.
            let exception = unsafe { magnus::Value::from_raw(*exception) };
            let class = gvl::class_name(exception).unwrap_or_default();
            let message = exception.funcall::<_, _, String>("message", ()).unwrap_or_default();
            Failure { class, message, ..Failure::default() }
        }
        Unwind::Jump(_) => {
            Failure { class: "Jump".into(), message: "the block was left".into(), ..Failure::default() }
        }
    }
}
