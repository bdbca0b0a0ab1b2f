# frozen_string_literal: true

require_relative "helper"
require "fiddle"

class TestDatabase < CrosslaneTest
  def test_rows
    result = open.query("SELECT i, 'n' || i AS name FROM range(5000) r(i)")
    assert_equal %w[i name], result.names
    assert_equal %w[BIGINT VARCHAR], result.types
    assert_equal [0, "n0"], result.first
    assert_equal 5000, result.count
    assert_equal [4999, "n4999"], result.to_a.last
    assert_equal({ i: 3, name: "n3" }, result.each_hash.to_a[3])
    assert_equal [0, 1], result.columns["i"].first(2)
  end

  def test_rows_are_made_as_they_are_read
    rows = open.query("SELECT i FROM range(1000000) r(i)").each
    assert_equal [[0], [1]], [rows.next, rows.next]
  end

  def test_values_of_all_kinds
    row = open.query(<<~SQL).first
      SELECT true, 1::TINYINT, 170141183460469231731687303715884105727::HUGEINT, 1.5::DOUBLE, 12.34::DECIMAL(5,2),
             'é', 'a\\x00b'::BLOB, DATE '1582-10-04', TIME '12:34:56.789', TIMESTAMP '2024-02-29 12:00:00.000001',
             INTERVAL '1 month 2 days 3 seconds', uuid '00112233-4455-6677-8899-aabbccddeeff',
             [1, NULL], {'a': 1, 'b': 'x'}, MAP {'k': [1]}, NULL
    SQL
    assert_equal [true, 1, (2**127) - 1, 1.5, BigDecimal("12.34"), "é", "a\0b".b], row[0..6]
    assert_equal Date.jd(Date.new(1582, 10, 15).jd - 11, Date::GREGORIAN), row[7]
    assert_equal Crosslane::TimeOfDay.at(12, 34, 56, 789_000), row[8]
    assert_equal Time.utc(2024, 2, 29, 12, 0, 0, 1), row[9]
    assert_equal Crosslane::Interval.new(1, 2, 3_000_000), row[10]
    assert_equal "00112233-4455-6677-8899-aabbccddeeff", row[11]
    assert_equal [[1, nil], { a: 1, b: "x" }, { "k" => [1] }, nil], [row[12], row[13].to_h, row[14], row[15]]
    assert_equal Encoding::UTF_8, row[5].encoding
    assert_equal Encoding::BINARY, row[6].encoding
  end

  def test_parameters_come_back
    db = open
    values = [
      nil, true, -5, 2**100, 2**127, 1.5, "text", "\xFF\x00".b, :symbol.to_s, Date.new(2024, 2, 29),
      Time.utc(2024, 2, 29, 1, 2, 3, 4), Crosslane::TimeOfDay.at(1, 2), Crosslane::Interval.new(1, 2, 3),
      [1, 2, nil], [[1], []], [1, 2.5], { "a" => 1 }
    ]
    values.each do |value|
      returned = db.value("SELECT ?", value)
      value.nil? ? assert_nil(returned) : assert_equal(value, returned)
    end
    assert_equal({ a: 1, b: ["x"] }, db.value("SELECT ?", { a: 1, b: ["x"] }).to_h)
    assert_equal BigDecimal("1.25"), db.value("SELECT ?::DECIMAL(5,2)", BigDecimal("1.25"))
    time = Time.at(0, 1, :nsec).utc
    assert_equal time, db.value("SELECT x FROM (SELECT ?::TIMESTAMP_NS AS x)", time)
  end

  def test_named_parameters
    db = open
    assert_equal 3, db.value("SELECT $a + $b", { a: 1, "b" => 2 })
    error = assert_raises(Crosslane::Error) { db.value("SELECT $a", { b: 1 }) }
    assert_match(/no parameter b; it has a/, error.message)
    error = assert_raises(Crosslane::Error) { db.value("SELECT ?, ?", 1) }
    assert_match(/2 parameters, and 1 were given/, error.message)
    error = assert_raises(Crosslane::Error) { db.value("SELECT ?", Object.new) }
    assert_match(/Object cannot be a parameter/, error.message)
  end

  def test_several_statements
    assert_equal 7, open.value("CREATE TABLE t (x INT); INSERT INTO t VALUES (3), (4); SELECT sum(x)::INT FROM t")
  end

  def test_prepared_statements
    statement = open.prepare("SELECT ?::INT * 2")
    assert_equal([2, 4], [1, 2].map { |n| statement.query(n).first.first })
  end

  def test_errors_are_duckdbs_words
    error = assert_raises(Crosslane::Error) { open.query("SELECT nothing FROM nowhere") }
    assert_match(/Catalog Error: Table with name nowhere/, error.message)
    assert_raises(Crosslane::Error) { open.query("") }
    assert_raises(Crosslane::Error) { Crosslane.open("/no/such/folder/x.duckdb") }
    error = assert_raises(Crosslane::Error) { Crosslane.open(config: { "no_such" => 1 }) }
    assert_match(/no_such/, error.message)
    error = assert_raises(Crosslane::Error) { open.query("SELECT '101'::BIT").to_a }
    assert_match(/BIT.*cast it/, error.message)
  end

  def test_transactions
    db = open
    db.query("CREATE TABLE t (x INT)")
    db.transaction { db.query("INSERT INTO t VALUES (1)") }
    assert_raises(RuntimeError) do
      db.transaction do
        db.query("INSERT INTO t VALUES (2)")
        db.transaction { raise "inside" }
      end
    end
    catch(:out) { db.transaction { db.query("INSERT INTO t VALUES (3)") && throw(:out) } }
    assert_equal [[1]], db.query("FROM t").to_a
  end

  def test_appending
    db = open
    db.query("CREATE TABLE t (name VARCHAR, moment TIMESTAMP, tags VARCHAR[], place STRUCT(x INT, y INT))")
    rows = Array.new(5000) { |i| ["n#{i}", Time.utc(2024), ["a", nil], { x: i, y: nil }] }
    assert_equal 5000, db.append("t", rows)
    assert_equal 1, (db.append("main.t") { |to| to << [nil, nil, nil, nil] })
    assert_equal [5001, 4999], db.query("SELECT count(*), max(place.x) FROM t").first
    error = assert_raises(Crosslane::Error) { db.append("t", [["a", 5, nil, nil]]) }
    assert_match(/row 1, column 2: got Integer 5 where TIMESTAMP is due/, error.message)
    assert_raises(Crosslane::Error) { db.append("t", [[1]]) }
    assert_raises(Crosslane::Error) { db.append("nowhere", []) }
    assert_equal 5001, db.value("SELECT count(*) FROM t")
  end

  def test_changed_rows
    db = open
    db.query("CREATE TABLE t (x INT)")
    assert_equal 3, db.query("INSERT INTO t VALUES (1), (2), (3)").changed
  end

  # Reads an Arrow C stream as its consumers do.
  def test_arrow_stream
    result = open.query("SELECT i::BIGINT AS i, 'x' AS s FROM range(3000) r(i)")
    lengths = result.arrow_stream do |address|
      stream = Fiddle::Pointer.new(address)
      functions = stream[0, 40].unpack("q5")
      next_array = Fiddle::Function.new(functions[1], [Fiddle::TYPE_VOIDP] * 2, Fiddle::TYPE_INT)
      schema = Fiddle::Pointer.malloc(72, Fiddle::RUBY_FREE)
      get_schema = Fiddle::Function.new(functions[0], [Fiddle::TYPE_VOIDP] * 2, Fiddle::TYPE_INT)
      assert_equal 0, get_schema.call(stream, schema)
      assert_equal "+s", Fiddle::Pointer.new(schema[0, 8].unpack1("q")).to_s
      lengths = []
      loop do
        array = Fiddle::Pointer.malloc(80, Fiddle::RUBY_FREE)
        assert_equal 0, next_array.call(stream, array)
        break if array[64, 8].unpack1("q").zero?

        lengths << array[0, 8].unpack1("q")
        Fiddle::Function.new(array[64, 8].unpack1("q"), [Fiddle::TYPE_VOIDP], Fiddle::TYPE_VOID).call(array)
      end
      Fiddle::Function.new(schema[56, 8].unpack1("q"), [Fiddle::TYPE_VOIDP], Fiddle::TYPE_VOID).call(schema)
      lengths
    end
    assert_equal [2048, 952], lengths
  end

  def test_files_and_closing
    Dir.mktmpdir do |folder|
      path = File.join(folder, "x.duckdb")
      Crosslane.open(path) { |db| db.query("CREATE TABLE t AS SELECT 42 AS x") }
      Crosslane.open(path) { |db| assert_equal 42, db.value("FROM t") }
    end
    db = open
    db.close
    db.close
    assert_predicate db, :closed?
    assert_raises(Crosslane::Error) { db.query("SELECT 1") }
  end

  def test_threads_share_a_database
    db = numbers(1000)
    sums = Array.new(8) { Thread.new { Array.new(20) { db.value("SELECT sum(x)::INT FROM numbers") } } }
    assert_equal [499_500] * 160, sums.flat_map(&:value)
  end

  def test_results_outlive_the_collector
    rows = 200.times.map { open(threads: 1).query("SELECT 'row', [1, 2]").first }
    GC.start
    assert_equal [["row", [1, 2]]], rows.uniq
  end
end
