//! How the thread runs a program.

use super::counts::Counts;
use super::program::{Argument, Program, Step};
use super::work::{Answer, Batch, Ended, Work};
use crate::columns::{Arguments, read_table};
use crosslane::batch::Column;
use crosslane::call::{
    Asked, Caller, Iteration, LARGEST_PARTITIONS, Map, MapInput, MapOptions, MapStep, Output, Results, Row,
    Scan, call,
};
use crosslane::pool::Zygote;
use crosslane::{ColumnBuilder, DataType, Error, Kind};
use std::collections::VecDeque;
use std::sync::Arc;

impl<Z: Zygote> Program<Z> {
    /// Works off all batches.
    pub(super) fn run(&self, work: &Work<'_, Z>) -> Result<(), Ended> {
        match &self.steps[..] {
            [step] if step.function.spec.kind == Kind::Table => self.scan_all(step, work),
            [step] if step.function.spec.iterates => self.iterate(step, work),
            [step] if step.function.spec.kind == Kind::Stream => self.map(step, work),
            _ => work.batches.iter().try_for_each(|batch| {
                let results = self.call_all(&batch, work.caller)?;
                let counts = Counts::default();
                work.answer(Answer { results, row: None, last: true, wants: false, counts })
            }),
        }
    }

    /// The columns of a batch.
    fn columns<'a>(&'a self, batch: &'a Batch) -> Result<Vec<Column<'a>>, Error> {
        // SAFETY: the caller of `Task::submit` has promised it.
        unsafe { read_table(&batch.table, self.inputs.iter()) }
    }

    /// The results of all steps.
    fn call_all(&self, batch: &Batch, caller: Caller<'_>) -> Result<Vec<Results>, Error> {
        let inputs = self.columns(batch)?;
        let mut results: Vec<Results> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let made: Vec<Column<'_>> = results.iter().map(Results::column).collect();
            let columns = step.arguments.iter().map(|argument| match argument {
                Argument::Input(input) => &inputs[*input],
                Argument::Result(result) => &made[*result],
            });
            let arguments = Arguments { rows: 0..batch.rows, columns: columns.collect() };
            let mut output = Results::new(step.function.signature.returns.clone());
            let caller = step.spent.as_deref().map_or(caller, |spent| caller.spending(spent));
            call(&step.library, &step.function, caller, &arguments, &mut output)?;
            if output.rows() != batch.rows {
                let (got, due) = (output.rows(), batch.rows);
                return Err(Error::Engine(format!("{}: {got} results of {due} rows", step.function.name())));
            }
            drop(made);
            results.push(output);
        }
        Ok(results)
    }

    /// Calls a table function for each row, one after the other. The rows of a table come in any
    /// number of answers.
    fn scan_all(&self, step: &Step<Z>, work: &Work<'_, Z>) -> Result<(), Ended> {
        let returns = &step.function.signature.returns;
        for batch in work.batches {
            let inputs = self.columns(&batch)?;
            for row in 0..batch.rows {
                let columns = step.arguments.iter().filter_map(|argument| match argument {
                    Argument::Input(input) => Some(&inputs[*input]),
                    Argument::Result(_) => None,
                });
                let arguments = Arguments { rows: row..row + 1, columns: columns.collect() };
                let arguments = Row::of(&arguments, self.parameter_types(step))?;
                let (library, function) = (&step.library, &step.function);
                let partitions =
                    Scan::partitions(library, function, work.caller, arguments.clone(), LARGEST_PARTITIONS)?;
                for partition in partitions {
                    let wanted = (0..returns.children().len()).collect();
                    let asked = Asked { partition, wanted, arguments: arguments.clone() };
                    let (library, function) = (Arc::clone(&step.library), Arc::clone(&step.function));
                    let mut scan = Scan::open(library, function, work.caller, returns.clone(), asked)?;
                    while let Some(rows) = scan.next(work.caller)? {
                        let mut results = Results::new(returns.clone());
                        results.accept(0, &rows)?;
                        work.answer(Answer::of(results, Some(row)))?;
                    }
                }
            }
            work.release(returns)?;
        }
        Ok(())
    }

    /// The types of a step's parameters.
    fn parameter_types<'a>(&self, step: &'a Step<Z>) -> impl Iterator<Item = DataType> + use<'a, Z> {
        step.function.signature.parameters.iter().map(|parameter| parameter.data_type.clone())
    }

    /// Sends all batches through a stream function, in their order. Each is copied, because the
    /// call needs it until it has the last results.
    fn map(&self, step: &Step<Z>, work: &Work<'_, Z>) -> Result<(), Ended> {
        let options = MapOptions { lanes: 1, depth: self.depth, ordered: true };
        let mut map = Map::new(Arc::clone(&step.library), Arc::clone(&step.function), options)?;
        let returns = step.function.signature.returns.clone();
        loop {
            match map.next(work.caller)? {
                MapStep::Wants => match work.batches.recv() {
                    Ok(batch) => {
                        map.put(self.copy(&batch)?);
                        work.release(&returns)?;
                    }
                    Err(_) => map.end(),
                },
                MapStep::Output(rows, first) => {
                    let mut results = Results::new(returns.clone());
                    results.rest(&rows, first)?;
                    work.answer(Answer::of(results, None))?;
                }
                MapStep::Done => return Ok(()),
            }
        }
    }

    /// A copy of a batch. The program's only input is a STRUCT.
    fn copy(&self, batch: &Batch) -> Result<MapInput, Error> {
        let mut copy = ColumnBuilder::new(&self.inputs[0]);
        copy.extend(&self.columns(batch)?[0]).map_err(|error| Error::Engine(error.to_string()))?;
        Ok(MapInput { rows: batch.rows, content: Box::new(copy) })
    }

    /// Calls a function once, with an iterator of all batches. If its results are aligned, a batch
    /// is answered when there are results for all of its rows.
    fn iterate(&self, step: &Step<Z>, work: &Work<'_, Z>) -> Result<(), Ended> {
        let (library, function) = (Arc::clone(&step.library), Arc::clone(&step.function));
        let mut iteration = Iteration::new(library, function, self.depth)?;
        let returns = &step.function.signature.returns;
        let mut aligned = Aligned { due: VecDeque::new(), results: Results::new(returns.clone()) };
        loop {
            match iteration.next(work.caller)? {
                MapStep::Wants => {
                    if aligned.due.len() >= self.depth {
                        // The function wants more batches before it gives the results for which
                        // Spark's thread waits.
                        work.answer(Answer {
                            wants: true,
                            ..Answer::of(Results::new(returns.clone()), None)
                        })?;
                    }
                    match work.batches.recv() {
                        Ok(batch) => {
                            iteration.put(self.copy(&batch)?);
                            if step.aligned {
                                aligned.due.push_back(batch.rows);
                            } else {
                                work.release(returns)?;
                            }
                        }
                        Err(_) => iteration.end(),
                    }
                }
                MapStep::Output(rows, first) if step.aligned => aligned.add(&rows, first, work)?,
                MapStep::Output(rows, first) => {
                    let mut results = Results::new(returns.clone());
                    results.rest(&rows, first)?;
                    work.answer(Answer::of(results, None))?;
                }
                MapStep::Done if aligned.due.is_empty() => return Ok(()),
                MapStep::Done => {
                    let name = step.function.name();
                    return Err(Error::Engine(format!("{name}: fewer results than rows")).into());
                }
            }
        }
    }
}

/// Collects results of a function that gives one for each row.
struct Aligned {
    /// The numbers of rows of the batches that wait for results.
    due: VecDeque<usize>,
    /// The results of the first of these batches so far.
    results: Results,
}

impl Aligned {
    /// Adds results, and answers the batches that are complete.
    fn add<Z: Zygote>(
        &mut self,
        results: &Column<'_>,
        mut first: usize,
        work: &Work<'_, Z>,
    ) -> Result<(), Ended> {
        while first < results.rows {
            let Some(rows) = self.due.front().copied() else {
                return Err(Error::Engine("more results than rows".into()).into());
            };
            let more = (rows - self.results.rows()).min(results.rows - first);
            self.results.part(results, first..first + more)?;
            first += more;
            if self.results.rows() == rows {
                self.due.pop_front();
                let empty = Results::new(results.data_type.clone());
                let results = std::mem::replace(&mut self.results, empty);
                work.answer(Answer { last: true, ..Answer::of(results, None) })?;
            }
        }
        Ok(())
    }
}
