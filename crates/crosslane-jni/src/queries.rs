//! The calls that the tasks of a query have made in this process, for functions with a `budget`.

use crosslane::call::Spent;
use crosslane::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// The queries that are kept after their last task. The next stage of a query may begin later.
const KEPT: usize = 64;

/// The counts of a query, by library and function.
type Counts = HashMap<(String, u32), Arc<Spent>>;

/// The queries, by Spark's numbers, which grow.
static QUERIES: Mutex<BTreeMap<i64, Counts>> = Mutex::new(BTreeMap::new());

/// The calls that a query has made of a function of a library. A task without a query counts for itself.
pub(crate) fn spent(query: Option<i64>, library: &str, function: u32) -> Arc<Spent> {
    let Some(query) = query else { return Arc::default() };
    let mut queries = lock(&QUERIES);
    while queries.len() >= KEPT && !queries.contains_key(&query) {
        let is_idle = |counts: &Counts| counts.values().all(|spent| Arc::strong_count(spent) == 1);
        let Some(oldest) = queries.iter().find(|(_, counts)| is_idle(counts)).map(|(query, _)| *query) else {
            break;
        };
        queries.remove(&oldest);
    }
    let counts = queries.entry(query).or_default();
    Arc::clone(counts.entry((library.to_owned(), function)).or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_a_query_share_a_count_and_old_queries_go() {
        let first = spent(Some(1), "a.py", 0);
        assert!(Arc::ptr_eq(&first, &spent(Some(1), "a.py", 0)));
        for other in [spent(Some(1), "a.py", 1), spent(Some(1), "b.py", 0), spent(Some(2), "a.py", 0)] {
            assert!(!Arc::ptr_eq(&first, &other));
        }
        assert!(!Arc::ptr_eq(&spent(None, "a.py", 0), &spent(None, "a.py", 0)));
        for query in 3..1000 {
            spent(Some(query), "a.py", 0);
        }
        assert_eq!(lock(&QUERIES).len(), KEPT);
        // A task of the first query runs still.
        assert!(Arc::ptr_eq(&first, &spent(Some(1), "a.py", 0)));
    }
}
