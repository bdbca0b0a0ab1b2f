"""Makes delay_model.json: how likely a flight is to leave more than 30 minutes late, by carrier, hour and weather.

    python examples/flights/train.py

A logistic regression over 2013's flights from New York, fitted by Newton's method.
"""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import numpy as np
from demo import prepare

MODEL = Path(__file__).parent / "delay_model.json"
#: Minutes from which a departure is late.
LATE = 30
CARRIERS = 8
STEPS = 8
#: Keeps the weights small.
RIDGE = 1.0


def main() -> None:
    """Fits the model and writes it."""
    con = duckdb.connect()
    prepare(con)
    rows = con.execute(
        """SELECT carrier, flights.hour, wind_speed, visib, precip, dep_delay > ? AS late
           FROM flights JOIN weather USING (origin, time_hour)
           WHERE dep_delay IS NOT NULL AND wind_speed IS NOT NULL""",
        [LATE],
    ).fetchnumpy()
    carriers, counts = np.unique(rows["carrier"].astype(str), return_counts=True)
    known = sorted(carriers[np.argsort(-counts)][:CARRIERS])
    hour = rows["hour"].astype(float)
    columns = {
        "one": np.ones(len(hour)),
        "hour": hour / 24,
        "hour_squared": (hour / 24) ** 2,
        "wind": rows["wind_speed"].astype(float) / 10,
        "haze": 1 - rows["visib"].astype(float) / 10,
        "wet": (rows["precip"].astype(float) > 0).astype(float),
        **{f"carrier {code}": (rows["carrier"].astype(str) == code).astype(float) for code in known},
    }
    x, y = np.column_stack(list(columns.values())), rows["late"].astype(float)
    weights = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-x @ weights))
        slope = x.T @ (y - p) - RIDGE * weights
        weights += np.linalg.solve((x.T * (p * (1 - p))) @ x + RIDGE * np.eye(len(weights)), slope)
    model = {name: round(float(weight), 4) for name, weight in zip(columns, weights)}
    MODEL.write_text(json.dumps(model, indent=2) + "\n")
    print(model)


if __name__ == "__main__":
    main()
