//! What Java sees: the native methods of `dev.crosslane.spark.Native`.
//!
//! A library and a task are numbers there: addresses of boxes of ours, which Java gives back once, by `unload` and `end`. Java's side
//! calls the methods of a task by one thread at a time.

use crate::columns::{WORDS, tell};
use crate::library::{self, ProcessLibrary, described, language};
use crate::states::Slots;
use crate::task::{Argument, Program, Step, Task};
use crosslane::Error;
use crosslane::call::CallGroup;
use jni::errors::ErrorPolicy;
use jni::objects::{JByteArray, JClass, JObjectArray, JString};
use jni::strings::JNIString;
use jni::sys::{jint, jlong};
use jni::{Env, EnvUnowned};
use serde::Deserialize;
use serde_json::json;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// What is thrown.
const EXCEPTION: &str = "dev/crosslane/spark/CrosslaneException";

/// Why a method failed.
#[derive(Debug)]
enum Failed {
    Crosslane(Error),
    Java(jni::errors::Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Crosslane(error)
    }
}

impl From<jni::errors::Error> for Failed {
    fn from(error: jni::errors::Error) -> Self {
        Failed::Java(error)
    }
}

/// Throws what failed as Java's exception of ours. No panic crosses into Java.
struct Throws;

impl<T: Default> ErrorPolicy<T, Failed> for Throws {
    type Captures<'local: 'method, 'method> = ();

    fn on_error<'local: 'method, 'method>(
        env: &mut Env<'local>,
        (): &mut (),
        failed: Failed,
    ) -> jni::errors::Result<T> {
        match failed {
            Failed::Java(_) if env.exception_check() => {}
            Failed::Java(error) => throw(env, &error.to_string()),
            Failed::Crosslane(error) => throw(env, &error.to_string()),
        }
        Ok(T::default())
    }

    fn on_panic<'local: 'method, 'method>(
        env: &mut Env<'local>,
        (): &mut (),
        payload: Box<dyn Any + Send + 'static>,
    ) -> jni::errors::Result<T> {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no text");
        throw(env, &format!("a defect of crosslane's, please report it: {text}"));
        Ok(T::default())
    }
}

fn throw(env: &mut Env<'_>, message: &str) {
    // That it was thrown is an error, too.
    let _ = env.throw_new(JNIString::from(EXCEPTION), JNIString::from(message));
}

/// A library that Java knows by its address.
///
/// # Safety
/// It must be one that `load` returned and `unload` did not get.
unsafe fn library<'a>(address: jlong) -> &'a Arc<ProcessLibrary> {
    // SAFETY: as the caller says.
    unsafe { &*(address as *const Arc<ProcessLibrary>) }
}

/// The version of this library, which must be that of the jar.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_version<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
) -> JString<'local> {
    let version = env.with_env(|env| Ok::<_, Failed>(JString::from_str(env, env!("CARGO_PKG_VERSION"))?));
    version.resolve::<Throws>()
}

/// Loads a library: a file, or pickled functions. Settings are names and values in turns.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_load<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    name: JString<'local>,
    pickles: JObjectArray<'local, JByteArray<'local>>,
    settings: JObjectArray<'local, JString<'local>>,
) -> jlong {
    let loaded = env.with_env(|env| {
        let name = name.try_to_string(env)?;
        let mut bytes = Vec::new();
        for index in 0..pickles.len(env)? {
            let pickle = pickles.get_element(env, index)?;
            bytes.push(env.convert_byte_array(pickle)?);
        }
        let mut texts = Vec::new();
        for index in 0..settings.len(env)? {
            texts.push(settings.get_element(env, index)?.try_to_string(env)?);
        }
        let pairs = texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        let library = library::load(&name, bytes, &pairs.collect::<Vec<_>>())?;
        Ok::<_, Failed>(Box::into_raw(Box::new(Arc::new(library))) as jlong)
    });
    loaded.resolve::<Throws>()
}

/// Its language, and what its functions are, as JSON.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_describe<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    address: jlong,
) -> JString<'local> {
    let text = env.with_env(|env| {
        // SAFETY: Java passes a library of ours that it has not unloaded.
        let library = unsafe { library(address) };
        let functions: Vec<_> = library.functions.iter().map(|function| described(function)).collect();
        let described = json!({ "language": language(library), "functions": functions });
        Ok::<_, Failed>(JString::from_str(env, described.to_string())?)
    });
    text.resolve::<Throws>()
}

/// How many workers of a library were started so far.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_started<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    address: jlong,
) -> jlong {
    let started = env.with_env(|_| {
        // SAFETY: Java passes a library of ours that it has not unloaded.
        Ok::<_, Failed>(unsafe { library(address) }.pool.stats().booted as jlong)
    });
    started.resolve::<Throws>()
}

/// Ends a library; tasks that use it keep it until they end.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_unload<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    address: jlong,
) {
    let unloaded = env.with_env(|_| {
        // SAFETY: Java gives back once what `load` returned.
        drop(unsafe { Box::from_raw(address as *mut Arc<ProcessLibrary>) });
        Ok::<_, Failed>(())
    });
    unloaded.resolve::<Throws>();
}

/// A step as Java tells it.
#[derive(Debug, Deserialize)]
struct Told {
    library: i64,
    function: u32,
    arguments: Vec<Argument>,
    #[serde(default)]
    aligned: bool,
}

/// Begins a task: `program` is JSON with its steps.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_begin<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    inputs: jint,
    program: JString<'local>,
    width: jint,
    depth: jint,
) -> jlong {
    let begun = env.with_env(|env| {
        let text = program.try_to_string(env)?;
        let told: Vec<Told> =
            serde_json::from_str(&text).map_err(|error| Error::Engine(error.to_string()))?;
        let steps = told.into_iter().map(|told| {
            // SAFETY: Java passes libraries of ours that it has not unloaded.
            let library = Arc::clone(unsafe { library(told.library) });
            let function = library.functions.get(told.function as usize).cloned();
            let function = function.ok_or_else(|| {
                Error::Engine(format!(
                    "{} has no function {}: is it another file here?",
                    library.name, told.function
                ))
            })?;
            Ok(Step { library, function, arguments: told.arguments, aligned: told.aligned })
        });
        let steps = steps.collect::<Result<Vec<_>, Error>>()?;
        let task = Task::begin(Program::new(inputs as usize, steps, width as usize, depth as usize)?)?;
        Ok::<_, Failed>(Box::into_raw(Box::new(task)) as jlong)
    });
    begun.resolve::<Throws>()
}

/// Hands over a batch, of which the words at the address tell ([`crate::columns`]).
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_submit<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    task: jlong,
    rows: jint,
    table: jlong,
    columns: jint,
) {
    let submitted = env.with_env(|_| {
        // SAFETY: Java passes a task of ours that has not ended, and a table of so many columns, which it leaves alone.
        unsafe {
            let words = std::slice::from_raw_parts(table as *const u64, columns as usize * WORDS);
            (*(task as *mut Task)).submit(rows as usize, words.to_vec());
        }
        Ok::<_, Failed>(())
    });
    submitted.resolve::<Throws>();
}

/// Says that no more batches come.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_finish<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    task: jlong,
) {
    let finished = env.with_env(|_| {
        // SAFETY: Java passes a task of ours that has not ended.
        unsafe { &mut *(task as *mut Task) }.finish();
        Ok::<_, Failed>(())
    });
    finished.resolve::<Throws>();
}

/// [`Java_dev_crosslane_spark_Native_take`] found nothing within its time.
const NOT_YET: jint = -1;
/// It found the end.
const DONE: jint = -2;

/// Takes the next answer within so many milliseconds: writes to the address what was counted, the row of the batch that the results are of (-1
/// if each row has its own), whether the batch is done with, whether another one is wanted, and where the results lie. Returns how many rows they have.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_take<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    task: jlong,
    table: jlong,
    words: jint,
    milliseconds: jint,
) -> jint {
    let taken = env.with_env(|_| {
        // SAFETY: Java passes a task of ours that has not ended.
        let task = unsafe { &mut *(task as *mut Task) };
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
        let told = [&head[..], &answer.table()].concat();
        if told.len() != words as usize {
            return Err(
                Error::Engine(format!("{} words of results, where {words} were due", told.len())).into()
            );
        }
        // SAFETY: Java has so many words there.
        unsafe { std::slice::from_raw_parts_mut(table as *mut u64, told.len()) }.copy_from_slice(&told);
        Ok::<_, Failed>(answer.results.last().map_or(0, |results| results.rows() as jint))
    });
    taken.resolve::<Throws>()
}

/// Ends a task; nothing of it is read any more when this returns.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_end<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    task: jlong,
) {
    let ended = env.with_env(|_| {
        // SAFETY: Java gives back once what `begin` returned.
        unsafe { Box::from_raw(task as *mut Task) }.end();
        Ok::<_, Failed>(())
    });
    ended.resolve::<Throws>();
}

/// What Java has of an aggregate's states: the states, which its one thread uses, and what ends a wait of that, which any may use.
struct Held {
    slots: Slots,
    group: Arc<CallGroup>,
}

/// # Safety
/// It must be one that `states` returned and `endStates` did not get, and only the task's thread may use it.
unsafe fn slots<'a>(address: jlong) -> &'a mut Slots {
    // SAFETY: as the caller says.
    unsafe { &mut (*(address as *mut Held)).slots }
}

/// So many numbers of slots at an address.
///
/// # Safety
/// They must be there, and stay for the lifetime.
unsafe fn numbers<'a>(address: jlong, count: jint) -> &'a [u32] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(address as *const u32, count as usize) }
}

/// Begins the states of an aggregate.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_states<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    address: jlong,
    function: jint,
) -> jlong {
    let begun = env.with_env(|_| {
        // SAFETY: Java passes a library of ours that it has not unloaded.
        let library = Arc::clone(unsafe { library(address) });
        let found = library.functions.get(function as usize).cloned();
        let found =
            found.ok_or_else(|| Error::Engine(format!("{} has no function {function}", library.name)))?;
        let slots = Slots::new(library, found);
        let group = slots.group();
        Ok::<_, Failed>(Box::into_raw(Box::new(Held { slots, group })) as jlong)
    });
    begun.resolve::<Throws>()
}

/// A slot with a new state.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_createState<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    states: jlong,
) -> jint {
    // SAFETY: Java passes states of ours that have not ended.
    let created = env.with_env(|_| Ok::<_, Failed>(unsafe { slots(states) }.create() as jint));
    created.resolve::<Throws>()
}

/// The states of so many slots are no more.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_destroyStates<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    states: jlong,
    ended: jlong,
    count: jint,
) {
    let destroyed = env.with_env(|_| {
        // SAFETY: Java passes states of ours that have not ended, and so many numbers.
        unsafe { slots(states).destroy(numbers(ended, count)) };
        Ok::<_, Failed>(())
    });
    destroyed.resolve::<Throws>();
}

/// Adds rows to states, of which the words at the table tell. With `saved`, the rows are saved states.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_addToStates<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    states: jlong,
    targets: jlong,
    count: jint,
    table: jlong,
    columns: jint,
    saved: bool,
) {
    let added = env.with_env(|_| {
        // SAFETY: Java passes states of ours that have not ended, so many numbers, and a table of so many columns, which it leaves alone.
        unsafe {
            let words = if columns == 0 {
                &[][..]
            } else {
                std::slice::from_raw_parts(table as *const u64, columns as usize * WORDS)
            };
            let (slots, targets) = (slots(states), numbers(targets, count));
            if saved { slots.load(targets, words)? } else { slots.update(targets, words)? }
        }
        Ok::<_, Failed>(())
    });
    added.resolve::<Throws>();
}

/// Adds sources to targets, and leaves nothing in the sources.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_combineStates<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    states: jlong,
    targets: jlong,
    sources: jlong,
    count: jint,
) {
    let combined = env.with_env(|_| {
        // SAFETY: Java passes states of ours that have not ended, and so many numbers of each.
        unsafe { slots(states).combine(numbers(targets, count), numbers(sources, count))? };
        Ok::<_, Failed>(())
    });
    combined.resolve::<Throws>();
}

/// The results of states, or with `saved` the states as bytes: writes where they lie to the address. They can be read until the next call.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_readStates<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    states: jlong,
    wanted: jlong,
    count: jint,
    saved: bool,
    table: jlong,
    words: jint,
) {
    let read = env.with_env(|_| {
        // SAFETY: Java passes states of ours that have not ended, so many numbers, and has so many words at the table.
        unsafe {
            let (slots, wanted) = (slots(states), numbers(wanted, count));
            if saved {
                slots.save(wanted)?
            } else {
                slots.finish(wanted)?
            }
            let mut told = Vec::new();
            if let Some(taken) = &slots.taken {
                tell(&taken.column(), &mut told);
            }
            if told.len() != words as usize {
                return Err(Error::Engine(format!(
                    "{} words of results, where {words} were due",
                    told.len()
                ))
                .into());
            }
            std::slice::from_raw_parts_mut(table as *mut u64, told.len()).copy_from_slice(&told);
        }
        Ok::<_, Failed>(())
    });
    read.resolve::<Throws>();
}

/// Ends what states are waited for, from any thread.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_cancelStates<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    states: jlong,
) {
    let cancelled = env.with_env(|_| {
        // SAFETY: Java passes states of ours that have not ended. The group is not what the task's thread uses mutably.
        let group: &CallGroup = unsafe { &(*(states as *const Held)).group };
        group.cancel();
        Ok::<_, Failed>(())
    });
    cancelled.resolve::<Throws>();
}

/// Ends states.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_crosslane_spark_Native_endStates<'local>(
    mut env: EnvUnowned<'local>,
    _: JClass<'local>,
    states: jlong,
) {
    let ended = env.with_env(|_| {
        // SAFETY: Java gives back once what `states` returned.
        drop(unsafe { Box::from_raw(states as *mut Held) });
        Ok::<_, Failed>(())
    });
    ended.resolve::<Throws>();
}
