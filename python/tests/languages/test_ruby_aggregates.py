"""Aggregates of Ruby files."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from ..conftest import Load, error, eventually, value
from .test_ruby import why_refused

pytestmark = pytest.mark.any_duckdb

LIBRARY = """
class Longest
  attr_reader :text, :rows

  def initialize
    @text = ""
    @rows = 0
  end

  def update(text)
    raise ArgumentError, "no x" if text == "x"

    @rows += 1
    @text = [@text, text].max_by(&:size)
  end

  def merge(other)
    @rows += other.rows
    @text = [@text, other.text].max_by(&:size)
  end

  def finish = @rows == 13 ? raise("unlucky") : "#{@text} #{@rows}"
end

udaf "longest(text VARCHAR) -> VARCHAR", Longest
udaf "lenient(text VARCHAR) -> VARCHAR", Longest, on_error: :null

udaf "total(x BIGINT) -> BIGINT", start: -> { 0 }, combine: :+.to_proc do |sum, x|
  sum + x
end

udaf "weighted(x DOUBLE, weight DOUBLE) -> DOUBLE", start: -> { [0.0, 0.0] },
     combine: ->(a, b) { a.zip(b).map(&:sum) }, finish: ->(sums) { sums[0] / sums[1] if sums[1] > 0 } do |sums, x, weight|
  [sums[0] + x * weight, sums[1] + weight]
end

udaf "listed(x BIGINT) -> BIGINT[]", start: -> { [] }, combine: ->(a, b) { a + b } do |all, x|
  all << x
end

udaf "seen(x BIGINT) -> BIGINT", nulls: :call, combine: ->(a, b) { (a || 0) + (b || 0) } do |count, x|
  (count || 0) + (x.nil? ? 100 : 1)
end

udaf "by_column(x BIGINT, y VARCHAR) -> BIGINT", vectorized: true, start: -> { 0 }, combine: :+.to_proc do |sum, xs, ys|
  raise TypeError, "no columns" unless xs.is_a?(Array) && xs.size == ys.size

  sum + xs.sum + ys.count("a")
end

class Calls
  def initialize = @calls = @rows = 0
  attr_reader :calls, :rows
  def update(xs) = (@calls += 1) && @rows += xs.size
  def merge(other) = (@calls += other.calls) && @rows += other.rows
  def finish = @rows * 1_000_000 + @calls
end
udaf "calls(x BIGINT) -> BIGINT", Calls, vectorized: true

udaf "closed(x BIGINT) -> BIGINT", start: -> { -> {} }, finish: ->(state) { 1 }, combine: ->(a, b) { a } do |state, x|
  state
end

udaf "dies(x BIGINT) -> BIGINT", start: -> { 0 }, combine: :+.to_proc do |sum, x|
  x == 1500 ? Process.kill(:KILL, Process.pid) : sum + x
end

udaf "stuck(x BIGINT) -> BIGINT", start: -> { 0 }, combine: :+.to_proc, timeout: 0.3 do |sum, x|
  x == 1500 ? sleep : sum + x
end
TRIES = Hash.new(0)
udaf "again(x BIGINT) -> BIGINT", start: -> { 0 }, combine: :+.to_proc, retries: 1 do |sum, x|
  raise "once" if x % 1000 == 7 && (TRIES[x] += 1) == 1

  sum + x
end
"""


@pytest.fixture
def aggregates(ruby: Load) -> Iterator[duckdb.DuckDBPyConnection]:
    con = ruby(LIBRARY)
    con.execute("SET threads = 4")
    con.execute(
        "CREATE TABLE t AS SELECT i, i % 7 AS k, ['a', 'bbb', 'cc', NULL][i % 4 + 1] AS word, i::DOUBLE AS d FROM range(100000) r(i)"
    )
    yield con
    con.close()


def rows(con: duckdb.DuckDBPyConnection, query: str) -> list[tuple[object, ...]]:
    return con.execute(query).fetchall()


def test_classes_and_blocks_are_as_duckdbs_own(aggregates: duckdb.DuckDBPyConnection) -> None:
    con = aggregates
    assert value(con, "SELECT longest(word) FROM t") == "bbb 75000"
    assert value(con, "SELECT longest(word) FROM t WHERE false") == " 0"
    for total, due in [("total(i)", "sum(i)"), ("weighted(d, i)", "sum(d * i) / sum(i)")]:
        grouped = "FROM t GROUP BY k ORDER BY k"
        assert rows(con, f"SELECT k, round({total}, 3) {grouped}") == rows(
            con, f"SELECT k, round({due}, 3) {grouped}"
        )
    grouped = "FROM (SELECT i % 30000 AS g, i FROM t) GROUP BY g ORDER BY g"
    assert rows(con, f"SELECT g, total(i) {grouped}") == rows(con, f"SELECT g, sum(i) {grouped}")
    query = "SELECT total(DISTINCT k), total(i) FILTER (k = 3), total(i) FILTER (k = 30) FROM t"
    assert rows(con, query) == [(21, value(con, "SELECT sum(i) FROM t WHERE k = 3"), 0)]
    assert value(con, "SELECT listed(i ORDER BY i DESC) FROM t WHERE i < 5") == [4, 3, 2, 1, 0]
    assert rows(con, "SELECT seen(x) FROM (VALUES (1), (NULL), (3)) v(x)") == [(102,)]
    listed = "SELECT kind FROM crosslane_functions() WHERE function = 'longest'"
    assert rows(con, listed) == [("aggregate",)]


def test_windows(aggregates: duckdb.DuckDBPyConnection) -> None:
    con = aggregates
    for frame in ("ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING", "ROWS BETWEEN 700 PRECEDING AND CURRENT ROW"):
        for ours, theirs in [("total(i)", "sum(i)"), ("listed(i)", "list(i)")]:
            if theirs == "list(i)" and "700" in frame:
                continue
            over = f"OVER (PARTITION BY k ORDER BY i {frame}) FROM t WHERE i < 10000 ORDER BY i"
            assert rows(con, f"SELECT {ours} {over}") == rows(con, f"SELECT {theirs} {over}")


def test_vectorized_updates_get_the_rows_of_a_group(aggregates: duckdb.DuckDBPyConnection) -> None:
    con = aggregates
    query = "SELECT k, {} FROM t WHERE word IS NOT NULL GROUP BY k ORDER BY k"
    due = rows(con, query.format("sum(i) + count(*) FILTER (word = 'a')"))
    assert rows(con, query.format("by_column(i, word)")) == due
    # The update gets no NULLs.
    assert rows(con, "SELECT k, by_column(i, word) FROM t GROUP BY k ORDER BY k") == due
    count, calls = divmod(int(str(value(con, "SELECT calls(i) FROM t"))), 1_000_000)
    assert count == 100_000
    assert calls <= 16
    over = "OVER (ORDER BY i ROWS BETWEEN 30 PRECEDING AND CURRENT ROW) FROM t WHERE i < 3000 AND word IS NOT NULL ORDER BY i"
    assert rows(con, f"SELECT by_column(i, word) {over}") == rows(
        con,
        f"SELECT s + n FROM (SELECT i, sum(i) {over.replace(' FROM', ' AS s, count(*) FILTER (word = $$a$$) OVER (ORDER BY i ROWS BETWEEN 30 PRECEDING AND CURRENT ROW) AS n FROM')})",
    )


def test_errors(aggregates: duckdb.DuckDBPyConnection) -> None:
    con = aggregates
    words = "FROM (VALUES ('aa'), ('x'), ('b')) v(x)"
    message = error(con, f"SELECT longest(x) {words}")
    assert "ArgumentError" in message
    assert "no x" in message
    assert value(con, f"SELECT lenient(x) {words}") == "aa 2"
    assert "unlucky" in error(con, "SELECT longest('a') FROM range(13)")
    assert value(con, "SELECT lenient('a') FROM range(13)") is None
    assert value(con, "SELECT errors FROM crosslane_stats() WHERE function = 'lenient'") == 2
    assert "SIGKILL" in error(con, "SELECT k, dies(i) FROM t GROUP BY k")
    assert "timed out after 0.3 s" in error(con, "SELECT k, stuck(i) FROM t GROUP BY k")
    assert value(con, "SELECT again(i) FROM range(10000) r(i)") == 49995000
    over = "OVER (ORDER BY i ROWS BETWEEN 300 PRECEDING AND CURRENT ROW) FROM t WHERE i < 5000"
    con.execute("SET threads = 1")
    assert "a state of closed has to be copied, by Marshal, which cannot have it" in error(
        con, f"SELECT closed(i) {over}"
    )
    con.execute("SET threads = 4")
    # The workers are idle again, and have no states.
    assert value(con, "SELECT total(i) FROM t") == 4999950000
    assert eventually(lambda: value(con, "SELECT sum(busy) FROM crosslane_pools()") == 0)


#: Declarations that are refused, and the reasons.
REFUSED = [
    ('udaf("f(x BIGINT) -> BIGINT")', "takes a class or a block"),
    ('udaf("f(x BIGINT) -> BIGINT", 5) { 1 }', "takes a class or a block"),
    ('udaf("f(x BIGINT) -> BIGINT", String)', "String has no method update"),
    ('udaf("f(x BIGINT) -> BIGINT") { |a, x| a }', "a block needs combine"),
    ('udaf("f(x BIGINT) -> BIGINT", combine: 5) { |a, x| a }', "combine is called, and 5 cannot be"),
    (
        'udaf("f(x BIGINT) -> BIGINT", combine: :+.to_proc) { |a| a }',
        "the block is given a state and 1 argument, and takes 1",
    ),
    (
        'udaf("f() -> BIGINT", vectorized: true, combine: :+.to_proc) { |a| a }',
        "a vectorized aggregate needs a parameter: its update is given columns",
    ),
    (
        'udaf("f(x ANY) -> BIGINT", combine: :+.to_proc) { |a, x| a }',
        "an aggregate cannot take arguments of any type",
    ),
    (
        'udaf("f(x BIGINT) -> BIGINT", combine: :+.to_proc, concurrency: 2) { |a, x| a }',
        "there is no option concurrency",
    ),
    (
        "C = Struct.new(:a) { def update(x) = 1; def merge(o) = 1; def finish = 1 }\n"
        'udaf("f(x BIGINT) -> BIGINT", C, start: -> { 1 })',
        "start is for a block; C has methods",
    ),
    (
        "class D; def initialize(a) = 1; def update(x) = 1; def merge(o) = 1; def finish = 1; end\n"
        'udaf("f(x BIGINT) -> BIGINT", D)',
        "D.new needs arguments",
    ),
    (
        "class E; def update(x, y) = 1; def merge(o) = 1; def finish = 1; end\n"
        'udaf("f(x BIGINT) -> BIGINT", E)',
        "the signature has 1 parameters, the block has 2",
    ),
]


def test_what_cannot_be_an_aggregate(ruby: Load, subtests: pytest.Subtests) -> None:
    found = why_refused(ruby, [declared for declared, _ in REFUSED])
    for (declared, due), why in zip(REFUSED, found, strict=True):
        with subtests.test(declared):
            assert due in why
    # If the file does not catch the error, the load fails with it.
    declared, due = REFUSED[0]
    with pytest.raises(duckdb.Error) as caught:
        ruby(declared)
    assert due in str(caught.value)


def test_a_memory_limit_is_one_for_all_states(ruby: Load) -> None:
    con = ruby(
        """
        udaf "blocks(x BIGINT) -> BIGINT", memory_limit: "60 MB", start: -> { [] }, combine: :+.to_proc, finish: :size.to_proc do |all, x|
          all << ("x" * 10_000)
        end
        """
    )
    con.execute("SET threads = 1")
    query = "SELECT sum(b) FROM (SELECT i AS g, blocks(i) AS b FROM range({}) t(i) GROUP BY g)"
    for _ in range(3):
        assert value(con, query.format(200)) == 200
        assert "NoMemoryError" in error(con, "SELECT blocks(i) FROM range(30000) t(i)")
    assert eventually(lambda: value(con, "SELECT sum(busy) FROM crosslane_pools()") == 0)
