"""``crosslane sandbox run`` records what a file touches, and drafts what the file asks for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import error, value
from ..servers import Server
from .conftest import SECRET

pytestmark = pytest.mark.any_duckdb

COMMAND = [sys.executable, "-m", "crosslane._cli", "sandbox", "run", "--format", "csv"]
MARKS = {"py": "#", "rb": "#", "lua": "--", "js": "//"}
#: Each file reads a file, writes one, connects, runs a program, and reads a variable.
PYTHON = f"""
    import os, subprocess, urllib.request
    from crosslane import udf
    FOLDER = os.path.dirname(__file__)

    @udf(deterministic=False)
    def everything(port: int) -> str:
        with open(FOLDER + "/data/known") as known, open(FOLDER + "/out/made", "w") as made:
            made.write(known.read())
        page = urllib.request.urlopen(f"http://localhost:{{port}}/").read().decode()
        said = subprocess.run(["/bin/echo", "said"], capture_output=True, text=True, check=True).stdout.strip()
        return f"{{page}} {{said}} {{os.environ['{SECRET}']}}"
    """
RUBY = f"""
    require "net/http"
    udf("everything(port BIGINT) -> VARCHAR", deterministic: false) do |port|
      File.write("#{{__dir__}}/out/made", File.read("#{{__dir__}}/data/known"))
      page = Net::HTTP.get("localhost", "/", port)
      said = IO.popen(["/bin/echo", "said"], &:read).strip
      "#{{page}} #{{said}} #{{ENV.fetch("{SECRET}")}}"
    end
    """
LUA = f"""
    local folder = "@FOLDER@"
    udf("everything(port BIGINT) -> VARCHAR", {{deterministic = false}}, function(port)
      local made = assert(io.open(folder .. "/out/made", "w"))
      made:write(assert(io.open(folder .. "/data/known")):read("a"))
      made:close()
      local client = "exec 3<>/dev/tcp/localhost/" .. port .. "; printf 'GET / HTTP/1.0\\\\r\\\\n\\\\r\\\\n' >&3; grep -ao answered <&3"
      local program = assert(io.popen("exec bash -c \\"" .. client .. "\\""))
      local page = assert(program:read("l"))
      return page .. " said " .. assert(os.getenv("{SECRET}"))
    end)
    """
LANGUAGES = {"py": (PYTHON, ["echo"]), "rb": (RUBY, ["echo"]), "lua": (LUA, ["sh", "bash", "grep"])}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "sesame")
    # Without it, bash reads /etc/passwd.
    monkeypatch.setenv("SHELL", "/bin/bash")


def library(folder: Path, name: str, text: str, block: str = "") -> Path:
    """A file of functions beside a folder with data, one for results, and a secret."""
    for part in ("data", "out"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "data" / "known").write_text("known")
    (folder / "secret").write_text("secret")
    file = folder / name
    file.write_text(block + textwrap.dedent(text).replace("@FOLDER@", str(folder)))
    return file


def record(file: Path, query: str, code: int = 0) -> tuple[str, str, str]:
    """The result, the draft, and the other text of the command."""
    done = subprocess.run([*COMMAND, file, query], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    result, _, draft = (
        done.stdout.rpartition("\n\n") if done.stdout[:1] != "\n" else ("", "", done.stdout[1:])
    )
    return result, draft, done.stderr


def options(draft: str) -> dict[str, list[str]]:
    """The lists in a draft."""
    lines = [line.partition(" ")[2] for line in draft.splitlines()]
    table = tomllib.loads("\n".join(line for line in lines if not line.startswith("///")))["tool"][
        "crosslane"
    ]
    assert table.pop("sandbox") == "on"
    return table


def block(mark: str, lists: dict[str, list[str]]) -> str:
    lines = ["/// script", "[tool.crosslane]", 'sandbox = "on"']
    lines += [f"{name} = {json.dumps(values)}" for name, values in lists.items() if values]
    return "".join(f"{mark} {line}\n" for line in [*lines, "///"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_draft_allows_what_was_touched_and_no_more(tmp_path: Path, port: int, language: str) -> None:
    text, programs = LANGUAGES[language]
    query = f"SELECT everything({port}) AS answer"
    recorded = library(tmp_path / "recorded", f"functions.{language}", text)
    result, draft, said = record(recorded, query)
    assert result == "answer\nanswered said sesame"
    assert f"crosslane check {recorded}" in said
    lists = options(draft)
    assert lists == {
        "allow_read": ["data/known"],
        "allow_write": ["out"],
        "allow_net": [f"localhost:{port}"],
        "allow_env": [SECRET],
        "allow_run": sorted(os.path.realpath(f"/bin/{program}") for program in programs),
    }
    assert draft == block(MARKS[language], lists)

    def answer(name: str, block: str) -> str:
        file = library(tmp_path / name, f"functions.{language}", text, block)
        with crosslane.connect(functions=[file], config={"threads": 1}) as con:
            try:
                return value(con, query)
            except duckdb.Error as failure:
                return f"refused: {failure}"

    assert answer("drafted", draft) == "answered said sesame"
    for option, words in lists.items():
        for word in words:
            rest = {**lists, option: [other for other in words if other != word]}
            less = block(MARKS[language], rest)
            assert answer(f"without-{option}-{words.index(word)}", less).startswith("refused"), word


def test_javascript_needs_nothing(tmp_path: Path) -> None:
    file = library(tmp_path, "functions.js", 'udf("double(x BIGINT) -> BIGINT", (x) => 2 * x);')
    result, draft, said = record(file, "SELECT double(21) AS d")
    assert (result, draft) == ("d\n42", block("//", {}))
    assert "nothing to touch" in said


READ = """
    from crosslane import udf

    @udf(deterministic=False)
    def read(path: str) -> str:
        return open(path).read()
    """


def test_a_file_that_asks_already_is_recorded_without_its_sandbox(tmp_path: Path) -> None:
    file = library(tmp_path, "functions.py", READ, block("#", {"allow_read": ["data"]}))
    result, draft, said = record(file, f"SELECT read('{tmp_path}/secret') AS it")
    assert result == "it\nsecret"
    # The file already has a block, so the draft is only the table.
    assert draft == '# [tool.crosslane]\n# sandbox = "on"\n# allow_read = ["secret"]\n'
    assert "in place of [tool.crosslane] in the block" in said


def test_a_query_that_fails_has_a_draft_of_what_it_has_touched(tmp_path: Path) -> None:
    file = library(tmp_path, "functions.py", READ)
    query = f"SELECT read('{tmp_path}/data/known'); SELECT read('{tmp_path}/missing')"
    _, draft, said = record(file, query, code=1)
    assert options(draft) == {"allow_read": ["data/known"]}
    assert "FileNotFoundError" in said
    file = library(tmp_path, "functions.py", f"open({str(tmp_path / 'secret')!r})\n1 / 0\n")
    _, draft, said = record(file, "SELECT 1", code=1)
    assert options(draft) == {"allow_read": ["secret"]}
    assert "ZeroDivisionError" in said


def test_folders_stand_for_files_of_which_many_are_read(tmp_path: Path) -> None:
    text = """
        import os
        from crosslane import udf
        FOLDER = os.path.dirname(__file__)
        for number in range(9):
            open(f"{FOLDER}/many/{number}")
        for number in range(3):
            open(f"{FOLDER}/all/{number}")
            open(f"{FOLDER}/some/{number}")
        os.listdir("@FOLDER@/../listed")
        open(FOLDER + "/out/made", "w").close()
        open(FOLDER + "/out/made").close()

        @udf
        def f(x: int) -> int:
            return x
        """
    for folder, files in (("many", 100), ("all", 3), ("some", 9), ("../listed", 1)):
        (tmp_path / "library" / folder).mkdir(parents=True)
        for number in range(files):
            (tmp_path / "library" / folder / str(number)).write_text("")
    _, draft, _ = record(library(tmp_path / "library", "functions.py", text), "SELECT f(1)")
    assert options(draft) == {
        "allow_read": [f"{tmp_path}/listed", "all", "many", "some/0", "some/1", "some/2"],
        "allow_write": ["out"],
    }
    assert "# # many: 9 of the 100 files and folders in it were read\n" in draft
    assert f"# # {tmp_path}/listed: its names were listed" in draft


def test_copies_of_the_environment_read_no_variable_by_its_name(tmp_path: Path) -> None:
    text = f"""
        import os
        from crosslane import udf

        @udf
        def copies(x: int) -> str:
            all = [dict(os.environ), os.environ.copy(), {{**os.environ}}, dict(os.environ.items())]
            return all[x]["{SECRET}"]

        @udf
        def asks(x: int) -> bool:
            return os.getenv("PATH") is not None and os.getenvb(b"{SECRET}") is None
        """
    file = library(tmp_path, "functions.py", text)
    result, draft, _ = record(file, "SELECT count(copies(i::INT)) AS n FROM range(4) r(i)")
    assert (result, options(draft)) == ("n\n4", {})
    _, draft, _ = record(file, "SELECT asks(1)")
    assert options(draft) == {"allow_env": [SECRET]}


def test_a_file_with_threads_is_recorded(tmp_path: Path) -> None:
    """Its zygote starts itself anew, and each worker loads the file."""
    text = f"""
        import os, threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()

        @udf
        def variable(x: int) -> str:
            return os.environ["{SECRET}"] + open(os.path.dirname(__file__) + "/secret").read()
        """
    file = library(tmp_path, "functions.py", textwrap.dedent(READ) + textwrap.dedent(text))
    result, draft, _ = record(file, "SELECT variable(1) AS it")
    assert result == "it\nsesamesecret"
    assert options(draft) == {"allow_read": ["secret"], "allow_env": [SECRET]}


def test_what_no_sandbox_allows_is_named(tmp_path: Path) -> None:
    text = """
        import os, socket, tempfile
        from crosslane import udf

        @udf(deterministic=False)
        def attempts(folder: str) -> str:
            os.chmod(folder + "/out", 0o700)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.sendto(b"x", ("127.0.0.1", 9))
            socket.create_server(("127.0.0.1", 0)).close()
            open("/proc/self/stat").close()
            open("/proc/1/comm").close()
            open(folder + "/made", "w").close()
            open(folder + "/a, b").close()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(folder + "/missing")
        """
    (tmp_path / "a, b").write_text("")
    file = library(tmp_path, "functions.py", text)
    _, draft, said = record(file, f"SELECT attempts('{tmp_path}')", code=1)
    assert options(draft) == {}
    never = [
        line.removeprefix("no sandbox allows this: ") for line in said.splitlines() if "no sandbox" in line
    ]
    assert sorted(never) == sorted(
        [
            f"{tmp_path}/a, b, whose name has a comma, or a space at an end",
            "/proc/PID/comm",
            "/proc/self/stat",
            "datagrams (UDP, and sockets of Unix)",
            "servers",
            f"sockets of Unix: {tmp_path}/missing",
            f"to change {tmp_path}: allow_write names {tmp_path}, which contains {file}; use another folder",
            "to change modes, owners, times and attributes of files",
        ]
    )


def test_scripts_need_their_interpreters(tmp_path: Path) -> None:
    text = """
        import os, subprocess
        from crosslane import udf

        @udf(deterministic=False)
        def script(x: int) -> str:
            return subprocess.run([os.path.dirname(__file__) + "/script"], capture_output=True, text=True).stdout

        @udf(deterministic=False)
        def forks(x: int) -> int:
            if (child := os.fork()) == 0:
                os._exit(0)
            return os.waitpid(child, 0)[1]
        """
    file = library(tmp_path, "functions.py", text)
    (tmp_path / "script").write_text("#!/bin/sh\nprintf said\n")
    (tmp_path / "script").chmod(0o755)
    result, draft, _ = record(file, "SELECT script(1) AS it")
    assert result == "it\nsaid"
    assert options(draft) == {"allow_run": [os.path.realpath("/bin/sh"), "script"]}
    with crosslane.connect(functions=[library(tmp_path, "drafted.py", text, draft)]) as con:
        assert value(con, "SELECT script(1)") == "said"
    _, draft, said = record(file, "SELECT forks(1)")
    assert options(draft) == {}
    assert "no sandbox allows this: processes (such as of os.fork), unless allow_run names a program" in said


def test_names_that_lead_nowhere_are_no_options(tmp_path: Path) -> None:
    text = """
        import socket
        from crosslane import udf

        @udf(deterministic=False)
        def resolves(host: str) -> str:
            return socket.gethostbyname(host)
        """
    file = library(tmp_path, "functions.py", text)
    _, draft, said = record(file, "SELECT resolves('host.invalid')", code=1)
    assert options(draft) == {}
    assert "if that is needed: host.invalid" in draft
    assert "gaierror" in said


def test_names_of_files_are_texts(tmp_path: Path) -> None:
    """A name cannot add options to a draft, or change what a terminal shows."""
    name = 'a\n# allow_run = ["sh"]\x1b[2J"\\'
    file = library(tmp_path, "functions.py", READ)
    (tmp_path / name).write_text("read")
    quoted = str(tmp_path / name).replace("'", "''")
    _, draft, said = record(file, f"SELECT read('{quoted}') AS it")
    assert options(draft) == {"allow_read": [name]}
    assert "\x1b" not in draft + said
    with crosslane.connect(functions=[library(tmp_path, "drafted.py", READ, draft)]) as con:
        assert value(con, f"SELECT read('{quoted}')") == "read"


def test_notes_have_an_end(tmp_path: Path) -> None:
    text = """
        import os
        from crosslane import udf

        @udf
        def floods(folder: str) -> int:
            os.makedirs(folder + "/out/" + "x" * 200 + "/" + "y" * 200)
            for number in range(12_000):
                os.chdir(folder + "/out/" + "x" * 200 + "/" + "y" * 200)
                os.mkdir(str(number))
                os.mkdir(str(number) + "/z")
            return 1
        """
    file = library(tmp_path, "functions.py", text)
    _, draft, said = record(file, f"SELECT floods('{tmp_path}')")
    assert options(draft) == {"allow_write": ["out"]}
    assert "more was touched than is recorded" in said


def test_only_the_named_file_is_recorded(tmp_path: Path) -> None:
    """Other files that a query loads keep their sandboxes."""
    file = library(tmp_path, "functions.py", READ.replace("def read", "def other"))
    asks = library(tmp_path, "asks.py", READ, block("#", {"allow_read": ["data"]}))
    query = f"CALL crosslane_load('{asks}'); SELECT read('{tmp_path}/secret')"
    _, draft, said = record(file, query, code=1)
    assert "PermissionError" in said
    assert options(draft) == {}


def test_servers_record_nothing(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    file = library(tmp_path, "functions.py", READ, block("#", {"allow_read": ["data"]}))
    (tmp_path / "notes").write_text("")
    order = json.dumps({"file": str(file), "notes": str(tmp_path / "notes")})
    with Server(file, free=False, CROSSLANE_RECORD=order) as server:
        con.execute(f"CALL crosslane_attach('{server.address}')")
        assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")
    assert (tmp_path / "notes").read_text() == ""


def test_a_container_may_watch_calls_itself(tmp_path: Path) -> None:
    file = library(tmp_path, "functions.py", READ)
    # The program restricts its own process before it becomes the command.
    code = f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from container import restrict
        restrict("listen")
        sys.argv = ["crosslane", *sys.argv[1:]]
        from crosslane._cli.program import main
        main()
        """
    command = [sys.executable, "-c", textwrap.dedent(code), *COMMAND[3:], file, "SELECT 1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{file} cannot be recorded: this container watches system calls itself" in done.stderr


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The running command, whose function waits."""
    text = """
        import threading
        from crosslane import udf

        @udf
        def waits(x: int) -> int:
            print("waiting", flush=True)
            threading.Event().wait()
        """
    file = library(tmp_path, "functions.py", text)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([*COMMAND, file, "SELECT waits(1)"], **options) as process:
        yield process
        process.kill()


def test_ctrl_c_ends_it(waiting: subprocess.Popen[str]) -> None:
    assert waiting.stderr is not None
    said = next(line for line in waiting.stderr if "waiting" in line)
    assert said
    os.killpg(waiting.pid, signal.SIGINT)
    assert waiting.wait(60) == 130


def test_the_help_says_that_nothing_is_restricted() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60)
    assert "WITHOUT a sandbox" in done.stdout
