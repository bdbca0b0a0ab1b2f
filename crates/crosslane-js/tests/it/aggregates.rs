//! Aggregates: states are updated, combined, saved, loaded and finished.

use crate::support::{Log, call, frame, integers, load, texts};
use crosslane::batch::{self, Encode};
use crosslane::{ColumnBuilder, DataType, Entry};
use crosslane_js::guest::{Answer, Guest};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;

/// Runs an entry of an aggregate with columns. Returns its results as integers and the number of
/// errors, or the failure's text.
fn enter(guest: &mut Guest, entry: Entry, columns: &[Vec<i64>]) -> Result<(Vec<Option<i64>>, u32), String> {
    let rows = columns[0].len();
    let built: Vec<ColumnBuilder> = columns
        .iter()
        .map(|column| integers(&column.iter().copied().map(Some).collect::<Vec<_>>()))
        .collect();
    let built: Vec<&dyn Encode> = built.iter().map(|column| column as &dyn Encode).collect();
    let request = frame(&built, rows);
    let types = vec![DataType::BigInt; columns.len()];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    match guest.enter(0, entry, &columns, rows, &AtomicU64::new(0)) {
        Answer::Done(results, row_counts) => {
            let reply = frame(&[&results], rows);
            let columns = batch::columns(bytemuck::cast_slice(&reply), types[..1].iter()).unwrap();
            let value = |row| columns[0].is_valid(row).then(|| columns[0].value(row));
            Ok(((0..rows).map(value).collect(), row_counts.errors))
        }
        Answer::Nothing(row_counts) => Ok((Vec::new(), row_counts.errors)),
        Answer::Failed(failure, _) => Err(failure.to_string()),
        Answer::Closed => Err("closed".into()),
    }
}

/// Combines two states.
fn combine(guest: &mut Guest, target: i64, source: i64, keep: bool) {
    let mut flag = ColumnBuilder::new(&DataType::Boolean);
    flag.boolean(keep);
    let request = frame(&[&integers(&[Some(target)]), &integers(&[Some(source)]), &flag], 1);
    let types = [DataType::BigInt, DataType::BigInt, DataType::Boolean];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    let done = guest.enter(0, Entry::Combine, &columns, 1, &AtomicU64::new(0));
    assert!(matches!(done, Answer::Nothing(_)), "{done:?}");
}

const TOTALS: [&str; 3] = [
    "class Total { sum = [0]; update(x) { if (x < 0) throw new Error('below'); this.sum[0] += x; }
       merge(other) { this.sum[0] += other.sum[0]; } finish() { return this.sum[0]; } }
     udaf('total(x BIGINT) -> BIGINT', { on_error: 'null' }, Total);",
    "udaf('total(x BIGINT) -> BIGINT', { on_error: 'null' }, { start: () => 0,
       update(s, x) { if (x < 0) throw new Error('below'); return s + x; }, merge: (a, b) => a + b, finish: (s) => s });",
    "class Total { sum = 0n; update(x) { for (const one of x) if (one < 0) throw new Error('below');
         x.forEach((one) => { this.sum += BigInt(one); }); }
       merge(other) { this.sum += other.sum; } finish() { return this.sum; } }
     udaf('total(x BIGINT) -> BIGINT', { vectorized: true, on_error: 'null' }, Total);",
];

#[test]
fn states_are_updated_combined_and_finished() {
    for text in TOTALS {
        let mut fixture = load(text).unwrap();
        let guest = &mut fixture.guest;
        assert_eq!(enter(guest, Entry::Update, &[vec![0, 1, 0, 2], vec![1, 10, 2, 100]]).unwrap().1, 0);
        assert_eq!(
            enter(guest, Entry::Finish, &[vec![0, 1, 2, 7]]).unwrap().0,
            [Some(3), Some(10), Some(100), Some(0)]
        );
        // A source that is kept is independent of the target from then on.
        combine(guest, 3, 1, true);
        enter(guest, Entry::Update, &[vec![3], vec![5]]).unwrap();
        combine(guest, 0, 2, false);
        assert_eq!(
            enter(guest, Entry::Finish, &[vec![0, 1, 2, 3, 0]]).unwrap().0,
            [Some(103), Some(10), Some(0), Some(15), Some(103)]
        );
        enter(guest, Entry::Forget, &[vec![0, 1, 3]]).unwrap();
        assert_eq!(enter(guest, Entry::Finish, &[vec![0, 3]]).unwrap().0, [Some(0), Some(0)]);
        // A row that fails is left out.
        let mut errors = enter(guest, Entry::Update, &[vec![4, 5], vec![-1, 6]]).unwrap().1;
        let (sums, late) = enter(guest, Entry::Finish, &[vec![4, 5]]).unwrap();
        errors += late;
        assert_eq!((sums, errors), (vec![Some(0), Some(6)], 1));
    }
}

/// Saves a state as text.
fn saved(guest: &mut Guest, state: i64) -> Option<String> {
    let request = frame(&[&integers(&[Some(state)])], 1);
    let types = [DataType::BigInt];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    let Answer::Done(saved, _) = guest.enter(0, Entry::Save, &columns, 1, &AtomicU64::new(0)) else {
        panic!("no states");
    };
    let saved = frame(&[&saved], 1);
    let saved = batch::column(bytemuck::cast_slice(&saved), &DataType::Varchar).unwrap();
    saved.is_valid(0).then(|| String::from_utf8(saved.bytes(0).to_vec()).unwrap())
}

/// Merges a saved state into another.
fn load_state(guest: &mut Guest, state: i64, text: &str) {
    let request = frame(&[&integers(&[Some(state)]), &texts(&[Some(text)])], 1);
    let types = [DataType::BigInt, DataType::Varchar];
    let columns = batch::columns(bytemuck::cast_slice(&request), types.iter()).unwrap();
    let done = guest.enter(0, Entry::Load, &columns, 1, &AtomicU64::new(0));
    assert!(matches!(done, Answer::Nothing(_)), "{done:?}");
}

#[test]
fn states_travel_as_text() {
    for text in TOTALS {
        let mut fixture = load(text).unwrap();
        let mut other = Guest::boot(&fixture.library, Box::new(Log(mpsc::channel().0))).unwrap();
        let guest = &mut fixture.guest;
        enter(guest, Entry::Update, &[vec![1, 1], vec![4, 5]]).unwrap();
        assert_eq!(saved(guest, 0), None);
        let text = saved(guest, 1).unwrap();
        for expected in [9, 18] {
            load_state(&mut other, 0, &text);
            assert_eq!(enter(&mut other, Entry::Finish, &[vec![0]]).unwrap().0, [Some(expected)]);
        }
    }
}

/// An object without a prototype that counts words has no methods, so that a word such as
/// `constructor` is new to it.
#[test]
fn states_without_a_prototype_stay_so() {
    for (start, words) in [("Object.create(null)", "s"), ("({ words: Object.create(null) })", "s.words")] {
        let mut fixture = load(&format!(
            "udaf('words(x BIGINT) -> BIGINT', {{
               start: () => {start},
               update(s, x) {{ if (x > 0) {words}.constructor = ({words}.constructor ?? 0) + x; }},
               merge() {{}},
               finish: (s) => {words}.constructor ?? (Object.getPrototypeOf({words}) === null ? -1 : -2),
             }});"
        ))
        .unwrap();
        let guest = &mut fixture.guest;
        let update = |guest: &mut Guest, state, x| {
            enter(guest, Entry::Update, &[vec![state], vec![x]]).unwrap();
        };
        // The first state is empty, the second one has a word.
        for (state, x, before, after) in [(0, 0, -1, 5), (10, 7, 7, 12)] {
            update(guest, state, x);
            combine(guest, state + 1, state, true);
            let text = saved(guest, state).unwrap();
            load_state(guest, state + 2, &text);
            for copy in [state + 1, state + 2] {
                assert_eq!(enter(guest, Entry::Finish, &[vec![copy]]).unwrap().0, [Some(before)], "{start}");
                update(guest, copy, 5);
                assert_eq!(enter(guest, Entry::Finish, &[vec![copy]]).unwrap().0, [Some(after)], "{start}");
            }
        }
    }
}

#[test]
fn a_vectorized_update_takes_large_batches() {
    let mut fixture = load(TOTALS[2]).unwrap();
    let guest = &mut fixture.guest;
    let rows = 50_000;
    for _ in 0..2 {
        enter(guest, Entry::Update, &[vec![3; rows], vec![1; rows]]).unwrap();
    }
    assert_eq!(enter(guest, Entry::Finish, &[vec![3]]).unwrap().0, [Some(2 * rows as i64)]);
}

#[test]
fn a_guest_has_states_until_all_are_forgotten() {
    for text in TOTALS {
        let greedy = "udf('greedy(x BIGINT) -> BIGINT', { on_error: 'null', memory_limit: '30 MB' }, (x) => {
            for (const all = []; x === 2;) all.push(new Array(1000).fill(0.5));
            return x; });";
        let mut fixture = load(&format!("{text}{greedy}")).unwrap();
        let guest = &mut fixture.guest;
        assert!(!guest.has_states());
        enter(guest, Entry::Update, &[vec![0, 1], vec![1, 10]]).unwrap();
        enter(guest, Entry::Forget, &[vec![1]]).unwrap();
        assert!(guest.has_states());
        enter(guest, Entry::Forget, &[vec![0]]).unwrap();
        assert!(!guest.has_states());
        enter(guest, Entry::Update, &[vec![2], vec![100]]).unwrap();
        assert!(guest.has_states());
        // A row of another function that uses too much memory fails alone.
        assert_eq!(call(guest, 1, &[Some(1), Some(2), Some(3)]), Ok(vec![Some(1), None, Some(3)]));
        assert!(guest.is_spent() && guest.has_states());
    }
}
