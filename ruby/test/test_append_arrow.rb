# frozen_string_literal: true

require_relative "helper"
require "fiddle"

# Arrow C streams as rows of a table: those of results, and those of a producer in Ruby.
class TestAppendArrow < CrosslaneTest
  TYPES = {
    "BOOLEAN" => "i % 2 = 0", "TINYINT" => "i % 100", "BIGINT" => "i", "UBIGINT" => "i", "HUGEINT" => "i",
    "DOUBLE" => "i / 2", "DECIMAL(20, 3)" => "i / 8", "VARCHAR" => "repeat('ä', i % 20)", "BLOB" => "i::VARCHAR",
    "DATE" => "DATE '2024-01-01' + (i % 1000)::INTEGER", "TIMESTAMP" => "make_timestamp(i)", "UUID" => "uuid()",
    "TIMESTAMPTZ" => "to_timestamp(i)", "TIME" => "make_time(i % 24, 0, 0)", "INTERVAL" => "to_days(i % 9)",
    "ENUM('a', 'b')" => "['a', 'b', NULL][i % 3 + 1]", "BIGINT[]" => "range(i % 5)",
    "STRUCT(e ENUM('c', 'd'))" => "{e: ['c', NULL, 'd'][i % 3 + 1]}", "VARCHAR[2]" => "[i::VARCHAR, NULL]",
    "STRUCT(a BIGINT, b VARCHAR[])" => "{a: i, b: ['x', NULL]}", "MAP(VARCHAR, BIGINT)" => "MAP {'k': i}",
    "UNION(n BIGINT, s VARCHAR)" => "i"
  }.freeze

  def test_every_type_of_a_result
    db = open
    columns = TYPES.keys.each_with_index.map { |type, index| "c#{index} #{type}" }
    %w[from into].each { |name| db.query("CREATE TABLE #{name}_table (#{columns.join(", ")})") }
    [5, 2500, 5].each do |count|
      db.query("INSERT INTO from_table SELECT #{TYPES.values.join(", ")} FROM range(#{count}) r(i)")
      db.query("INSERT INTO from_table (c1) SELECT 1 FROM range(#{count})")
    end
    db.query("FROM from_table").arrow_stream { |address| assert_equal 5020, db.append_arrow("into_table", address) }
    assert_equal db.query("FROM from_table").to_a, db.query("FROM into_table").to_a
  end

  def test_columns_that_are_cast_or_missing
    db = open
    db.query("CREATE SCHEMA s")
    db.query("CREATE TABLE s.t (id VARCHAR, n SMALLINT, name VARCHAR DEFAULT 'none')")
    ask = ->(sql, **options) { db.query(sql).arrow_stream { |address| db.append_arrow("s.t", address, **options) } }
    assert_equal 3, ask.call("SELECT i::BIGINT, i FROM range(3) r(i)", columns: %w[n id])
    assert_equal [["0", 0, "none"], ["1", 1, "none"], ["2", 2, "none"]], db.query("FROM s.t").to_a
    assert_equal 0, ask.call("SELECT 1, 2, 3 WHERE false")
    error = assert_raises(Crosslane::Error) { ask.call("SELECT 1") }
    assert_match(/expected 3, got 1/, error.message)
    error = assert_raises(Crosslane::Error) { ask.call("SELECT 'a', 100000, 'b'") }
    assert_match(/SMALLINT/, error.message)
    assert_raises(Crosslane::Error) { ask.call("SELECT 1, 2, 3", columns: ["other"]) }
    assert_equal 3, db.value("SELECT count(*) FROM s.t")
    db.query("SELECT '9', 9, 'nine'").arrow_stream do |address|
      db.append_arrow("s.t", address)
      error = assert_raises(Crosslane::Error) { db.append_arrow("s.t", address) }
      assert_match(/it was released already/, error.message)
    end
    assert_match(/no Arrow stream/, assert_raises(Crosslane::Error) { db.append_arrow("s.t", 0) }.message)
    assert_raises(IndexError) do
      db.transaction do
        ask.call("SELECT '9', 9, 'nine'")
        raise IndexError
      end
    end
    assert_equal 4, db.value("SELECT count(*) FROM s.t")
  end

  def test_lists_of_dictionaries
    db = open
    db.query("CREATE TABLE t (x VARCHAR[])")
    ["ENUM('a')[]", "STRUCT(e ENUM('a'))[]", "ENUM('a')[2]", "MAP(BIGINT, ENUM('a'))"].each do |type|
      error = assert_raises(Crosslane::Error) do
        db.query("SELECT NULL::#{type}").arrow_stream { |address| db.append_arrow("t", address) }
      end
      assert_match(/cannot read dictionaries .* in lists; cast them/, error.message)
    end
  end

  # A stream of arrays of one BIGINT and one VARCHAR column, made by Ruby.
  class Producer
    attr_reader :released

    # @param arrays [Array<Array>] the rows of each; those before `offset` are none
    def initialize(arrays, offset: 0, columns: 2, &before)
      @arrays = arrays
      @offset = offset
      @columns = columns
      @before = before
      @kept = []
      @released = Hash.new(0)
      @stream = structure(closure(:schema), closure(:array), closure(:error), release(:stream, 24), 0)
    end

    def to_i = @stream.to_i

    private

    def keep(pointer) = @kept.push(pointer).last

    def structure(*words)
      keep(Fiddle::Pointer.malloc(8 * words.size, Fiddle::RUBY_FREE)).tap do |memory|
        memory[0, 8 * words.size] = words.map(&:to_i).pack("q*")
      end
    end

    def text(bytes) = keep(Fiddle::Pointer[bytes.b])

    def closure(name)
      arity = name == :error ? 1 : 2
      result = name == :error ? Fiddle::TYPE_VOIDP : Fiddle::TYPE_INT
      keep(Fiddle::Closure::BlockCaller.new(result, [Fiddle::TYPE_VOIDP] * arity) { |_stream, out| send(name, out) })
    end

    def release(what, place)
      keep(Fiddle::Closure::BlockCaller.new(Fiddle::TYPE_VOID, [Fiddle::TYPE_VOIDP]) do |address|
        @released[what] += 1
        Fiddle::Pointer.new(address.to_i)[place, 8] = "\0" * 8
      end)
    end

    def error(_out) = text("the producer has no more\0").to_i

    def schema(out)
      formats = %w[l u].first(@columns)
      children = formats.map do |format|
        structure(text("#{format}\0"), text("c\0"), 0, 2, 0, 0, 0, release(:child, 56), 0)
      end
      words = [text("+s\0"), text("\0"), 0, 0, @columns, structure(*children), 0, release(:schema, 56), 0]
      Fiddle::Pointer.new(out.to_i)[0, 72] = words.map(&:to_i).pack("q*")
      0
    end

    def array(out)
      rows = @arrays.shift
      @before&.call(rows)
      return 5 if rows == :fail

      words = [0] * 10
      if rows
        all = [[-1, "no row"]] * @offset + rows
        children = [column(all.map(&:first)) { |values| [values.map(&:to_i).pack("q*")] },
                    column(all.map(&:last)) { |values| texts(values.map(&:to_s)) }]
        words = [rows.size, 0, @offset, 1, 2, structure(0), structure(*children), 0, release(:array, 64), 0]
      end
      Fiddle::Pointer.new(out.to_i)[0, 80] = words.map(&:to_i).pack("q*")
      0
    end

    def column(values)
      valid = [values.map { |value| value ? "1" : "0" }.join].pack("b*") + "\0" * 8
      buffers = [valid, *yield(values)].map { |bytes| text(bytes) }
      structure(values.size, values.count(nil), 0, buffers.size, 0, structure(*buffers), 0, 0, release(:child, 64), 0)
    end

    def texts(values)
      ends = values.reduce([0]) { |known, value| known << (known.last + value.bytesize) }
      [ends.pack("l*"), "#{values.join} "]
    end
  end

  def rows(count, from = 0)
    Array.new(count) { |i| [(from + i if i % 5 != 2), (i % 3 == 1 ? nil : "text #{from + i}" * (i % 4))] }
  end

  def table(threads: 2)
    db = open(threads: threads)
    db.query("CREATE TABLE t (n BIGINT, word VARCHAR)")
    db
  end

  def test_arrays_that_are_longer_than_a_vector_or_begin_later
    db = table
    [0, 1, 3, 8, 2049].each do |offset|
      arrays = [rows(5000), [], rows(1, 7000), rows(2048, 8000), rows(2049, 20_000)]
      producer = Producer.new(arrays.dup, offset: offset)
      assert_equal arrays.sum(&:size), db.append_arrow("t", producer)
      assert_equal arrays.flatten(1), db.query("FROM t").to_a, "offset #{offset}"
      assert_equal [1, 1, 5], producer.released.values_at(:stream, :schema, :array)
      db.query("DELETE FROM t")
    end
  end

  def test_a_stream_that_fails
    db = table
    producer = Producer.new([rows(10), :fail])
    error = assert_raises(Crosslane::Error) { db.append_arrow("t", producer) }
    assert_equal "the producer has no more", error.message
    assert_equal [1, 1, 1], producer.released.values_at(:stream, :schema, :array)
    producer = Producer.new([rows(10)], columns: 1)
    error = assert_raises(Crosslane::Error) { db.append_arrow("t", producer, columns: ["n"]) }
    assert_match(/an array of 2 columns where its schema has 1/, error.message)
    assert_equal [1, 1, 1], producer.released.values_at(:stream, :schema, :array)
    assert_equal 0, db.value("SELECT count(*) FROM t")
  end

  def test_a_producer_may_ask_the_database_and_other_threads_run
    db = table
    asked = []
    gate = Thread::Queue.new
    other = Thread.new { gate.pop && db.value("SELECT 7") }
    producer = Producer.new([rows(3), rows(3)]) do |made|
      gate << 1
      asked << other.value << db.value("SELECT count(*) FROM t") if made
      GC.start
    end
    assert_equal 6, db.append_arrow("t", producer)
    assert_equal [7, 0, 7, 0], asked
  end

  def test_a_thread_that_is_killed_and_a_database_that_is_closed
    db = table
    reached = Thread::Queue.new
    endless = Producer.new(Enumerator.produce { rows(100) }) { reached << 1 }
    endless.instance_variable_get(:@arrays).define_singleton_method(:shift) { self.next }
    thread = Thread.new { db.append_arrow("t", endless) }
    3.times { reached.pop }
    assert_nil thread.tap(&:kill).value
    assert_equal 1, endless.released[:stream]
    thread = Thread.new { db.append_arrow("t", Producer.new([rows(3)]) { |made| made ? db.close : nil }) }
    thread.report_on_exception = false
    # What is at work ends first.
    assert_equal 3, thread.value
    assert_match(/closed/, assert_raises(Crosslane::Error) { db.append_arrow("t", Producer.new([])) }.message)
  end

  def test_under_a_stressed_collector
    db = table
    producer = Producer.new([rows(1)])
    GC.stress = true
    count = db.append_arrow("t", producer)
    GC.stress = false
    assert_equal [1, rows(1)], [count, db.query("FROM t").to_a]
  ensure
    GC.stress = false
  end
end
