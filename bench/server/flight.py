"""Arrow Flight: rows per second of batches of 2,048 BIGINT, to Crosslane's server and to arrow-udf's own.

Both have the same function and the same client: pyarrow's DoExchange, which sends the same number of batches
ahead. They take turns.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import flight

ROWS = 2048
#: Batches of a round.
BATCHES = 500
#: Batches that the client sends before it waits for the first results.
AHEAD = 4

FUNCTION = """
def increment(x):
    return x + 1
"""
OURS = f"""
from crosslane import udf

@udf("increment(x BIGINT) -> BIGINT")
{FUNCTION.strip()}
"""
THEIRS = f"""
from arrow_udf import UdfServer, udf

@udf(input_types=["BIGINT"], result_type="BIGINT")
{FUNCTION.strip()}

if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = UdfServer(location=f"127.0.0.1:{{port}}")
    server.add_function(increment)
    print(f"serving at grpc://127.0.0.1:{{port}}", flush=True)
    server.serve()
"""


@contextlib.contextmanager
def _served(command: list[str]) -> Iterator[str]:
    """Starts a server, and gives its address: the last word of the line that it prints when it serves."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "serving" in line and "grpc://" in line:
                # Reads what the server prints later, so that the server never waits for the pipe.
                threading.Thread(target=process.stdout.read, daemon=True).start()
                yield line.split()[-1]
                return
        raise RuntimeError(f"{command} does not serve")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _round(client: flight.FlightClient, batches: int) -> float:
    """Rows per second of one exchange."""
    batch = pa.record_batch([pa.array(range(ROWS), pa.int64())], names=["x"])
    room = threading.Semaphore(AHEAD)
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("increment"))
    with writer:
        writer.begin(batch.schema)

        def write() -> None:
            for _ in range(batches):
                room.acquire()
                writer.write_batch(batch)
            writer.done_writing()

        begin = time.perf_counter()
        writing = threading.Thread(target=write)
        writing.start()
        due = pa.array(range(1, ROWS + 1), pa.int64())
        got = 0
        for chunk in reader:
            if got == 0 and not chunk.data.column(0).equals(due):
                raise RuntimeError("the results are others")
            got += chunk.data.num_rows
            room.release()
        taken = time.perf_counter() - begin
        writing.join()
    if got != batches * ROWS:
        raise RuntimeError(f"{got} rows came back of {batches * ROWS}")
    return got / taken


def measure(rounds: int) -> tuple[list[float], list[float]]:
    """The rows per second of Crosslane's and of arrow-udf's server in each round."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ours, theirs = Path(folder, "ours.py"), Path(folder, "theirs.py")
        ours.write_text(OURS)
        theirs.write_text(THEIRS)
        serve = [sys.executable, "-P", "-m", "crosslane._cli", "serve", str(ours), "--flight", "127.0.0.1:0"]
        serve += ["--listen", f"crosslane+unix://{folder}/socket"]
        addresses = [stack.enter_context(_served(serve))]
        addresses.append(stack.enter_context(_served([sys.executable, str(theirs)])))
        clients = [stack.enter_context(flight.connect(address)) for address in addresses]
        for client in clients:
            _round(client, BATCHES // 10)
        speeds: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                speeds[which].append(_round(clients[which], BATCHES))
    return speeds
