# frozen_string_literal: true

require_relative "helper"

# What leaves a block, or a query, does what it means in Ruby, and stops the query: those here would never end.
class TestControlFlow < CrosslaneTest
  ENDLESS = "SELECT count(*) FROM range(1000000000000000) r(i) WHERE i % 7 = 3"

  # With one thread the block runs on the query's own thread, with four on lanes.
  def each_way
    [1, 4].each { |threads| yield numbers(500_000, threads: threads) }
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
    Thread.new do
      sleep 0.2
      Process.kill("INT", Process.pid)
    end
    assert_raises(Interrupt) { query.call }
  end

  def test_interrupt
    each_way do |db|
      db.udf(:stuck, "(x BIGINT) -> BIGINT") { |_x| sleep }
      interrupted(-> { db.value("SELECT sum(stuck(x)) FROM numbers") })
      interrupted(-> { db.value(ENDLESS) })
      assert_equal 1, db.value("SELECT 1")
    end
  end

  def test_a_signal_handler_that_returns_lets_the_query_go_on
    each_way do |db|
      db.udf(:nap, "(x BIGINT) -> BIGINT") { |x| (x % 1000).zero? ? sleep(0.001) && x : x }
      handled = false
      old = trap("USR1") { handled = true }
      Thread.new do
        sleep 0.05
        Process.kill("USR1", Process.pid)
      end
      assert_equal 124_999_750_000, db.value("SELECT sum(nap(x))::BIGINT FROM numbers")
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
      before = calls
      assert_equal 1, db.value("SELECT 1")
      assert_equal before, calls
    end
  end

  def test_ensure_clauses_of_a_block_run
    db = numbers
    cleaned = 0
    db.udf(:careful, "(x BIGINT) -> BIGINT") do |_x|
      sleep
    ensure
      cleaned += 1
    end
    assert_raises(Timeout::Error) { Timeout.timeout(0.2) { db.value("SELECT sum(careful(x)) FROM numbers") } }
    eventually { cleaned.positive? }
  end

  def test_the_wait_of_an_idle_lane_ends_at_once
    db = numbers
    db.udf(:id, "(x BIGINT) -> BIGINT") { |x| x }
    db.value("SELECT sum(id(x)) FROM numbers")
    lanes = Thread.list.select { |thread| thread.name&.start_with?("crosslane-lane-") }
    refute_empty lanes
    # Nobody calls them: nothing else would end their wait.
    lanes.each(&:kill).each(&:join)
    eventually { Crosslane::Host.lanes[:busy].zero? }
    assert_equal 3, db.value("SELECT id(3)")
  end
end
