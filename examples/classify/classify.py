"""Classifies 100,000 texts, of which 2,000 differ, with a slow service that has a limit and fails at times.

python examples/classify/classify.py
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from service import PER_SECOND, Service

import crosslane

ROWS, DISTINCT = 100_000, 2_000


def main() -> None:
    """Asks the service, and prints what it took."""
    service = Service()
    threading.Thread(target=service.serve_forever, daemon=True).start()
    os.environ["CLASSIFY_URL"] = service.url
    with crosslane.connect(functions=[Path(__file__).parent / "functions.py"]) as con:
        con.execute(f"""
            CREATE TABLE texts AS
            SELECT ['a late goal', 'a close vote', 'a new song', 'a far star', 'the rest'][1 + i % {DISTINCT} % 5]
                || ' ' || i % {DISTINCT} AS text
            FROM range({ROWS}) r(i)""")
        begun = time.perf_counter()
        topics = con.execute(
            "SELECT topic(text) AS topic, count(*) FROM texts GROUP BY topic ORDER BY topic"
        ).fetchall()
        seconds = time.perf_counter() - begun
    for name, count in topics:
        print(f"{name:10} {count:>8,}")
    print(
        f"{sum(count for _, count in topics):,} rows in {seconds:.1f} s, at {PER_SECOND} requests a second at most"
    )
    print(f"the service: {service.answered:,} answers, {service.failed} failures, {service.refused} refusals")


if __name__ == "__main__":
    main()
