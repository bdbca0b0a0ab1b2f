//! The loop: take a batch, call the function for its rows, answer.

use crate::Declared;
use crate::calls::batch::{Batch, Mishap};
use crate::calls::function::Function;
use crate::values::Values;
use crosslane::batch::Encode;
use crosslane::{ColumnBuilder, Entry, Failure, Instances};
use crosslane_process::guest::{Call, Emitted, GuestLane, Mishaps, Room};
use crosslane_process::limits::MemoryLimit;
use std::io;
use std::time::Duration;

/// How a language calls its functions.
///
/// An error of the language may also be one of the lane ([`io::Error`]), or one that is no failure of a call and ends the
/// lane.
pub trait Language: Values<Error: From<io::Error>> {
    /// What is called.
    type Callee;
    /// The arguments of a call, where the language's collector sees them.
    type Arguments;

    /// Runs `work`, which calls the function for one row after the other: a language that is entered and left at some
    /// cost does that here, once.
    ///
    /// # Errors
    /// What ended it before its end.
    fn enter(&self, callee: &Self::Callee, work: impl FnMut(&mut Self::Arguments))
    -> Result<(), Self::Error>;

    /// Adds an argument to those of the next call. There may be any number of them.
    fn argument(&self, arguments: &mut Self::Arguments, value: Self::Value);

    /// Calls the function, and empties the arguments.
    ///
    /// # Errors
    /// What it raised.
    fn call(
        &self,
        callee: &Self::Callee,
        arguments: &mut Self::Arguments,
    ) -> Result<Self::Value, Self::Error>;

    /// Runs a batch of a function that is called with several rows at once. A language that declares none calls row by row.
    ///
    /// # Errors
    /// What ended it.
    fn run_concurrently(
        &self,
        batch: &Batch<'_, Self>,
        out: &mut ColumnBuilder,
    ) -> Result<Mishaps, Mishap<Self::Error>> {
        batch.run_rows(out)
    }

    /// An error as the engine's users should read it.
    ///
    /// # Errors
    /// The error, if it ends the lane and is no failure of the call that it came to.
    fn describe(&self, error: Self::Error) -> Result<Failure, Self::Error>;

    /// Whether neither `retries` nor `on_error` may hold an error up.
    fn is_final(&self, _error: &Self::Error) -> bool {
        false
    }

    /// Runs `work`, which may allocate so many bytes.
    fn limited<R>(&self, bytes: u64, work: impl FnOnce() -> R) -> R {
        let _limit = MemoryLimit::set(bytes);
        work()
    }

    /// Waits for the next call, for languages that give up a lock meanwhile. [`serve`] wants calls of functions alone
    /// ([`GuestLane::next_call`]).
    ///
    /// # Errors
    /// If the engine broke the protocol, or what ended the wait.
    fn next_call(&self, lane: &mut GuestLane) -> Result<Option<Call>, Self::Error> {
        Ok(lane.next_call()?)
    }

    /// Waits until an answer of so many bytes fits into the lane ([`GuestLane::wait_for_room`]), for languages that give up a
    /// lock meanwhile.
    ///
    /// # Errors
    /// As [`Language::next_call`].
    fn wait_for_room(&self, lane: &mut GuestLane, size: usize) -> Result<(), Self::Error> {
        Ok(lane.wait_for_room(size)?)
    }

    /// Waits for room for results that are not the last of an exchange ([`GuestLane::await_room`]), for languages that give
    /// up a lock meanwhile. Returns whether the engine wants more; one that is gone wants nothing.
    ///
    /// # Errors
    /// What ended the wait.
    fn await_room(&self, lane: &mut GuestLane, call: &Call, room: Room) -> Result<bool, Self::Error> {
        Ok(matches!(lane.await_room(call, room, || false), Ok(Emitted::Sent)))
    }

    /// Waits before another try.
    ///
    /// # Errors
    /// What ended the wait.
    fn pause(&self, time: Duration) -> Result<(), Self::Error> {
        std::thread::sleep(time);
        Ok(())
    }
}

/// A function, and where its results are collected.
type Ready<L> = (Function<L>, ColumnBuilder);

/// What is ready of a function.
struct Known<L: Language> {
    plain: Option<Ready<L>>,
    /// What it is for arguments of some types, by those as text, if it takes any.
    instances: Instances<Box<str>, Ready<L>>,
}

impl<L: Language> Known<L> {
    fn get(
        &mut self,
        language: &L,
        declared: &Declared<L::Callee>,
        types: Option<&str>,
    ) -> Result<&mut Ready<L>, L::Error> {
        let new = || {
            let function = Function::new(language, &declared.spec, Entry::Call, types)?;
            let out = function.results();
            Ok::<_, L::Error>((function, out))
        };
        match types {
            None => match &mut self.plain {
                Some(known) => Ok(known),
                none => Ok(none.insert(new()?)),
            },
            Some(types) => self.instances.get_or_make(types, new),
        }
    }
}

/// Serves the calls of one lane until its engine closes it; `functions` are the library's, in the order in which it
/// declared them.
///
/// # Errors
/// If the engine is gone or broke the protocol, or what ended the lane.
pub fn serve<L: Language>(
    language: &L,
    functions: &[Declared<L::Callee>],
    lane: &mut GuestLane,
) -> Result<(), L::Error> {
    let mut known: Vec<Known<L>> =
        functions.iter().map(|_| Known { plain: None, instances: Instances::default() }).collect();
    while let Some(call) = language.next_call(lane)? {
        let index = call.header.function as usize;
        let (Some(declared), Some(known)) = (functions.get(index), known.get_mut(index)) else {
            let count = functions.len();
            return Err(io::Error::other(format!("a call of function {index} of {count}")).into());
        };
        match known.get(language, declared, lane.types(&call)?) {
            Ok((function, out)) => function.answer(language, &declared.callee, lane, call, out)?,
            Err(error) => fail(language, lane, call, error.into())?,
        }
    }
    Ok(())
}

/// Answers a call that has failed.
///
/// # Errors
/// If the engine is gone or broke the protocol, or the error itself if it ends the lane.
pub fn fail<L: Language>(
    language: &L,
    lane: &mut GuestLane,
    call: Call,
    mishap: Mishap<L::Error>,
) -> Result<(), L::Error> {
    refuse(language, lane, call, &language.describe(mishap.error)?, mishap.row)
}

/// The same, where it is known what the engine's users should read.
///
/// # Errors
/// If the engine is gone or broke the protocol, or what ended the wait for room.
pub fn refuse<L: Language>(
    language: &L,
    lane: &mut GuestLane,
    call: Call,
    failure: &Failure,
    row: Option<usize>,
) -> Result<(), L::Error> {
    lane.fail_after(call, failure, row, |lane, size| language.wait_for_room(lane, size))
}

/// Answers what has no results, such as a set-up, with what became of it.
///
/// # Errors
/// As [`fail`].
pub fn done<L: Language>(
    language: &L,
    lane: &mut GuestLane,
    call: Call,
    outcome: Result<(), L::Error>,
) -> Result<(), L::Error> {
    match outcome {
        Ok(()) => succeed(language, lane, call.with_rows(0), &(), Mishaps::default()),
        Err(error) => fail(language, lane, call, error.into()),
    }
}

/// Answers a call with its results.
///
/// # Errors
/// As [`refuse`].
pub fn succeed<L: Language>(
    language: &L,
    lane: &mut GuestLane,
    call: Call,
    results: &dyn Encode,
    mishaps: Mishaps,
) -> Result<(), L::Error> {
    lane.succeed_after(call, results, mishaps, |lane, size| language.wait_for_room(lane, size))
}
