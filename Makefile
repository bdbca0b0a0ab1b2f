# make demo   sets up and runs the main job on real data
# make spark  sets Spark 4.3 and its plugin up, for the examples in Spark
# make check  the linters and the tests of what a change touches, in a tree that is set up; BASE=HEAD~3 for more than what is not committed or pushed
# make test   sets up and runs all tests and linters
# make test-spark  sets up and runs Spark's tests only, on both versions of Spark
# make test-sparks  the same on the four versions of Spark that the jar runs on
# make soak   kills workers at random under a running engine and checks every answer; SECONDS=600 for ten minutes
# make soak-server  kills workers, clients and connections of a server at random, the same way
# make fuzz   garbage from guests, clients and servers, a minute each (needs a nightly toolchain and cargo-fuzz); SECONDS=600 for ten
# make bench  sets up and measures against the peers
# make bench-sched  the scheduler's echo server beside tokio's and a bare one; SECONDS=1 ROUNDS=3 for a short run
# make bench-server  the server beside local lanes, a bare echo server and Flight's; SECONDS=1 ROUNDS=2 for a short run, BENCH=echo for some works
# make bench-spark  Spark's functions over lanes beside its own; ROUNDS=2 for a short run, BENCH=vectorized for some works
# make jar    Spark's plugin with the native half for x86-64 and arm64, as build/spark/crosslane-spark.jar
# make pictures  draws the documentation's pictures again, from the figures in bench/
# make bench-versions OTHER=/another/checkout   the same queries in this version and another, in turns
# make miri   the ring and the dispatchers' queue under Miri (needs a nightly toolchain with Miri)
# make tsan   the scheduler under the thread sanitizer (needs a nightly toolchain with rust-src)
# make stress  the dispatchers' queue, preempted and resumed 100,000,000 times
.PHONY: setup demo spark check test test-spark test-sparks lint soak soak-server bench bench-sched bench-server bench-spark jar pictures bench-versions fuzz miri tsan stress clean

setup:
	@tools/setup test

demo:
	@tools/setup demo
	@.venv/bin/python examples/flights/demo.py

spark:
	@tools/setup spark

# The README is followed first, while a fresh tree has no more than the demo needs.
test:
	@tools/setup demo
	@tools/test readme
	@tools/setup test
	@tools/test

test-spark: setup
	@tools/test spark

test-sparks:
	@tools/setup sparks
	@tools/test sparks

check:
	@.venv/bin/python tools/check.py $(BASE)

lint: setup
	@tools/lint

soak: setup
	@.venv/bin/python tools/soak/engine.py $(SECONDS)

soak-server: setup
	@.venv/bin/python tools/soak/server.py $(SECONDS)

bench:
	@tools/setup bench
	@.venv/bin/python -m bench.duckdb.run $(BENCH)

bench-sched:
	@tools/setup bench
	@.venv/bin/python -m bench.scheduler.run $(if $(SECONDS),--seconds $(SECONDS)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-server:
	@tools/setup bench
	@.venv/bin/python -m bench.server.run $(if $(SECONDS),--seconds $(SECONDS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(BENCH)

bench-spark:
	@tools/setup bench
	@.venv/bin/python -m bench.spark.run $(if $(ROUNDS),--rounds $(ROUNDS)) $(BENCH)

jar:
	@tools/packaging/jar

pictures:
	@tools/setup bench
	@.venv/bin/python -m bench.draw

bench-versions:
	@tools/setup bench
	@.venv/bin/python -m bench.versions "$(OTHER)"

fuzz:
	@tools/fuzz $(SECONDS)

miri:
	@MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked -p crosslane-ring --test it --target-dir target/miri -q
	@MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked -p crosslane-sched --lib --target-dir target/miri -q priority

# Without the tests that start processes: the sanitizer ends the child of a process with threads.
tsan:
	@RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --locked -p crosslane-sched --lib \
	  --test it --test alone --target $$(rustc -vV | sed -n 's/^host: //p') --target-dir target/tsan -q \
	  -- --skip fork:: --skip echo::

stress:
	@SCHED_ROUNDS=100000000 cargo test --locked --release -p crosslane-sched --lib -q no_dispatcher_is_lost

clean:
	rm -rf target .v8 .duckdb .jdbc .venv .venv-* python/build spark/target python/crosslane/crosslane-spark.jar bench/results
