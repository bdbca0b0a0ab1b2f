# frozen_string_literal: true

require_relative "../helper"
require "fiddle"

# Arrow C streams as rows of a table: streams of results, and streams of a producer in Ruby.
class TestAppendArrow < CrosslaneTest
  UNION = "UNION(n BIGINT, s VARCHAR)"
  DEEP = "STRUCT(x BIGINT, y UNION(k BIGINT, l ENUM('a', 'b')[]))"
  TYPES = {
    "BOOLEAN" => "i % 2 = 0", "TINYINT" => "i % 100", "SMALLINT" => "-i", "INTEGER" => "i", "BIGINT" => "i << 40",
    "UTINYINT" => "i % 200", "USMALLINT" => "i", "UINTEGER" => "i", "UBIGINT" => "i", "FLOAT" => "i / 3",
    "DOUBLE" => "i / 3", "DECIMAL(4, 1)" => "i % 100 / 8", "DECIMAL(9, 3)" => "-i / 8", "DECIMAL(18, 3)" => "i / 8",
    "DECIMAL(38, 3)" => "i / -8", "HUGEINT" => "i::HUGEINT * -100000000000000000000", "UHUGEINT" => "i",
    "VARCHAR" => "repeat('ä', i % 20)", "BLOB" => "i::VARCHAR::BLOB", "JSON" => "'{\"a\": [' || i || ']}'",
    "BIGNUM" => "(i::HUGEINT * -100000000000000000000)::BIGNUM", "DATE" => "DATE '2024-01-01' + (i % 1000)::INTEGER",
    "TIME" => "make_time(i % 24, 0, i % 60)", "TIME_NS" => "make_time(i % 24, 0, i % 60)",
    "TIMESTAMP" => "make_timestamp(i)", "TIMESTAMP_S" => "make_timestamp(i * 1000000)",
    "TIMESTAMP_MS" => "make_timestamp(i * 1000)", "TIMESTAMP_NS" => "make_timestamp_ns(i)",
    "TIMESTAMPTZ" => "to_timestamp(i)", "INTERVAL" => "to_days((i % 9)::INTEGER) + to_months((i % 5)::INTEGER)",
    "UUID" => "uuid()", "ENUM('a', 'b')" => "['a', 'b', NULL][i % 3 + 1]",
    "BIGINT[]" => "list_transform(range(i % 5), lambda x: nullif(x, 2))", "VARCHAR[2]" => "[i::VARCHAR, NULL]",
    "STRUCT(a BIGINT, b VARCHAR[])" => "{a: i, b: ['x', NULL]}", "MAP(VARCHAR, BIGINT)" => "MAP {'k': i, 'l': NULL}",
    "STRUCT(a STRUCT(b STRUCT(c BIGINT, d VARCHAR)))" =>
      "[NULL, {a: NULL}, {a: {b: NULL}}, {a: {b: {c: i, d: i::VARCHAR}}}][i % 4 + 1]",
    "ENUM('a', 'b')[]" => "list_transform(range(i % 7), lambda x: ['a', 'b', NULL][(x + i) % 3 + 1])",
    "STRUCT(e ENUM('c', 'd'))[]" => "[{e: ['c', NULL, 'd'][i % 3 + 1]}, NULL]",
    UNION => "CASE i % 3 WHEN 0 THEN i::#{UNION} WHEN 1 THEN i::VARCHAR::#{UNION} END",
    "MAP(ENUM('a', 'b'), #{DEEP})" =>
      "MAP {'a': {x: i, y: ['a', NULL]::ENUM('a', 'b')[]::UNION(k BIGINT, l ENUM('a', 'b')[])}, 'b': NULL}",
    "STRUCT(a BIGINT[2])[2]" => "[{a: [i, NULL]}, NULL]"
  }.freeze
  # Arrow keeps these types completely only with the lossless conversion.
  LOSSLESS = {
    "BIT" => "substr('1010101010110', 1, 1 + (i % 12)::INTEGER)",
    "TIMETZ" => "('0' || i % 9 || ':00:00+0' || i % 5)::TIMETZ",
    "HUGEINT" => "170141183460469231731687303715884105727 - i",
    "UHUGEINT" => "'340282366920938463463374607431768211455'::UHUGEINT - i::UHUGEINT"
  }.freeze
  VIEWS = {
    produce_arrow_string_view: true, arrow_output_list_view: true, arrow_large_buffer_size: true,
    arrow_output_version: "1.5"
  }.freeze

  # Arrays of several vectors, of NULLs, and of both.
  def there_and_back(types, config)
    db = Crosslane.open(config: config)
    types.each do |type, value|
      %w[from into].each { |name| db.query("CREATE OR REPLACE TABLE #{name}_table (x #{type})") }
      [5, 2500, 5].each do |count|
        db.query("INSERT INTO from_table SELECT #{value} FROM range(#{count}) r(i)")
        db.query("INSERT INTO from_table SELECT CASE WHEN i < 0 THEN #{value} END FROM range(#{count}) r(i)")
      end
      count = db.query("FROM from_table").arrow_stream { |address| db.append_arrow("into_table", address) }
      assert_equal 5020, count, type
      lost = %w[from_table into_table].permutation(2).map { |a, b| db.query("FROM #{a} EXCEPT ALL FROM #{b}").to_a }
      assert_equal [[], []], lost, "#{type} #{config}"
      assert_equal db.query("FROM from_table").to_a, db.query("FROM into_table").to_a, "#{type} #{config}"
    end
  ensure
    db&.close
  end

  def test_every_type_of_a_result
    there_and_back(TYPES, {})
  end

  def test_every_type_of_a_lossless_result
    there_and_back(TYPES.merge(LOSSLESS), { arrow_lossless_conversion: true })
  end

  def test_every_type_in_views
    there_and_back(TYPES.merge(LOSSLESS), { arrow_lossless_conversion: true, **VIEWS })
  end

  def test_all_columns_at_once
    db = open
    columns = TYPES.keys.each_with_index.map { |type, index| "c#{index} #{type}" }
    %w[from into].each { |name| db.query("CREATE TABLE #{name}_table (#{columns.join(", ")})") }
    db.query("INSERT INTO from_table SELECT #{TYPES.values.join(", ")} FROM range(7000) r(i)")
    db.query("FROM from_table").arrow_stream { |address| assert_equal 7000, db.append_arrow("into_table", address) }
    assert_empty db.query("FROM from_table EXCEPT ALL FROM into_table").to_a
    assert_equal 7000, db.value("SELECT count(*) FROM into_table")
  end

  def test_what_an_export_has_lost
    db = open
    db.query("CREATE TABLE bits (b BIT); CREATE TABLE nested (a BIGINT, b STRUCT(x BIT[])); CREATE TABLE h (x HUGEINT)")
    ask = ->(sql, table) { db.query(sql).arrow_stream { |address| db.append_arrow(table, address) } }
    error = assert_raises(Crosslane::Error) { ask.call("SELECT '101'::BIT AS given", "bits") }
    assert_match(/column 1 \(given\): BLOB of Arrow cannot become BIT: SET arrow_lossless_conversion/, error.message)
    error = assert_raises(Crosslane::Error) { ask.call("SELECT 1, {x: ['101'::BIT]} AS s", "nested") }
    assert_match(/column 2 \(s\): STRUCT\(x BLOB\[\]\) of Arrow cannot become STRUCT\(x BIT\[\]\)/, error.message)
    error = assert_raises(Crosslane::Error) { ask.call("SELECT 170141183460469231731687303715884105727 AS x", "h") }
    assert_match(/row 1, column 1 \(x\): got 1701411834\d+, which does not fit DECIMAL\(38,0\)/, error.message)
  end

  def test_columns_that_are_cast_or_missing
    db = open
    db.query("CREATE SCHEMA s")
    db.query("CREATE TABLE s.t (id VARCHAR, n SMALLINT, name VARCHAR DEFAULT 'none')")
    ask = ->(sql, **options) { db.query(sql).arrow_stream { |address| db.append_arrow("s.t", address, **options) } }
    assert_equal 3, ask.call("SELECT i::BIGINT, i FROM range(3) r(i)", columns: %w[n id])
    assert_equal [["0", 0, "none"], ["1", 1, "none"], ["2", 2, "none"]], db.query("FROM s.t").to_a
    assert_equal 0, ask.call("SELECT 1, 2, 3 WHERE false")
    message = ->(sql, **options) { assert_raises(Crosslane::Error) { ask.call(sql, **options) }.message }
    assert_equal "the Arrow stream has 1 column (a) where 3 are due (id, n, name)", message.call("SELECT 1 AS a")
    assert_equal "the Arrow stream has 1 column (a) where 3 are due (id, n, name)",
                 message.call("SELECT 1 AS a WHERE false")
    assert_equal "the Arrow stream has 2 columns (a, b) where 1 is due (n)",
                 message.call("SELECT 1 AS a, 2 AS b", columns: ["n"])
    types = "(a VARCHAR, b INTEGER, c VARCHAR), the table (id VARCHAR, n SMALLINT, name VARCHAR)"
    assert_match(/\Arows 1 to 1: .*; the Arrow stream has #{Regexp.escape(types)}\z/,
                 message.call("SELECT 'a' AS a, 100000 AS b, 'b' AS c"))
    assert_match(/other/, message.call("SELECT 1, 2, 3", columns: ["other"]))
    assert_raises(Crosslane::Error) { db.query("SELECT 1").arrow_stream { |address| db.append_arrow("none", address) } }
    assert_equal 3, db.value("SELECT count(*) FROM s.t")
  end

  def test_a_stream_that_was_released
    db = table
    producer = Producer.new([[[1, "a"]]])
    assert_equal 1, db.append_arrow("t", producer)
    error = assert_raises(Crosslane::Error) { db.append_arrow("t", producer) }
    assert_match(/no Arrow stream at this address, or it was released already/, error.message)
    assert_equal 1, producer.released[:stream]
    assert_match(/no Arrow stream/, assert_raises(Crosslane::Error) { db.append_arrow("t", 0) }.message)
    # The stream is released in any case.
    producer = Producer.new([[[1, "a"]]])
    assert_raises(Crosslane::Error) { db.append_arrow("no table", producer) }
    assert_equal [1, 0], producer.released.values_at(:stream, :array)
    db.query("SELECT 9, 'nine'").arrow_stream do |address|
      db.append_arrow("t", address)
      assert_raises(Crosslane::Error) { db.append_arrow("t", address) }
    end
    assert_equal [[1, "a"], [9, "nine"]], db.query("FROM t").to_a
  end

  # An object that returns a stream when it is asked, as data frames do.
  Frame = Struct.new(:arrow_c_stream)

  def test_what_exports_a_stream
    db = table
    assert_equal 2, db.append_arrow("t", Frame.new(Producer.new([[[1, "a"], [nil, nil]]])))
    assert_equal [[1, "a"], [nil, nil]], db.query("FROM t").to_a
  end

  # A stream of arrays with a BIGINT column and a VARCHAR column, made by Ruby.
  class Producer
    attr_reader :released

    # The exception that the release raises, and a block that runs before it.
    attr_writer :raises, :before_release

    # @param arrays [Array<Array>] the rows of each array; the rows before `offset` do not count
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
        @before_release&.call
        raise KeyError, what.to_s if @raises == what
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

  # A producer whose texts are a dictionary of an extension type.
  class Extension < Producer
    def initialize(extension, ...)
      @extension = extension
      super(...)
    end

    private

    def schema(out)
      words = ["ARROW:extension:name", @extension].map { |word| [word.bytesize, word].pack("la*") }
      metadata = text([1].pack("l") + words.join)
      values = structure(text("u\0"), text("\0"), 0, 2, 0, 0, 0, release(:child, 56), 0)
      number = structure(text("l\0"), text("n\0"), 0, 2, 0, 0, 0, release(:child, 56), 0)
      word = structure(text("i\0"), text("word\0"), metadata, 2, 0, 0, values, release(:child, 56), 0)
      words = [text("+s\0"), text("\0"), 0, 0, 2, structure(number, word), 0, release(:schema, 56), 0]
      Fiddle::Pointer.new(out.to_i)[0, 72] = words.map(&:to_i).pack("q*")
      0
    end

    # The values of the second column become the dictionary of its indices.
    def column(values)
      plain = super
      return plain unless values.any?(String)

      indices = super(values.each_index.to_a) { |all| [all.pack("l*")] }
      indices[56, 8] = [plain.to_i].pack("q")
      indices
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

  def test_an_extension_whose_values_are_a_dictionary
    db = open
    texts = [[1, '{"a": [7]}'], [2, nil], [3, "[1, 2]"]]
    db.query("CREATE TABLE t (n BIGINT, word STRUCT(a BIGINT[]))")
    # Only JSON can be cast to this type.
    db.append_arrow("t", Extension.new("arrow.json", [texts.first(2)]))
    assert_equal [[1, [7]], [2, nil]], db.query("SELECT n, word.a FROM t").to_a
    db.query("CREATE TABLE plain (n BIGINT, word VARCHAR)")
    db.append_arrow("plain", Extension.new("some.other", [texts]))
    assert_equal texts, db.query("FROM plain").to_a
  end

  def test_a_stream_that_fails
    db = table
    producer = Producer.new([rows(10), :fail])
    error = assert_raises(Crosslane::Error) { db.append_arrow("t", producer) }
    assert_equal "the Arrow stream has failed: the producer has no more", error.message
    assert_equal [1, 1, 1], producer.released.values_at(:stream, :schema, :array)
    producer = Producer.new([rows(10)], columns: 1)
    error = assert_raises(Crosslane::Error) { db.append_arrow("t", producer, columns: ["n"]) }
    assert_match(/an array of 2 columns, where the stream's schema has 1/, error.message)
    assert_equal [1, 1, 1], producer.released.values_at(:stream, :schema, :array)
    assert_equal 0, db.value("SELECT count(*) FROM t")
  end

  # DuckDB writes rows long before the last one is appended.
  def test_all_or_nothing
    db = table
    many = rows(2048) * 120
    fails = -> { Producer.new([many, many, :fail]) }
    assert_raises(Crosslane::Error) { db.append_arrow("t", fails.call) }
    assert_equal 0, db.value("SELECT count(*) FROM t")
    invalid = [[1, "fine"], [2, "\xFF"]]
    error = assert_raises(Crosslane::Error) { db.append_arrow("t", Producer.new([many, invalid])) }
    assert_match(/\Arow #{many.size + 2}, column 2 \(c\): got text that is not UTF-8/, error.message)
    assert_equal 0, db.value("SELECT count(*) FROM t")
    # In a transaction, the result is the same as for an INSERT that fails.
    db.query("BEGIN; INSERT INTO t VALUES (7, 'seven')")
    assert_raises(Crosslane::Error) { db.append_arrow("t", fails.call) }
    error = assert_raises(Crosslane::Error) { db.query("FROM t") }
    assert_match(/aborted/, error.message)
    db.query("ROLLBACK")
    assert_equal 0, db.value("SELECT count(*) FROM t")
    db.transaction do
      assert_equal 3, db.append_arrow("t", Producer.new([rows(3)]))
      # Nothing was appended, so nothing must be removed.
      assert_raises(Crosslane::Error) { db.append_arrow("t", Producer.new([:fail])) }
      assert_equal 3, db.value("SELECT count(*) FROM t")
    end
    assert_equal 3, db.value("SELECT count(*) FROM t")
  end

  # A callback may end in any way.
  def test_what_leaves_a_stream
    [1, 4].each do |threads|
      db = table(threads: threads)
      %i[schema array error].each do |place|
        leave = nil
        ask = lambda do |*|
          producer = Producer.new([rows(10), rows(3000), :fail])
          calls = 0
          last = place == :array ? 3 : 1
          producer.define_singleton_method(place) { |out| (calls += 1) == last ? leave.call : super(out) }
          db.append_arrow("t", producer)
        ensure
          assert_equal 1, producer.released[:stream], place
        end
        leave = -> { raise KeyError, "left" }
        assert_equal "left", assert_raises(KeyError, &ask).message
        leave = -> { throw :out, 7 }
        assert_equal(7, catch(:out, &ask))
        leave = -> { exit(3) }
        assert_equal 3, assert_raises(SystemExit, &ask).status
        waits = Thread::Queue.new
        leave = -> { (waits << 1) && sleep }
        thread = Thread.new(&ask)
        waits.pop
        assert_nil thread.tap(&:kill).value
        assert_raises(Timeout::Error) { Timeout.timeout(0.1, &ask) }
        # An `ensure` or a `rescue` inside the callback does not change the outcome.
        leave = -> { Integer("x") rescue raise(IndexError) } # rubocop:disable Style/RescueModifier
        assert_raises(IndexError, &ask)
        assert_equal 0, db.value("SELECT count(*) FROM t")
      end
    end
  end

  def test_a_release_that_raises
    db = table
    %i[stream schema array].each do |what|
      producer = Producer.new([rows(10)])
      producer.raises = what
      assert_equal what.to_s, assert_raises(KeyError) { db.append_arrow("t", producer) }.message
      assert_equal 1, producer.released[:stream], what
    end
    # The exception is kept while a release runs code of its own.
    producer = Producer.new([rows(10), :fail])
    producer.before_release = -> { Integer("x") rescue [3].each { |i| next i } } # rubocop:disable Style/RescueModifier
    producer.define_singleton_method(:error) { |_out| throw :out, 8 }
    assert_equal(8, catch(:out) { db.append_arrow("t", producer) })
    assert_operator db.value("SELECT count(*) FROM t"), :<=, 10
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
    count = db.value("SELECT count(*) FROM t")
    closes = Producer.new([rows(3)]) { |made| db.close if made }
    assert_match(/closed/, assert_raises(Crosslane::Error) { db.append_arrow("t", closes) }.message)
    assert_equal [0, 1], [count, closes.released[:stream]]
    assert_match(/closed/, assert_raises(Crosslane::Error) { db.append_arrow("t", Producer.new([])) }.message)
  end

  # A CHECK of the table calls a block for each row.
  def test_what_leaves_a_block_of_the_table
    db = open(threads: 2)
    own = Class.new(StandardError)
    begun = Thread::Queue.new
    asked = nil
    db.udf(:block, "(n BIGINT) -> BOOLEAN") { |n| asked.call(n) }
    db.udf(:lane, "(n BIGINT) -> BOOLEAN", timeout: 600) { |n| asked.call(n) }
    %w[block lane].each do |name|
      db.query("CREATE OR REPLACE TABLE t (n BIGINT CHECK (#{name}(n)), word VARCHAR)")
      append = -> { db.append_arrow("t", Producer.new([rows(2)])) }
      asked = ->(n) { raise own, "no #{n}" }
      assert_equal "no 0", assert_raises(own, &append).message
      asked = ->(n) { throw :out, n } if name == "block"
      assert_equal(0, catch(:out) { append.call }) if name == "block"
      asked = lambda do |_n|
        begun << 1
        sleep
      end
      thread = Thread.new(&append)
      thread.report_on_exception = false
      begun.pop
      thread.raise(own, "enough")
      assert_equal "enough", assert_raises(own) { thread.value }.message
      asked = ->(_n) { true }
      assert_equal 2, append.call
      assert_equal 2, db.value("SELECT count(*) FROM t")
    end
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
