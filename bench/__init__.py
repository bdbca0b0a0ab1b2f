"""Benchmarks: programs that measure Crosslane beside its peers.

| folder | command | what it compares |
|---|---|---|
| `duckdb` | `make bench` | functions in DuckDB, with DuckDB's own functions and other peers |
| `scheduler` | `make bench-sched` | the scheduler's echo server, with tokio's and a bare one |
| `server` | `make bench-server` | functions of a server, with local lanes and other servers |
| `spark` | `make bench-spark` | functions in Spark, with Spark's own |
| `echo`, `js` | | the Rust programs that these run |

Each folder has the program (`run`), its pictures (`pictures`), and the figures of the run that the
documentation shows (`figures.json`). `versions` compares two checkouts of Crosslane.
"""
