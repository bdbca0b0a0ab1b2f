"""The engine's process: its memory, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from ..figures import RESULTS, Line
from .engines import FUNCTIONS, Bench


def memory(bench: Bench) -> Iterator[Line]:
    """The engine's memory over many streamed rows."""

    def peak(rows: int) -> float:
        program = (
            "import crosslane\n"
            f"con = crosslane.connect(functions={str(FUNCTIONS)!r})\ncon.execute('SET enable_progress_bar = false')\n"
            f"con.execute('SELECT bit_xor(plus_one(i)), count(bench_upper(i::VARCHAR)) FROM range({rows}) r(i)').fetchall()\n"
            "import re\n"
            "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1024)"
        )
        return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)

    few, many = peak(1_000_000), peak(50_000_000)
    growth = (many / few - 1) * 100
    yield Line("engine memory, 50M rows", "1M rows", f"{many:.0f} MB", f"{few:.0f} MB", growth, 10, "% more")


def interrupt(bench: Bench) -> Iterator[Line]:
    """How fast Ctrl-C ends a query inside a slow function."""
    path = RESULTS / "sleepy.py"
    path.write_text(
        "import time\nfrom crosslane import udf\n@udf\ndef sleepy(x: int) -> int: time.sleep(100)\n"
    )
    taken = []
    for _ in range(3):
        command = [
            sys.executable,
            "-m",
            "crosslane._cli",
            "sql",
            "-f",
            str(path),
            "SELECT sleepy(i) FROM range(3) r(i)",
        ]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(2)
        started = time.perf_counter()
        process.send_signal(signal.SIGINT)
        process.wait()
        taken.append(time.perf_counter() - started)
    worst = max(taken) * 1e3
    yield Line(
        "Ctrl-C inside a slow function", "a limit", f"{worst:.0f} ms", "the worst of 3", worst, 300, "ms"
    )
