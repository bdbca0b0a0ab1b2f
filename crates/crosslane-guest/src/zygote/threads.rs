//! The threads that a library has started, which a fork does not have.

use std::collections::BTreeMap;
use std::fs;

/// The most names of threads that are shown.
const MOST_NAMES: usize = 8;

/// The note for the log about the threads of a library that a fork does not have.
pub fn lost_threads_note(lost: &[String]) -> String {
    let mut counts = BTreeMap::new();
    for name in lost {
        *counts.entry(name).or_insert(0) += 1;
    }
    let more = (counts.len() > MOST_NAMES).then(|| "...".to_owned());
    let names = counts.into_iter().take(MOST_NAMES).map(|(name, count)| match count {
        1 => name.clone(),
        _ => format!("{name} ({count})"),
    });
    let names: Vec<_> = names.chain(more).collect();
    format!(
        "its top level starts threads, which a fork would not have: {}. So each worker loads the file itself, which \
         takes longer, and shares no memory with the others. Better start them when a function is first called",
        names.join(", ")
    )
}

/// The names of the other threads of this process.
pub(crate) fn other_threads() -> Vec<String> {
    let this = rustix::thread::gettid().as_raw_nonzero().to_string();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let others = tasks.filter(|task| *task.file_name() != *this);
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    others.map(|task| name(task).trim_end().to_owned()).collect()
}
