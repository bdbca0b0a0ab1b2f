"""`crosslane check --strict`, and annotations for GitHub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_duckdb

#: The comment of each line with a warning names the rule.
FUNCTIONS = """
import asyncio
import datetime as dt
import random
import sqlite3
import subprocess
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from time import sleep
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from functools import partial

from crosslane import udaf, udf, udtf


class Number(NamedTuple):
    i: int


SEEN = set()
COUNTS: dict[str, int] = defaultdict(int)
CACHE = {}
NAMES = ["a", "b"]
client = None
total = 0


@udf
async def fetched(key: str) -> str:
    time.sleep(0.1)  # warns: blocking-call
    sleep(0.1)  # warns: blocking-call
    await asyncio.to_thread(time.sleep, 0.1)
    await asyncio.to_thread(lambda: urllib.request.urlopen(key))
    subprocess.run(["true"])  # crosslane: ignore[blocking-call]
    with urllib.request.urlopen(key) as answer:  # warns: blocking-call
        return answer.read().decode()


async def helper() -> None:
    subprocess.check_output(  # warns: blocking-call
        ["true"],
    )


@udf
def waits(x: int) -> int:
    time.sleep(0.01)
    return x


@udf
def stamped(x: int) -> str:
    started = time.perf_counter()
    when = dt.datetime.now(dt.timezone.utc)  # warns: changing-call
    fixed = dt.datetime(2024, 1, 1)
    return f"{when} {uuid4()} {fixed} {started} {time.time()}"  # warns: changing-call


@udf(deterministic=False)
def noise(x: int, start: float = time.time()) -> float:
    return random.random() + time.time()


@udf
def chosen(x: int, start: float = time.time()) -> str:
    return random.choice(NAMES)  # warns: changing-call


@udf
def measured(x: int) -> int:
    begun = time.time()
    result = waits(x)
    print("took", time.time() - begun)
    return result


@udf
def age(made: float) -> float:
    now = time.time()  # warns: changing-call
    return now - made


@udf
def shuffled(x: int) -> float:
    generator = random.Random(x)
    random = np.random.default_rng(seed=x)
    return generator.random() + random.random()


@udf
def sampled(x: int) -> float:
    np.random.seed(x)
    return np.random.rand() + np.random.default_rng().random()  # warns: changing-call


@udtf(retries=1)
def made() -> Iterator[Number]:
    yield (int(time.time()),)  # warns: changing-call


@udtf
def made_once() -> Iterator[Number]:
    yield (int(time.time()),)


@udf
def first_time(x: int) -> bool:
    if x in SEEN:
        return False
    SEEN.add(x)  # warns: changed-global
    return True


@udf
def numbered(key: str) -> int:
    global total  # warns: changed-global
    total += 1
    COUNTS[key] += 1  # warns: changed-global
    COUNTS[key] = COUNTS[key] + 1  # warns: changed-global
    del COUNTS[key]  # warns: changed-global
    CACHE.setdefault(key, []).append(total)  # warns: changed-global
    return total


@udf
def cached(key: str) -> str:
    global client
    if client is None:
        client = object()
    if len(CACHE) > 1000:
        CACHE.clear()
    if key not in CACHE:
        CACHE[key] = key.lower()
    return CACHE.setdefault(key, "")


greatest = udf("greatest_of(x BIGINT) -> BIGINT")(partial(max, 3))
chance = udf("chance(x BIGINT) -> BIGINT")(lambda x: random.randint(0, x))  # warns: changing-call


@udf
def local(x: int) -> int:
    SEEN = []
    SEEN.append(x)
    return NAMES.index("a") + len(SEEN)


@udf
class Counted:
    def __init__(self) -> None:
        self.count = 0
        self.started = time.time()

    def __call__(self, x: int) -> int:
        self.count += 1
        NAMES.append("c")  # warns: changed-global
        sorted(NAMES, key=lambda name: random.random())  # warns: changing-call
        return self.count


@udf(timeout=1)
async def careless(x: int) -> int:
    try:
        await asyncio.sleep(x)
    except:  # warns: swallowed-timeout
        return -1
    try:
        async with asyncio.timeout(1):
            pass
    except (ValueError, BaseException):  # warns: swallowed-timeout
        pass
    return x


@udf(timeout=1)
async def careful(x: int) -> int:
    try:
        await asyncio.sleep(x)
    except BaseException:
        print("ended")
        raise
    try:
        await asyncio.sleep(x)
    except asyncio.CancelledError:
        raise
    except:
        pass
    try:
        x += 1
    except:
        pass
    try:
        await asyncio.sleep(x)
    except Exception:
        return -1
    return x


@udaf
class Logged:
    def __init__(self) -> None:
        self.lock = threading.Lock()  # warns: unpicklable-state
        self.log = open("/dev/null")  # warns: unpicklable-state
        self.base = sqlite3.connect(":memory:")  # warns: unpicklable-state
        self.count = Counter()

    def update(self, x: int) -> None:
        self.rest = (i for i in range(x))  # warns: unpicklable-state

    def merge(self, other) -> None:
        with open("/dev/null") as file:
            self.count += other.count

    def finish(self) -> int:
        text = "# crosslane: ignore[nothing]"
        return len(self.count)  # crosslane: ignore[no-such-rule]  # warns: unknown-rule
"""


def check(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "crosslane._cli", "check", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, env=environment)


def test_rules(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    expected = [
        (line, rule)
        for line, text in enumerate(FUNCTIONS.splitlines(), 1)
        for rule in re.findall("# warns: (.+)", text)
    ]
    run = check("--strict", "functions.py", cwd=tmp_path)
    found = re.findall(r"^warning in functions\.py:(\d+): ([a-z-]+): \S", run.stderr, re.MULTILINE)
    # Two calls in one line give two warnings.
    assert sorted({(int(line), rule) for line, rule in found}) == expected, run.stderr
    assert len(found) == len(expected) + 1
    assert run.returncode == 1
    assert "stamped(x BIGINT) -> VARCHAR" in run.stdout
    assert (
        "uuid.uuid4 changes from call to call, and equal rows may share the result of one call" in run.stderr
    )
    assert "there is no rule no-such-rule; the rules are blocking-call, " in run.stderr


def test_files_without_warnings(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(
        "from crosslane import udf\n@udf\ndef f(x: int) -> int:\n    return x\n"
    )
    (tmp_path / "good.js").write_text('udf("g(x DOUBLE) -> DOUBLE", () => Math.random());\n')
    run = check("--strict", "good.py", "good.js", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    run = check("--strict", "--format", "github", "good.py", "good.js", cwd=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


#: Files that cannot be loaded, and the first words of their annotation.
UNLOADABLE = {
    "syntax.py": ("from crosslane import udf\ndef f(:\n", "line=2,title=SyntaxError::invalid syntax"),
    "raises.py": (
        "def helper():\n    return {}['50%']\n\nhelper()\n",
        "line=2,title=KeyError::'50%25'%0A  at ",
    ),
    "untyped.py": (
        "from crosslane import udf\n@udf\ndef f(x, *rest):\n    return x\n",
        "line=2,title=crosslane._declare.declaration.DeclarationError::",
    ),
    "a,b.py": (b"\xff\n", "line=1,title=SyntaxError::"),
    "script.js": ("const a = 1;\nmissing();\n", "line=2,title=ReferenceError::missing is not defined%0A"),
    "none.py": (None, "title=FileNotFoundError::there is no file none.py"),
}


def test_annotations_for_github(tmp_path: Path) -> None:
    for name, (text, _) in UNLOADABLE.items():
        if text is not None:
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    run = check("--strict", "--format", "github", *UNLOADABLE, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (1, "")
    lines = run.stdout.splitlines()
    warnings = [line for line in lines if "title=missing-annotation" in line]
    # The error of the load names only the first file.
    assert [re.findall(r"line=3,.*::(.+?);", line) for line in warnings] == [
        ["parameter rest of f has no type"],
        ["parameter x of f has no type"],
        ["the result of f has no type"],
    ]
    errors = [line for line in lines if line not in warnings]
    assert len(errors) == len(UNLOADABLE)
    for line, (name, (_, expected)) in zip(errors, UNLOADABLE.items()):
        file = name.replace(",", "%2C")
        assert line.startswith(f"::error file={file},{expected}"), line
