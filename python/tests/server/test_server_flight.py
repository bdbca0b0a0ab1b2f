"""Functions of a server, called over Arrow Flight by pyarrow's client and that of databend-udf."""

from __future__ import annotations

import datetime
import decimal
import re
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from ..servers import Server, unix

pytestmark = pytest.mark.any_duckdb

PYTHON = """
import os
import time

from crosslane import udtf

@udf
def initials(name: str) -> str:
    return "".join(word[0] for word in name.split())

@udf
def fails(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x

@udf(on_error="null")
def fails_softly(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x

@udf(retries=2)
def dies(x: int) -> int:
    if x == 3:
        os._exit(3)
    return x

@udf(timeout=0.4)
def sleeps(seconds: float) -> float:
    time.sleep(seconds)
    return seconds

@udf
def nothing() -> int:
    return 42

@udtf("words(text VARCHAR) -> TABLE(word VARCHAR, length BIGINT)")
def words(text):
    for word in text.split():
        yield word, len(word)

@udtf("letters(text VARCHAR) -> TABLE(letter VARCHAR)")
def letters(text):
    yield from text
"""

JAVASCRIPT = """
udf("shout(text VARCHAR) -> VARCHAR", (text) => text.toUpperCase() + "!");
"""

RUBY = """
udf("backwards(text VARCHAR) -> VARCHAR") { |text| text.reverse }
"""

#: Types of SQL, the types of Arrow that carry them, and values.
VALUES = [
    ("BOOLEAN", pa.bool_(), [True, False]),
    ("TINYINT", pa.int8(), [-128, 127]),
    ("SMALLINT", pa.int16(), [-1, 1]),
    ("INTEGER", pa.int32(), [-(2**31), 7]),
    ("BIGINT", pa.int64(), [-(2**63), 7]),
    ("UTINYINT", pa.uint8(), [0, 255]),
    ("USMALLINT", pa.uint16(), [0, 65535]),
    ("UINTEGER", pa.uint32(), [0, 2**32 - 1]),
    ("UBIGINT", pa.uint64(), [0, 2**64 - 1]),
    ("FLOAT", pa.float32(), [0.5, -1.5]),
    ("DOUBLE", pa.float64(), [0.1, -1e300]),
    ("DECIMAL(18, 3)", pa.decimal128(18, 3), [decimal.Decimal("1.250"), decimal.Decimal("-999.999")]),
    ("VARCHAR", pa.string(), ["", "tschüß"]),
    ("BLOB", pa.binary(), [b"", b"\x00\xff"]),
    ("DATE", pa.date32(), [datetime.date(1969, 12, 31), datetime.date(2026, 1, 2)]),
    ("TIME", pa.time64("us"), [datetime.time(0), datetime.time(23, 59, 59, 999999)]),
    (
        "TIMESTAMP",
        pa.timestamp("us"),
        [datetime.datetime(1970, 1, 1), datetime.datetime(2026, 1, 2, 3, 4, 5, 6)],
    ),
    (
        "TIMESTAMP_S",
        pa.timestamp("s"),
        [datetime.datetime(1970, 1, 1), datetime.datetime(2026, 1, 2, 3, 4, 5)],
    ),
    (
        "TIMESTAMPTZ",
        pa.timestamp("us", "+00:00"),
        [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)],
    ),
    (
        "INTERVAL",
        pa.month_day_nano_interval(),
        [pa.MonthDayNano([1, 2, 3000]), pa.MonthDayNano([0, 0, -1000])],
    ),
    ("BIGINT[]", pa.list_(pa.int64()), [[], [1, None, 3]]),
    ("VARCHAR[][]", pa.list_(pa.list_(pa.string())), [[["a"], None, []], []]),
    ("DOUBLE[2]", pa.list_(pa.float64(), 2), [[1.0, 2.0], [3.0, None]]),
    (
        "STRUCT(a BIGINT, b VARCHAR)",
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": None, "b": None}],
    ),
    ("MAP(VARCHAR, BIGINT)", pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], []]),
]


def of_types(folder: Path) -> Path:
    """A file with one function for each type. The function returns its argument."""
    lines = ["from crosslane import udf", ""]
    for number, (sql, _, _) in enumerate(VALUES):
        lines += [f'@udf("same{number}(x {sql}) -> {sql}")', f"def same{number}(x):", "    return x", ""]
    lines += ['@udf("identity(x UUID) -> UUID")', "def identity(x):", "    return x", ""]
    lines += ['@udf("huge(x HUGEINT) -> HUGEINT")', "def huge(x):", "    return x", ""]
    path = folder / "types.py"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def flight_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("flight")
    files = [of_types(folder).rename(folder / "same.py")]
    for name, text in (
        ("functions.py", "from crosslane import udf\n" + PYTHON),
        ("functions.js", JAVASCRIPT),
        ("functions.rb", RUBY),
    ):
        (folder / name).write_text(text)
        files.append(folder / name)
    options = ("--flight", "127.0.0.1:0", "--workers", "2", "--largest-batch", str(4 << 20))
    with Server(*files, listen=unix(folder), options=options) as server:
        server.said = server.next()
        yield server


@pytest.fixture
def client(flight_server: Server) -> Iterator[flight.FlightClient]:
    with flight.connect(flight_server.said.rpartition(" ")[2]) as client:
        yield client


def exchange(client: flight.FlightClient, name: str, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(name))
    with writer:
        writer.begin(batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        return [chunk.data for chunk in reader]


def column(values: list[object], kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, kind)], names=["x"])


@pytest.mark.parametrize("number", range(len(VALUES)), ids=[sql for sql, _, _ in VALUES])
def test_values_of_every_type_that_both_have_come_back(client: flight.FlightClient, number: int) -> None:
    _, kind, values = VALUES[number]
    info = client.get_flight_info(flight.FlightDescriptor.for_path(f"same{number}"))
    assert info.total_records == 1
    assert info.schema.types == [kind, kind]
    batch = column([*values, None], kind)
    (result,) = exchange(client, f"same{number}", batch)
    assert result.column(0).to_pylist() == batch.column(0).to_pylist()
    # The batch begins in the middle of an array.
    (result,) = exchange(client, f"same{number}", batch.slice(1))
    assert result.column(0).to_pylist() == batch.column(0).to_pylist()[1:]


def test_types_that_arrow_has_as_extensions_and_others(client: flight.FlightClient) -> None:
    value = uuid.uuid4()
    (result,) = exchange(client, "identity", column([value.bytes], pa.binary(16)))
    assert result.column(0).to_pylist() in ([value], [value.bytes])
    with pytest.raises(
        pa.ArrowNotImplementedError, match="huge cannot be called over Arrow Flight: the type HUGEINT"
    ):
        client.get_flight_info(flight.FlightDescriptor.for_path("huge"))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()])
def test_text_may_come_in_other_encodings(client: flight.FlightClient, kind: pa.DataType) -> None:
    (result,) = exchange(
        client, "initials", column(["Ada Byron", None, "Grace Brewster Murray Hopper"], kind)
    )
    assert result.column(0).to_pylist() == ["AB", None, "GBMH"]


@pytest.mark.parametrize(("name", "due"), [("shout", "ÄB!"), ("backwards", "bä")])
def test_functions_of_other_languages(client: flight.FlightClient, name: str, due: str) -> None:
    (result,) = exchange(client, name, column(["äb"]))
    assert result.column(0).to_pylist() == [due]


def test_an_error_says_where_it_happened(client: flight.FlightClient) -> None:
    with pytest.raises(pa.ArrowException) as raised:
        exchange(client, "fails", column([1, 2, 3]))
    text = str(raised.value)
    assert "fails: ValueError: three" in text
    assert "functions.py:15 in fails" in text
    assert "in row 3 of the batch, with x = 3" in text
    (result,) = exchange(client, "fails_softly", column([1, 3, 5]))
    assert result.column(0).to_pylist() == [1, None, 5]


def test_a_worker_that_ends_and_one_that_is_late(client: flight.FlightClient) -> None:
    with pytest.raises(pa.ArrowException, match=r"dies: .*exit code 3"):
        exchange(client, "dies", column([3]))
    with pytest.raises(flight.FlightTimedOutError, match=r"timed out after 0\.4 s"):
        exchange(client, "sleeps", column([30.0]))
    (result,) = exchange(client, "dies", column([4]))
    assert result.column(0).to_pylist() == [4]


def test_tables_say_of_which_row_they_are(client: flight.FlightClient) -> None:
    info = client.get_flight_info(flight.FlightDescriptor.for_path("words"))
    assert info.schema.names == ["text", "row_index", "words"]
    results = pa.Table.from_batches(exchange(client, "words", column(["a bc", "", None, "d"])))
    assert results.column("row_index").to_pylist() == [0, 0, 3]
    assert results.column("words").to_pylist() == [
        {"word": "a", "length": 1},
        {"word": "bc", "length": 2},
        {"word": "d", "length": 1},
    ]
    # A table of one column gives its values.
    results = pa.Table.from_batches(exchange(client, "letters", column(["x" * 5000, "y"])))
    assert results.schema.names == ["row_index", "letter"]
    assert results.num_rows == 5001
    assert results.column("row_index").to_pylist()[-1] == 1


def test_a_client_may_send_and_read_at_once(client: flight.FlightClient) -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("fails_softly"))
    with writer:
        writer.begin(column([1]).schema)
        for number in range(10, 60):
            writer.write_batch(column([number] * 100))
            assert reader.read_chunk().data.column(0).to_pylist() == [number] * 100
        # The server also answers a batch without rows.
        writer.write_batch(column([], pa.int64()))
        assert reader.read_chunk().data.num_rows == 0
        writer.done_writing()


def test_a_batch_beyond_the_limit_is_refused(client: flight.FlightClient) -> None:
    with pytest.raises(pa.ArrowException, match="--largest-batch"):
        exchange(client, "initials", column(["x" * (5 << 20)]))
    with pytest.raises(pa.ArrowInvalid, match=r"takes \(Int64\), and the columns are \(Utf8\)"):
        exchange(client, "fails", column(["x"]))
    with pytest.raises(pa.ArrowKeyError, match="there is no function nowhere"):
        exchange(client, "nowhere", column(["x"]))


def test_databends_client(flight_server: Server) -> None:
    from databend_udf.client import UDFClient

    host, _, port = flight_server.said.rpartition("/")[2].rpartition(":")
    client = UDFClient(host, int(port))
    assert client.call_function("initials", "Ada Byron") == ["AB"]
    assert client.call_function("nothing") == [42]
    assert client.call_function_batch("initials", name=["Ada Byron", "Grace Hopper"]) == ["AB", "GH"]
    headers = {"x-databend-query-id": "1", "x-databend-tenant": "t"}
    assert client.call_function("initials", "Ada", headers=headers) == ["A"]


# While this test runs, the server of the module makes workers.
@pytest.mark.usefixtures("flight_server")
def test_a_token_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "functions.py"
    path.write_text("from crosslane import udf\n@udf\ndef more(x: int) -> int:\n    return x + 1\n")
    with pytest.raises(RuntimeError, match="give the server a token"):
        Server(path, listen=unix(tmp_path), options=("--flight", "0.0.0.0:0"))
    with Server(
        path, listen=unix(tmp_path), options=("--flight", "0.0.0.0:0"), CROSSLANE_TOKEN="secret"
    ) as server:
        port = server.next().rpartition(":")[2]
        with flight.connect(f"grpc://127.0.0.1:{port}") as client:
            descriptor = flight.FlightDescriptor.for_path("more")
            with pytest.raises(flight.FlightUnauthenticatedError, match="needs a token"):
                client.get_flight_info(descriptor)
            options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret")])
            assert client.get_flight_info(descriptor, options).total_records == 1


@pytest.mark.usefixtures("flight_server")
def test_the_page_of_the_server(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    file, command = (re.findall(rf"^```{name}\n(.*?)^```$", page, re.M | re.S) for name in ("python", "sh"))
    (tmp_path / "words.py").write_text(file[0])
    assert shlex.split(command[1]) == ["crosslane", "serve", "words.py", "--flight", "127.0.0.1:8815"]
    # The statements for both engines name this address and these functions.
    assert re.findall(r"'http://(.+?)'", page) == ["127.0.0.1:8815"] * 3
    assert re.findall(r"AS (\w+) USING LINK|HANDLER = '(\w+)'", page) == [
        ("initials", ""),
        ("words", ""),
        ("", "initials"),
    ]
    with Server(tmp_path / "words.py", listen=unix(tmp_path), options=("--flight", "127.0.0.1:0")) as server:
        address = server.next().rpartition(" ")[2]
        with flight.connect(address) as client:
            (result,) = exchange(client, "initials", column(["Ada Byron"]))
            assert result.column(0).to_pylist() == ["AB"]
            (result,) = exchange(client, "words", column(["a b"]))
            assert result.column(1).to_pylist() == ["a", "b"]
