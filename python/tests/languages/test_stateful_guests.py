"""Stateful functions in all languages. Each lane sets up a function once, before its first row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import CPUS, Load, error, eventually, printed, value
from ..functions.test_stateful import settled
from .test_ruby import why_refused

pytestmark = pytest.mark.any_duckdb

COUNTERS = {
    "py": """
        from crosslane import udf
        @udf
        class RowsSoFar:
            "Counts the rows of its lane."
            def __init__(self):
                print("set-up")
                self.rows = 0
            def __call__(self, x: int) -> int:
                self.rows += 1
                return self.rows
            def close(self):
                print(f"closed after {self.rows}")
        """,
    "js": """
        // Counts the rows of its lane.
        udf("rows_so_far(x BIGINT) -> BIGINT", class RowsSoFar {
          rows = 0;
          constructor() { console.log("set-up"); }
          call(x) { return ++this.rows; }
          close() { console.log(`closed after ${this.rows}`); }
        });
        """,
    "rb": """
        # Counts the rows of its lane.
        class RowsSoFar
          def initialize
            puts "set-up"
            @rows = 0
          end
          def call(x) = @rows += 1
          def close = puts("closed after #{@rows}")
        end
        udf "rows_so_far(x BIGINT) -> BIGINT", RowsSoFar
        """,
    "rb-block": """
        teardown = ->(state) { puts "closed after #{state[:rows]}" }
        # Counts the rows of its lane.
        udf "rows_so_far(x BIGINT) -> BIGINT", setup: -> { puts("set-up") || { rows: 0 } }, teardown: teardown do |state, x|
          state[:rows] += 1
        end
        """,
}

Guest = Callable[[str], Load]


@pytest.fixture
def guest(python: Load, script: Load, ruby: Load) -> Guest:
    """A function that loads a file of a language."""
    return lambda language: {"py": python, "js": script}.get(language, ruby)


def lines() -> list[str]:
    """The lines that the functions have printed until now."""
    # The test reads the file of descriptor 2 itself, because pytest would cut off text that is written during
    # a read.
    all_lines = Path("/proc/self/fd/2").read_text().splitlines()
    return [line for line in all_lines if line.startswith(("set-up", "closed"))]


@pytest.mark.parametrize("language", COUNTERS)
def test_each_lane_sets_up_once_before_it_is_used(
    guest: Guest, language: str, capfd: pytest.CaptureFixture[str]
) -> None:
    con = guest(language)(COUNTERS[language])
    assert eventually(lambda: lines() == ["set-up"] and settled(con)), lines()
    # The lane has had no row yet.
    for _ in range(2):
        assert value(con, "SELECT min(rows_so_far(i)) > 0 FROM range(5000) r(i)")
        # A query uses the file now, so the engine starts the other lanes.
        assert eventually(lambda: len(lines()) == CPUS and settled(con)), lines()
    row = con.execute("SELECT signature, options, description FROM crosslane_functions()").fetchone()
    assert row == ("rows_so_far(x BIGINT) -> BIGINT", "set_up=true", "Counts the rows of its lane.")
    con.close()
    assert eventually(lambda: len(lines()) == 2 * CPUS), lines()
    assert lines()[:CPUS] == ["set-up"] * CPUS
    # The instances that counted the rows lived from the first row to the last.
    assert sum(int(line.removeprefix("closed after ")) for line in lines()[CPUS:]) == 10_000


@pytest.mark.parametrize("language", COUNTERS)
def test_a_lane_that_is_not_needed_any_more_tears_down(
    con: duckdb.DuckDBPyConnection, guest: Guest, language: str, capfd: pytest.CaptureFixture[str]
) -> None:
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    guest(language)(COUNTERS[language])
    con.execute("SELECT rows_so_far(1)").fetchall()
    guest(language)(COUNTERS[language] + "\n")
    assert eventually(lambda: sorted(lines()) == ["closed after 1", "set-up", "set-up"] and settled(con)), (
        lines()
    )
    con.close()
    assert eventually(lambda: lines().count("closed after 0") == 1), lines()


@pytest.mark.parametrize("language", COUNTERS)
def test_an_idle_lane_tears_down(
    con: duckdb.DuckDBPyConnection, guest: Guest, language: str, capfd: pytest.CaptureFixture[str]
) -> None:
    con.execute("CALL crosslane_set('idle_timeout', '0.05')")
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    guest(language)(COUNTERS[language])
    con.execute("SELECT rows_so_far(1)").fetchall()
    assert eventually(lambda: "closed after 1" in lines()), lines()
    before = lines().count("set-up")
    con.execute("SELECT rows_so_far(1)").fetchall()
    assert eventually(lambda: lines().count("set-up") > before), lines()


TEAR_DOWNS = {
    "js": ["throw new Error('cannot close')", "for (;;);", "return new Promise(() => {})"],
    "rb": ["raise 'cannot close'", "sleep", "exit!(3)", "throw :nobody"],
}


@pytest.mark.parametrize(
    ("language", "how"), [(language, how) for language, all_ in TEAR_DOWNS.items() for how in all_]
)
def test_a_failed_tear_down_delays_nothing(guest: Guest, language: str, how: str) -> None:
    con = guest(language)(
        {
            "js": f"udf('f(x BIGINT) -> BIGINT', class {{ call(x) {{ return x; }} close() {{ {how} }} }});",
            "rb": f"udf('f(x BIGINT) -> BIGINT', setup: -> {{}}, teardown: ->(_) {{ {how} }}) {{ |_, x| x }}",
        }[language]
    )
    assert value(con, "SELECT f(7)") == 7
    con.close()


def test_the_log_says_which_tear_downs_failed(script: Load, capfd: pytest.CaptureFixture[str]) -> None:
    con = script("""
        udf("endless() -> BIGINT", class { call() { return 1; } close() { for (;;); } });
        udf("fails() -> BIGINT", class { call() { return 2; } close() { throw new RangeError("cannot close"); } });
        udf("works() -> BIGINT", class { call() { return 4; } close() { console.log("closed"); } });
        udf("throws() -> BIGINT", class { call() { return 8; } close() { throw "a text"; } });
        """)
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    assert value(con, "SELECT endless() + fails() + works() + throws()") == 15
    con.close()
    text = printed(capfd, "in the tear-down of endless, declared at /")
    first, second, third, fourth = (
        text.index(what)
        for what in (
            '"a text"\n  in the tear-down of throws, declared at /',
            "closed\n",
            "RangeError: cannot close\n  in the tear-down of fails, declared at /",
            "TimeoutError: this took too long\n  in the tear-down of endless, declared at /",
        )
    )
    assert first < second < third < fourth
    assert "functions.js:2\n    at " in text[third:fourth]


# The first set-up happens in a lane that gets warm, or in the first call.
FAILING = {
    "js": """
        let tries = 0;
        udf("score(x BIGINT) -> VARCHAR", { on_error: "null", retries: 1 }, class Score {
          constructor() {
            if (++tries <= 2) throw new RangeError("no model");
          }
          call(x) { return "ab".repeat(x); }
        });
        udf("other(x BIGINT) -> BIGINT", (x) => x);
        """,
    "rb": """
        $tries = 0
        udf "score(x BIGINT) -> VARCHAR", on_error: :null, retries: 1, setup: -> {
          ($tries += 1) <= 2 ? raise(RangeError, "no model") : "ab"
        } do |model, x|
          model * x
        end
        udf("other(x BIGINT) -> BIGINT") { |x| x }
        """,
}
PLACES = {"js": "functions.js:4", "rb": "functions.rb:3"}


@pytest.mark.parametrize("language", FAILING)
def test_a_set_up_that_fails_is_the_error_of_the_call_and_is_tried_again(guest: Guest, language: str) -> None:
    con = guest(language)(FAILING[language])
    # DuckDB calls a function of constants several times if it fails.
    score = "SELECT score(i) FROM range(2, 3) t(i)"
    # `retries` and `on_error` are for calls, and do not count for a set-up.
    message = error(con, score)
    assert "RangeError: no model" in message
    assert "in the set-up of score, before its first row on this lane" in message
    assert PLACES[language] in message
    assert value(con, "SELECT other(2)") == 2

    def works() -> bool:
        try:
            return bool(value(con, score) == "abab")
        except duckdb.Error:
            return False

    assert eventually(works)
    assert value(con, "SELECT sum(discarded) FROM crosslane_pools()") == 0


@pytest.mark.parametrize("language", ["js", "rb"])
def test_other_functions_are_set_up_and_ended_after_one_that_fails(
    guest: Guest, language: str, capfd: pytest.CaptureFixture[str]
) -> None:
    con = guest(language)(
        {
            "js": """
                udf("one() -> BIGINT", class { call() { return 1; } close() { console.log("closed one"); } });
                udf("bad() -> BIGINT", class { constructor() { throw new Error("no"); } call() { return 1; } });
                udf("three() -> BIGINT", class {
                  call() { return 3; }
                  close() { console.log("closed three"); throw new Error("no"); }
                });
                """,
            "rb": """
                udf("one() -> BIGINT", setup: -> { 1 }, teardown: ->(_) { puts "closed one" }) { |x| x }
                udf("bad() -> BIGINT", setup: -> { raise "no" }) { |x| x }
                udf("three() -> BIGINT", setup: -> { 3 }, teardown: ->(_) { puts "closed three"; raise "no" }) { |x| x }
                """,
        }[language]
    )
    assert value(con, "SELECT one() + three()") == 4
    assert "in the set-up of bad" in error(con, "SELECT bad()")
    con.close()
    assert eventually(lambda: lines().count("closed one") >= 1), lines()
    assert lines()[0] == "closed three"


def test_a_worker_that_dies_in_its_set_up_is_an_error(ruby: Load) -> None:
    con = ruby("udf('f(x BIGINT) -> BIGINT', setup: -> { exit!(3) }) { |_, x| x }")
    for _ in range(2):
        message = error(con, "SELECT f(1)")
        assert "the set-up of f (" in message
        assert "exit code 3" in message


ENDLESS = {
    "js": "udf('f(x BIGINT) -> BIGINT', class { constructor() { for (;;); } call(x) { return x; } });",
    "rb": "udf('f(x BIGINT) -> BIGINT', setup: -> { sleep }) { |_, x| x }",
}


@pytest.mark.parametrize("language", ENDLESS)
def test_a_set_up_without_end_is_ended(con: duckdb.DuckDBPyConnection, guest: Guest, language: str) -> None:
    con.execute("CALL crosslane_set('load_timeout', '3')")
    guest(language)(ENDLESS[language])
    message = error(con, "SELECT f(1)")
    assert "the set-up of f (" in message
    assert f"functions.{language}:1): this took longer than load_timeout" in message


def test_a_set_up_within_a_call_has_the_time_of_loading(con: duckdb.DuckDBPyConnection, script: Load) -> None:
    """The limit of loading holds for a set-up in an isolate that replaces another, and for a repeated
    set-up."""
    con.execute("CALL crosslane_set('load_timeout', '3')")
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    con.execute("SET threads = 1")
    script("""
        class Slow {
          constructor() { for (const end = Date.now() + 700; Date.now() < end;); }
        }
        const options = { timeout: 0.5, memory_limit: "60 MB", on_error: "null" };
        const eats = (x) => { for (const all = []; x === 5;) all.push(new Array(1e5).fill(x)); };
        udf("slow(x BIGINT) -> BIGINT", options, class extends Slow { call(x) { eats(x); return x; } });
        udf("whole(x BIGINT) -> BIGINT", { ...options, vectorized: true }, class extends Slow {
          call(x) { x.forEach(eats); return x; }
        });
        let tries = 0;
        udf("endless(x BIGINT) -> BIGINT", class {
          constructor() { if (++tries === 1) throw new Error("not at once"); for (;;); }
          call(x) { return x; }
        });
        """)
    for name in ("slow", "whole"):
        call = f"SELECT sum({name}(i)), count({name}(i)) FROM range({{}}, {{}}) t(i)"
        assert con.execute(call.format(0, 3)).fetchone() == (3, 3)
        assert con.execute(call.format(5, 6)).fetchone() == (None, 0)
        for _ in range(2):
            assert con.execute(call.format(6, 9)).fetchone() == (21, 3)
    message = error(con, "SELECT endless(i) FROM range(3) t(i)")
    assert "not at once" in message or "this took longer than 3 s; the setting load_timeout" in message
    assert "in the set-up of endless" in message
    message = error(con, "SELECT endless(i) FROM range(3) t(i)")
    assert "this took longer than 3 s; the setting load_timeout changes this limit" in message


def test_a_set_up_within_a_call_may_take_longer_than_the_call(
    con: duckdb.DuckDBPyConnection, script: Load
) -> None:
    """Both the guest and the engine wait for the set-up."""
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    con.execute("SET threads = 1")
    script("""
        udf("f(x BIGINT) -> BIGINT", { timeout: 0.3, memory_limit: "60 MB", on_error: "null" }, class {
          constructor() { for (const end = Date.now() + 1800; Date.now() < end;); }
          call(x) { for (const all = []; x === 5;) all.push(new Array(1e5).fill(x)); return x; }
        });
        """)
    call = "SELECT sum(f(i)), count(f(i)) FROM range({}, {}) t(i)"
    assert con.execute(call.format(0, 3)).fetchone() == (3, 3)
    assert con.execute(call.format(5, 6)).fetchone() == (None, 0)
    assert con.execute(call.format(6, 9)).fetchone() == (21, 3)


def test_a_set_up_that_uses_too_much_memory_is_ended(script: Load) -> None:
    con = script("""
        udf("big(x BIGINT) -> BIGINT", { memory_limit: "20 MB" }, class {
          constructor() { this.all = Array.from({ length: 1e7 }, (_, i) => ({ i })); }
          call(x) { return x; }
        });
        udf("other(x BIGINT) -> BIGINT", class { call(x) { return x; } });
        """)
    message = error(con, "SELECT big(1)")
    assert "in the set-up of big" in message
    assert "20 MB" in message
    assert value(con, "SELECT other(2)") == 2


def test_the_memory_of_a_set_up_counts_for_no_call(script: Load) -> None:
    """A call that uses up the memory ends the instances of its worker. The next call makes new instances."""
    con = script("""
        udf("sized(n BIGINT) -> BIGINT", { memory_limit: "30 MB" }, class {
          kept = new Uint8Array(25e6).fill(1);
          calls = 0;
          call(n) { this.calls++; new Uint8Array(n).fill(1); return this.kept.length + this.calls; }
        });
        """)
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    con.execute("SET threads = 1")
    assert value(con, "SELECT sized(20000000)") == 25_000_001
    assert "30 MB" in error(con, "SELECT sized(60000000)")
    assert value(con, "SELECT sized(20000000)") == 25_000_001


KINDS = {
    "js": """
        let made = 0;
        class Base { constructor() { made++; } }
        udf("with_rest(x BIGINT, *rest BIGINT) -> BIGINT", class extends Base {
          start = 100;
          call(x, ...rest) { return rest.reduce((sum, one) => sum + one, this.start + x); }
        });
        udf("of_any(x ANY) -> VARCHAR", class extends Base { kind = "a "; call(x) { return this.kind + typeof x; } });
        udf("waits(x BIGINT) -> BIGINT", { concurrency: 8 }, class extends Base {
          factor = 2;
          async call(x) { await new Promise((done) => setTimeout(done, 1)); return x * this.factor; }
        });
        udf("promises(x BIGINT) -> BIGINT", class extends Base {
          factor = 3;
          call(x) { return Promise.resolve(x * this.factor); }
        });
        udf("whole(x BIGINT) -> BIGINT", { vectorized: true }, class extends Base {
          one = 1;
          call(x) { return x.map((value) => value + this.one); }
        });
        udf("fails(x BIGINT) -> BIGINT", { retries: 1 }, class extends Base {
          tries = 0;
          call(x) { if (++this.tries === 1) throw new Error("once"); return this.tries; }
        });
        udf("made_here() -> BIGINT", () => made);
        """,
    "rb": """
        $made = 0
        class Base
          def initialize = $made += 1
        end
        class WithRest < Base
          def call(x, *rest) = 100 + x + rest.sum
        end
        class Waits < Base
          def call(x) = sleep(0.001) && x * 2
        end
        class Fails < Base
          def call(_)
            @tries = @tries.to_i + 1
            @tries == 1 ? raise("once") : @tries
          end
        end
        udf "with_rest(x BIGINT, *rest BIGINT) -> BIGINT", WithRest
        udf("of_any(x ANY) -> VARCHAR", setup: -> { $made += 1; "a " }) { |kind, x| kind + x.class.name }
        udf "waits(x BIGINT) -> BIGINT", Waits, concurrency: 8
        udf("promises(x BIGINT) -> BIGINT", setup: -> { $made += 1; 3 }, concurrency: 2) { |factor, x| x * factor }
        udf("whole(x BIGINT) -> BIGINT", setup: -> { $made += 1 }, vectorized: true) { |_, x| x.map(&:succ) }
        udf "fails(x BIGINT) -> BIGINT", Fails, retries: 1
        udf("made_here() -> BIGINT") { $made }
        """,
}


@pytest.mark.parametrize("language", KINDS)
def test_each_lane_has_its_own_instances(con: duckdb.DuckDBPyConnection, guest: Guest, language: str) -> None:
    """Functions of any number and types of arguments, of several rows at once and vectorized, have one
    instance each."""
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    con.execute("SET threads = 1")
    guest(language)(KINDS[language])
    row = con.execute("""
        SELECT with_rest(1), with_rest(1, 2, 3), waits(4), promises(4), whole(9), fails(1), of_any(1), of_any('a')
    """).fetchone()
    names = {"js": ("a number", "a string"), "rb": ("a Integer", "a String")}
    assert row == (101, 106, 8, 12, 10, 2, *names[language])
    assert con.execute(
        "SELECT sum(waits(i)), sum(promises(i)), sum(whole(i)) FROM range(3000) r(i)"
    ).fetchall() == [(8997000, 13495500, 4501500)]
    assert value(con, "SELECT made_here()") == 6


def test_a_prepared_array_is_one_argument(ruby: Load) -> None:
    con = ruby("""
        udf("f(*x BIGINT) -> VARCHAR", setup: -> { [1, 2] }) { |all, *rest| [all, rest].inspect }
        udf("g() -> VARCHAR", setup: -> { [1, 2] }) { |all| all.inspect }
        udf "h(x BIGINT) -> VARCHAR", setup: -> { [1, 2] }
        def h(all, x) = [all, x].inspect
        """)
    row = con.execute("SELECT f(), f(3, 4), g(), h(3)").fetchone()
    assert row == ("[[1, 2], []]", "[[1, 2], [3, 4]]", "[1, 2]", "[[1, 2], 3]")


STREAMS = {
    "js": """
        const signature = "late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, delay INTEGER)";
        udtf(signature, class Late {
          limit = 60;
          constructor() { console.log("set-up"); }
          *call(flights) { for (const flight of flights) if (flight.delay > this.limit) yield flight; }
          close() { console.log("closed"); }
        });
        udtf(signature.replace("late", "columns"), { vectorized: true }, class Columns {
          by = 1;
          call({ id, delay }) { return { id, delay: delay.map((minutes) => minutes + this.by) }; }
        });
        udtf(signature.replace("late", "bad"), class Bad {
          constructor() { throw new Error("no model"); }
          call(flights) { return flights; }
        });
        """,
    "rb": """
        SIGNATURE = "late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, delay INTEGER)"
        class Late
          def initialize
            puts "set-up"
            @limit = 60
          end
          def call(flights) = flights.select { |flight| flight.delay > @limit }
          def close = puts("closed")
        end
        udtf SIGNATURE, Late
        udtf SIGNATURE.sub("late", "columns"), vectorized: true, setup: -> { 1 } do |by, columns|
          { id: columns[:id], delay: columns[:delay].map { |minutes| minutes + by } }
        end
        udtf SIGNATURE.sub("late", "bad"), setup: -> { raise "no model" } do |_, flights|
          flights
        end
        """,
}


@pytest.mark.parametrize("language", STREAMS)
def test_a_stream_function_may_be_stateful(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"functions.{language}"
    path.write_text(STREAMS[language])
    query = "SELECT range AS id, (range % 100)::INTEGER AS delay FROM range(300_000)"

    def mapped(name: str) -> object:
        source = con.cursor().sql(query)
        stream = crosslane.map(source, f"{path}:{name}", lanes=1)  # noqa: F841 (SQL reads it)
        return con.execute("SELECT count(*), sum(delay) FROM stream").fetchone()

    assert mapped("late") == (117_000, 3000 * sum(range(61, 100)))
    assert mapped("columns") == (300_000, 3000 * sum(range(1, 101)))
    with pytest.raises(Exception, match=r"no model[\s\S]*in the set-up of bad"):
        mapped("bad")
    assert eventually(lambda: "closed" in lines()), lines()
    # There is one set-up for the five or more batches of each stream.
    assert lines()[0] == "set-up"
    assert lines().count("set-up") <= 3


#: Classes and blocks that are refused, and the reasons.
WRONG = {
    "js": [
        (
            "udtf('f(x INT) -> TABLE(y INT)', class Model { *call() {} });",
            "f: a table function is a generator; a class is for udf, and for a udtf whose parameter is a TABLE",
        ),
        ("udf('f() -> INT', class Model { predict() {} });", "Model has no method call"),
        (
            "udf('f() -> INT', class Model { constructor(path, size) {} call() {} });",
            "makes an instance without arguments; the constructor of Model needs 2 arguments",
        ),
    ],
    "rb": [
        ("class Model; def predict = 1; end\nudf('f() -> INT', Model)", "Model has no method call"),
        (
            "class Sized; def initialize(path) = 1; def call = 1; end\nudf('f() -> INT', Sized)",
            "functions.rb:1: function f: Sized.new needs arguments",
        ),
        (
            "class M; def call = 1; end\nudf('f() -> INT', M, setup: -> {})",
            "setup is for a block; M has methods",
        ),
        ("udf('f() -> INT', setup: 3) { |x| x }", "setup is called, and 3 cannot be"),
        (
            "udf('f(x INT) -> INT', setup: -> {}) { |x| x }",
            "the block is given what was set up and 1 argument, and takes 1",
        ),
        ("udf('f() -> INT', Class.new)", "has no method call"),
        (
            "class Two; def call(x, y) = 1; end\nudf('f(x INT) -> INT', Two)",
            "has 1 parameters, the block has 2",
        ),
    ],
}


def test_a_class_that_cannot_be_used_is_refused(script: Load, ruby: Load, subtests: pytest.Subtests) -> None:
    for load, (text, why) in [(ruby, WRONG["rb"][0]), *((script, wrong) for wrong in WRONG["js"])]:
        with subtests.test(text):
            with pytest.raises(duckdb.Error, match="DeclarationError") as caught:
                load(text)
            assert why in str(caught.value)
    found = why_refused(ruby, [text for text, _ in WRONG["rb"]])
    for (text, why), told in zip(WRONG["rb"], found, strict=True):
        with subtests.test(text):
            assert "DeclarationError" in told
            assert why in told


def test_a_script_of_the_command_line_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "functions.js"
    path.write_text("udf('f(x INT) -> INT', class { call(x) { return x; } });")
    con = crosslane.connect(functions=path)
    assert value(con, "SELECT f(1)") == 1
    con.close()
