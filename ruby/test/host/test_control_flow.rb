# frozen_string_literal: true

require_relative "../helper"

# Exceptions and jumps out of a block or a query have their usual meaning in Ruby, and stop the
# query. The queries here would never end by themselves.
class TestControlFlow < CrosslaneTest
  ENDLESS = "SELECT count(*) FROM range(1000000000000000) r(i) WHERE i % 7 = 3"

  # With one thread, the block runs on the query's own thread. With four threads, it runs on lanes.
  def each_way
    [1, 4].each { |threads| yield numbers(500_000, threads: threads) }
  end

  def test_a_wait_ends_although_it_has_no_descriptor_for_its_end
    read, write = IO.pipe
    soft, hard = Process.getrlimit(:NOFILE)
    Process.setrlimit(:NOFILE, 3, hard)
    waiting = Thread.new { loop { Crosslane::Native.poll([read.fileno], []) } }
    Thread.pass until waiting.status == "sleep"
    waiting.kill
    assert waiting.join(20), "it waits on"
  ensure
    Process.setrlimit(:NOFILE, soft, hard)
    write.write(".")
    waiting.join
    [read, write].each(&:close)
  end

  def test_exceptions_arrive_as_themselves
    each_way do |db|
      raised = nil
      db.udf(:boom, "(x BIGINT) -> BIGINT") do |x|
        next x unless x == 300_000

        begin
          Integer("no number")
        rescue ArgumentError
          raise raised = KeyError.new("gone", receiver: {}, key: x)
        end
      end
      error = assert_raises(KeyError) { db.value("SELECT sum(boom(x)) FROM numbers") }
      assert_same raised, error
      assert_equal 300_000, error.key
      assert_instance_of ArgumentError, error.cause
      assert_match(/test_control_flow\.rb:\d+:in `(rescue in )?block/, error.backtrace.first)
      assert_match(/boom: KeyError: gone/, error.query_error)
      assert_match(/with x = 300000/, error.query_error)
    end
  end

  def test_throw
    each_way do |db|
      db.udf(:thrower, "(x BIGINT) -> BIGINT") { |x| x == 300_000 ? throw(:found, x) : x }
      assert_equal(300_000, catch(:found) { db.value("SELECT sum(thrower(x)) FROM numbers") })
      assert_raises(UncaughtThrowError) { db.value("SELECT sum(thrower(x)) FROM numbers") }
      assert_equal 1, db.value("SELECT 1")
    end
  end

  def test_exit
    each_way do |db|
      db.udf(:leave, "(x BIGINT) -> BIGINT") { |x| x == 300_000 ? exit(7) : x }
      error = assert_raises(SystemExit) { db.value("SELECT sum(leave(x)) FROM numbers") }
      assert_equal 7, error.status
    end
  end

  def test_timeout_around_a_query
    each_way do |db|
      db.udf(:stuck, "(x BIGINT) -> BIGINT") { |_x| sleep }
      assert_raises(Timeout::Error) { Timeout.timeout(0.2) { db.value("SELECT sum(stuck(x)) FROM numbers") } }
      assert_equal 1, db.value("SELECT 1")
    end
  end

  def test_timeout_around_a_query_without_functions
    each_way do |db|
      assert_raises(Timeout::Error) { Timeout.timeout(0.2) { db.value(ENDLESS) } }
    end
  end

  def test_timeout_inside_a_block
    each_way do |db|
      db.udf(:inner, "(x BIGINT) -> BIGINT") { |_x| Timeout.timeout(0.05) { sleep } }
      assert_raises(Timeout::Error) { db.value("SELECT inner(x) FROM numbers") }
    end
  end

  def interrupted(query)
    asker = Thread.current
    signal = Thread.new do
      # The signal must come during the wait for the query. An earlier one would end the test.
      sleep 0.01 until asker.stop?
      sleep 0.2
      Process.kill("INT", Process.pid)
    end
    assert_raises(Interrupt) { query.call }
    signal.join
  end

  def test_interrupt
    each_way do |db|
      db.udf(:stuck, "(x BIGINT) -> BIGINT") { |_x| sleep }
      interrupted(-> { db.value("SELECT sum(stuck(x)) FROM numbers") })
      interrupted(-> { db.value(ENDLESS) })
      assert_equal 1, db.value("SELECT 1")
    end
  end

  # Each signal except the last comes together with the next one, and their handlers raise.
  SIGNALS = <<~'RUBY'
    require "crosslane"
    again = Class.new(Exception)
    count = 0
    trap("USR1") do
      count += 1
      Process.kill("USR1", Process.pid) if count < 5
      raise again, "signal #{count}"
    end
    db = Crosslane.open(config: { threads: 4 })
    db.query("CREATE TABLE numbers AS SELECT i AS x FROM range(500_000) r(i)")
    begun = nil
    db.udf(:away, "(x BIGINT) -> BIGINT", timeout: 60) { |x| (begun << x) && sleep(0.001) && x }
    db.aggregate(:total, "(x BIGINT) -> BIGINT", combine: ->(a, b) { a + b }) { |sum, x| (begun << x) && ((sum || 0) + x) }
    ["sum(away(x))", "total(x)"].each do |call|
      3.times do
        count = 0
        begun = Thread::Queue.new
        signal = Thread.new { begun.pop && Process.kill("USR1", Process.pid) }
        db.value("SELECT #{call} FROM numbers")
      rescue again => e
        signal.join
        puts "#{call}: #{e.message}"
      end
    end
    puts db.value("SELECT 'the end'")
  RUBY

  # The query's other threads need Ruby's lock to end their calls.
  def test_signals_while_a_query_ends
    ended = ["sum(away(x))", "total(x)"].flat_map { |call| ["#{call}: signal 5"] * 3 }
    assert_equal [*ended, "the end"], run_alone("-e", SIGNALS).lines(chomp: true)
  end

  def test_what_ends_a_query_is_no_error_that_is_tried
    each_way do |db|
      calls = Thread::Queue.new
      db.udf(:stuck, "(x BIGINT) -> BIGINT", timeout: 60) { |x| (calls << x) && sleep }
      thread = Thread.new { db.value("SELECT count(TRY(stuck(i))) FROM range(1000000000000000) r(i)") }
      thread.report_on_exception = false
      calls.pop
      thread.raise(IOError, "enough")
      assert_equal "enough", assert_raises(IOError) { thread.value }.message
      assert_equal 1, db.value("SELECT 1")
    end
  end

  def test_a_signal_handler_that_returns_lets_the_query_go_on
    each_way do |db|
      db.udf(:nap, "(x BIGINT) -> BIGINT") { |x| (x % 1000).zero? ? sleep(0.001) && x : x }
      handled = false
      old = trap("USR1") { handled = true }
      signal = Thread.new do
        sleep 0.05
        Process.kill("USR1", Process.pid)
      end
      assert_equal 124_999_750_000, db.value("SELECT sum(nap(x))::BIGINT FROM numbers")
      # Without a handler, the signal would end the program.
      signal.join
      trap("USR1", old)
      assert handled
    end
  end

  def test_a_killed_query_stops
    each_way do |db|
      calls = 0
      db.udf(:stuck, "(x BIGINT) -> BIGINT") { |_x| (calls += 1) && sleep }
      thread = Thread.new { db.value("SELECT sum(stuck(x)) FROM numbers") }
      eventually { calls.positive? }
      thread.kill.join
      # DuckDB's threads may release a query shortly after its end.
      eventually { Crosslane::Host.lanes[:busy].zero? }
      before = calls
      assert_equal 1, db.value("SELECT 1")
      assert_equal before, calls
    end
  end

  def test_ensure_clauses_of_a_block_run
    db = numbers
    begun = Thread::Queue.new
    cleaned = 0
    db.udf(:careful, "(x BIGINT) -> BIGINT") do |_x|
      begun << 1
      sleep
    ensure
      cleaned += 1
    end
    # On a slow machine, the query ends before it calls the block. So the time grows.
    patience = 0.1
    while begun.empty?
      patience *= 2
      assert_raises(Timeout::Error) { Timeout.timeout(patience) { db.value("SELECT sum(careful(x)) FROM numbers") } }
    end
    eventually { cleaned.positive? }
  end

  def test_the_wait_of_an_idle_lane_ends_at_once
    db = numbers
    db.udf(:id, "(x BIGINT) -> BIGINT") { |x| x }
    db.value("SELECT sum(id(x)) FROM numbers")
    lanes = Thread.list.select { |thread| thread.name&.start_with?("crosslane-lane-") }
    refute_empty lanes
    # No call is under way in these lanes, so nothing else would end their wait.
    lanes.each(&:kill).each(&:join)
    eventually { Crosslane::Host.lanes[:busy].zero? }
    assert_equal 3, db.value("SELECT id(3)")
  end

  def test_a_call_with_constants_is_left_as_any_other
    db = open
    calls = 0
    db.udf(:leaves, "(x BIGINT) -> BIGINT") { |x| (calls += 1) && (x == 1 ? throw(:out, 7) : raise(IOError, "why")) }
    assert_equal(7, catch(:out) { db.value("SELECT leaves(1)") })
    calls = 0
    assert_equal "why", assert_raises(IOError) { db.value("SELECT leaves(2)") }.message
    assert_equal 1, calls
    assert_raises(IOError) { db.value("SELECT leaves(2)") }
  end

  # With a timeout, the block runs on a lane while the query is planned. Without one, it runs on the
  # query's own thread. DuckDB calls the function while it plans each of these queries. The last two
  # queries do not need the result.
  def each_constant(call)
    each_way do |db|
      [{}, { timeout: 50 }].each do |options|
        unneeded = ->(what) { "SELECT CASE WHEN x < 0 THEN #{what} END FROM numbers" }
        ["SELECT #{call}", "SELECT x FROM numbers WHERE x = #{call} LIMIT 1", unneeded[call],
         unneeded[call.sub("1", "?")]].each do |sql|
          query = -> { db.query(sql, *([1] if sql.include?("?"))).to_a }
          yield db, options, query
          assert_equal 1, db.value("SELECT 1")
        end
      end
    end
  end

  def test_what_leaves_a_call_with_constants_is_not_lost
    each_constant("ends(1)") do |db, options, query|
      calls = 0
      how = nil
      db.udf(:ends, "(x BIGINT) -> BIGINT", **options) { |_x| (calls += 1) && how.call }
      once = lambda do |ending, &check|
        calls = 0
        how = ending
        check.call
        assert_equal 1, calls, "the block was called again"
      end
      once.call(-> { exit(7) }) { assert_equal 7, assert_raises(SystemExit, &query).status }
      leaving = Class.new { def inspect = exit(7) }.new
      once.call(-> { leaving }) { assert_equal 7, assert_raises(SystemExit, &query).status }
      once.call(-> { throw(:out, 7) }) { assert_equal(7, catch(:out) { query.call }) }
      once.call(-> { raise Interrupt }) { assert_raises(Interrupt, &query) }
    end
  end

  def test_what_ends_a_query_that_waits_for_a_call_with_constants_is_not_lost
    each_constant("waits(1)") do |db, options, query|
      calls = Thread::Queue.new
      db.udf(:waits, "(x BIGINT) -> BIGINT", **options) { |_x| (calls << 1) && sleep }
      once = lambda do |act, &check|
        asker = Thread.current
        actor = Thread.new { calls.pop && act.call(asker) }
        check.call
        actor.join
        assert_empty calls, "the block was called again"
      end
      own = Class.new(StandardError)
      once.call(->(asker) { asker.raise(own) }) { assert_raises(own, &query) } if options[:timeout]
      once.call(->(_) { Process.kill("INT", Process.pid) }) { assert_raises(Interrupt, &query) }
      killed = Thread.new(&query)
      calls.pop
      assert_nil killed.tap(&:kill).value
      assert_empty calls
      # On a slow machine, the query ends before it calls the block. So the time grows.
      patience = 0.05
      while calls.empty?
        patience *= 2
        assert_raises(Timeout::Error) { Timeout.timeout(patience) { query.call } }
      end
      assert_equal 1, calls.size
    end
  end
end
