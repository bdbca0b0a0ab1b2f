"""Lua functions as guests: the parts that crosslane-guest does for every language, and the parts of Lua
alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import duckdb
import psutil
import pytest
from click.testing import CliRunner

import crosslane
from crosslane._cli import main
from crosslane._cli.doctor import examine, languages
from crosslane._runtime.languages import guests

from ..conftest import Load, error, eventually, kill, printed, value

pytestmark = pytest.mark.any_duckdb


def test_functions_of_a_file(lua: Load, con: duckdb.DuckDBPyConnection) -> None:
    lua(
        """
        local factor = 3

        -- What a title is in an address.
        -- In lower case.
        udf("slug(title VARCHAR) -> VARCHAR", function(title)
          return (title:lower():gsub("%W+", "-"))
        end)

        udf("scaled(x BIGINT, y DOUBLE) -> DOUBLE", { deterministic = false }, function(x, y) return x * y * factor end)
        udf("answer() -> INTEGER", function() return 42 end)
        udf("joined(separator VARCHAR, *parts VARCHAR) -> VARCHAR", function(separator, ...)
          return table.concat({ ... }, separator)
        end)
        """
    )
    query = "SELECT slug('Hello, World'), scaled(2, 5), answer(), joined('-', 'a', 'b', 'c')"
    assert con.execute(query).fetchall() == [("hello-world", 30.0, 42, "a-b-c")]
    listed = con.execute(
        "SELECT function, language, kind, line, description FROM crosslane_functions() ORDER BY line"
    ).fetchall()
    assert listed[0] == ("slug", "Lua", "row", 5, "What a title is in an address.\nIn lower case.")
    assert [row[3] for row in listed] == [5, 9, 10, 11]


def test_nulls(lua: Load, con: duckdb.DuckDBPyConnection) -> None:
    lua(
        """
        udf("skip(x BIGINT) -> VARCHAR", function(x) return tostring(x) end)
        udf("see(x BIGINT) -> VARCHAR", { nulls = "call" }, function(x) return tostring(x) end)
        udf("columns_skip(x BIGINT) -> BIGINT", { vectorized = true }, function(xs)
          for at, x in ipairs(xs) do xs[at] = 2 * x end
          return xs
        end)
        udf("columns_see(x BIGINT) -> BIGINT", { vectorized = true, nulls = "call" }, function(xs)
          for at, x in ipairs(xs) do xs[at] = x == null and -1 or x end
          return xs
        end)
        udf("holes(x BIGINT) -> BIGINT[]", function(x) return { nil, x, nil, n = 3 } end)
        udf("nothing(x BIGINT) -> BIGINT", function(x) end)
        """
    )
    con.execute("CREATE TABLE t AS FROM (VALUES (1), (NULL), (3)) v(x)")
    query = "SELECT skip(x), see(x), columns_skip(x), columns_see(x), holes(x), nothing(x) FROM t"
    assert con.execute(query).fetchall() == [
        ("1", "1", 2, 1, [None, 1, None], None),
        (None, "nil", None, -1, None, None),
        ("3", "3", 6, 3, [None, 3, None], None),
    ]


def test_errors_say_where(lua: Load, con: duckdb.DuckDBPyConnection) -> None:
    lua(
        """
        local function inner(x)
          return x.field
        end
        udf("fails(x BIGINT) -> BIGINT", function(x)
          return inner(x) + 1
        end)
        udf("raises(x BIGINT) -> BIGINT", function(x) error({ code = x }) end)
        udf("wrong(x BIGINT) -> BIGINT", { vectorized = true }, function(xs) xs[1] = "two"; return xs end)
        udf("short(x BIGINT) -> BIGINT", { vectorized = true }, function(xs) return {} end)
        udf("scalar(x BIGINT) -> BIGINT", { vectorized = true }, function(xs) return 1 end)
        """
    )
    failed = error(con, "SELECT fails(i + 5) FROM range(3) r(i)")
    assert re.search(r"fails: Error: attempt to index a number value \(local 'x'\)\n", failed), failed
    assert "functions.lua:2 in inner\n    return x.field\n" in failed, failed
    assert "functions.lua:5\n    return inner(x) + 1\n" in failed, failed
    assert "in row 1 of the batch, with x = 5" in failed
    assert "table: 0x" in error(con, "SELECT raises(1)")
    failed = error(con, "SELECT wrong(i) FROM range(3) r(i)")
    assert "wrong: TypeError: returned string two where BIGINT is due" in failed
    assert "in row 1 of the batch" in failed
    assert "returned 0 results for" in error(con, "SELECT short(i) FROM range(3) r(i)")
    assert "returned integer 1 where a list of results is due" in error(
        con, "SELECT scalar(i) FROM range(3) r(i)"
    )


#: Results that are no values of the type, and the errors.
NO_RESULTS = [
    ("TINYINT", "128", "RangeError: returned integer 128, which does not fit TINYINT"),
    ("BIGINT", "1.5", "TypeError: returned number 1.5 where BIGINT is due"),
    ("BIGINT", "2^63", "RangeError: returned number 9.223372036854776e18, which does not fit BIGINT"),
    ("UBIGINT", "-1", "RangeError: returned integer -1, which does not fit UBIGINT"),
    ("FLOAT", "1e300", "RangeError: returned number 1e300, which does not fit FLOAT"),
    ("DECIMAL(3,1)", "99.96", "RangeError: returned number 99.96, which does not fit DECIMAL(3,1)"),
    ("VARCHAR", "5", "TypeError: returned integer 5 where VARCHAR is due"),
    ("VARCHAR", '"\\xff"', "which is not valid UTF-8, where VARCHAR is due; declare BLOB for bytes"),
    ("JSON", '"{"', "which is not JSON"),
    ("BOOLEAN", "1", "TypeError: returned integer 1 where BOOLEAN is due"),
    ("DATE", "{ year = 2024, day = 1 }", "ValueError: returned a table, which lacks month"),
    (
        "DATE",
        "{ year = 1e9, month = 1, day = 1 }",
        "RangeError: returned a table, which does not fit DATE",
    ),
    ("TIME", "{ hour = 25 }", "RangeError: returned a table, which does not fit TIME"),
    ("ENUM('a')", '"b"', "which is none of ENUM('a')"),
    ("BOOLEAN[]", "{ n = 1 << 31 }", "RangeError: the results of one batch exceed 2 GiB"),
    ("INTEGER[2]", "{ 1 }", "1 elements where INTEGER[2] is due"),
    ("UNION(a INTEGER)", '{ tag = "b" }', "returned a tag that no member of UNION(a INTEGER) has"),
    ("UUID", '"x"', "TypeError: returned string x where UUID is due"),
]


def test_results_of_a_wrong_type(lua: Load, subtests: pytest.Subtests) -> None:
    con = lua(
        "\n".join(
            f"udf([=[f{at}() -> {data_type}]=], function() return {expression} end)"
            for at, (data_type, expression, _) in enumerate(NO_RESULTS)
        )
    )
    for at, (data_type, expression, message) in enumerate(NO_RESULTS):
        with subtests.test(f"{data_type}: {expression}"):
            assert message in error(con, f"SELECT f{at}()")


def test_results_of_other_kinds(lua: Load) -> None:
    con = lua(
        """
        udf("whole() -> BIGINT", function() return 2^53 end)
        udf("text() -> HUGEINT", function() return "-170141183460469231731687303715884105728" end)
        udf("big() -> BIGNUM", function() return math.mininteger end)
        udf("rounded() -> DECIMAL(4,1)", function() return -1.25 end)
        udf("next_day() -> DATE", function() return { year = 2024, month = 2, day = 30 } end)
        udf("forever() -> TIMESTAMP", function() return math.huge end)
        udf("more(x DECIMAL(9,2)) -> DOUBLE", function(x) return x + 1 end)
        """
    )
    query = "SELECT whole(), text()::VARCHAR, big()::VARCHAR, rounded()::VARCHAR, next_day()::VARCHAR, forever()::VARCHAR, more(1.5)"
    assert con.execute(query).fetchall() == [
        (
            2**53,
            "-170141183460469231731687303715884105728",
            "-9223372036854775808",
            "-1.3",
            "2024-03-01",
            "infinity",
            2.5,
        )
    ]


def test_on_error_and_retries(lua: Load) -> None:
    con = lua(
        """
        local calls = 0
        udf("odd(x BIGINT) -> BIGINT", { on_error = "null" }, function(x)
          if x % 2 == 0 then error("even") end
          return x
        end)
        udf("third(x BIGINT) -> BIGINT", { retries = 2, deterministic = false }, function(x)
          calls = calls + 1
          if calls % 3 ~= 0 then error("call " .. calls) end
          return calls
        end)
        udf("never(x BIGINT) -> BIGINT", { retries = 1 }, function(x) error("never") end)
        udf("together(x BIGINT) -> BIGINT", { vectorized = true, on_error = "null" }, function(xs) error("no") end)
        """
    )
    assert con.execute("SELECT odd(i) FROM range(5) r(i)").fetchall() == [
        (None,),
        (1,),
        (None,),
        (3,),
        (None,),
    ]
    assert con.execute("SELECT third(i) FROM range(2) r(i)").fetchall() == [(3,), (6,)]
    assert "never: Error: never" in error(con, "SELECT never(1)")
    assert con.execute("SELECT together(i) FROM range(2) r(i)").fetchall() == [(None,), (None,)]
    counted = con.execute(
        "SELECT function, errors, retries FROM crosslane_stats() WHERE function IN ('odd', 'third') ORDER BY ALL"
    ).fetchall()
    assert counted == [("odd", 3, 0), ("third", 0, 4)]


def test_timeouts_and_crashes_end_one_query(lua: Load) -> None:
    con = lua(
        """
        udf("hangs(x BIGINT) -> BIGINT", { timeout = 0.2 }, function(x) while x == 2 do end return x end)
        udf("leaves(x BIGINT) -> BIGINT", function(x) if x == 1 then os.exit(7) end return x end)
        udf("killed(x BIGINT) -> BIGINT", function(x)
          if x == 1 then os.execute("kill -ABRT $PPID") end
          return x
        end)
        """
    )
    failed = error(con, "SELECT hangs(i) FROM range(4) r(i)")
    assert "timed out after 0.2 s" in failed
    assert "in row 3 of the batch, with x = 2" in failed
    assert "its worker process ended with exit code 7" in error(con, "SELECT leaves(i) FROM range(2) r(i)")
    assert "SIGABRT" in error(con, "SELECT killed(i) FROM range(2) r(i)")
    assert con.execute("SELECT hangs(1), leaves(0), killed(0)").fetchall() == [(1, 0, 0)]


def test_a_limit_of_memory_is_an_error_and_ends_with_its_call(lua: Load) -> None:
    con = lua(
        """
        kept = {}
        udf("occupy(mb BIGINT) -> BIGINT", { memory_limit = "20 MB" }, function(mb)
          local parts = {}
          for at = 1, mb do parts[at] = string.rep(string.rep(tostring(at % 10), 1000), 1000) end
          return #parts
        end)
        udf("free(mb BIGINT) -> BIGINT", function(mb) return #string.rep(string.rep("x", 1000), mb * 1000) end)
        """
    )
    assert value(con, "SELECT occupy(10)") == 10
    # A call does not see the memory of an earlier call. The planner and a repeated query make such earlier
    # calls.
    for _ in range(5):
        assert "occupy: MemoryError: not enough memory" in error(con, "SELECT occupy(50)")
    assert con.execute("SELECT occupy(11), free(60)").fetchall() == [(11, 60_000_000)]


def test_what_is_printed_goes_to_the_log(lua: Load, capfd: pytest.CaptureFixture[str]) -> None:
    con = lua(
        """
        print("loading")
        udf("prints(x BIGINT) -> BIGINT", function(x) print("row", x); io.write("half a line\\n"); io.stderr:write("err\\n") return x end)
        """
    )
    assert value(con, "SELECT prints(7)") == 7
    log = printed(capfd, "loading", "row\t7", "half a line", "err")
    assert log.count("row\t7") == 1
    assert log.count("loading") == 1


def test_lanes_have_their_own_random_numbers_and_groups(lua: Load) -> None:
    con = lua(
        """
        udf("home(x BIGINT) -> VARCHAR", { deterministic = false }, function(x)
          mine = mine or math.random(1 << 40)
          return tostring(mine)
        end)
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(500000) r(i)")
    found = value(con, "SELECT count(DISTINCT home(i)) FROM t")
    # A slow machine may need more workers than there are threads.
    assert found == value(con, "SELECT count(*) FROM crosslane_lanes() WHERE calls > 0") >= 2


#: Files that cannot be loaded, and the errors.
NO_FILES = [
    ("x = 1", "functions.lua: declares no function; write udf("),
    ("local = 1", "SyntaxError: "),
    ("error('no')", "Error: no\n  at "),
    ('udf("f() -> BIGINT")', "DeclarationError: udf takes a signature, options and a function"),
    ('udf("f( -> BIGINT", print)', "DeclarationError: "),
    (
        'udf("f() -> BIGINT", { timeuot = 1 }, print)',
        "function f: there is no option timeuot; there are nulls",
    ),
    (
        'udf("f() -> BIGINT", print)\n\nudf("F() -> BIGINT", print)',
        "function F: the name is taken by line 1 of ",
    ),
    ("require('nowhere')", "module 'nowhere' not found"),
]


def test_files_that_cannot_be_loaded(lua: Load, subtests: pytest.Subtests) -> None:
    for text, message in NO_FILES:
        with subtests.test(text):
            with pytest.raises(duckdb.Error) as raised:
                lua(text)
            assert message in str(raised.value)
            if "udf takes" in message or "timeuot" in message:
                assert "functions.lua:1\n    udf(" in str(raised.value)


THREAD = """
#include <pthread.h>
#include <unistd.h>
static void *wait(void *nothing) { for (;;) pause(); }
int luaopen_thread(void *state) { pthread_t thread; pthread_create(&thread, 0, wait, 0); pthread_setname_np(thread, "waiter"); return 0; }
"""


def test_a_file_that_starts_threads_is_loaded_by_each_worker(
    lua: Load, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / "thread.so")]
    subprocess.run(command, input=THREAD, text=True, check=True)
    text = f"""
        package.cpath = "{tmp_path}/?.so"
        require("thread")
        udf("threads(x BIGINT) -> BIGINT", function(x)
          local count = 0
          for _ in io.popen("ls /proc/$PPID/task"):lines() do count = count + 1 end
          return count
        end)
        """
    con = lua(text)
    assert value(con, "SELECT threads(1)") == 2
    log = printed(capfd, "its top level starts threads", "waiter")
    assert log.count("starts threads") == 1


def test_any_type(lua: Load) -> None:
    con = lua(
        'udf("kind(x ANY, *more ANY) -> VARCHAR", function(x, ...) return math.type(x) or type(x) .. select("#", ...) end)'
    )
    assert con.execute("SELECT kind(1), kind(1.5::DOUBLE), kind('a', 1, 2), kind([1])").fetchall() == [
        ("integer", "float", "string2", "table0")
    ]


def test_modules_of_the_folder_and_a_file_that_changes(lua: Load, tmp_path: Path) -> None:
    (tmp_path / "helper.lua").write_text("return { twice = function(x) return 2 * x end }")
    con = lua(
        """
        local helper = require("helper")
        udf("twice(x BIGINT) -> BIGINT", helper.twice)
        """
    )
    assert value(con, "SELECT twice(4)") == 8
    (tmp_path / "helper.lua").write_text("return { twice = function(x) return 3 * x end }")
    kill(psutil.Process().children(recursive=True))
    assert eventually(
        lambda: "functions.lua has changed since it was loaded" in error(con, "SELECT twice(5)")
    )


def test_the_command_line_and_the_doctor_read_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (guest,) = [guest for guest in guests() if guest.language == "Lua"]
    assert guest.suffixes == (".lua",)
    assert guest.program.exists()
    file = tmp_path / "functions.lua"
    file.write_text('print("hello")\nudf("double(x BIGINT) -> BIGINT", function(x) return 2 * x end)\n')
    checked = CliRunner().invoke(main, ["check", str(file)])
    assert checked.exit_code == 0, checked.output
    assert "double(x BIGINT) -> BIGINT" in checked.output
    file.write_text("udf()")
    checked = CliRunner().invoke(main, ["check", str(file)])
    assert checked.exit_code == 1
    # `test_cli.py` tests the other parts of the doctor.
    for look in ("run_python", "run_javascript", "run_ruby"):
        monkeypatch.setattr(languages, look, examine._platform)
    monkeypatch.setattr(examine, "_descriptors", examine._platform)
    monkeypatch.setattr(examine, "optional", lambda *_: examine._platform())
    monkeypatch.setattr(examine, "examine_spark", lambda: [])
    findings = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)["findings"]
    assert [(finding["state"], finding["text"]) for finding in findings if finding["what"] == "Lua"] == [
        ("good", "Lua 5.4; a function ran in a worker")
    ]


def test_the_program_is_a_setting(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    names = [name for (name,) in con.execute("SELECT name FROM crosslane_settings()").fetchall()]
    assert "lua" in names
    con.execute("CALL crosslane_set('lua', '/nowhere/crosslane-lua')")
    file = tmp_path / "functions.lua"
    file.write_text('udf("f() -> BIGINT", function() return 1 end)')
    with pytest.raises(
        duckdb.Error, match="the setting lua names /nowhere/crosslane-lua, which does not exist"
    ):
        crosslane.load(con, file)


def test_without_the_guest_the_error_says_what_to_do(tmp_path: Path) -> None:
    package = tmp_path / "crosslane"
    shutil.copytree(Path(crosslane.__file__).parent, package, symlinks=True)
    program = package / "guests" / "lua" / "crosslane-lua"
    program.unlink()
    file = tmp_path / "functions.lua"
    file.write_text('udf("f() -> BIGINT", function() return 1 end)')
    con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    con.execute(f"LOAD '{package}/crosslane.duckdb_extension'")
    missing = (
        f"there is no guest for Lua at {program}: the package was built without Lua; install liblua5.4-dev"
    )
    assert missing in error(con, f"FROM crosslane_load('{file}')")
    con.close()
