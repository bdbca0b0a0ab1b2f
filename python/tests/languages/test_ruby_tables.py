"""Table functions of Ruby files."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from ..conftest import Load, error, eventually, value
from .test_ruby import why_refused

pytestmark = pytest.mark.any_duckdb


def rows(con: duckdb.DuckDBPyConnection, query: str) -> list[tuple[object, ...]]:
    return con.execute(query).fetchall()


def test_rows_of_every_shape(ruby: Load) -> None:
    con = ruby(
        """
        Pair = Struct.new(:s, :i)
        class Thing
          def i = 5
          def s = "e"
        end
        udtf "shapes() -> TABLE(i BIGINT, s VARCHAR)" do
          [[1, "a"], { i: 2, s: "b" }, { "s" => "c", "i" => 3 }, Pair.new("d", 4), Thing.new, nil, [nil, nil]].each
        end
        udtf "bare() -> TABLE(x VARCHAR)" do
          ["a", :b, ["c"], { x: "d" }, nil, [nil]]
        end
        udtf "spans() -> TABLE(x INTERVAL)" do
          [Crosslane::Interval.new(1, 2, 3)]
        end
        udtf "lists() -> TABLE(x BIGINT[])" do
          [[[1, 2]]]
        end
        udtf "nothing() -> TABLE(x BIGINT)" do
          []
        end
        udtf "methods(n BIGINT) -> TABLE(x BIGINT)"
        def methods(n) = 1..n
        """
    )
    shapes = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (None, None), (None, None)]
    assert rows(con, "FROM shapes()") == shapes
    assert rows(con, "SELECT s FROM shapes()") == [(s,) for _, s in shapes]
    assert rows(con, "FROM bare()") == [("a",), ("b",), ("c",), ("d",), (None,), (None,)]
    assert value(con, "SELECT x::VARCHAR FROM spans()") == "1 month 2 days 00:00:00.000003"
    assert rows(con, "FROM lists()") == [([1, 2],)]
    assert rows(con, "FROM nothing()") == []
    assert rows(con, "FROM methods(3)") == [(1,), (2,), (3,)]
    listed = rows(con, "SELECT function, kind FROM crosslane_functions() WHERE function = 'bare'")
    assert listed == [("bare", "table")]


def test_several_values_are_a_row(ruby: Load) -> None:
    con = ruby(
        """
        udtf "numbered() -> TABLE(s VARCHAR, i BIGINT)" do
          %w[a b].each_with_index
        end
        udtf "pairs() -> TABLE(l BIGINT[], i BIGINT)" do
          [[1, 2], [3, 4]].each_with_index
        end
        udtf "in_columns() -> TABLE(s VARCHAR, i BIGINT)", vectorized: true do
          Enumerator.new { |batches| batches.yield(%w[a b], [0, 1]) }
        end
        udtf "counted() -> TABLE(s VARCHAR, i BIGINT)" do
          %w[a b a].tally
        end
        udtf "single() -> TABLE(s VARCHAR, i BIGINT)" do
          { s: "x", i: 1 }
        end
        """
    )
    assert rows(con, "FROM numbered()") == [("a", 0), ("b", 1)]
    assert rows(con, "FROM pairs()") == [([1, 2], 0), ([3, 4], 1)]
    assert rows(con, "FROM in_columns()") == [("a", 0), ("b", 1)]
    assert rows(con, "FROM counted()") == [("a", 2), ("b", 1)]
    assert "a Hash of the columns, which is one row: put it into an Array" in error(con, "FROM single()")


def test_rows_of_a_fork_are_refused(ruby: Load) -> None:
    con = ruby(
        """
        udtf "forked() -> TABLE(x VARCHAR)" do
          reader, writer = IO.pipe
          Enumerator.new do |rows|
            rows << "first"
            child = fork do
              rows << "of the child"
            rescue Exception => e
              writer << e.message
            ensure
              exit!
            end
            Process.wait(child)
            writer.close
            rows << reader.read
          end
        end
        """
    )
    told = "a row was yielded by another process than the one that runs each"
    assert rows(con, "FROM forked()") == [("first",), (told,)]


def test_arguments(ruby: Load) -> None:
    con = ruby(
        """
        udtf "skip(n BIGINT, step BIGINT) -> TABLE(x VARCHAR)" do |n, step: 1|
          [[n, step].inspect]
        end
        udtf "see(n BIGINT, step BIGINT) -> TABLE(x VARCHAR)", nulls: :call do |n, step: 1|
          [[n, step].inspect]
        end
        udtf "need(a BIGINT, b BIGINT) -> TABLE(x VARCHAR)" do |a, b:|
          [[a, b].inspect]
        end
        """
    )
    assert value(con, "FROM skip(5)") == "[5, 1]"
    assert value(con, "FROM skip(5, step := 2)") == "[5, 2]"
    assert value(con, "FROM skip(5, step := NULL)") == "[5, 1]"
    assert rows(con, "FROM skip(NULL)") == []
    assert value(con, "FROM see(NULL)") == "[nil, 1]"
    assert value(con, "FROM need(1, b := 2)") == "[1, 2]"
    assert "missing keyword: :b" in error(con, "FROM need(1)")
    assert con.execute("FROM skip(?, step := ?)", [7, 8]).fetchall() == [("[7, 8]",)]


def test_batches(ruby: Load) -> None:
    con = ruby(
        """
        udtf "batches(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", vectorized: true do |n|
          [[[*0...n], (0...n).map(&:to_s)], { s: %w[x y].each, i: [-1, -2] }, [[], []], { "i" => 7..8, "s" => [nil, :z] }]
        end
        udtf "uneven() -> TABLE(i BIGINT, s VARCHAR)", vectorized: true do
          [[[1, 2], ["a"]]]
        end
        udtf "short() -> TABLE(i BIGINT, s VARCHAR)", vectorized: true do
          [[[1, 2]]]
        end
        udtf "lacks() -> TABLE(i BIGINT, s VARCHAR)", vectorized: true do
          [{ i: [1] }]
        end
        udtf "wrong(n BIGINT) -> TABLE(i BIGINT)", vectorized: true, on_error: :null do |n|
          [[[1, "two"]], [[3]], StandardError.new("four")]
        end
        """
    )
    assert rows(con, "SELECT count(*), sum(i), max(s) FROM batches(5000)") == [(5004, 12497512, "z")]
    assert rows(con, "FROM batches(1)") == [(0, "0"), (-1, "x"), (-2, "y"), (7, None), (8, "z")]
    assert value(con, "SELECT count(*) FROM batches(3)") == 7
    assert "the columns of a batch have 2, 1 values" in error(con, "FROM uneven()")
    assert "a batch of 1 columns where 2 are due: i, s" in error(con, "FROM short()")
    assert "a batch of Hash lacks the column s" in error(con, "FROM lacks()")
    # A value that cannot be written makes its whole batch NULL, as in the results of a vectorized function.
    assert rows(con, "FROM wrong(1)") == [(None,), (None,), (3,), (None,)]
    stats = "SELECT errors FROM crosslane_stats() WHERE function = 'wrong'"
    assert value(con, stats) == 3


def test_partitions_are_scanned_by_several_workers(ruby: Load) -> None:
    con = ruby(
        """
        udtf "parts(n BIGINT, k BIGINT) -> TABLE(part BIGINT, k BIGINT, pid BIGINT)",
             partitions: ->(n) { (1..n).map { |i| { part: i } } } do |part, n, k: 3|
          sleep 0.05
          [[part[:part], k, Process.pid]]
        end
        udtf "procs() -> TABLE(x BIGINT)", partitions: -> { [-> {}] } do |part|
          [1]
        end
        udtf "empty() -> TABLE(x BIGINT)", partitions: -> { [] } do |part|
          [1]
        end
        """
    )
    assert rows(con, "SELECT count(*), sum(part), max(k) FROM parts(10)") == [(10, 55, 3)]
    # Each of DuckDB's threads takes a part, if it wakes up before the other thread has done all parts.
    assert eventually(lambda: value(con, "SELECT count(DISTINCT pid) FROM parts(10, k := 4)") == 2)
    assert "a partition goes to another worker by Marshal" in error(con, "FROM procs()")
    assert rows(con, "FROM empty()") == []


def test_columns_that_a_query_wants(ruby: Load) -> None:
    con = ruby(
        """
        class Row
          def initialize(log) = @log = log
          def a = @log << "a" && 1
          def b = @log << "b" && 2
        end
        udtf "asked() -> TABLE(a BIGINT, b BIGINT, c VARCHAR)" do |wanted:|
          [wanted.map { |name| name == "c" ? wanted.join : 1 }]
        end
        udtf "lazily() -> TABLE(a BIGINT, b BIGINT)" do
          log = []
          [Row.new(log), Class.new { define_method(:a) { log.size }; define_method(:b) { log.size } }.new]
        end
        udtf "named(wanted BIGINT) -> TABLE(x BIGINT)" do |wanted: 5|
          [wanted]
        end
        """
    )
    assert rows(con, "SELECT c, a FROM asked()") == [("ac", 1)]
    assert rows(con, "SELECT count(*) FROM asked()") == [(1,)]
    assert rows(con, "SELECT b FROM lazily()") == [(2,), (1,)]
    assert rows(con, "FROM named(wanted := 6)") == [(6,)]


def test_a_limit_ends_the_each_and_gives_the_worker_back(ruby: Load, tmp_path: Path) -> None:
    con = ruby(
        f"""
        udtf "endless() -> TABLE(i BIGINT)" do
          Enumerator.new do |rows|
            (0..).each {{ |i| rows << i }}
          ensure
            File.write({str(tmp_path / "ended")!r}, "ended")
          end
        end
        """
    )
    assert rows(con, "SELECT i FROM endless() LIMIT 3") == [(0,), (1,), (2,)]
    assert eventually((tmp_path / "ended").exists)
    for _ in range(20):
        assert value(con, "SELECT count(*) FROM (FROM endless() LIMIT 5000)") == 5000
    assert eventually(
        lambda: rows(con, "SELECT sum(busy), sum(discarded) FROM crosslane_pools()") == [(0, 0)]
    )


def test_errors(ruby: Load) -> None:
    con = ruby(
        """
        udtf "raises(n BIGINT) -> TABLE(i BIGINT)" do |n|
          Enumerator.new { |rows| rows << 1; rows << 2; raise IOError, "no third" }
        end
        udtf "ends(n BIGINT) -> TABLE(i BIGINT)", on_error: :null do |n|
          Enumerator.new { |rows| rows << 1; rows << 2; raise IOError, "no third" }
        end
        udtf "wrong(n BIGINT) -> TABLE(i BIGINT)" do |n|
          [1, "two"]
        end
        udtf "yields(n BIGINT) -> TABLE(i BIGINT)" do |n|
          [1, ArgumentError.new("no second")]
        end
        udtf "nulls(n BIGINT) -> TABLE(i BIGINT)", on_error: :null do |n|
          [1, ArgumentError.new("no second"), 3, "four"]
        end
        udtf "no_list(n BIGINT) -> TABLE(i BIGINT)" do |n|
          5
        end
        udtf "throws(n BIGINT) -> TABLE(i BIGINT)" do |n|
          throw :away
        end
        udtf "exits(n BIGINT) -> TABLE(i BIGINT)" do |n|
          exit 3
        end
        """
    )
    message = error(con, "FROM raises(7)")
    for part in ("IOError", "no third", "row 3", "n = 7"):
        assert part in message
    assert rows(con, "FROM ends(7)") == [(1,), (2,)]
    assert 'returned String "two" where BIGINT is due' in error(con, "FROM wrong(7)")
    assert "ArgumentError" in error(con, "FROM yields(7)")
    assert rows(con, "FROM nulls(7)") == [(1,), (None,), (3,), (None,)]
    assert "the block returned Integer, which has no each" in error(con, "FROM no_list(7)")
    assert "uncaught throw :away" in error(con, "FROM throws(7)")
    assert "SystemExit" in error(con, "FROM exits(7)")
    errors = "SELECT function, errors FROM crosslane_stats() WHERE function IN ('ends', 'nulls') ORDER BY 1"
    assert rows(con, errors) == [("ends", 1), ("nulls", 2)]


def test_retries_and_crashes(ruby: Load, tmp_path: Path) -> None:
    con = ruby(
        f"""
        MARK = {str(tmp_path / "mark")!r}
        def once = File.exist?(MARK) ? false : File.write(MARK, "")

        udtf "again(n BIGINT) -> TABLE(i BIGINT)", retries: 1 do |n|
          Enumerator.new {{ |rows| n.times {{ |i| i == 3000 && once ? raise("late") : rows << i }} }}
        end
        udtf "dies(n BIGINT) -> TABLE(i BIGINT)", retries: 1 do |n|
          Enumerator.new {{ |rows| n.times {{ |i| i == 3000 && once ? Process.kill(:KILL, 0) : rows << i }} }}
        end
        udtf "dead(n BIGINT) -> TABLE(i BIGINT)" do |n|
          Enumerator.new {{ |rows| n.times {{ |i| i == 3000 ? Process.kill(:KILL, Process.pid) : rows << i }} }}
        end
        udtf "stuck(n BIGINT) -> TABLE(i BIGINT)", timeout: 0.3 do |n|
          Enumerator.new {{ |rows| n.times {{ |i| i == 3000 ? sleep : rows << i }} }}
        end
        udtf "slow(n BIGINT) -> TABLE(i BIGINT)", timeout: 0.3 do |n|
          Enumerator.new {{ |rows| n.times {{ |i| sleep 0.05; rows << i }} }}
        end
        udtf "large(n BIGINT) -> TABLE(i BIGINT)", memory_limit: "20 MB" do |n|
          Enumerator.new {{ |rows| rows << 1; rows << ("x" * n).size }}
        end
        """
    )
    assert rows(con, "SELECT count(*), sum(i) FROM again(5000)") == [(5000, 12497500)]
    (tmp_path / "mark").unlink()
    assert rows(con, "SELECT count(*), sum(i) FROM dies(5000)") == [(5000, 12497500)]
    message = error(con, "SELECT count(*) FROM dead(5000)")
    assert "SIGKILL" in message
    assert "row 3001" in message
    assert "timed out after 0.3 s" in error(con, "SELECT count(*) FROM stuck(5000)")
    # All rows together take longer than the limit.
    assert value(con, "SELECT count(*) FROM slow(10)") == 10
    assert value(con, "SELECT count(*) FROM large(10)") == 2
    assert "NoMemoryError" in error(con, "SELECT count(*) FROM large(100_000_000)")


#: Declarations that are refused, and the reasons.
REFUSED = [
    ('udf("f() -> TABLE(i BIGINT)") { [] }', "what returns a table is declared with udtf"),
    (
        'udtf("f() -> BIGINT") { [] }',
        "signature ends with its columns: -> TABLE(i BIGINT), not -> BIGINT",
    ),
    (
        'udtf("f(x ANY) -> TABLE(i BIGINT)") { |x| [] }',
        "a table function cannot take arguments of any type",
    ),
    ('udtf("f(*x BIGINT) -> TABLE(i BIGINT)") { |*x| [] }', "cannot take any number of arguments"),
    (
        'udtf("f() -> TABLE(i BIGINT)", concurrency: 2) { [] }',
        "there is no option concurrency; there are nulls",
    ),
    ('udtf("f() -> TABLE(i BIGINT)", partitions: 2) { |x| [] }', "2 cannot be called"),
    (
        'udtf("f() -> TABLE(i BIGINT)", partitions: -> { [1] }) { [] }',
        "the partition among them, and takes 0",
    ),
    (
        'udtf("f() -> TABLE(i BIGINT)", cardinality: -1) { [] }',
        "cardinality is a whole number of rows, not -1",
    ),
    ('udtf("f(n BIGINT) -> TABLE(i BIGINT)") { [] }', "given 1 arguments without a name, and takes 0"),
    (
        'udtf("f(n BIGINT) -> TABLE(i BIGINT)") { |n, m:| [] }',
        "needs the keyword m, which is no parameter",
    ),
    (
        "class M; end; udtf('f() -> TABLE(i BIGINT)', M)",
        "a table function is a block or a method, not the class M",
    ),
    (
        'udtf("f() -> TABLE(i BIGINT)", partitions: ->(m:) { [m] }) { |x| [] }',
        "partitions needs the keyword m, which is no parameter",
    ),
    (
        "udf('f(x BIGINT) -> BIGINT', ->(x) { x })",
        "takes a block, the name of a method or a class, not #<Proc",
    ),
    ("class N; def call(x) = x; end; udf('f(x INT) -> INT', N) { |x| x }", "a class, not two of them"),
]


def test_what_cannot_be_a_table(ruby: Load, subtests: pytest.Subtests) -> None:
    found = why_refused(ruby, [declared for declared, _ in REFUSED])
    for (declared, due), why in zip(REFUSED, found, strict=True):
        with subtests.test(declared):
            assert due in why


def test_files_that_cannot_be_loaded(ruby: Load, subtests: pytest.Subtests) -> None:
    # The test tries an error at the end of a file, and one of the other errors.
    forgotten = ('udtf("f(n BIGINT) -> TABLE(i BIGINT)")', "has no block, and no def follows")
    for declared, due in (forgotten, REFUSED[0]):
        with subtests.test(declared):
            with pytest.raises(duckdb.Error) as caught:
                ruby(declared)
            assert due in str(caught.value)
