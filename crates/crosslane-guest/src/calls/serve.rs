//! The loop of a lane: it takes a batch, calls the function for its rows, and answers.

use super::answer::fail;
use super::function::Function;
use super::language::Language;
use crate::declarations::Declared;
use crosslane::{ColumnBuilder, Entry, Instances};
use crosslane_process::guest::GuestLane;
use std::io;

/// A function, and the column of its results.
type Ready<L> = (Function<L>, ColumnBuilder);

/// The prepared forms of a function.
struct Known<L: Language> {
    plain: Option<Ready<L>>,
    /// The functions for the types of a call, if the function takes arguments of any type. The
    /// types are text.
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

/// Serves the calls of one lane until its engine closes it. `functions` are the library's, in the
/// order of their declaration.
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
