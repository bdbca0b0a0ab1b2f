//! Tests the native part without a database: values that go through a column, the entries of tables
//! and aggregates, and waits.

use crate::values::{Fault, Vm, columns};
use crate::worker::serve::{Reuse, answer_by};
use crosslane::batch::{self, BATCH, Body, Encode, FAILURE, Header, Plan};
use crosslane::lane::Lane;
use crosslane::{Address, ColumnBuilder, DataType, Entry};
use crosslane_guest::{Class, fail, succeed};
use crosslane_gvl::Unwind;
use crosslane_process::guest::{Call, GuestLane, Next, RowCounts};
use crosslane_process::testing::{both_ends, fill};
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::ReprValue;
use magnus::{Value, eval};
use std::io::Read;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

fn evaluate(text: &str) -> Value {
    eval(&format!("# encoding: utf-8\n{text}")).expect("an expression")
}

/// For each type, values that are unchanged after the way into a column and back.
const SURVIVE: [(&str, &[&str]); 18] = [
    ("BOOLEAN", &["true", "false"]),
    ("TINYINT", &["-128", "127"]),
    ("INTEGER", &["-2**31", "2**31 - 1"]),
    ("BIGINT", &["-2**63", "2**63 - 1", "0", "2**62", "-2**62 - 1"]),
    ("UBIGINT", &["0", "2**64 - 1"]),
    ("HUGEINT", &["-2**127", "2**127 - 1"]),
    ("UHUGEINT", &["0", "2**128 - 1"]),
    ("DOUBLE", &["0.1", "-0.0", "1e308", "5e-324"]),
    ("DECIMAL(38, 4)", &["BigDecimal('-1234567890123456789012345678901234.5678')"]),
    ("VARCHAR", &["''", "'a'", "'\u{1F980} ä'", "\"a\\0b\"", "'x' * 100_000"]),
    ("BLOB", &["''.b", "(0..255).to_a.pack('C*')"]),
    ("DATE", &["Date.new(1, 1, 1)", "Date.new(1970, 1, 1)", "Date.new(9999, 12, 31)"]),
    ("TIMESTAMP", &["Time.utc(1, 1, 1)", "Time.utc(9999, 12, 31, 23, 59, 59.999999r)"]),
    ("TIME", &["Crosslane::TimeOfDay.at(0)", "Crosslane::TimeOfDay.at(24)"]),
    ("INTERVAL", &["Crosslane::Interval.new(-1, 2, -3)"]),
    ("ENUM('a', 'b')", &["'a'", "'b'"]),
    ("BIGINT[]", &["[]", "[1, nil, 3]"]),
    ("MAP(VARCHAR, BIGINT[])", &["{}", "{ 'a' => [1], 'b' => nil }"]),
];

fn every_value_survives_its_column() {
    for (data_type, values) in SURVIVE {
        let data_type: DataType = data_type.parse().expect("a type");
        let writer = columns::writer(&data_type).expect("a writer");
        let reader = columns::reader(&data_type).expect("a reader");
        for text in values.iter().chain(&["nil"]) {
            let value = evaluate(text);
            let mut column = ColumnBuilder::new(&data_type);
            // SAFETY: with the GVL; an exception would end the test. The column is of this type and
            // has the row.
            let read = unsafe {
                let vm = Vm::new();
                writer.write(&vm, &value.as_raw(), &mut column).expect("a value of the type");
                Value::from_raw(reader.read(&vm, &column.column(&data_type), 0).expect("an object"))
            };
            assert!(value.eql(read).expect("comparable"), "{data_type}: {read:?} instead of {value:?}");
        }
    }
}

/// For each type, objects that are refused, and the exception's class.
const REFUSED: [(&str, &str, Class); 14] = [
    ("BOOLEAN", "1", Class::Type),
    ("TINYINT", "128", Class::Range),
    ("BIGINT", "2**63", Class::Range),
    ("BIGINT", "'1'", Class::Type),
    ("UBIGINT", "-1", Class::Range),
    ("HUGEINT", "2**127", Class::Range),
    ("UHUGEINT", "2**128", Class::Range),
    ("DECIMAL(4, 2)", "BigDecimal('100')", Class::Range),
    ("VARCHAR", "1", Class::Type),
    ("VARCHAR", "\"\\xFF\".b", Class::Value),
    ("ENUM('a', 'b')", "'c'", Class::Value),
    ("BIGINT[]", "[1, 'two']", Class::Type),
    ("INTEGER[2]", "[1, 2, 3]", Class::Value),
    ("STRUCT(a VARCHAR, b BIGINT)", "{ a: 'x', b: 'y' }", Class::Type),
];

fn what_is_no_value_is_told_and_leaves_no_trace() {
    for (data_type, refused, class) in REFUSED {
        let data_type: DataType = data_type.parse().expect("a type");
        let writer = columns::writer(&data_type).expect("a writer");
        let mut column = ColumnBuilder::new(&data_type);
        column.null();
        let value = evaluate(refused);
        // SAFETY: as above.
        let fault = writer.write(&unsafe { Vm::new() }, &value.as_raw(), &mut column).expect_err(refused);
        let Fault::Refused(fault) = fault else { panic!("{data_type}, {refused}: {fault:?}") };
        let (told, message) = *fault;
        assert_eq!(told, class, "{data_type}, {refused}: {message}");
        column.truncate(1);
        // If an object fails partway, its parts are removed from the child columns too.
        column.null();
        let column = column.column(&data_type);
        assert!(column.rows == 2 && !column.is_valid(0) && !column.is_valid(1));
        assert!(column.children.iter().all(|child| child.rows <= 2 * 2), "{data_type}, {refused}");
    }
}

fn numbers(values: &[Option<i64>]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::BigInt);
    for value in values {
        match value {
            Some(value) => column.fixed(*value),
            None => column.null(),
        }
    }
    column
}

/// Tables, as files declare them.
const TABLES: &str = "
  class Tables
    def self.declared = @declared ||= []
    def self.udtf(signature, **options, &block)
      declared << Crosslane::Table.new(signature, block, **options)
    end
    @left = []
    def self.left = @left

    udtf('numbers(n BIGINT, step BIGINT) -> TABLE(i BIGINT)') { |n, step: 1| 0.step(n - 1, step) }
    udtf('shapes(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)', on_error: :null) do |n|
      pair = Struct.new(:i, :s)
      [[1, 'a'], { i: 2, s: 'b' }, { 's' => 'c', 'i' => 3 }, pair.new(4, 'd'), nil, StandardError.new('x'), [7, 8]]
    end
    udtf('batches(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)', vectorized: true) do |n|
      [[[*0...n], (0...n).map(&:to_s)], { s: %w[x y], i: [-1, -2] }]
    end
    udtf('parts(n BIGINT) -> TABLE(i BIGINT)', partitions: ->(n) { [*1..n] }) { |part, n| [part * n] }
    udtf('endless() -> TABLE(i BIGINT)') do
      Enumerator.new { |rows| loop { rows << 1 } }.lazy.map { |i| i }.each_entry
    end
    udtf('wide() -> TABLE(a BIGINT, b BIGINT, c BIGINT)') { |wanted:| [wanted.map { |name| name.ord }] }
    udtf('fails() -> TABLE(i BIGINT)') do
      Enumerator.new { |rows| rows << 1; rows << 'two' }
    end
    udtf('yields() -> TABLE(i BIGINT)') { [1, ArgumentError.new('no second')] }
  end
  Tables.declared";

/// A header, and a batch that is aligned to 64-bit words.
type Message = (Header, Vec<u64>);

/// The engine's side of a scan of tables.
struct Tables {
    vm: Vm,
    declared: Value,
    engine: crosslane_process::ProcessLane,
    guest: GuestLane,
}

impl Tables {
    /// Scans a function, or asks for its partitions, with one argument. Returns all batches, and
    /// the header and text of a failure. It requests at most `most` batches.
    fn scan(
        &mut self,
        number: u32,
        (entry, partition): (Entry, Option<&[u8]>),
        wanted: Option<&[i32]>,
        arguments: &[Option<i64>],
        most: usize,
    ) -> (Vec<Message>, Option<(Header, String)>) {
        let mut content = Vec::new();
        if entry == Entry::Scan {
            let mut column = ColumnBuilder::new(&DataType::Blob);
            match partition {
                None => column.null(),
                Some(bytes) => column.bytes(bytes).expect("room"),
            }
            content.push(column);
            let mut column = ColumnBuilder::new(&DataType::List(Arc::new(DataType::Integer)));
            match wanted {
                None => column.null(),
                Some(places) => {
                    column.children[0].fixed_all(places);
                    column.nested().expect("room");
                }
            }
            content.push(column);
        }
        content.extend(arguments.iter().map(|value| numbers(&[*value])));
        let sent = self.engine.submit(Address::whole(number, entry), 1, &content);
        assert!(matches!(sent, Ok(Some(_))));
        let Ok(Next::Call(call)) = self.guest.next_call_or(|| false) else { panic!("no message") };
        let (mut batches, mut failure) = (Vec::new(), None);
        std::thread::scope(|scope| {
            let engine = &mut self.engine;
            let taken = scope.spawn(move || {
                let (mut batches, mut failure) = (Vec::new(), None);
                while engine.in_flight() > 0 {
                    let Some(header) = engine.try_collect().expect("a sound message") else { continue };
                    let frame = engine.frame();
                    if header.kind == FAILURE {
                        let text = String::from_utf8_lossy(batch::failure_text(frame).expect("a text"));
                        failure = Some((header, text.into_owned()));
                        continue;
                    }
                    let mut words = vec![0u64; frame.len().div_ceil(8)];
                    bytemuck::cast_slice_mut(&mut words)[..frame.len()].copy_from_slice(frame);
                    batches.push((header, words));
                    if batches.len() == most {
                        engine.cancel().expect("a lane");
                    }
                }
                (batches, failure)
            });
            let ready =
                crate::functions::callable::callable(&self.vm, self.declared, number, None).expect("a table");
            answer_by(&self.vm, &ready, &mut self.guest, call, &mut Reuse::default()).expect("an answer");
            (batches, failure) = taken.join().expect("an engine");
        });
        (batches, failure)
    }
}

/// The rows of batches, each as a text of its values.
fn shown(batches: &[Message], returns: &str) -> Vec<String> {
    let returns: DataType = returns.parse().expect("a type");
    let mut rows = Vec::new();
    for (header, words) in batches {
        let column = batch::column(bytemuck::cast_slice(words), &returns).expect("a column");
        assert_eq!(column.rows, header.rows as usize);
        rows.extend((0..column.rows).map(|row| crosslane::display::value(&column, row)));
    }
    rows
}

fn tables_are_scanned() {
    // SAFETY: with the GVL.
    let vm = unsafe { Vm::calling(false) };
    let (engine, guest) = both_ends(1 << 16);
    let mut tables = Tables { vm, declared: evaluate(TABLES), engine, guest };
    let scan = (Entry::Scan, None);
    let sizes = |batches: &[Message]| batches.iter().map(|(header, _)| header.rows).collect::<Vec<_>>();
    // Values without an Array, a parameter that is left out, and batches of growing size.
    let (batches, failure) = tables.scan(0, scan, None, &[Some(5000), None], 100);
    let made = sizes(&batches);
    assert!(
        made[0] <= 16 && made[1] <= 64 && made.iter().sum::<u32>() == 5000 && failure.is_none(),
        "{made:?}"
    );
    let (batches, _) = tables.scan(0, scan, None, &[Some(5), Some(2)], 100);
    assert_eq!(shown(&batches, "STRUCT(i BIGINT)"), ["{i = 0}", "{i = 2}", "{i = 4}"]);
    // The query needs no column, or only the second one.
    let (batches, _) = tables.scan(0, scan, Some(&[]), &[Some(3), None], 100);
    assert_eq!(sizes(&batches), [3]);
    let (batches, failure) = tables.scan(1, scan, Some(&[1]), &[Some(1)], 100);
    assert_eq!(failure, None);
    let names = shown(&batches, "STRUCT(s VARCHAR)").join(" ");
    assert_eq!(names, "{s = 'a'} {s = 'b'} {s = 'c'} {s = 'd'} NULL NULL NULL");
    // The exception and the invalid VARCHAR count as errors; the row that is nil does not.
    assert_eq!(batches.iter().map(|(header, _)| header.errors).sum::<u32>(), 2);
    // Large batches are cut to the size that the engine accepts.
    let (batches, _) = tables.scan(2, scan, None, &[Some(5000)], 100);
    let made = sizes(&batches);
    assert!(made[..2] == [2048, 2048] && made.iter().sum::<u32>() == 5002, "{made:?}");
    let rows = shown(&batches, "STRUCT(i BIGINT, s VARCHAR)");
    assert_eq!((&rows[4999][..], &rows[5001][..]), ("{i = 4999, s = '4999'}", "{i = -2, s = 'y'}"));
    let (batches, _) = tables.scan(2, scan, Some(&[]), &[Some(3)], 100);
    assert_eq!(sizes(&batches).iter().sum::<u32>(), 5);
    // Partitions are sent to the engine and come back.
    let (batches, failure) = tables.scan(3, (Entry::Partitions, None), None, &[Some(3)], 100);
    assert_eq!((sizes(&batches), failure), (vec![3], None));
    let column = batch::column(bytemuck::cast_slice(&batches[0].1), &DataType::Blob).expect("a column");
    let (batches, _) = tables.scan(3, (Entry::Scan, Some(column.bytes(1))), None, &[Some(10)], 100);
    assert_eq!(shown(&batches, "STRUCT(i BIGINT)"), ["{i = 20}"]);
    // If the engine wants no more rows, it gets no more, and the lane stays usable.
    let (batches, failure) = tables.scan(4, scan, None, &[], 2);
    assert!(batches.len() < 6 && failure.is_none(), "{}", batches.len());
    let (batches, _) = tables.scan(5, scan, Some(&[0, 2]), &[], 100);
    assert_eq!(shown(&batches, "STRUCT(a BIGINT, c BIGINT)"), ["{a = 97, c = 99}"]);
    // An invalid row and an exception are reported with their row numbers.
    let (batches, failure) = tables.scan(6, scan, None, &[], 100);
    let (header, text) = failure.expect("a failure");
    assert_eq!(shown(&batches, "STRUCT(i BIGINT)"), ["{i = 1}"]);
    assert!(header.row == 1 && text.contains("where BIGINT is due"), "{text}");
    let (_, failure) = tables.scan(7, scan, None, &[], 100);
    assert!(matches!(failure, Some((header, text)) if header.row == 1 && text.contains("no second")));
    // A table has no other entries.
    for entry in [Entry::Call, Entry::Update, Entry::SetUp] {
        let sent = tables.engine.submit(Address::whole(0, entry), 1, &());
        assert!(matches!(sent, Ok(Some(_))));
        let Ok(Next::Call(call)) = tables.guest.next_call_or(|| false) else { panic!("no message") };
        let ready =
            crate::functions::callable::callable(&tables.vm, tables.declared, 0, None).expect("a table");
        answer_by(&tables.vm, &ready, &mut tables.guest, call, &mut Reuse::default()).expect("an answer");
        let header = tables.engine.try_collect().expect("a sound answer").expect("an answer");
        assert_eq!(header.kind, FAILURE, "{entry:?}");
    }
}

/// Aggregates, as files declare them: with a class, with a block, and vectorized.
const AGGREGATES: &str = "
  class Sum
    attr_reader :all
    def initialize = @all = []
    def update(x) = x == 13 ? raise('no 13') : @all << x
    def merge(other) = @all.concat(other.all)
    def finish = @all.sum
  end
  class Sums < Sum
    def update(xs) = @all.concat(xs.empty? ? raise('no rows') : [xs.sum, xs.size])
    def finish = @all.sum
  end
  class Strict < Sum
    def finish = @all.size == 3 ? 'three' : super
  end
  class Closed < Sum
    def initialize = @all = [-> {}]
    def update(x) = nil
  end
  add = ->(a, b) { (a || 0) + (b || 0) }
  # The numbers of tables are others.
  [*[nil] * 20, Crosslane::Aggregate.new('total(x BIGINT) -> BIGINT', Sum, on_error: :null),
   Crosslane::Aggregate.new('added(x BIGINT) -> BIGINT', ->(sum, x) { x == 1 ? nil : add.(sum, x) }, combine: add),
   Crosslane::Aggregate.new('sums(x BIGINT) -> BIGINT', Sums, vectorized: true),
   Crosslane::Aggregate.new('closed(x BIGINT) -> BIGINT', Closed),
   Crosslane::Aggregate.new('strict(x BIGINT) -> BIGINT', Strict)]";

/// The uses of aggregates: each returns the results or a failure's text, and the header.
struct Uses {
    vm: Vm,
    declared: Value,
    engine: crosslane_process::ProcessLane,
    guest: GuestLane,
    outs: Reuse,
}

impl Uses {
    fn of(&mut self, number: u32, entry: Entry, columns: &[&dyn Encode], rows: usize) -> (Header, Vec<u64>) {
        struct All<'a>(&'a [&'a dyn Encode]);
        impl Encode for All<'_> {
            fn plan(&self, plan: &mut Plan) {
                self.0.iter().for_each(|column| column.plan(plan));
            }
            fn write(&self, body: &mut Body<'_>) {
                self.0.iter().for_each(|column| column.write(body));
            }
        }
        let sent = self.engine.submit(Address::whole(number, entry), rows, &All(columns));
        assert!(matches!(sent, Ok(Some(_))));
        let Ok(Next::Call(call)) = self.guest.next_call_or(|| false) else { panic!("no message") };
        let ready = crate::functions::callable::callable(&self.vm, self.declared, number, None)
            .expect("an aggregate");
        answer_by(&self.vm, &ready, &mut self.guest, call, &mut self.outs).expect("an answer");
        let header = self.engine.try_collect().expect("a sound answer").expect("an answer");
        let frame = self.engine.frame();
        let mut words = vec![0u64; frame.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..frame.len()].copy_from_slice(frame);
        (header, words)
    }

    fn update(&mut self, number: u32, states: &[Option<i64>], values: &[Option<i64>]) -> Header {
        self.of(number, Entry::Update, &[&numbers(states), &numbers(values)], states.len()).0
    }

    fn combine(&mut self, number: u32, target: i64, source: i64, keep: bool) -> (Header, Vec<u64>) {
        let mut kept = ColumnBuilder::new(&DataType::Boolean);
        kept.boolean(keep);
        let [target, source] = [target, source].map(|state| numbers(&[Some(state)]));
        self.of(number, Entry::Combine, &[&target, &source, &kept], 1)
    }

    fn finish(&mut self, number: u32, states: &[i64]) -> Vec<Option<i64>> {
        let column = numbers(&states.iter().map(|state| Some(*state)).collect::<Vec<_>>());
        let (header, words) = self.of(number, Entry::Finish, &[&column], states.len());
        assert_eq!(header.kind, BATCH);
        let column = batch::column(bytemuck::cast_slice(&words), &DataType::BigInt).expect("a column");
        (0..column.rows).map(|row| column.is_valid(row).then(|| column.value(row))).collect()
    }
}

fn aggregates_of_files_keep_states() {
    // SAFETY: with the GVL.
    let vm = unsafe { Vm::calling(false) };
    let (engine, guest) = both_ends(1 << 16);
    let (declared, outs) = (evaluate(AGGREGATES), Reuse::default());
    let mut uses = Uses { vm, declared, engine, guest, outs };
    let some = |values: &[i64]| values.iter().map(|value| Some(*value)).collect::<Vec<_>>();
    // A NULL and the failing row are left out.
    let header = uses.update(20, &some(&[0, 1, 0, 2]), &[Some(10), None, Some(5), Some(13)]);
    assert_eq!((header.kind, header.rows, header.errors), (BATCH, 0, 1));
    assert_eq!(uses.finish(20, &[0, 1, 2, 0]), some(&[15, 0, 0, 15]));
    // A state that is kept is copied. A state that is not kept is removed.
    uses.combine(20, 5, 0, true);
    uses.update(20, &some(&[0]), &some(&[100]));
    assert_eq!(uses.finish(20, &[5, 0]), some(&[15, 115]));
    uses.combine(20, 5, 0, false);
    assert_eq!(uses.finish(20, &[5, 0]), some(&[130, 0]));
    // States are sent as bytes. An empty state is not sent.
    let (_, words) = uses.of(20, Entry::Save, &[&numbers(&some(&[5, 0]))], 2);
    let column = batch::column(bytemuck::cast_slice(&words), &DataType::Blob).expect("a column");
    assert!(column.is_valid(0) && !column.is_valid(1));
    let mut saved = ColumnBuilder::new(&DataType::Blob);
    (0..2).for_each(|_| saved.bytes(column.bytes(0)).expect("room"));
    uses.of(20, Entry::Load, &[&numbers(&some(&[7, 5])), &saved], 2);
    assert_eq!(uses.finish(20, &[7, 5]), some(&[130, 260]));
    uses.of(20, Entry::Forget, &[&numbers(&some(&[5]))], 1);
    assert_eq!(uses.finish(20, &[7, 5]), some(&[130, 0]));
    // The state of a block may be nil. This counts as a state.
    uses.update(21, &some(&[0, 0, 1]), &some(&[2, 3, 1]));
    uses.combine(21, 2, 1, false);
    assert_eq!(uses.finish(21, &[0, 1, 2]), [Some(5), None, None]);
    // All rows of a group come at once. Rows of dropped states do not come.
    uses.update(22, &some(&[0, 1, 0]), &some(&[1, 2, 3]));
    uses.update(22, &some(&[1, 0, 3]), &[Some(4), None, Some(5)]);
    uses.of(22, Entry::Forget, &[&numbers(&some(&[3]))], 1);
    assert_eq!(uses.finish(22, &[0, 1, 3]), some(&[4 + 2, 6 + 2, 0]));
    uses.update(22, &some(&[0]), &some(&[10]));
    uses.combine(22, 1, 0, false);
    assert_eq!(uses.finish(22, &[1]), some(&[6 + 8 + 11]));
    // A state that Marshal cannot dump can be merged, but not kept.
    uses.update(23, &some(&[0]), &some(&[1]));
    assert_eq!(uses.combine(23, 1, 0, false).0.kind, BATCH);
    let (header, words) = uses.combine(23, 2, 1, true);
    let text = String::from_utf8_lossy(bytemuck::cast_slice(&words)).into_owned();
    assert!(
        header.kind == FAILURE && text.contains("a state of closed has to be copied, by Marshal"),
        "{text}"
    );
    // The failing row is reported. The rows before it have changed their states.
    let header = uses.update(24, &some(&[0, 1, 0]), &[None, Some(1), Some(13)]);
    assert_eq!((header.kind, header.row, header.retries), (FAILURE, 2, 0));
    uses.update(24, &some(&[0, 0, 0]), &some(&[1, 2, 3]));
    assert_eq!(uses.finish(24, &[1]), some(&[1]));
    let (header, words) = uses.of(24, Entry::Finish, &[&numbers(&some(&[1, 0]))], 2);
    let text = String::from_utf8_lossy(bytemuck::cast_slice(&words)).into_owned();
    assert!(header.kind == FAILURE && header.row == 1 && text.contains("String"), "{text}");
    for entry in [Entry::Call, Entry::Scan, Entry::SetUp] {
        let (header, words) = uses.of(24, entry, &[&numbers(&some(&[1]))], 1);
        let text = String::from_utf8_lossy(bytemuck::cast_slice(&words)).into_owned();
        assert!(header.kind == FAILURE && text.contains(&format!("no entry {entry:?}")), "{text}");
    }
}

/// A lane whose engine takes no replies does not stop other threads, whatever it answers.
fn other_threads_run_while_a_lane_waits_for_room() {
    // SAFETY: with the GVL.
    let vm = unsafe { Vm::calling(false) };
    let mut out = ColumnBuilder::new(&DataType::Blob);
    out.bytes(&[0; 800]).expect("room");
    let aggregate =
        crate::functions::callable::callable(&vm, evaluate(AGGREGATES), 24, None).expect("an aggregate");
    let wrong = || Unwind::new(c"ArgumentError", "wrong");
    while_full(&|guest, call| succeed(&vm, guest, call, &out, RowCounts::default()));
    while_full(&|guest, call| fail(&vm, guest, call, wrong().into()));
    // It refuses calls in this state, too.
    while_full(&|guest, call| answer_by(&vm, &aggregate, guest, call, &mut Reuse::default()));
}

/// Answers a call in a full lane, until another Ruby thread has run.
fn while_full(answer: &dyn Fn(&mut GuestLane, Call) -> Result<(), Unwind>) {
    let (mut engine, mut guest) = both_ends(4096);
    fill(&mut engine, &mut guest);
    engine.submit(Address::call(0), 1, &()).expect("a lane").expect("room");
    let Ok(Next::Call(call)) = guest.next_call_or(|| false) else { panic!("no message") };
    let (mut told, tell) = std::io::pipe().expect("a pipe");
    let _: Value = eval(&format!("$told = Thread.new {{ IO.for_fd({}).syswrite('.') }}", tell.into_raw_fd()))
        .expect("a thread");
    // The engine takes the replies after the thread has run.
    let engine = std::thread::spawn(move || {
        told.read_exact(&mut [0]).expect("a thread that runs");
        while engine.in_flight() > 0 {
            engine.try_collect().expect("a sound reply");
        }
    });
    answer(&mut guest, call).expect("an answer");
    engine.join().expect("an engine");
}

/// One thread must start and use the VM, so all tests are in this one.
#[test]
fn values() {
    // SAFETY: the VM is begun once, and lives as long as this frame.
    let _vm = unsafe { magnus::embed::init() };
    let lib = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lib/crosslane");
    crate::init(&magnus::Ruby::get().expect("with the GVL")).expect("the native half");
    let files = "bigdecimal date json {lib}/types.rb {lib}/errors.rb {lib}/declare/declaration.rb {lib}/declare/aggregate.rb {lib}/declare/table.rb";
    let files = format!("%w[{}]", files.replace("{lib}", lib));
    let _: Value =
        eval(&format!("{files}.each {{ |name| require name }}")).expect("Ruby's half of the types");
    crate::prepare().expect("the names that values need");
    every_value_survives_its_column();
    what_is_no_value_is_told_and_leaves_no_trace();
    tables_are_scanned();
    aggregates_of_files_keep_states();
    other_threads_run_while_a_lane_waits_for_room();
}
