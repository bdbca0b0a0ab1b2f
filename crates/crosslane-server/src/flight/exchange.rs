//! A client's exchange: it takes batches, and answers with their results in the same order.
//!
//! The exchange makes results as the client takes them. It works on a few batches ahead. It reads
//! no more until the client has taken results, so HTTP/2 stops the client's sending. If the client
//! leaves, the exchange is dropped, which ends its calls.

use super::calls::{Calls, Trouble};
use super::context::Context;
use super::function::FlightFunction;
use super::status::{of_error, shortened};
use super::types;
use crate::server::ENDING;
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_flight::FlightData;
use arrow_flight::decode::{DecodedFlightData, DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_schema::{DataType as Arrow, SchemaRef};
use crosslane::Kind;
use crosslane::call::{CallGroup, Spent};
use crosslane_remote::context::TraceContext;
use futures_util::future::{Either, FutureExt};
use futures_util::{StreamExt, TryStreamExt, future, stream};
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

/// How long a client may take to say which function it calls, and a scan's client to take a batch.
const SILENT: Duration = Duration::from_secs(30);
/// How long the end of what a client sends is waited for when the server shuts down.
const LAST_MOMENT: Duration = Duration::from_millis(200);
/// Batches of a scalar function that are worked on at once. A table function's are done one by one: each keeps a
/// worker.
const AHEAD: usize = 4;

/// The results of a batch: `None` when there are no more.
type Answer = Result<Option<RecordBatch>, Status>;

/// An exchange under way.
pub(super) struct Exchange {
    context: Arc<Context>,
    calls: Arc<Calls>,
    input: FlightDataDecoder,
    /// Whether the client has said of which types its columns are.
    described: bool,
    /// Whether it sends no more.
    ended: bool,
    /// For each batch that is worked on, where its results come.
    running: VecDeque<mpsc::Receiver<Answer>>,
    stop: Arc<AtomicBool>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.calls.group.cancel();
    }
}

impl Exchange {
    /// Waits until the client says which function it calls.
    pub(super) async fn open(
        context: Arc<Context>,
        place: OwnedSemaphorePermit,
        trace: Option<TraceContext>,
        mut input: Streaming<FlightData>,
    ) -> Result<Self, Status> {
        let first = timeout(SILENT, input.message()).await;
        let first = first
            .map_err(|_| Status::deadline_exceeded("the client did not say which function it calls"))??;
        let first = first.ok_or_else(|| Status::invalid_argument("an exchange without a message"))?;
        let descriptor = first.flight_descriptor.as_ref();
        let descriptor =
            descriptor.ok_or_else(|| Status::invalid_argument("the first message names no function"))?;
        let offered = context.offered();
        let function = Arc::clone(offered.function(descriptor)?);
        // A message that only names the function may have nothing to be decoded.
        let messages = stream::once(future::ready(Ok(first))).chain(input);
        let messages = messages.try_filter(|message| future::ready(!message.data_header.is_empty()));
        let stop = Arc::new(AtomicBool::new(false));
        let asks = Arc::clone(&stop);
        let group = Arc::new(CallGroup::with_stop(move || asks.load(Relaxed)));
        let (library, trace) = (Arc::clone(&offered.library), trace.map(Arc::new));
        let calls = Calls { library, function, group, spent: Spent::default(), trace };
        Ok(Self {
            context,
            calls: Arc::new(calls),
            input: FlightDataDecoder::new(messages.map_err(FlightError::from)),
            described: false,
            ended: false,
            running: VecDeque::new(),
            stop,
            _place: place,
        })
    }

    fn function(&self) -> &FlightFunction {
        &self.calls.function
    }

    /// The columns of the results.
    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.function().results)
    }

    /// The next results; `None` if there are no more.
    pub(super) async fn next(&mut self) -> Result<Option<RecordBatch>, Status> {
        let ahead = if self.function().function.spec.kind == Kind::Table { 1 } else { AHEAD };
        let mut ending = self.context.ending.subscribe();
        loop {
            if *ending.borrow_and_update() && self.running.is_empty() && !self.ended {
                // The client may have sent all already.
                return match timeout(LAST_MOMENT, message(&mut self.input, self.context.largest)).await {
                    Ok(Ok(None)) => Ok(None),
                    _ => Err(Status::unavailable(ENDING)),
                };
            }
            if self.ended && self.running.is_empty() {
                return Ok(None);
            }
            let reads = !self.ended && self.running.len() < ahead && !*ending.borrow();
            let answered = match self.running.front_mut() {
                Some(oldest) => Either::Left(oldest.recv()),
                None => Either::Right(future::pending()),
            };
            tokio::select! {
                answer = answered => match answer {
                    Some(Ok(Some(batch))) => return Ok(Some(batch)),
                    Some(Ok(None)) => drop(self.running.pop_front()),
                    Some(Err(status)) => return Err(status),
                    None => return Err(Status::internal("a call ended without an answer; the server's log says why")),
                },
                message = message(&mut self.input, self.context.largest), if reads => match message? {
                    Some(message) => self.take(message)?,
                    None => self.ended = true,
                },
                _ = ending.changed() => {}
            }
        }
    }

    /// Takes a message of the client.
    fn take(&mut self, message: DecodedFlightData) -> Result<(), Status> {
        match message.payload {
            DecodedPayload::None => Ok(()),
            DecodedPayload::Schema(schema) => {
                let due = &self.function().inputs;
                if !types::arguments_fit(schema.fields(), due) {
                    let (name, due, given) =
                        (self.function().function.name(), types::shown(due), types::shown(schema.fields()));
                    return Err(wrong(&format!("{name} takes {due}, and the columns are {given}")));
                }
                self.described = true;
                Ok(())
            }
            DecodedPayload::RecordBatch(batch) if self.described => {
                self.measure(&batch)?;
                self.start(batch);
                Ok(())
            }
            DecodedPayload::RecordBatch(_) => Err(wrong("a batch before its schema")),
        }
    }

    /// Refuses a batch that is small as it travels, and would not be so elsewhere.
    fn measure(&self, batch: &RecordBatch) -> Result<(), Status> {
        let most = self.context.largest;
        let viewed = batch.columns().iter().map(|column| match column.data_type() {
            Arrow::Utf8View => lengths(column.as_string_view().views()),
            Arrow::BinaryView => lengths(column.as_binary_view().views()),
            _ => 0,
        });
        // A row has eight bytes at least, as it is counted here.
        if batch.num_rows() > most / 8 || viewed.sum::<usize>() > most {
            let what = format!("a batch of {} rows exceeds {most} bytes (--largest-batch)", batch.num_rows());
            return Err(Status::resource_exhausted(what));
        }
        Ok(())
    }

    /// Has a batch worked on.
    fn start(&mut self, batch: RecordBatch) {
        let (answers, receiver) = mpsc::channel(1);
        let (calls, slots) = (Arc::clone(&self.calls), Arc::clone(&self.context.slots));
        tokio::spawn(async move {
            let Ok(slot) = slots.acquire_owned().await else { return };
            let runtime = Handle::current();
            tokio::task::spawn_blocking(move || {
                let give = |answer| {
                    let sent = runtime.block_on(timeout(SILENT, answers.send(answer)));
                    matches!(sent, Ok(Ok(())))
                };
                if !answers.is_closed() {
                    match calls.run(&batch, |results| give(Ok(Some(results)))) {
                        Ok(()) => give(Ok(None)),
                        Err(Trouble::Wrong(what)) => give(Err(wrong(&what))),
                        Err(Trouble::Failed(error)) => give(Err(of_error(&error))),
                        Err(Trouble::Left) => {
                            give(Err(Status::deadline_exceeded("the client took no results for 30 s")))
                        }
                    };
                }
                drop(slot);
            });
        });
        self.running.push_back(receiver);
    }
}

/// The next message; `None` at the end. Nothing is lost if it is not waited for.
async fn message(input: &mut FlightDataDecoder, largest: usize) -> Result<Option<DecodedFlightData>, Status> {
    // Arrow's reader panics on some messages that lie about themselves.
    let read = AssertUnwindSafe(input.try_next()).catch_unwind().await;
    read.unwrap_or_else(|_| Err(FlightError::DecodeError("it contradicts itself".into()))).map_err(|error| {
        match error {
            FlightError::Tonic(status) if status.code() == Code::OutOfRange => {
                Status::resource_exhausted(format!("a batch of more than {largest} bytes (--largest-batch)"))
            }
            FlightError::Tonic(status) => *status,
            error => wrong(&format!("a message that cannot be read: {error}")),
        }
    })
}

/// The bytes that views show: the low half of a view's first word is a length.
fn lengths(views: &[u128]) -> usize {
    views.iter().map(|view| *view as u32 as usize).sum()
}

fn wrong(what: &str) -> Status {
    Status::invalid_argument(shortened(what))
}
