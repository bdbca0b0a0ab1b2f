# frozen_string_literal: true

require_relative "../helper"

class TestHostLanes < CrosslaneTest
  # A block that records the threads it runs on, and sometimes waits. At first it waits for `least`
  # threads, because a thread that wakes up late could find no work.
  def waiting(threads, least = 0)
    late = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 60
    lambda do |x|
      threads << Thread.current
      sleep 0.001 until threads.size >= least || Process.clock_gettime(Process::CLOCK_MONOTONIC) > late
      sleep 0.001 if (x % 1000).zero?
      x
    end
  end

  def test_workers_run_a_scalar_function_side_by_side
    db = numbers
    threads = Set.new
    db.udf(:wait, "(x BIGINT) -> BIGINT", &waiting(threads, 3))
    assert_equal 124_999_750_000, db.value("SELECT sum(wait(x))::BIGINT FROM numbers")
    assert_operator threads.size, :>, 2
  end

  def test_workers_run_a_table_function_side_by_side
    db = open
    threads = Set.new
    wait = waiting(threads, 3)
    db.table(:parts, "(n BIGINT) -> (x BIGINT)", partitions: ->(n) { (0...n).each_slice(1000) }) do |part, _|
      part.map { |x| [wait.call(x)] }
    end
    assert_equal [100_000, 4_999_950_000], db.query("SELECT count(*), sum(x)::BIGINT FROM parts(100000)").first
    assert_operator threads.size, :>, 2
  end

  def test_lanes_outlive_a_query_and_a_database
    use = lambda do
      db = numbers
      db.udf(:wait, "(x BIGINT) -> BIGINT", &waiting(Set.new))
      3.times { db.query("SELECT sum(wait(x)) FROM numbers") }
      db.close
    end
    # On a busy machine, the first queries may need fewer lanes than the next ones.
    eventually do
      made = Crosslane::Host.lanes[:made]
      use.call
      made == Crosslane::Host.lanes[:made]
    end
  end

  def test_one_thread_calls_the_block_itself
    db = numbers(5000, threads: 1)
    threads = Set.new
    db.udf(:own, "(x BIGINT) -> BIGINT") { |x| threads << Thread.current && x }
    db.query("SELECT sum(own(x)) FROM numbers")
    assert_equal [Thread.current], threads.to_a
  end

  def test_blocks_see_the_program
    db = open
    factor = 3
    calls = 0
    db.udf(:scale, "(x BIGINT) -> BIGINT") do |x|
      calls += 1
      x * factor
    end
    assert_equal [[0], [3], [6]], db.query("SELECT scale(i) FROM range(3) r(i)").to_a
    factor = 5
    assert_equal 10, db.value("SELECT scale(2)")
    assert_operator calls, :>=, 4
  end

  def test_nulls
    db = open
    db.udf(:skip, "(x BIGINT) -> VARCHAR", &:inspect)
    db.udf(:see, "(x BIGINT) -> VARCHAR", nulls: :call, &:inspect)
    db.query("CREATE TABLE t AS FROM (VALUES (1), (NULL), (3)) v(x)")
    assert_equal [["1", "1"], [nil, "nil"], ["3", "3"]], db.query("SELECT skip(x), see(x) FROM t").to_a
    assert_equal [nil, "nil"], db.query("SELECT skip(NULL), see(NULL)").first
  end

  def test_options
    db = numbers(100)
    tries = Hash.new(0)
    db.udf(:flaky, "(x BIGINT) -> BIGINT", retries: 2) { |x| (tries[x] += 1) < 3 ? raise("no") : x }
    assert_equal 10, db.value("SELECT sum(flaky(x))::INT FROM numbers WHERE x < 5")
    db.udf(:odd, "(x BIGINT) -> BIGINT", on_error: :null) { |x| x.odd? ? x : raise("even") }
    assert_equal 50, db.value("SELECT count(odd(x)) FROM numbers")
    db.udf(:pairwise, "(x BIGINT, y BIGINT) -> BIGINT", vectorized: true) { |xs, ys| xs.zip(ys).map(&:sum) }
    assert_equal 9900, db.value("SELECT sum(pairwise(x, x))::INT FROM numbers")
    db.udf(:late, "(x BIGINT) -> BIGINT", timeout: 0.2) { |_x| sleep }
    error = assert_raises(Crosslane::Error) { db.query("SELECT late(x) FROM numbers") }
    assert_match(/late: timed out after 0.2 s.*\n  in row 1 of the batch, with x = 0/, error.message)
    assert_raises(Crosslane::DeclarationError) { db.udf(:f, "(x BIGINT) -> BIGINT", memory_limit: 5) { |x| x } }
    assert_raises(Crosslane::DeclarationError) { db.udf(:f, "(x BIGINT) -> BIGINT", sandbox: :on) { |x| x } }
    error = assert_raises(Crosslane::DeclarationError) { db.udf(:f, "(x BIGINT) -> BIGINT", setup: -> {}) { |_, x| x } }
    assert_match(/setup is for functions in files .* sees what its program has prepared/, error.message)
    assert_raises(Crosslane::DeclarationError) { db.udf(:f, "(x BIGNIT) -> BIGINT") { |x| x } }
    assert_raises(Crosslane::DeclarationError) { db.udf(:f, "(x BIGINT) -> BIGINT") { |x, y| x + y } }
  end

  def test_a_function_is_replaced
    db = open
    db.udf(:release, "() -> INT") { 1 }
    db.udf(:release, "() -> INT") { 2 }
    assert_equal 2, db.value("SELECT release()")
  end

  def test_what_a_block_returns_is_checked
    db = open
    db.udf(:wrong, "(x BIGINT) -> BIGINT", &:to_s)
    error = assert_raises(TypeError) { db.value("SELECT wrong(5)") }
    assert_equal "returned String \"5\" where BIGINT is due", error.message
    assert_match(/wrong: TypeError.*\n  in row 1 of the batch, with x = 5/m, error.query_error)
  end

  def test_keys_of_maps_are_different_after_they_were_converted
    db = numbers(3)
    map = ->(x) { { 1.02 => 1, 1.04 + x => 2 } }
    db.udf(:here, "(x BIGINT) -> MAP(DECIMAL(4,1), BIGINT)", &map)
    db.udf(:there, "(x BIGINT) -> MAP(DECIMAL(4,1), BIGINT)", timeout: 60, &map)
    db.udf(:nulled, "(x BIGINT) -> MAP(DECIMAL(4,1), BIGINT)", on_error: :null, &map)
    %w[here there].each do |function|
      error = assert_raises(Crosslane::Error) { db.query("SELECT #{function}(2 - x) FROM numbers").to_a }
      assert_match(/#{function}: InvalidResult: returned a MAP with the key 1.0 twice/, error.message)
      assert_match(/in row 3 of the batch, with x = 0/, error.message)
    end
    assert_equal [[0]], db.query("SELECT x FROM numbers WHERE nulled(x) IS NULL").to_a
    db.table(:rows, "(x BIGINT) -> (m MAP(DECIMAL(4,1), BIGINT))") { |x| [[map.call(1)], [map.call(x)]] }
    assert_equal 2, db.query("FROM rows(2)").count
    error = assert_raises(Crosslane::Error) { db.query("FROM rows(0)").to_a }
    assert_match(/rows: InvalidResult: returned a MAP with the key 1.0 twice, in row 2/, error.message)
  end

  def test_table_functions
    db = open
    db.table(:pairs, "(n BIGINT, word VARCHAR) -> (i BIGINT, text VARCHAR)") do |n, word|
      Array.new(n) { |i| { i: i, "text" => word * i } }
    end
    assert_equal [[0, ""], [1, "ab"], [2, "abab"]], db.query("FROM pairs(3, 'ab')").to_a
    assert_equal 10_000, db.value("SELECT count(*) FROM pairs(10000, '')")
    db.table(:structs, "() -> (a INT, b INT)") { [Struct.new(:a, :b).new(1, 2), [3, nil]] }
    assert_equal [[1, 2], [3, nil]], db.query("FROM structs()").to_a
    db.table(:broken, "() -> (a INT)") { [["x"]] }
    assert_raises(TypeError) { db.query("FROM broken()") }
    db.table(:raising, "() -> (a INT)") { raise KeyError, "no" }
    assert_raises(KeyError) { db.query("FROM raising()") }
    db.table(:split, "(n INT) -> (a INT)", partitions: ->(_n) { raise IndexError, "parts" }) { |_, _| [] }
    assert_raises(IndexError) { db.query("FROM split(1)") }
    assert_raises(Crosslane::DeclarationError) { db.table(:bad, "() -> INT") { [] } }
  end

  def test_rows_of_a_table_are_made_when_they_are_wanted
    db = open
    made = 0
    left = false
    db.table(:endless, "() -> (i BIGINT)") do
      Enumerator.new do |rows|
        loop { rows << [made += 1] }
      ensure
        left = true
      end
    end
    assert_equal [[1], [2], [3]], db.query("SELECT * FROM endless() LIMIT 3").to_a
    eventually { left }
    assert_operator made, :<, 100_000
  end

  # The rows of a table. Their `each` is a block, which may keep the block that it gets.
  class Rows
    include Enumerable

    attr_reader :block

    def initialize(&each)
      @each = each
    end

    def each(&block)
      @each.call(@block = block)
    end
  end

  # Queries a table with these rows.
  def scan(db, rows, rest = "")
    name = "rows_#{rows.object_id}"
    db.table(name, "() -> (i BIGINT)") { rows }
    -> { db.query("FROM #{name}() #{rest}").to_a }
  end

  alone def test_the_block_of_a_scan_that_is_over
    db = open
    whole = Rows.new { |block| 3.times { |i| block.call([i]) } }
    assert_equal [[0], [1], [2]], scan(db, whole).call
    part = Rows.new { |block| 5000.times { |i| block.call([i]) } }
    assert_equal [[0], [1]], scan(db, part, "LIMIT 2").call
    failed = Rows.new { |block| block.call([1]).then { raise IOError } }
    assert_raises(IOError, &scan(db, failed))
    [whole, part, failed].each do |rows|
      late = lambda do
        rows.block.call([7])
      rescue Crosslane::Error => e
        e.message
      end
      eventually { late.call == "a row was yielded after its scan had ended" }
      assert_equal late.call, Thread.new(&late).value
      GC.stress = true
      assert_match(/after its scan/, late.call)
      GC.stress = false
    end
  ensure
    GC.stress = false
  end

  def test_a_block_that_another_thread_or_fiber_calls
    db = open(threads: 1)
    call = ->(how) { scan(db, Rows.new(&how)).call }
    error = assert_raises(Crosslane::Error) do
      call.call(->(block) { Thread.new { block.call([1]) }.tap { |thread| thread.report_on_exception = false }.join })
    end
    assert_match(/by another thread than the one that runs each/, error.message)
    fiber = ->(block) { Fiber.new { 3000.times { |i| block.call([i]) } }.resume }
    assert_equal Array.new(3000) { |i| [i] }, call.call(fiber)
    # A fiber is still reading a row when the scan ends.
    odd = Object.new
    odd.define_singleton_method(:i) { Fiber.yield || 1 }
    error = assert_raises(Crosslane::Error) do
      call.call(->(block) { (fiber = Fiber.new { block.call(odd) }).resume })
    end
    assert_match(/each ended within a row/, error.message)
    # The fiber belongs to the thread of its lane, and that lane may still be ending the fiber's
    # scan. A scan on another lane keeps that lane busy, so that the next scan tries another one.
    scans = Array.new(8) do
      scan(db, Rows.new do |block|
        fiber.resume || block.call([5])
      rescue FiberError
        scans.pop.call.each { |row| block.call(row) }
      end)
    end
    assert_equal([[5]], scans.pop.call)
    # A row that requests another row while it is read.
    inner = nil
    odd.define_singleton_method(:i) { inner.call([1]) }
    error = assert_raises(Crosslane::Error) { call.call(->(block) { (inner = block).call(odd) }) }
    assert_match(/while another was being read/, error.message)
  end

  def test_aggregates
    db = numbers
    db.aggregate(:total, "(x BIGINT) -> BIGINT", start: -> { 0 }, combine: ->(a, b) { a + b }) { |sum, x| sum + x }
    assert_equal 124_999_750_000, db.value("SELECT total(x) FROM numbers")
    rows = db.query("SELECT x % 3 AS k, total(x), sum(x)::BIGINT FROM numbers GROUP BY k ORDER BY k").to_a
    assert_equal(3, rows.count { |_, ours, theirs| ours == theirs })
    assert_equal 0, db.value("SELECT total(x) FROM numbers WHERE x < 0")
    db.aggregate(:words, "(w VARCHAR) -> VARCHAR[]", start: -> { Set.new }, finish: ->(set) { set.to_a.sort },
                                                     combine: ->(a, b) { a | b }) { |set, w| set << w }
    assert_equal %w[a b], db.value("SELECT words(w) FROM (VALUES ('b'), ('a'), (NULL), ('b')) v(w)")
    db.aggregate(:fails, "(x BIGINT) -> BIGINT", combine: ->(a, _b) { a }) { |_sum, x| raise ArgumentError, "at #{x}" }
    assert_raises(ArgumentError) { db.value("SELECT fails(x) FROM numbers WHERE x = 7") }
  end

  def test_blocks_query_the_same_database
    [1, 4].each do |count|
      db = numbers(100_000, threads: count)
      db.udf(:below, "(x BIGINT) -> BIGINT") { |x| db.value("SELECT count(*) FROM numbers WHERE x < ?", x) }
      assert_equal [[5], [6]], db.query("SELECT below(x) FROM numbers WHERE x IN (5, 6) ORDER BY x").to_a
      db.udf(:threaded, "(x BIGINT) -> BIGINT") { |x| Thread.new { db.value("SELECT ?::BIGINT", x) }.value }
      assert_equal 9, db.value("SELECT threaded(9)")
    end
  end

  alone def test_under_a_stressed_collector
    db = numbers(3000)
    db.udf(:shout, "(x BIGINT) -> VARCHAR") { |x| "n#{x}".upcase }
    db.table(:few, "() -> (x BIGINT, s VARCHAR)") { Array.new(20) { |i| [i, "s#{i}"] } }
    GC.stress = true
    assert_equal "N7", db.value("SELECT shout(x) FROM numbers WHERE x = 7")
    assert_equal 20, db.query("FROM few()").count
    GC.stress = false
    GC.verify_compaction_references(toward: :empty, double_heap: true) if GC.respond_to?(:verify_compaction_references)
    GC.compact
    assert_equal 3000, db.value("SELECT count(DISTINCT shout(x)) FROM numbers")
  ensure
    GC.stress = false
  end

  def test_lanes_that_cannot_be_made_are_shared
    db = numbers
    db.udf(:nap, "(x BIGINT) -> BIGINT", &waiting(Set.new))
    # When the host ends, its lanes end too.
    Thread.list.find { |thread| thread.name == "crosslane-host" }.kill.join
    db.value("SELECT nap(1)")
    Crosslane::Host.class_eval do
      alias_method :real_thread, :thread
      define_method(:thread) { |*arguments| @lanes.empty? ? real_thread(*arguments) : raise(ThreadError, "no more") }
      private :thread
    end
    assert_equal 124_999_750_000, db.value("SELECT sum(nap(x))::BIGINT FROM numbers")
  ensure
    Crosslane::Host.class_eval { alias_method :thread, :real_thread }
  end

  def test_a_killed_lane_is_an_error_and_is_replaced
    db = numbers
    db.udf(:dies, "(x BIGINT) -> BIGINT", timeout: 30) { |x| x == 300_000 ? Thread.current.kill : x }
    error = assert_raises(Crosslane::Error) { db.value("SELECT sum(dies(x)) FROM numbers") }
    assert_match(/dies: the thread that ran it was ended/, error.message)
    db.udf(:lives, "(x BIGINT) -> BIGINT") { |x| x }
    assert_equal 124_999_750_000, db.value("SELECT sum(lives(x))::BIGINT FROM numbers")
  end

  def test_concurrent_calls_keep_their_threads
    db = numbers(20_000)
    db.query("SET threads = 1")
    db.udf(:thread, "(x BIGINT) -> BIGINT", concurrency: 4) { |_| Thread.current.object_id }
    assert_operator db.value("SELECT count(DISTINCT thread(x)) FROM numbers"), :<=, 4
    # A program may kill these threads.
    kept = Thread.list.select { |thread| thread.name == "crosslane-worker" }
    refute_empty kept
    kept.each(&:kill)
    assert_operator db.value("SELECT count(DISTINCT thread(x)) FROM numbers"), :<=, 4
  end

  def test_concurrent_calls_that_end_their_threads_are_tried_again
    db = numbers(20)
    tries = Hash.new(0)
    endings = [-> { Thread.exit }, -> { raise "no" }]
    again = lambda do |x|
      tries[x] += 1
      endings[(x + tries[x]) % 2].call if tries[x] <= x % 4
      x
    end
    db.udf(:thrice, "(x BIGINT) -> BIGINT", concurrency: 4, retries: 3, &again)
    assert_equal 190, db.value("SELECT sum(thrice(x))::BIGINT FROM numbers")
    assert_equal((0..19).to_h { |x| [x, (x % 4) + 1] }, tries)
    tries.clear
    db.udf(:twice, "(x BIGINT) -> BIGINT", concurrency: 4, retries: 2, on_error: :null, &again)
    assert_equal [[3], [7], [11], [15], [19]], db.query("SELECT x FROM numbers WHERE twice(x) IS NULL ORDER BY x").to_a
    assert_equal [3], tries.values.uniq - [1, 2]
    db.udf(:once, "(x BIGINT) -> BIGINT", concurrency: 4, retries: 1) { |x| x == 3 ? Thread.exit : x }
    error = assert_raises(ThreadError) { db.query("SELECT once(x) FROM numbers").to_a }
    assert_match(/ended the thread that called it/, error.message)
  end

  def test_a_killed_host_is_an_error_and_is_replaced
    db = numbers
    begun = Thread::Queue.new
    db.udf(:slow, "(x BIGINT) -> BIGINT", timeout: 30) do |x|
      begun << true if begun.empty?
      sleep(0.001) && x
    end
    killer = Thread.new do
      begun.pop
      Thread.list.find { |thread| thread.name == "crosslane-host" }.kill
    end
    assert_raises(Crosslane::Error) { db.value("SELECT sum(slow(x)) FROM numbers") }
    killer.join
    assert_equal 5, db.value("SELECT slow(5)")
  end

  def test_a_host_that_gets_no_descriptors_says_so_and_lives_on
    ours, theirs = UNIXSocket.pair
    host = Crosslane::Host.new(theirs)
    request = JSON.generate(op: "fork", lane: 7, spin_microseconds: 0)
    2.times do
      ours.sendmsg([request.bytesize].pack("L<") + request, 0, nil, Socket::AncillaryData.unix_rights(ours))
      answer = ours.recv(4096)
      assert_equal({ "op" => "unforked", "lane" => 7, "message" => "the process has too few descriptors left" },
                   JSON.parse(answer.byteslice(4..)))
    end
    assert_predicate host, :alive?
  ensure
    ours.close
    eventually { !host.alive? }
  end

  # Counts the turns of the host.
  module Counted
    class << self
      attr_accessor :turns
    end

    def turn = super.tap { Counted.turns += 1 if Counted.turns }
  end

  def test_a_host_sleeps_while_an_abandoned_call_still_runs
    turns = forked do
      Crosslane::Host.prepend(Counted)
      db = Crosslane.open(config: { threads: 2 })
      held = Thread::Queue.new
      db.udf(:stuck, "(x BIGINT) -> BIGINT", timeout: 0.2) do |x|
        sleep
        x
      ensure
        held.pop
      end
      assert_raises(Crosslane::Error) { db.query("SELECT stuck(1)").to_a }
      # For each of these calls, the thread of the lane runs. Between two such runs, the host's
      # thread can take any number of turns.
      db.udf(:id, "(x BIGINT) -> BIGINT", timeout: 60) { |x| x }
      db.query("SELECT id(0)").to_a
      Counted.turns = 0
      300.times { |i| db.query("SELECT id(#{i})").to_a }
      counted = Counted.turns
      held << nil
      counted
    end
    assert_operator turns, :<, 10
  end

  def test_fork_after_use
    db = numbers
    db.udf(:inc, "(x BIGINT) -> BIGINT", &:succ)
    db.query("SELECT sum(inc(x)) FROM numbers")
    sum, message = forked do
      message = begin
        db.query("SELECT 1")
      rescue Crosslane::Error => e
        e.message
      end
      child = Crosslane.open(config: { threads: 4 })
      child.udf(:inc, "(x BIGINT) -> BIGINT", &:succ)
      [child.value("SELECT sum(inc(i))::BIGINT FROM range(500000) r(i)"), message]
    end
    assert_equal 125_000_250_000, sum
    assert_match(/forked after the database was opened; open it again/, message)
    assert_equal 125_000_250_000, db.value("SELECT sum(inc(x))::BIGINT FROM numbers")
  end

  def test_functions_in_files_run_as_guests
    Dir.mktmpdir do |folder|
      path = File.join(folder, "functions.rb")
      File.write(path, "udf \"home(x BIGINT) -> BIGINT\" do |x| Process.pid end\n")
      db = open(functions: [path])
      refute_equal Process.pid, db.value("SELECT home(1)")
      error = assert_raises(Crosslane::Error) { db.load(File.join(folder, "none.rb")) }
      assert_match(/none\.rb/, error.message)
    end
  end
end
