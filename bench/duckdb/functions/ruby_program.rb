# frozen_string_literal: true

# The Ruby program of the benchmark. It compares host lanes with themselves and with plain Ruby,
# guests with host lanes, and V8 contexts that boot with and without Ruby's lock. Prints times in
# seconds, as JSON.
#
#   ruby -I ruby/lib bench/duckdb/functions/ruby_program.rb LIBRARIES.js ROUNDS

require "crosslane"
require "crosslane/v8"
require_relative "work"

LIBRARIES, ROUNDS = ARGV[0], Integer(ARGV[1])
WANTED = ARGV[2].to_s
# The rows of functions that compute: two row groups of DuckDB, one for each thread.
QUARTER = 245_760

def clock = Process.clock_gettime(Process::CLOCK_MONOTONIC)

def seconds
  started = clock
  yield
  clock - started
end

# The times of both, which take turns.
def both(rounds, ours, theirs)
  ours.call
  theirs.call
  times = Array.new(rounds) { [seconds { ours.call }, seconds { theirs.call }] }.transpose
  { ours: times[0], theirs: times[1] }
end

def database
  db = Crosslane.open(functions: [File.join(__dir__, "scalar.rb")])
  db.query("CREATE TABLE numbers AS SELECT i AS x FROM range(500000) r(i)")
  db.query("CREATE TABLE million AS SELECT i AS x, 'row number ' || i AS s FROM range(1000000) r(i)")
  db.query("CREATE TABLE quarter AS SELECT i AS x FROM range(#{QUARTER}) r(i)")
  db
end

def threaded(db, count, sql)
  lambda do
    db.query("SET threads = #{count}")
    db.query(sql).to_a
  end
end

def nap(number)
  sleep 0.004 if (number % 1000).zero?
  number
end

# Blocks that wait, with four threads against one.
def waiting(db)
  db.udf(:nap, "(x BIGINT) -> BIGINT") { |x| nap(x) }
  db.table(:naps, "(n BIGINT) -> (x BIGINT)", partitions: ->(n) { (0...n).step(1000).to_a }) do |first, _|
    (first...first + 1000).map { |x| [nap(x)] }
  end
  { scalar: "SELECT sum(nap(x)) FROM numbers", table: "SELECT sum(x) FROM naps(500000)" }.to_h do |kind, sql|
    [:"waiting_#{kind}", both([ROUNDS / 2, 3].max, threaded(db, 4, sql), threaded(db, 1, sql))]
  end
end

# The same work in bare processes: the gain of the machine by its second core.
def plain(count, rows)
  lambda do
    shares = Array.new(count) do
      fork do
        (rows / count).times { |x| work(x) }
        exit!(true)
      end
    end
    shares.each { |pid| Process.wait(pid) }
  end
end

# Functions that compute: a guest with two threads beside one thread, and beside host lanes.
def computing(db)
  db.udf(:host_work, "(x BIGINT) -> BIGINT") { |x| work(x) }
  guest = "SELECT bit_xor(rb_work(x)) FROM quarter"
  host = "SELECT bit_xor(host_work(x)) FROM quarter"
  rounds = [ROUNDS / 2, 3].max
  { guest_scaling: both(rounds, threaded(db, 2, guest), threaded(db, 1, guest)),
    machine_scaling: both(rounds, plain(2, QUARTER), plain(1, QUARTER)),
    guest_and_host: both(rounds, threaded(db, 2, guest), threaded(db, 2, host)) }
end

# The cost of a host lane per row, beside a loop that calls the block.
def light(db)
  block = proc { |x| x * 2 + 1 }
  db.udf(:light, "(x BIGINT) -> BIGINT", &block)
  numbers = (0...1_000_000).to_a
  looped = -> { numbers.each { |x| block.call(x) } }
  times = both(ROUNDS, threaded(db, 1, "SELECT bit_xor(light(x)) FROM million"), looped)
  strings = db.query("SELECT s FROM million").map(&:first)
  up = -> { strings.map { |s| s.upcase } }
  { light: times, upcase: both(ROUNDS, threaded(db, 2, "SELECT count(rb_up(s)) FROM million"), up) }
end

# The longest stall of a busy main thread during each boot, in seconds.
def stalls(boots, &boot)
  longest = []
  current = 0.0
  booter = Thread.new do
    boots.times do
      current = 0.0
      boot.call.dispose
      longest << current
    end
  end
  last = clock
  while booter.alive?
    now = clock
    current = now - last if now - last > current
    last = now
  end
  booter.value
  longest
end

def v8
  module_ = Crosslane::V8
  snapshot = module_::Snapshot.new(File.read(LIBRARIES), name: "libraries.js")
  warn "snapshot of #{File.size(LIBRARIES)} bytes of source: #{snapshot.size} bytes"
  boot = -> { module_::Context.new(snapshot: snapshot) }
  locked = -> { module_::Context.new(snapshot: snapshot, locked: true) }
  boot.call.dispose
  results = { stall: { ours: stalls(50, &boot), theirs: stalls(50, &locked) } }
  pool = module_::Pool.new(snapshot, size: 2)
  taken = Array.new(ROUNDS) do
    sleep 0.01 until pool.ready == 2
    context = nil
    warm = seconds { context = pool.check_out }
    context.dispose
    sleep 0.01 until pool.ready == 2
    [warm, seconds { context = boot.call }].tap { context.dispose }
  end
  pool.close
  results[:pool] = { ours: taken.map(&:first), theirs: taken.map(&:last) }
  context = boot.call
  context.eval("function add(a, b) { return a + b }")
  call = -> { 20_000.times { context.call("add", 1, 2) } }
  eval = -> { 20_000.times { context.eval("add(1, 2)") } }
  other = module_::Context.new(process: true)
  other.eval("function add(a, b) { return a + b }")
  abroad = -> { 20_000.times { other.call("add", 1, 2) } }
  results[:call] = both(ROUNDS, call, eval).transform_values { |all| all.map { |time| time / 20_000 } }
  results[:process] = both(ROUNDS, abroad, call).transform_values { |all| all.map { |time| time / 20_000 } }
  [context, other].each(&:dispose)
  results
end

results = {}
unless WANTED == "v8"
  db = database
  results.merge!(waiting(db), computing(db), light(db))
  db.close
end
results.merge!(v8) unless WANTED == "lanes"
puts JSON.generate(results)
