# frozen_string_literal: true

require_relative "../helper"

# Rows that are made while they are read.
class TestStream < CrosslaneTest
  ENDLESS = "SELECT i FROM range(1000000000000000) r(i)"
  # An endless query without further rows after the first ones.
  BARREN = "#{ENDLESS} WHERE i < 100000".freeze

  # DuckDB yields no row before its buffer is full.
  def stream(db, sql, &block)
    db.query("SET streaming_buffer_size = '10KB'")
    db.stream(sql, &block)
  end

  def each_way
    [1, 4].each { |threads| yield open(threads: threads) }
  end

  def test_rows
    each_way do |db|
      rows = db.enum_for(:stream, "SELECT i, 'n' || i FROM range(?) r(i)", 10_000).to_a
      assert_equal Array.new(10_000) { |i| [i, "n#{i}"] }, rows
      assert_same db, db.stream("SELECT 1 WHERE false") { flunk }
      assert_equal [[7]], db.stream("CREATE TABLE t AS SELECT 7 AS x; FROM t").to_a
      assert_equal [[1]], db.stream("INSERT INTO t VALUES (8)").to_a
      assert_equal [[8]], db.stream("FROM t WHERE x = $x", { x: 8 }).to_a
      assert_raises(Crosslane::Error) { db.stream("FROM nowhere").to_a }
      error = assert_raises(Crosslane::Error) { db.stream("SELECT error('at ' || i) FROM range(3, 9) r(i)").to_a }
      assert_match(/at 3/, error.message)
    end
  end

  def test_memory_is_that_of_a_few_chunks
    peak = forked do
      db = Crosslane.open(config: { threads: 2 })
      db.stream("SELECT i, repeat('x', 100) FROM range(3000) r(i)") { |_| nil }
      read = -> { File.read("/proc/self/status")[/VmHWM:\s*(\d+)/, 1].to_i }
      before = read.call
      sum = 0
      db.stream("SELECT i, repeat('x', 100) || i FROM range(3000000) r(i)") { |i, text| sum += i + text.size }
      [sum, read.call - before]
    end
    # The rows take 330 MB in DuckDB, and more in Ruby.
    assert_equal (2_999_999 * 1_500_000) + 300_000_000 + (0...3_000_000).sum { |i| i.to_s.size }, peak.first
    assert_operator peak.last, :<, 100_000
  end

  def test_a_block_that_is_left_ends_the_query
    each_way do |db|
      seen = 0
      db.udf(:see, "(x BIGINT) -> BIGINT") { |x| (seen = x) }
      assert_equal [[0], [1], [2]], db.stream("#{ENDLESS} WHERE see(i) >= 0").first(3)
      before = seen
      assert_equal 1, db.value("SELECT 1")
      assert_equal(:out, catch(:found) { db.stream(ENDLESS) { throw :found, :out } })
      assert_raises(IndexError) { db.stream(ENDLESS) { raise IndexError } }
      assert_equal before, seen
    end
  end

  def test_a_stream_in_a_transaction
    each_way do |db|
      db.query("CREATE TABLE t AS FROM range(100000) r(i)")
      db.transaction do
        db.query("DELETE FROM t WHERE i >= 50000")
        assert_equal 50_000, db.stream("FROM t").count
        assert_equal [[0]], db.stream("FROM t").first(1)
        # Another connection sees only committed data.
        assert_equal [100_000], db.stream("FROM t").lazy.map { db.value("SELECT count(*) FROM t") }.first(1)
        db.query("INSERT INTO t VALUES (-1)")
      end
      assert_equal 50_001, db.value("SELECT count(*) FROM t")
    end
  end

  def test_exceptions_of_blocks_arrive_as_themselves
    each_way do |db|
      raised = IndexError.new("no")
      db.udf(:fail, "(x BIGINT) -> BIGINT") { |x| x == 300_000 ? raise(raised) : x }
      count = 0
      error = assert_raises(IndexError) { stream(db, "SELECT fail(i) FROM range(500000) r(i)") { count += 1 } }
      assert_same raised, error
      assert_operator count, :>, 0
      db.udf(:thrower, "(x BIGINT) -> BIGINT") { |x| x == 300_000 ? throw(:out, x) : x }
      assert_equal(300_000, catch(:out) { db.stream("SELECT thrower(i) FROM range(500000) r(i)") { nil } })
      assert_equal 3, db.stream("SELECT fail(i) FROM range(3) r(i)").count
    end
  end

  def test_what_ends_the_program_or_its_thread_ends_a_wait_for_rows
    each_way do |db|
      db.udf(:stuck, "(x BIGINT) -> BIGINT") { |x| x < 100_000 ? x : sleep }
      [BARREN, "#{ENDLESS} WHERE stuck(i) >= 0"].each do |sql|
        @last = nil
        read = -> { stream(db, sql) { |(i)| @last = i } }
        # On a slow machine, the query ends before its first rows. So the time grows.
        patience = 0.1
        until @last&.positive?
          patience *= 2
          assert_raises(Timeout::Error) { Timeout.timeout(patience) { read.call } }
        end
        @last = nil
        signal = Thread.new do
          sleep 0.01 until @last
          sleep 0.2
          Process.kill("INT", Process.pid)
        end
        assert_raises(Interrupt, &read)
        signal.join
        @last = nil
        thread = Thread.new(&read)
        eventually { @last }
        assert_nil thread.kill.value
        assert_equal 1, db.value("SELECT 1")
      end
    end
  end

  def test_a_signal_handler_that_returns_lets_the_query_go_on
    db = open
    handled = false
    old = trap("USR1") { handled = true }
    signal = Thread.new { sleep(0.05) && Process.kill("USR1", Process.pid) }
    sum = 0
    db.stream("SELECT i FROM range(2000000) r(i) WHERE i % 1000 = 0 OR sqrt(i) < 0") { |(i)| sum += i }
    signal.join
    assert_equal 1_999_000_000, sum
    assert handled
  ensure
    trap("USR1", old)
  end

  def test_a_database_that_is_closed_in_the_midst
    Dir.mktmpdir do |folder|
      path = File.join(folder, "x.duckdb")
      db = open(path: path)
      error = assert_raises(Crosslane::Error) { db.stream(ENDLESS) { db.close } }
      assert_match(/the database is closed/, error.message)
      db = open(path: path)
      # Another thread closes it while this one waits for rows.
      started = Thread::Queue.new
      reader = Thread.new { assert_raises(Crosslane::Error) { stream(db, BARREN) { |(i)| started << i } } }
      started.pop
      db.close
      reader.raise(Crosslane::Error, "enough")
      assert reader.value
      refute_includes Dir["/proc/self/fd/*"].map { |fd| File.exist?(fd) && File.readlink(fd) }, path
    end
  end

  def test_states_of_aggregates_end_with_their_stream
    db = open
    db.aggregate(:total, "(x BIGINT) -> BIGINT", combine: ->(a, b) { a + b }) { |sum, x| (sum || 0) + x }
    sql = "SELECT total(i) FROM range(100000) r(i) GROUP BY i % 50000"
    assert_equal 100_000 * 99_999 / 2, db.stream(sql).sum(&:first)
    assert_no_states
    db.stream(sql) { break }
    assert_equal 1, db.value("SELECT 1")
    assert_no_states
  end
end
