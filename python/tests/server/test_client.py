"""crosslane.Client and crosslane.AsyncClient: a server's functions without an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import crosslane

from ..conftest import Library, eventually
from ..servers import Server
from .conftest import TEXT

pytestmark = pytest.mark.any_duckdb


def test_functions_are_described(client: crosslane.Client) -> None:
    assert list(client.functions)[:3] == ["initials", "plus", "joined"]
    initials = client.functions["initials"]
    assert (initials.signature, initials.kind) == ("initials(name VARCHAR) -> VARCHAR", "scalar")
    assert initials.description == "The first letters of a name."
    assert initials.file.endswith("functions_1.py")
    lines = Path(initials.file).read_text().splitlines()
    assert lines[initials.line - 1 :][:2] == ["@udf", "def initials(name: str) -> str:"]
    kinds = {client.functions[name].kind for name in ("words", "halves", "largest")}
    assert kinds == {"table", "stream", "aggregate"}
    with pytest.raises(TypeError):
        client.functions["other"] = initials  # type: ignore[index]


def test_one_row(client: crosslane.Client) -> None:
    assert client.call("initials", "Ada Byron") == "AB"
    assert client.call("INITIALS", name="Ada Byron") == "AB"
    assert client.call("plus", 1, y=2) == 3
    assert client.call("plus", 1, None) is None
    assert [client.call("joined", "a"), client.call("joined", "a", "b", "c")] == ["a", "abc"]
    assert [client.call("kind_of", value) for value in (1, 1.5, "x", [1])] == ["int", "float", "str", "list"]


@pytest.mark.parametrize(
    ("arguments", "named", "what"),
    [
        ((), {}, r"the argument x is missing: plus\(x BIGINT, y BIGINT\) -> BIGINT"),
        ((1, 2, 3), {}, "3 arguments for plus"),
        ((1,), {"x": 2}, "x is given twice"),
        ((1,), {"z": 2}, "z is no parameter"),
        (("a", 2), {}, "plus: x: str 'a' where BIGINT is due"),
    ],
)
def test_wrong_arguments(
    client: crosslane.Client, arguments: tuple[Any, ...], named: dict[str, Any], what: str
) -> None:
    with pytest.raises(TypeError, match=what):
        client.call("plus", *arguments, **named)
    assert client.call("plus", 1, 2) == 3


def test_wrong_uses(client: crosslane.Client) -> None:
    with pytest.raises(OverflowError, match=r"plus: y: .*BIGINT"):
        client.call("plus", 1, 1 << 70)
    with pytest.raises(LookupError, match="has no function nothing; it has initials, plus"):
        client.call("nothing")
    with pytest.raises(TypeError, match="words is of the kind table: use scan"):
        client.call("words", "a")
    with pytest.raises(TypeError, match="initials is of the kind scalar: use call or call_batch"):
        client.scan("initials", "a")
    with pytest.raises(TypeError, match="largest is of the kind aggregate: use aggregate"):
        client.call("largest", 1)
    with pytest.raises(ValueError, match="lanes is a whole number from 1 to 1024, not 0"):
        crosslane.Client("crosslane://127.0.0.1", lanes=0)
    with pytest.raises(ValueError, match="ftp://127"):
        crosslane.Client("ftp://127.0.0.1")


def test_errors_are_those_of_local_lanes(client: crosslane.Client) -> None:
    with pytest.raises(RuntimeError) as caught:
        client.call("fails", 3)
    lines = str(caught.value).splitlines()
    assert lines[0] == "fails: ValueError: three"
    assert "functions_1.py:" in lines[1]
    assert lines[1].endswith("in fails")
    assert lines[-1] == "  in row 1 of the batch, with x = 3"
    with pytest.raises(RuntimeError, match=r"worker process ended with exit code 3[\s\S]*with x = 4"):
        client.call("dies", 4)
    with pytest.raises(TimeoutError, match=r"late: timed out after 0\.4 s"):
        client.call("late", 600.0)
    assert client.call("fails", 2) == 2


def test_columns_of_every_library(client: crosslane.Client) -> None:
    due = [1, 3, None, 7]
    x = [0, 2, None, 6]
    for column in (
        x,
        tuple(x),
        pa.array(x),
        pa.array(x, pa.int8()),
        pa.chunked_array([x[:1], x[1:]]),
        pd.Series(x, dtype="Int64"),
        pl.Series(x),
        pa.array([9, *x])[1:],
    ):
        assert client.call_batch("plus", column, [1, 1, 1, 1]).to_pylist() == due
    assert client.call_batch("plus", np.array([1, 2]), y=np.array([1, 2])).to_pylist() == [2, 4]
    assert client.call_batch("joined", ["a", "b"], ["c", "d"], ["e", "f"]).to_pylist() == ["ace", "bdf"]
    assert client.call_batch("kind_of", [1.5, None]).to_pylist() == ["float", None]
    assert client.call_batch("plus", [], []).to_pylist() == []
    assert pl.Series(client.call_batch("initials", ["Ada Byron"])).to_list() == ["AB"]


def test_wrong_columns(client: crosslane.Client) -> None:
    with pytest.raises(TypeError, match="plus: y of row 2: str 'b' where BIGINT is due"):
        client.call_batch("plus", [1, 2], [1, "b"])
    with pytest.raises(ValueError, match="columns of 1 and 2 rows"):
        client.call_batch("plus", [1, 2], [1])
    with pytest.raises(ValueError, match=r"column x: .*'b'"):
        client.call_batch("plus", pa.array(["b"]), [1])
    with pytest.raises(ValueError, match=r"paint: color: 'red', which is none of ENUM\('green'\)"):
        client.call_batch("paint", pa.array(["green", "red"]))
    with pytest.raises(TypeError, match="column x: object where a column is due"):
        client.call_batch("plus", object(), [1])


def test_a_large_batch_keeps_its_order(client: crosslane.Client) -> None:
    n = pa.array(range(300_000))
    assert client.call_batch("plus", n, n).equals(pa.array(range(0, 600_000, 2)))
    with pytest.raises(RuntimeError, match=r"three[\s\S]*in row 200001 of the batch, with x = 3"):
        client.call_batch("fails", pa.concat_arrays([pa.array([5] * 200_000), pa.array([3, 5])]))
    some = client.call_batch("fails_softly", list(range(5)))
    assert some.to_pylist() == [0, 1, 2, None, 4]


def test_aggregates(client: crosslane.Client) -> None:
    assert client.aggregate("largest", [3, 5, None, 4]) == 5
    assert client.aggregate("total", x=pa.array([1, 2, 3])) == 6
    assert client.aggregate("total", []) == 0
    by = ["b", None, "a", "b", None]
    for keys in (by, pa.array(by), pd.Series(by, dtype=object), pl.Series(by)):
        sums = client.aggregate("total", [1, 2, 4, 8, 16], by=keys)
        assert list(sums.items()) == [("b", 9), (None, 18), ("a", 4)]
    assert client.aggregate("total", [], by=[]) == {}
    n = 300_000
    sums = client.aggregate("total", pa.array(range(n)), by=np.arange(n) % 1000)
    assert sums == {key: sum(range(key, n, 1000)) for key in range(1000)}
    # The client gives the lane back, and the lane keeps no states.
    assert [client.aggregate("largest", [1, 2], by=["a", "b"]) for _ in range(50)] == [{"a": 1, "b": 2}] * 50


def test_wrong_aggregates(client: crosslane.Client) -> None:
    with pytest.raises(ValueError, match="columns of 2 and 3 rows"):
        client.aggregate("total", [1, 2], by=["a", "b", "c"])
    with pytest.raises(TypeError, match="by is a column of keys, not str"):
        client.aggregate("total", [1, 2], by="ab")
    with pytest.raises(TypeError, match="initials is of the kind scalar: use call or call_batch"):
        client.aggregate("initials", ["a"])
    with pytest.raises(TypeError, match="total: x of row 2: str 'b' where BIGINT is due"):
        client.aggregate("total", [1, "b"])
    with pytest.raises(RuntimeError, match=r"largest: ValueError: minus three[\s\S]*with x = -3"):
        client.aggregate("largest", [1, 2, 3, -3], by=[0, 1, 0, 1])
    assert client.aggregate("largest", [1]) == 1


def test_an_aggregate_whose_worker_dies_is_done_again(client: crosslane.Client, begun: Path) -> None:
    assert client.aggregate("dies_once", [str(begun)] * 6000) == 6000
    assert len(list(begun.iterdir())) == 2


def test_a_batch_goes_over_all_lanes(library: Library, serve: Callable[..., Server]) -> None:
    # The server reserves one of its workers for short calls.
    server = serve(library(TEXT), options=("--workers", "4"), NAME="one")
    with crosslane.Client(server.address, lanes=2) as client:

        def workers() -> int:
            return len(set(client.call_batch("worker", list(range(400))).to_pylist()))

        # A call makes the client start the second lane.
        assert eventually(lambda: workers() >= 2, 60)


def test_tables(client: crosslane.Client) -> None:
    stream = client.scan("words", "a b c")
    assert stream.schema.names == ["word"]
    assert pa.table(stream)["word"].to_pylist() == ["a", "b", "c"]
    assert pa.table(client.scan("numbers", 2))["i"].to_pylist() == [5, 6]
    assert pl.DataFrame(client.scan("numbers", 2, start=0))["i"].to_list() == [0, 1]
    assert sum(batch.num_rows for batch in client.scan("numbers", 5000)) == 5000
    with client.scan("numbers", 1 << 40) as endless:
        assert next(endless)["i"][0].as_py() == 5
    with pytest.raises(ValueError, match="the stream was closed"):
        next(endless)


def test_a_program_may_call_while_it_reads_a_table(server: Server) -> None:
    with crosslane.Client(server.address, lanes=1) as client:
        sums = [
            client.call("plus", number, 1)
            for batch in client.scan("numbers", 3)
            for number in batch["i"].to_pylist()
        ]
    assert sums == [6, 7, 8]


def test_streams(client: crosslane.Client) -> None:
    table = pa.table({"n": range(100_000)})
    halves = pa.table(client.map(table, "halves"))["half"]
    assert halves.to_pylist() == [n // 2 for n in range(100_000)]
    with pytest.raises(ValueError, match="the input has no column n"):
        list(client.map(pa.table({"m": [1]}), "halves", lanes=1))
    with pytest.raises(ValueError, match="depth is a whole number from 1 to 64"):
        client.map(table, "halves", depth=0)


def test_a_server_may_ask_for_a_token(
    library: Library, serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(library(TEXT), NAME="one", CROSSLANE_TOKEN="secret")
    with pytest.raises(ConnectionError, match="refused"):
        crosslane.Client(server.address, token="other")
    with crosslane.Client(server.address, token="secret") as client:
        assert client.call("plus", 1, 2) == 3
    monkeypatch.setenv("CROSSLANE_TOKEN", "secret")
    with crosslane.Client(server.address) as client:
        assert client.call("plus", 1, 2) == 3
