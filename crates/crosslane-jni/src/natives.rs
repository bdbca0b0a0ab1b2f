//! The native methods of `dev.crosslane.spark.Native`.
//!
//! Java knows libraries, tasks and states by numbers. They are addresses of boxes, which Java gives
//! back once: by `unload`, `end` and `endStates`. One thread at a time calls the methods of a task
//! or of states, except `cancelStates`.

use crate::columns::{WORDS, write_table};
use crate::library::{self, ProcessLibrary, described, language};
use crate::method::{Failed, Throws, native_methods};
use crate::queries;
use crate::states::Slots;
use crate::task::{Argument, Program, Step, Task};
use crosslane::call::CallGroup;
use crosslane::{Error, Function};
use jni::EnvUnowned;
use jni::objects::{JByteArray, JClass, JObjectArray, JString};
use jni::sys::{jint, jlong};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// The address of a box, for Java.
fn give<T>(value: T) -> jlong {
    Box::into_raw(Box::new(value)) as jlong
}

/// The box at an address that Java gives back.
///
/// # Safety
/// The address must be one that [`give`] returned for this type, and Java must give it back only
/// once.
unsafe fn take_back<T>(address: jlong) -> Box<T> {
    // SAFETY: as the caller says.
    unsafe { Box::from_raw(address as *mut T) }
}

/// The library at an address.
///
/// # Safety
/// The address must be one that `load` returned and `unload` did not get.
unsafe fn library<'a>(address: jlong) -> &'a Arc<ProcessLibrary> {
    // SAFETY: as the caller says.
    unsafe { &*(address as *const Arc<ProcessLibrary>) }
}

/// The task at an address.
///
/// # Safety
/// The address must be one that `begin` returned and `end` did not get, and only one thread may use
/// the task.
unsafe fn task<'a>(address: jlong) -> &'a mut Task {
    // SAFETY: as the caller says.
    unsafe { &mut *(address as *mut Task) }
}

/// The states of an aggregate, as Java has them.
struct OwnedStates {
    /// Only the task's thread uses them.
    slots: Slots,
    /// Ends the waits of that thread. Any thread may use it.
    group: Arc<CallGroup>,
}

/// The slots at an address.
///
/// # Safety
/// The address must be one that `states` returned and `endStates` did not get, and only the task's
/// thread may use it.
unsafe fn slots<'a>(address: jlong) -> &'a mut Slots {
    // SAFETY: as the caller says.
    unsafe { &mut (*(address as *mut OwnedStates)).slots }
}

/// Numbers at an address.
///
/// # Safety
/// They must be there, and must not change for the lifetime.
unsafe fn numbers<'a, T>(address: jlong, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(address as *const T, count) }
}

/// Copies words to an address.
///
/// # Errors
/// [`Error::Engine`] if Java has room for another number of words.
///
/// # Safety
/// There must be room for this many words at the address.
unsafe fn copy_words(words: &[u64], address: jlong, room: jint) -> Result<(), Error> {
    if words.len() != room as usize {
        return Err(Error::Engine(format!("{} words of results, where {room} were due", words.len())));
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u64, words.len()) }.copy_from_slice(words);
    Ok(())
}

/// The texts of an array.
fn texts<'local>(
    env: &mut jni::Env<'local>,
    array: &JObjectArray<'local, JString<'local>>,
) -> jni::errors::Result<Vec<String>> {
    (0..array.len(env)?).map(|index| array.get_element(env, index)?.try_to_string(env)).collect()
}

/// A function of a library.
fn function_of(library: &ProcessLibrary, index: u32, advice: &str) -> Result<Arc<Function>, Error> {
    let function = library.functions.get(index as usize).cloned();
    function.ok_or_else(|| Error::Engine(format!("{} has no function {index}{advice}", library.name)))
}

/// A step of a program, as Java describes it.
#[derive(Debug, Deserialize)]
struct DescribedStep {
    library: i64,
    function: u32,
    arguments: Vec<Argument>,
    #[serde(default)]
    aligned: bool,
}

/// `take` found nothing within its time.
const NOT_YET: jint = -1;
/// `take` found the end.
const DONE: jint = -2;

native_methods! {
    /// The version of this library. It must be that of the jar.
    fn version(env) -> JString<'local> {
        Ok(JString::from_str(env, env!("CARGO_PKG_VERSION"))?)
    }

    /// Says in which folder the guests are, before the first library is loaded.
    fn home(env, folder: JString<'local>) {
        crosslane_process::guests::set_home(folder.try_to_string(env)?.as_ref());
        Ok(())
    }

    /// Loads a library: a file, or pickled functions with the modules that they need. Names and
    /// values of settings alternate.
    fn load(
        env,
        name: JString<'local>,
        pickles: JObjectArray<'local, JByteArray<'local>>,
        modules: JObjectArray<'local, JString<'local>>,
        settings: JObjectArray<'local, JString<'local>>
    ) -> jlong {
        let name = name.try_to_string(env)?;
        let mut bytes = Vec::new();
        for index in 0..pickles.len(env)? {
            let pickle = pickles.get_element(env, index)?;
            bytes.push(env.convert_byte_array(pickle)?);
        }
        let (modules, settings) = (texts(env, &modules)?, texts(env, &settings)?);
        let pairs = settings.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        let library = library::load(&name, bytes, modules, &pairs.collect::<Vec<_>>())?;
        Ok(give(Arc::new(library)))
    }

    /// The function that a statement defines, as JSON. Null if the text is another statement.
    fn definition(env, text: JString<'local>) -> JString<'local> {
        let text = text.try_to_string(env)?;
        match library::definition(&text)? {
            Some(definition) => Ok(JString::from_str(env, definition.to_string())?),
            None => Ok(JString::default()),
        }
    }

    /// The language and the functions of a library, as JSON.
    fn describe(env, address: jlong) -> JString<'local> {
        // SAFETY: Java passes a library that it has not unloaded.
        let library = unsafe { library(address) };
        let functions: Vec<_> = library.functions.iter().map(|function| described(function)).collect();
        let described = json!({ "language": language(library), "functions": functions });
        Ok(JString::from_str(env, described.to_string())?)
    }

    /// How many workers of a library were started so far.
    fn started(_, address: jlong) -> jlong {
        // SAFETY: Java passes a library that it has not unloaded.
        Ok(unsafe { library(address) }.pool.stats().booted as jlong)
    }

    /// Ends a library. Tasks that use it keep it until they end.
    fn unload(_, address: jlong) {
        // SAFETY: Java gives back once what `load` returned.
        drop(unsafe { take_back::<Arc<ProcessLibrary>>(address) });
        Ok(())
    }

    /// Begins a task of a query, whose number is -1 if it is unknown. `program` is JSON with its steps.
    fn begin(env, inputs: jint, program: JString<'local>, depth: jint, query: jlong) -> jlong {
        let text = program.try_to_string(env)?;
        let described: Vec<DescribedStep> =
            serde_json::from_str(&text).map_err(|error| Error::Engine(error.to_string()))?;
        let steps = described.into_iter().map(|step| {
            // SAFETY: Java passes libraries that it has not unloaded.
            let library = Arc::clone(unsafe { library(step.library) });
            let function = function_of(&library, step.function, ": is it another file here?")?;
            let spent = function.spec.budget.map(|_| {
                let query = (query >= 0).then_some(query);
                queries::spent(query, &library.name, step.function)
            });
            Ok(Step { library, function, arguments: step.arguments, aligned: step.aligned, spent })
        });
        let steps = steps.collect::<Result<Vec<_>, Error>>()?;
        let program = Program::new(inputs as usize, steps, depth as usize)?;
        Ok(give(Task::begin(program)?))
    }

    /// Hands over a batch. The words at the address describe it ([`crate::columns`]).
    fn submit(_, address: jlong, rows: jint, table: jlong, columns: jint) {
        // SAFETY: Java passes a task that has not ended, and a table of this many columns, which it
        // does not change.
        unsafe { task(address).submit(rows as usize, numbers(table, columns as usize * WORDS).to_vec()) };
        Ok(())
    }

    /// Says that no more batches come.
    fn finish(_, address: jlong) {
        // SAFETY: Java passes a task that has not ended.
        unsafe { task(address) }.finish();
        Ok(())
    }

    /// Takes the next answer if it comes within the time. Returns how many rows its results have.
    ///
    /// Writes words to the address: the counts; the row of the batch to which the results belong,
    /// or -1 if each row has its own; whether the batch is complete; whether the function wants
    /// another batch; and where the results are.
    fn take(_, address: jlong, table: jlong, words: jint, milliseconds: jint) -> jint {
        // SAFETY: Java passes a task that has not ended.
        let task = unsafe { task(address) };
        let answer = match task.take(Duration::from_millis(milliseconds as u64))? {
            None => return Ok(NOT_YET),
            Some(None) => return Ok(DONE),
            Some(Some(answer)) => answer,
        };
        let counts = answer.counts;
        let row = answer.row.map_or(u64::MAX, |row| row as u64);
        let head = [
            counts.worked,
            counts.called,
            counts.errors,
            counts.retries,
            counts.deaths,
            row,
            u64::from(answer.last),
            u64::from(answer.wants),
        ];
        // SAFETY: Java has room for this many words there.
        unsafe { copy_words(&[&head[..], &answer.table()].concat(), table, words)? };
        Ok(answer.results.last().map_or(0, |results| results.rows() as jint))
    }

    /// Ends a task. When this returns, nothing reads its batches any more.
    fn end(_, address: jlong) {
        // SAFETY: Java gives back once what `begin` returned.
        drop(unsafe { take_back::<Task>(address) });
        Ok(())
    }

    /// Begins the states of an aggregate.
    fn states(_, address: jlong, function: jint) -> jlong {
        // SAFETY: Java passes a library that it has not unloaded.
        let library = Arc::clone(unsafe { library(address) });
        let function = function_of(&library, function as u32, "")?;
        let slots = Slots::new(library, function);
        let group = slots.group();
        Ok(give(OwnedStates { slots, group }))
    }

    /// A slot with a new state.
    #[expect(non_snake_case, reason = "Java's name")]
    fn createState(_, states: jlong) -> jint {
        // SAFETY: Java passes states that have not ended.
        Ok(unsafe { slots(states) }.create() as jint)
    }

    /// Ends the states of slots.
    #[expect(non_snake_case, reason = "Java's name")]
    fn destroyStates(_, states: jlong, ended: jlong, count: jint) {
        // SAFETY: Java passes states that have not ended, and this many numbers of slots.
        unsafe { slots(states).destroy(numbers(ended, count as usize)) };
        Ok(())
    }

    /// Adds rows to states. The words at the table describe the rows. With `saved`, the rows are
    /// saved states.
    #[expect(non_snake_case, reason = "Java's name")]
    fn addToStates(_, states: jlong, targets: jlong, count: jint, table: jlong, columns: jint, saved: bool) {
        // SAFETY: Java passes states that have not ended, this many numbers of slots, and a table
        // of this many columns, which it does not change.
        unsafe {
            let words = numbers(table, columns as usize * WORDS);
            let (slots, targets) = (slots(states), numbers(targets, count as usize));
            slots.add(targets, words, saved)?;
        }
        Ok(())
    }

    /// Adds the state of a slot to that of another. The source is empty afterwards.
    #[expect(non_snake_case, reason = "Java's name")]
    fn combineStates(_, states: jlong, target: jint, source: jint) {
        // SAFETY: Java passes states that have not ended.
        unsafe { slots(states) }.combine(target as u32, source as u32)?;
        Ok(())
    }

    /// Reads the results of states, or with `saved` the states as bytes. Writes to the table where
    /// they are. They can be read until the next call.
    #[expect(non_snake_case, reason = "Java's name")]
    fn readStates(_, states: jlong, wanted: jlong, count: jint, saved: bool, table: jlong, words: jint) {
        // SAFETY: Java passes states that have not ended, and this many numbers of slots.
        let (slots, wanted) = unsafe { (slots(states), numbers(wanted, count as usize)) };
        slots.read(wanted, saved)?;
        let mut described = Vec::new();
        if let Some(taken) = &slots.taken {
            write_table(&taken.column(), &mut described);
        }
        // SAFETY: Java has room for this many words there.
        unsafe { copy_words(&described, table, words)? };
        Ok(())
    }

    /// Ends the waits of the thread that uses the states. Any thread may call this.
    #[expect(non_snake_case, reason = "Java's name")]
    fn cancelStates(_, states: jlong) {
        // SAFETY: Java passes states that have not ended. The task's thread borrows the slots
        // mutably, and not the group.
        let group: &CallGroup = unsafe { &(*(states as *const OwnedStates)).group };
        group.cancel();
        Ok(())
    }

    /// Ends states.
    #[expect(non_snake_case, reason = "Java's name")]
    fn endStates(_, states: jlong) {
        // SAFETY: Java gives back once what `states` returned.
        drop(unsafe { take_back::<OwnedStates>(states) });
        Ok(())
    }
}
