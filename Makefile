# make demo   sets up and runs the main job on real data
# make test   sets up and runs all tests and linters
# make bench  sets up and measures against the peers
.PHONY: setup demo test lint bench fuzz clean

setup:
	@tools/setup

demo: setup
	@.venv/bin/python examples/flights/demo.py

test: setup
	@tools/test

lint: setup
	@tools/lint

bench: setup
	@.venv/bin/python bench/run.py $(BENCH)

fuzz:
	@cargo +nightly fuzz run --fuzz-dir crates/crosslane-process/fuzz reply

clean:
	rm -rf target .v8 .duckdb .venv .venv-1.5 python/build bench/results
