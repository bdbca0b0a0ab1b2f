# frozen_string_literal: true

require_relative "../helper"

# Objects that threads, fibers and several databases of a program share.
class TestSharing < CrosslaneTest
  def test_a_statement_that_threads_share_gives_each_its_own_rows
    db = open
    db.udf(:slowly, "(x BIGINT) -> BIGINT", deterministic: false) { |x| Thread.pass || x }
    statement = db.prepare("SELECT slowly(?::BIGINT + i) FROM range(3000) r(i)")
    threads = Array.new(6) do |n|
      Thread.new do
        Array.new(5) do |round|
          statement.query(n * 10_000 + round).to_a == (0...3000).map do |i|
                                                        [n * 10_000 + round + i]
                                                      end
        end
      end
    end
    assert_equal [true] * 30, threads.flat_map(&:value)
  end

  def test_a_statement_in_a_block_of_itself
    # The block runs on the query's own thread; on a lane because of the timeout; or on the lanes of
    # several DuckDB threads.
    [[1, {}], [1, { timeout: 50 }], [4, {}]].each do |threads, options|
      db = open(threads: threads)
      statement = nil
      again = ->(x) { x.zero? ? 0 : 1 + statement.query(x - 1).first.first }
      db.udf(:again, "(x BIGINT) -> BIGINT", deterministic: false, **options, &again)
      db.table(:rows, "(x BIGINT) -> (x BIGINT)") { |x| [[again.call(x)]] }
      db.aggregate(:total, "(x BIGINT) -> BIGINT", combine: ->(a, b) { a + b }) { |sum, x| (sum || 0) + again.call(x) }
      ["SELECT again(?::BIGINT)", "FROM rows(?::BIGINT)", "SELECT total(?::BIGINT)"].each do |sql|
        statement = db.prepare(sql)
        assert_equal 3, statement.query(3).first.first, sql
      end
    end
  end

  def test_a_query_in_a_block_while_rows_of_the_same_statement_are_read
    db = open(threads: 1)
    statement = db.prepare("SELECT i FROM range(5000) r(i)")
    seen = statement.query.first(3000).map { |(i)| statement.query.first(i + 1).last.first }
    assert_equal (0...3000).to_a, seen
  end

  def test_a_result_that_threads_share_gives_each_all_rows
    result = open.query("SELECT ('{\"n\":' || i || '}')::JSON FROM range(20000) r(i)")
    sums = Array.new(4) { Thread.new { result.sum { |(object)| object["n"] } } }
    assert_equal [19_999 * 10_000] * 4, sums.map(&:value)
  end

  def test_results_of_one_type_share_its_objects
    db = open
    values = Array.new(300) { |n| "'shared#{n}'" }.join(",")
    db.query("CREATE TYPE kind AS ENUM (#{values})")
    50.times { assert_equal "shared7", db.query("SELECT {'x': 'shared7'::kind} AS s").first.first.x }
    GC.start
    shared = ObjectSpace.each_object(Array).count { |array| array.size == 300 && array.first == "shared0" }
    assert_operator shared, :<, 10
  end

  def test_fibers_leave_the_connection_to_the_thread
    db = open(threads: 1)
    db.udf(:pause, "(x BIGINT) -> BIGINT", deterministic: false) { |x| Fiber.yield || x }
    db.query("CREATE TEMP TABLE mine AS SELECT 5 AS x")
    fibers = [1, 2].map { |n| Fiber.new { db.value("SELECT pause(?)", n) } }
    fibers.each(&:resume)
    assert_equal [1, 2], fibers.map(&:resume)
    assert_equal 5, db.value("FROM mine")
  end

  def test_a_block_that_appends_sees_its_transaction
    db = open
    db.query("CREATE TABLE t (x BIGINT)")
    db.query("CREATE TABLE copy (x BIGINT)")
    db.transaction do
      db.query("INSERT INTO t FROM range(5000)")
      assert_equal 5000, db.append("copy") { |rows| db.query("FROM t").each { |row| rows << row } }
      assert_equal 5000, db.value("SELECT count(*) FROM copy")
    end
    db.udf(:copied, "(x BIGINT) -> BIGINT", deterministic: false) { |x| @rows << [x] && x }
    db.append("copy") do |rows|
      @rows = rows
      db.query("SELECT sum(copied(x)) FROM t")
    end
    assert_equal [10_000, 4999 * 5000], db.query("SELECT count(*), sum(x)::BIGINT FROM copy").first
    error = assert_raises(Crosslane::Error) { db.append("copy", ([[1]] * 3000) + [["x"]]) }
    assert_match(/row 3001, column 1/, error.message)
  end

  def test_an_appender_does_not_end_in_the_midst_of_a_query
    db = open(threads: 1)
    db.query("CREATE TABLE t (x BIGINT)")
    db.udf(:pause, "(x BIGINT) -> BIGINT", deterministic: false) { |x| Fiber.yield || x }
    appending = Fiber.new { db.append("t") { |rows| Fiber.yield(rows << [1]) } }
    appending.resume
    querying = Fiber.new { db.value("SELECT pause(7)") }
    querying.resume
    error = assert_raises(Crosslane::Error) { appending.resume }
    assert_match(/a query is at work/, error.message)
    assert_equal 7, querying.resume
  end

  def test_closing_frees_the_file_at_once
    Dir.mktmpdir do |folder|
      path = File.join(folder, "x.duckdb")
      db = open(path: path)
      db.query("CREATE TABLE t AS FROM range(5000) r(x)")
      used = [rows = db.query("FROM t"), statement = db.prepare("FROM t"), statement.query, db.query("FROM t").each]
      other = Thread.new { db.query("FROM t") }.value
      db.append("t") do |to|
        to << [1]
        db.close
        assert_raises(Crosslane::Error) { to << [2] }
      end
      refute_includes Dir["/proc/self/fd/*"].map { |fd| File.exist?(fd) && File.readlink(fd) }, path
      [rows, other].each { |left| assert_match(/closed/, assert_raises(Crosslane::Error) { left.to_a }.message) }
      assert_match(/closed/, assert_raises(Crosslane::Error) { statement.query }.message)
      assert_equal 4, used.size
      assert_equal 5000, open(path: path, threads: 2).value("SELECT count(*) FROM t")
    end
  end

  def test_databases_of_one_file_share_it
    Dir.mktmpdir do |folder|
      path = File.join(folder, "x.duckdb")
      File.symlink(folder, link = "#{folder}.link")
      first = open(path: path)
      first.query("CREATE TABLE t (x BIGINT)")
      second = open(path: File.join(link, "x.duckdb"))
      first.udf(:fail, "(x BIGINT) -> BIGINT") { |_| raise IndexError }
      second.append("t", Array.new(100_000) { |n| [n] })
      first.query("INSERT INTO t VALUES (1)")
      assert_equal 100_001, second.value("SELECT count(*) FROM t")
      assert_raises(IndexError) { second.query("SELECT fail(x) FROM t") }
      first.close
      assert_equal 100_001, second.value("SELECT count(*) FROM t")
      error = assert_raises(Crosslane::Error) { open(path: path, threads: 3) }
      assert_match(/different configuration/, error.message)
      assert_match(/lock/, forked { open(path: path).value("SELECT 1") })
      second.close
      assert_equal 100_001, open(path: path, threads: 3).value("SELECT count(*) FROM t")
    ensure
      File.unlink(link) if link
    end
  end
end
