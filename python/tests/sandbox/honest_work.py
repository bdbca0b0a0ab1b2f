"""Ordinary work of functions, in one file of functions for a sandbox."""

from __future__ import annotations

from collections.abc import Callable

from crosslane import udf

Work = Callable[[], object]
WORKS: dict[str, Work] = {}


def work_of(function: Work) -> Work:
    WORKS[function.__name__] = function
    return function


@work_of
def numpy() -> object:
    import numpy as np

    return np.linalg.inv(np.random.default_rng(1).random((300, 300))).sum()


@work_of
def pandas() -> object:
    import pandas as pd

    return pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).groupby("b").sum().to_dict()


@work_of
def pandas_times() -> object:
    import pandas as pd

    return pd.Timestamp("2024-03-31 01:30", tz="Europe/Berlin") + pd.Timedelta(hours=1)


@work_of
def pyarrow() -> object:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.sum(pa.array(range(1_000_000)))


@work_of
def parquet_in_memory() -> object:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2, 3]}), buffer)
    return pq.read_table(buffer)["a"].to_pylist()


@work_of
def polars() -> object:
    import polars as pl

    return pl.DataFrame({"a": range(100_000)}).group_by(pl.col("a") % 7).len()["len"].sum()


@work_of
def time_zones() -> object:
    import datetime
    import zoneinfo

    return datetime.datetime.now(zoneinfo.ZoneInfo("America/New_York"))


@work_of
def local_time() -> object:
    import time

    time.tzset()
    return time.localtime()


@work_of
def locales() -> object:
    import locale

    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    return locale.localeconv()


@work_of
def random_numbers() -> object:
    import random
    import secrets
    import uuid

    return random.random(), secrets.token_hex(), uuid.uuid4()


@work_of
def hashes() -> object:
    import hashlib
    import hmac

    return hashlib.blake2b(b"x").hexdigest(), hmac.new(b"k", b"x", "sha256").hexdigest()


@work_of
def decimals() -> object:
    import decimal
    import fractions

    return decimal.Decimal(2).sqrt(), fractions.Fraction(1, 3)


@work_of
def regular_expressions() -> object:
    import re

    return re.sub(r"(\w+) (\w+)", r"\2 \1", "a b" * 100)


@work_of
def parsers() -> object:
    import csv
    import json
    import tomllib
    import xml.etree.ElementTree as tree

    return json.loads("[1]"), tomllib.loads("a = 1"), list(csv.reader(["a,b"])), tree.fromstring("<a/>")


@work_of
def compression() -> object:
    import bz2
    import gzip
    import lzma
    import zlib

    return [module.compress(b"x" * 1000) for module in (bz2, gzip, lzma, zlib)]


@work_of
def database_in_memory() -> object:
    import sqlite3

    with sqlite3.connect(":memory:") as database:
        return database.execute("SELECT 42").fetchall()


@work_of
def threads() -> object:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(lambda x: x * x, range(100)))


@work_of
def event_loop() -> object:
    import asyncio

    async def nap(x: int) -> int:
        await asyncio.sleep(0.001)
        return x

    async def all_naps() -> list[int]:
        return await asyncio.gather(*map(nap, range(10)))

    return asyncio.run(all_naps())


@work_of
def work_in_threads_of_the_loop() -> object:
    import asyncio

    return asyncio.run(asyncio.to_thread(sum, range(10)))


@work_of
def queues() -> object:
    import queue
    import threading

    items: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=items.put, args=(1,))
    thread.start()
    thread.join()
    return items.get(timeout=5)


@work_of
def memory_files() -> object:
    import mmap
    import os

    descriptor = os.memfd_create("x")
    os.ftruncate(descriptor, 4096)
    with mmap.mmap(descriptor, 4096) as memory:
        memory[:1] = b"x"
    os.close(descriptor)


@work_of
def pipes() -> object:
    import os
    import select

    reading, writing = os.pipe()
    os.write(writing, b"x")
    select.select([reading], [], [], 5)
    read = os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    return read


@work_of
def pairs_of_sockets() -> object:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"x")
        return theirs.recv(1)


@work_of
def signals_to_itself() -> object:
    import signal

    received = []
    before = signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    return received[0]


@work_of
def timers() -> object:
    import signal
    import time

    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    time.sleep(0.01)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@work_of
def foreign_functions() -> object:
    import ctypes

    return ctypes.CDLL(None).abs(-1)


@work_of
def libraries_of_the_system() -> object:
    import ctypes

    return ctypes.CDLL("libm.so.6").fabs


@work_of
def modules_beside_the_file() -> object:
    import beside

    return beside.NUMBER


@work_of
def packages_beside_the_file() -> object:
    import package

    return package.NAME


@work_of
def resources_of_packages() -> object:
    import importlib.metadata

    return importlib.metadata.version("duckdb")


@work_of
def unicode() -> object:
    import unicodedata

    return unicodedata.normalize("NFKD", "é"), "straße".casefold(), "x".encode("idna")


@work_of
def what_machine_it_is() -> object:
    import os
    import platform

    return os.cpu_count(), platform.platform(), os.getpid(), os.sched_getaffinity(0)


@work_of
def logs() -> object:
    import logging
    import sys

    logging.getLogger("honest").warning("a line")
    print("printed", file=sys.stderr)


@work_of
def tracebacks() -> object:
    import traceback

    try:
        print(1 // 0)
    except ZeroDivisionError:
        return traceback.format_exc()


@work_of
def sources() -> object:
    import inspect

    return inspect.getsource(sources)


@udf
def works() -> list[str]:
    return list(WORKS)


@udf(deterministic=False)
def work(name: str) -> str:
    try:
        WORKS[name]()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "done"
