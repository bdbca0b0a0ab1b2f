"""Spans that a server exports, and the spans of clients to which they belong."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import crosslane

from ..conftest import Library, eventually
from ..servers import Server

pytestmark = pytest.mark.any_duckdb

PYTHON = """
from crosslane import udtf

@udf
def shout(text: str) -> str:
    return text.upper() + "!"

@udf
def fails(x: int) -> int:
    raise ValueError(f"no {x}")

@udtf("letters(text VARCHAR) -> TABLE(letter VARCHAR)")
def letters(text):
    yield from text
"""

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
SPANS = [0xB7AD6B7169203331, 0xB7AD6B7169203332]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name: bytes, value: bytes) -> bytes:
    """A header, as HPACK writes it without a table and without Huffman's code."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Collector:
    """A collector of OpenTelemetry, which keeps the messages that it gets. A deaf one takes nothing."""

    def __init__(self, is_deaf: bool = False) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.messages: list[bytes] = []
        if not is_deaf:
            threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            assert stream.read(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            connection.sendall(frame(4, 0, 0))
            message = b""
            while head := stream.read(9):
                payload = stream.read(int.from_bytes(head[:3], "big"))
                kind, flags, number = head[3], head[4], int.from_bytes(head[5:9], "big")
                if kind in (4, 6) and not flags & 1:
                    connection.sendall(frame(kind, 1, 0, payload if kind == 6 else b""))
                if kind != 0:
                    continue
                message += payload
                if flags & 1:
                    # Before the message are a byte and its length.
                    self.messages.append(message[5:])
                    message = b""
                    begin = b"\x88" + header(b"content-type", b"application/grpc")
                    end = header(b"grpc-status", b"0")
                    answer = (
                        frame(1, 4, number, begin) + frame(0, 0, number, bytes(5)) + frame(1, 5, number, end)
                    )
                    connection.sendall(answer)

    @property
    def all(self) -> bytes:
        """All messages, one after the other."""
        return b"".join(self.messages)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def serve(library: Library, collector: Collector, **environment: str) -> Server:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    return Server(library(PYTHON), **variables, **environment)


def within(span: int) -> trace.Span:
    """A span of this program."""
    return NonRecordingSpan(SpanContext(TRACE, span, False, TraceFlags(TraceFlags.SAMPLED)))


def test_calls_of_clients_belong_to_their_spans(
    library: Library, collector: Collector, tmp_path: Path
) -> None:
    with serve(library, collector, OTEL_SERVICE_NAME="the service") as server:
        with crosslane.Client(server.address) as client:
            with trace.use_span(within(SPANS[0])):
                assert client.call("shout", "a") == "A!"
            with pytest.raises(RuntimeError):
                client.call("fails", 7)

        async def call() -> None:
            async with crosslane.AsyncClient(server.address) as client:
                with trace.use_span(within(SPANS[1])):
                    assert await client.call("shout", "b") == "B!"

        asyncio.run(call())
        assert eventually(
            lambda: SPANS[1].to_bytes(8, "big") in collector.all and b"no 7" in collector.all, 30
        )
    spans = collector.all
    assert b"the service" in spans
    assert SPANS[0].to_bytes(8, "big") in spans
    # Two calls belong to the trace of this program, and one does not.
    assert spans.count(TRACE.to_bytes(16, "big")) == 2
    assert b"ValueError: no 7" in spans
    assert bytes(tmp_path / "functions_1.py") in spans


def test_a_stream_belongs_to_the_span_in_which_it_was_made(library: Library, collector: Collector) -> None:
    with serve(library, collector) as server, crosslane.Client(server.address) as client:
        with trace.use_span(within(SPANS[0])):
            stream = client.scan("letters", "ab")
        with trace.use_span(within(SPANS[1])):
            assert client.call("shout", "a") == "A!"
        assert [row["letter"] for batch in stream for row in batch.to_pylist()] == ["a", "b"]
        assert server.end() == 0
    assert [collector.all.count(span.to_bytes(8, "big")) for span in SPANS] == [1, 1]


def test_a_client_has_the_span_of_its_environment(library: Library, collector: Collector) -> None:
    program = "import sys, crosslane; crosslane.Client(sys.argv[1]).call('shout', 'a')"
    with serve(library, collector) as server:
        parent = f"00-{TRACE:032x}-{SPANS[0]:016x}-01"
        environment = {**os.environ, "TRACEPARENT": parent}
        command = [sys.executable, "-c", program, server.address]
        subprocess.run(command, env=environment, check=True, timeout=60)
        assert eventually(lambda: SPANS[0].to_bytes(8, "big") in collector.all, 30)


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none"])
def test_spans_can_be_switched_off(library: Library, variable: str) -> None:
    deaf = Collector(is_deaf=True)
    name, _, value = variable.partition("=")
    with serve(library, deaf, **{name: value}) as server, crosslane.Client(server.address) as client:
        assert client.call("shout", "a") == "A!"
        assert server.end() == 0
    # No connection waits to be taken.
    deaf._listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        deaf._listener.accept()
    deaf.close()


def test_a_collector_that_hangs_delays_nothing(library: Library) -> None:
    deaf = Collector(is_deaf=True)
    with serve(library, deaf, OTEL_BSP_MAX_QUEUE_SIZE="16") as server:
        with crosslane.Client(server.address) as client:
            for number in range(1000):
                assert client.call("shout", str(number)) == f"{number}!"
        # It ends long before the time that a collector has for its answers.
        assert server.end(signal.SIGTERM, 30) == 0
    deaf.close()


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
            "set OTEL_EXPORTER_OTLP_PROTOCOL to grpc",
        ),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://["}, "no spans can be sent"),
    ],
)
def test_a_server_runs_without_the_spans_that_are_not_possible(
    library: Library, variables: dict[str, str], reason: str
) -> None:
    with Server(library(PYTHON), **variables) as server, crosslane.Client(server.address) as client:
        assert client.call("shout", "a") == "A!"
        assert server.end() == 0
        assert reason in server.log
