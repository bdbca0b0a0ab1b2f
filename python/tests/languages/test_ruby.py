"""Ruby functions as guests."""

from __future__ import annotations

import json
import re
import resource
import signal

import duckdb
import psutil
import pytest

import crosslane

from ..conftest import CPUS, Load, error, eventually, once_at_work, printed, value

pytestmark = pytest.mark.any_duckdb


def test_blocks_and_methods(ruby: Load) -> None:
    con = ruby(
        """
        require "set"
        FACTOR = 3

        udf "slug(title VARCHAR) -> VARCHAR" do |title|
          title.downcase.split.join("-")
        end

        udf "scaled(x BIGINT, y BIGINT) -> BIGINT"
        def scaled(x, y) = helper(x) * y

        def helper(x) = x * FACTOR

        udf "tripled(x BIGINT) -> BIGINT", def tripled(x) = x * FACTOR
        """
    )
    query = "SELECT slug('Hello Wide World'), scaled(2, 5), tripled(4)"
    assert con.execute(query).fetchall() == [("hello-wide-world", 30, 12)]
    rows = con.execute("SELECT function, kind, line FROM crosslane_functions() ORDER BY line").fetchall()
    assert rows == [("slug", "row", 4), ("scaled", "row", 9), ("tripled", "row", 13)]


def test_every_core_is_used(ruby: Load) -> None:
    con = ruby('udf "home(x BIGINT) -> BIGINT", deterministic: false do |x| Process.pid end')
    con.execute("CREATE TABLE t AS SELECT i FROM range(500000) r(i)")
    assert value(con, "SELECT count(DISTINCT home(i)) FROM t") == 2


def test_nulls(ruby: Load) -> None:
    con = ruby(
        """
        udf("skip(x BIGINT) -> VARCHAR") { |x| x.inspect }
        udf("see(x BIGINT) -> VARCHAR", nulls: :call) { |x| x.inspect }
        udf("columns_see(x BIGINT) -> VARCHAR", nulls: :call, vectorized: true) { |xs| xs.map(&:inspect) }
        udf("columns_skip(x BIGINT) -> BIGINT", vectorized: true) { |xs| xs.map { |x| x * 2 } }
        udf("nothing(x BIGINT) -> BIGINT") { |x| nil }
        """
    )
    con.execute("CREATE TABLE t AS FROM (VALUES (1), (NULL), (3)) v(x)")
    query = "SELECT skip(x), see(x), columns_see(x), columns_skip(x), nothing(x) FROM t"
    assert con.execute(query).fetchall() == [
        ("1", "1", "1", 2, None),
        (None, "nil", "nil", None, None),
        ("3", "3", "3", 6, None),
    ]


def test_ruby_classes(ruby: Load) -> None:
    con = ruby(
        """
        { h: "HUGEINT", d: "DECIMAL(9,2)", v: "VARCHAR", b: "BLOB", t: "TIMESTAMP", day: "DATE", clock: "TIME",
          i: "INTERVAL", l: "INT[]", s: "STRUCT(a INT, b VARCHAR)", m: "MAP(VARCHAR, INT)", e: "ENUM('x', 'y')",
          j: "JSON", u: "UUID" }.each do |name, type|
          udf("class_#{name}(x #{type}) -> VARCHAR") { |x| "#{x.class.superclass == Struct ? Struct : x.class} #{x.is_a?(String) ? x.encoding : x}" }
        end
        """
    )
    expected = {
        "class_h(1::HUGEINT << 100)": "Integer 1267650600228229401496703205376",
        "class_d(1.5)": "BigDecimal 0.15e1",
        "class_v('x')": "String UTF-8",
        "class_b('x'::BLOB)": "String ASCII-8BIT",
        "class_t('2024-02-29 01:02:03')": "Time 2024-02-29 01:02:03 UTC",
        "class_day('2024-02-29')": "Date 2024-02-29",
        "class_clock('01:02:03.5')": "Crosslane::TimeOfDay 01:02:03.500000",
        "class_i(INTERVAL 1 DAY)": "Struct 0 months 1 days 0 microseconds",
        "class_l([1, NULL])": "Array [1, nil]",
        "class_s({'a': 1, 'b': 'x'})": 'Struct #<struct a=1, b="x">',
        "class_m(MAP {'k': 1})": 'Hash {"k"=>1}',
        "class_e('x')": "String UTF-8",
        "class_j('{\"a\": [1]}')": 'Hash {"a"=>[1]}',
        "class_u('00112233-4455-6677-8899-aabbccddeeff')": "String UTF-8",
    }
    for call, shown in expected.items():
        assert value(con, f"SELECT {call}") == shown, call


#: What a block returns for a type, and how SQL shows it.
RETURNED = [
    ("DECIMAL(5,2)", "1.005r", "1.01"),
    ("DECIMAL(5,2)", "0.1 + 0.2", "0.30"),
    ("DECIMAL(5,2)", "7", "7.00"),
    ("DOUBLE", "BigDecimal('1.5')", "1.5"),
    ("VARCHAR", ":symbol", "symbol"),
    ("VARCHAR", "'é'.encode('ISO-8859-1')", "é"),
    ("ENUM('a', 'b')", ":b", "b"),
    ("DATE", "Date.new(1582, 10, 15)", "1582-10-15"),
    ("TIMESTAMP", "Time.new(2024, 1, 2, 3, 4, 5, '+02:00')", "2024-01-02 03:04:05"),
    ("TIMESTAMPTZ", "Time.new(2024, 1, 2, 3, 4, 5, '+02:00')", "2024-01-02 01:04:05+00"),
    ("TIME", "Time.utc(2024, 1, 1, 7, 8)", "07:08:00"),
    ("STRUCT(a INT, b INT)", "{ a: 1, 'b' => 2 }", "{'a': 1, 'b': 2}"),
    ("STRUCT(a INT, b INT)", "[1, nil]", "{'a': 1, 'b': NULL}"),
    ("STRUCT(a INT, b INT)", "Struct.new(:b, :a).new(1, 2)", "{'a': 2, 'b': 1}"),
    ("INT[]", "Set.new([1, 2])", "[1, 2]"),
    ("INT[]", "(1..3).lazy.map { |i| i * 2 }", "[2, 4, 6]"),
    ("JSON", "{ a: [nil, 1] }", '{"a":[null,1]}'),
]


def test_what_a_block_may_return(ruby: Load, subtests: pytest.Subtests) -> None:
    declared = [f'udf("f{at}() -> {returns}") {{ {code} }}' for at, (returns, code, _) in enumerate(RETURNED)]
    con = ruby("\n".join(['require "set"', *declared]))
    con.execute("SET TimeZone = 'UTC'")
    for at, (returns, code, expected) in enumerate(RETURNED):
        with subtests.test(f"{returns}: {code}"):
            assert value(con, f"SELECT f{at}()::VARCHAR") == expected


#: Results that a block may not return for a type, and the errors.
REFUSED = [
    ("BIGINT", "'5'", 'TypeError: returned String "5" where BIGINT is due'),
    ("BIGINT", "1.5", "TypeError: returned Float 1.5 where BIGINT is due"),
    ("TINYINT", "128", "RangeError: returned Integer 128, which does not fit TINYINT"),
    ("UBIGINT", "-1", "RangeError: returned Integer -1, which does not fit UBIGINT"),
    ("HUGEINT", "2**200", "which does not fit HUGEINT"),
    ("DECIMAL(3,1)", "100", "which does not fit DECIMAL(3,1)"),
    ("DECIMAL(3,1)", "Float::NAN", "RangeError: returned Float NaN, which does not fit DECIMAL(3,1)"),
    ("VARCHAR", "5", "TypeError: returned Integer 5 where VARCHAR is due"),
    ("VARCHAR", "[255].pack('C')", "which is binary, where VARCHAR is due"),
    ("VARCHAR", r'"\xFF"', "which is not valid UTF-8"),
    ("BOOLEAN", "1", "TypeError: returned Integer 1 where BOOLEAN is due"),
    ("DATE", "Time.now", "where DATE is due; return its to_date"),
    ("INT[2]", "[1]", "1 elements where INTEGER[2] is due"),
    ("INT[]", "'x'", 'TypeError: returned String "x" where INTEGER[] is due'),
    ("INT[]", "[1, 'x']", 'TypeError: returned String "x" where INTEGER is due'),
    ("STRUCT(a INT, b INT)", "{ a: 1 }", "which lacks the field b"),
    ("STRUCT(a INT, b INT)", "[1]", "returned Array [1], 1 value where 2 are due: a, b"),
    (
        "STRUCT(a INT[])",
        "{ a: [2**31] }",
        "RangeError: returned Integer 2147483648, which does not fit INTEGER",
    ),
    ("MAP(VARCHAR, INT)", "{ nil => 1 }", "keys cannot be NULL"),
    ("UNION(a INT)", "1", "where UNION(a INTEGER) is due; return Crosslane::Tagged.new(tag, value)"),
    ("UNION(a INT)", "Crosslane::Tagged.new(:b, 1)", "no member of UNION(a INTEGER) has"),
    ("ENUM('a')", "'z'", "which is none of ENUM('a')"),
    ("ENUM('a')", "5", "TypeError: returned Integer 5 where ENUM('a') is due"),
    ("TIME", "Crosslane::TimeOfDay.at(1, utc_offset: 0)", "which has a zone, where none is due"),
    ("TIMETZ", "Crosslane::TimeOfDay.at(1)", "which has no zone, where TIMETZ is due"),
    ("DATE", "Date.jd(2**31 + 2_440_587)", "which does not fit DATE"),
    ("UUID", "'x'", 'TypeError: returned String "x" where UUID is due'),
]


def test_what_a_block_may_not_return(ruby: Load, subtests: pytest.Subtests) -> None:
    declared = [f'udf("f{at}() -> {returns}") {{ {code} }}' for at, (returns, code, _) in enumerate(REFUSED)]
    con = ruby("\n".join(declared))
    for at, (returns, code, expected) in enumerate(REFUSED):
        with subtests.test(f"{returns}: {code}"):
            text = error(con, f"SELECT f{at}()")
            assert expected in text
            assert "in row 1 of the batch" in text


def test_errors_name_class_message_cause_and_place(ruby: Load) -> None:
    con = ruby(
        """
        class Broken < StandardError; end

        udf "f(x BIGINT) -> BIGINT" do |x|
          inner(x)
        end

        def inner(x)
          Integer("z")
        rescue ArgumentError
          raise Broken, "with #{x}"
        end
        """
    )
    text = error(con, "SELECT f(i) FROM range(5, 9) r(i)")
    assert "f: Broken: with 5" in text
    assert re.search(r"at \S+functions\.rb:10 in \S.*\n    raise Broken", text)
    assert 'caused by ArgumentError: invalid value for Integer(): "z"' in text
    assert "in row 1 of the batch, with x = 5" in text
    assert "crosslane/" not in text.replace("crosslane/test", "")


def why_refused(ruby: Load, texts: list[str]) -> list[str]:
    """The reasons why the texts cannot be declared. One process tries them all, and reads each text as a
    separate file."""
    con = ruby(
        f"""
        why = {json.dumps(texts)}.map do |text|
          eval(text, TOPLEVEL_BINDING, "functions.rb", 1)
          "nothing is wrong"
        rescue Exception => e
          "#{{e.class}}: #{{e.message}}"
        end
        udf("why() -> VARCHAR[]") {{ why }}
        """
    )
    return [why for (why,) in con.execute("SELECT unnest(why())").fetchall()]


#: Texts of files without functions, and the errors.
NO_FILES = {
    "x = 1": "declares no function; write udf",
    "udf 'f(x BIGNIT) -> INT' do |x| end": "functions.rb:1: function f: ",
    "udf 'f(x INT) -> INT'": "has no block, and no def follows",
    "udf('f() -> INT') { 1 }\nudf('F() -> INT') { 2 }": "the name is taken by line 1",
    "raise 'while loading'": "RuntimeError: while loading\n  at ",
    "def f(": "SyntaxError",
    "exit 3": "SystemExit",
}
#: Declarations that are refused, and the reasons.
NO_FUNCTIONS = {
    "udf 'f(x BIGNIT) -> INT' do |x| end": "functions.rb:1: function f: ",
    "udf 'f(x INT) -> INT' do |a, b| end": "the signature has 1 parameters, the block has 2",
    "udf 'f(x INT) -> INT', nulls: :sometimes do |x| end": "nulls is :skip or :call, not :sometimes",
    "udf 'f(x INT) -> INT', speed: 9 do |x| end": "there is no option speed",
    "udf 'f(x INT) -> INT', timeout: -1 do |x| end": "timeout is a positive number",
    "udf 'f(x INT) -> INT', memory_limit: 'much' do |x| end": "memory_limit is a size",
}


def test_a_file_that_cannot_be_loaded(ruby: Load, subtests: pytest.Subtests) -> None:
    for text, expected in NO_FILES.items():
        with subtests.test(text), pytest.raises(duckdb.Error, match=re.escape(expected)):
            ruby(text)


def test_a_function_that_cannot_be_declared(ruby: Load, subtests: pytest.Subtests) -> None:
    found = why_refused(ruby, list(NO_FUNCTIONS))
    for (text, expected), why in zip(NO_FUNCTIONS.items(), found, strict=True):
        with subtests.test(text):
            assert why.startswith("Crosslane::DeclarationError: functions.rb:1: function f: ")
            assert expected in why


def test_limits(ruby: Load) -> None:
    con = ruby(
        """
        udf("late(x BIGINT) -> BIGINT", timeout: 0.3) { |x| x == 3 ? sleep : x }
        udf("busy(x BIGINT) -> BIGINT", timeout: 0.3) { |x| loop {} }
        udf("greedy(x BIGINT) -> BIGINT", memory_limit: "200 MB") { |x| ("a" * 1_000_000_000).size }
        udf("lost(x BIGINT) -> BIGINT", timeout: 0.3, on_error: :null) { |x| x == 3 ? sleep : x }
        """
    )
    text = error(con, "SELECT late(i) FROM range(9) r(i)")
    assert "late: timed out after 0.3 s" in text
    assert "with x = 3" in text
    assert "busy: timed out" in error(con, "SELECT busy(1)")
    assert "greedy: NoMemoryError: failed to allocate memory" in error(con, "SELECT greedy(1)")
    assert con.execute("SELECT count(lost(i)) FROM range(9) r(i)").fetchall() == [(8,)]


@pytest.mark.parametrize(
    ("environment", "setting", "enabled"),
    [
        ({}, "1", True),
        ({"RUBYOPT": "-W0"}, "1", True),
        ({"RUBYOPT": "--disable-yjit"}, None, False),
        # Ruby 3.1 takes any text for yes.
        ({"RUBY_YJIT_ENABLE": "yes"}, "yes", True),
    ],
)
def test_functions_are_compiled_unless_the_user_says_how(
    ruby: Load,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    setting: str | None,
    enabled: bool,
) -> None:
    for name in ("RUBY_YJIT_ENABLE", "RUBYOPT"):
        monkeypatch.delenv(name, raising=False)
    for name, word in environment.items():
        monkeypatch.setenv(name, word)
    con = ruby(
        """
        udf("setting(x BIGINT) -> VARCHAR") { |_| ENV["RUBY_YJIT_ENABLE"] }
        udf("compiled(x BIGINT) -> BOOLEAN") { |_| defined?(RubyVM::YJIT) ? RubyVM::YJIT.enabled? : nil }
        """
    )
    assert value(con, "SELECT setting(1)") == setting
    assert value(con, "SELECT compiled(1)") in (enabled, None)


@pytest.mark.parametrize("begin", ["", "Thread.new { sleep }"], ids=["forked", "loaded anew"])
def test_compiled_code_has_little_memory(
    ruby: Load, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], begin: str
) -> None:
    """Ruby 3.1 would write to 256 MiB of memory when it starts."""
    for name in ("RUBY_YJIT_ENABLE", "RUBYOPT"):
        monkeypatch.delenv(name, raising=False)
    con = ruby(begin + '\nudf("pages() -> BIGINT") { File.read("/proc/self/statm").split[1].to_i }')
    assert int(str(value(con, "SELECT pages()"))) * resource.getpagesize() < 150 << 20
    if begin:
        printed(capfd, "So each worker loads the file itself")


def test_retries_and_errors_as_null(ruby: Load) -> None:
    con = ruby(
        """
        $tries = Hash.new(0)
        udf("flaky(x BIGINT) -> BIGINT", retries: 2) { |x| ($tries[x] += 1) < 3 ? raise("not yet") : x }
        udf("if_even(x BIGINT) -> BIGINT", on_error: :null) { |x| x.even? ? x : raise("odd") }
        udf("all_or_none(x BIGINT) -> BIGINT", on_error: :null, vectorized: true) { |xs| raise "never" }
        udf("short(x BIGINT) -> BIGINT", vectorized: true) { |xs| xs.drop(1) }
        """
    )
    con.execute("CALL crosslane_set('fan_out', 'false')").fetchall()
    assert value(con, "SELECT sum(flaky(i)) FROM range(3) r(i)") == 3
    assert value(con, "SELECT count(if_even(i)) FROM range(1000) r(i)") == 500
    assert value(con, "SELECT count(all_or_none(i)) FROM range(1000) r(i)") == 0
    assert "999 results for 1000 rows" in error(con, "SELECT short(i) FROM range(1000) r(i)")


def test_many_rows_wait_at_once(ruby: Load) -> None:
    con = ruby(
        """
        $running = 0
        udf("side_by_side(x BIGINT) -> BIGINT", concurrency: 50) do |x|
          $running += 1
          sleep 0.05
          $running.tap { $running -= 1 }
        end
        udf("partly(x BIGINT) -> BIGINT", concurrency: 10, on_error: :null) { |x| x == 7 ? raise("seven") : x }
        udf("bad(x BIGINT) -> BIGINT", concurrency: 10) { |x| x == 7 ? raise("seven") : x }
        udf("slow(x BIGINT) -> BIGINT", concurrency: 10, timeout: 0.2) { |x| x == 7 ? sleep : x }
        """
    )
    assert 10 < value(con, "SELECT max(side_by_side(i)) FROM range(400) r(i)") <= 50
    assert value(con, "SELECT count(partly(i)) FROM range(100) r(i)") == 99
    text = error(con, "SELECT bad(i) FROM range(100) r(i)")
    assert "bad: RuntimeError: seven" in text
    assert "with x = 7" in text
    assert "timed out" in error(con, "SELECT slow(i) FROM range(20) r(i)")


WAYS_TO_DIE = {
    "exit!(3)": "its worker process ended with exit code 3",
    "Process.kill(:KILL, Process.pid)": "SIGKILL",
    # Ruby reports this signal, and aborts.
    "Process.kill(:SEGV, Process.pid); sleep": "its worker process crashed with SIGABRT",
    "Process.kill(:TERM, Process.pid); sleep": "SIGTERM",
    "exit(4)": "SystemExit: exit",
    "Process.kill(:INT, Process.pid); sleep": "Interrupt",
    "def deep = deep + 1; deep": "SystemStackError",
    "throw :nowhere": "UncaughtThrowError: uncaught throw :nowhere",
    "Thread.current.kill": "SystemExit",
}


def test_a_worker_that_dies_ends_its_query_alone(ruby: Load, subtests: pytest.Subtests) -> None:
    con = ruby(
        "\n".join(
            f'udf("f{at}(x BIGINT) -> BIGINT") do |x|\n  if x == 1500\n    {way}\n  end\n  x\nend'
            for at, way in enumerate(WAYS_TO_DIE)
        )
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(2000) r(i)")
    for at, (way, expected) in enumerate(WAYS_TO_DIE.items()):
        with subtests.test(way):
            for _ in range(2):
                text = error(con, f"SELECT f{at}(i) FROM t")
                assert expected in text
                assert f"f{at}: " in text
            assert value(con, f"SELECT sum(f{at}(i)) FROM t WHERE i < 1000") == sum(range(1000))


def test_what_a_function_prints_reaches_the_log(ruby: Load, capfd: pytest.CaptureFixture[str]) -> None:
    con = ruby('udf("noisy(x BIGINT) -> BIGINT") { |x| puts "line #{x}"; warn "warning #{x}"; x }')
    assert value(con, "SELECT sum(noisy(i)) FROM range(50) r(i)") == sum(range(50))
    con.close()
    printed(capfd, *(f"line {x}\n" for x in range(50)), *(f"warning {x}\n" for x in range(50)))


def test_a_crash_does_not_show_what_earlier_calls_printed(ruby: Load) -> None:
    con = ruby(
        """
        puts "loaded"
        udf("f(x BIGINT) -> BIGINT") do |x|
          # More than the engine reads in one turn, and less than a pipe takes.
          $stderr.write("called with #{x}\n" * (x == 1 ? 3000 : 1))
          x == 2 ? exit!(1) : x
        end
        """
    )
    con.execute("CALL crosslane_set('warm_lanes', '1')").fetchall()
    assert value(con, "SELECT f(i) FROM range(1, 2) r(i)") == 1
    text = error(con, "SELECT f(i) FROM range(2, 3) r(i)")
    assert "called with 2" in text
    assert "called with 1" not in text
    assert "loaded" not in text


def test_a_waiting_worker_ends_at_once_on_a_signal(ruby: Load) -> None:
    con = ruby('udf("f(x BIGINT) -> BIGINT") { |x| x }')
    assert value(con, "SELECT f(1)") == 1
    # A lane that was just forked still has the zygote's handler of the signal for a moment.
    assert eventually(lambda: value(con, "SELECT sum(idle) FROM crosslane_pools()") == CPUS)
    (reaper,) = psutil.Process().children()
    (zygote,) = reaper.children()
    lanes = zygote.children()
    assert len(lanes) == CPUS
    for lane in lanes:
        lane.send_signal(signal.SIGINT)
    psutil.wait_procs(lanes, timeout=3)
    assert eventually(lambda: not any(lane.is_running() for lane in lanes))
    assert value(con, "SELECT f(2)") == 2


def test_a_query_in_ruby_can_be_cancelled(ruby: Load) -> None:
    con = ruby('udf("stuck(x BIGINT) -> BIGINT") { |x| sleep }')
    # The query would never end.
    with once_at_work(con, lambda: crosslane.cancel(con)):
        text = error(con, "SELECT stuck(i) FROM range(2, 5) r(i)")
    assert re.search("cancelled|Interrupted", text), text


def test_reloading(ruby: Load) -> None:
    con = ruby('udf("f() -> INT") { 1 }')
    assert value(con, "SELECT f()") == 1
    con = ruby('udf("f() -> INT") { 2 }')
    assert value(con, "SELECT f()") == 2
