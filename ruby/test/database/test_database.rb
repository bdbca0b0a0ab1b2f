# frozen_string_literal: true

require_relative "../helper"
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
      Time.utc(2024, 2, 29, 1, 2, 3, 4), Crosslane::TimeOfDay.at(1, 2),
      Crosslane::TimeOfDay.at(1, 2, nanosecond: 3), Crosslane::TimeOfDay.at(1, utc_offset: -1800),
      Crosslane::Interval.new(1, 2, 3),
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

  def test_times_of_day_have_nanoseconds_and_zones
    db = open
    plain, fine = Crosslane::TimeOfDay.at(1, 2), Crosslane::TimeOfDay.at(1, 2, nanosecond: 3)
    zoned = Crosslane::TimeOfDay.at(1, 2, utc_offset: 19_800)
    assert_equal ["01:02:00.000000003", "01:02:00+05:30"], [fine.to_s, zoned.to_s]
    assert_equal "01:02:00-15:59:59", Crosslane::TimeOfDay.at(1, 2, utc_offset: -57_599).to_s
    assert_operator plain, :<, fine
    assert_operator zoned, :<, Crosslane::TimeOfDay.at(1, 2, utc_offset: 0)
    refute_equal plain, Crosslane::TimeOfDay.at(1, 2, utc_offset: 0)
    refute plain.eql?(Crosslane::TimeOfDay.at(1, 2, utc_offset: 0))
    assert_equal 1, [zoned, Crosslane::TimeOfDay.at(1, 2, utc_offset: 19_800)].uniq.size
    assert_equal "TIME_NS[]", db.value("SELECT typeof(?)", [plain, fine])
    both = Crosslane::TimeOfDay.at(1, nanosecond: 1, utc_offset: 0)
    [[plain, zoned], both, Crosslane::Tagged.new("a", 1)].each do |given|
      assert_raises(Crosslane::Error, given.inspect) { db.query("SELECT ?", given) }
    end
    assert_raises(RangeError) { Crosslane::TimeOfDay.at(24, nanosecond: 1) }
    assert_raises(RangeError) { Crosslane::TimeOfDay.at(1, nanosecond: 1000) }
  end

  def test_parameters_of_several_types_lose_nothing
    db = open
    day = Date.new(2024, 2, 29)
    time = Time.utc(2024, 2, 29, 1)
    {
      [[1], [2.5]] => "DOUBLE[][]", { "a" => 1, "b" => 2.5 } => "MAP(VARCHAR, DOUBLE)",
      [1, 2**40] => "BIGINT[]", [2**70, -1] => "HUGEINT[]", [1, BigDecimal("2.25")] => "DECIMAL(3,2)[]",
      [BigDecimal("100"), BigDecimal("0.25")] => "DECIMAL(5,2)[]", [time, Time.at(0, 5, :nsec).utc] => "TIMESTAMP_NS[]",
      [time, Time.new(2024, 2, 29, 1, 0, 0, "+05:00")] => "TIMESTAMP WITH TIME ZONE[]",
      ["a", "é".encode("UTF-16LE")] => "VARCHAR[]",
      [day, Float::INFINITY] => "DATE[]", [1, -Float::INFINITY] => "DOUBLE[]"
    }.each do |given, type|
      got, typed = db.query("SELECT x, typeof(x) FROM (SELECT ? AS x)", given).first
      assert_equal type, typed
      given == ["a", "é".encode("UTF-16LE")] ? assert_equal(%w[a é], got) : assert_equal(given, got)
    end
    assert_equal [Time.utc(2024, 2, 29), time], db.value("SELECT ?", [day, time])
    assert_equal [{ b: 2.5, a: 1 }, { b: 1, a: nil }],
                 db.value("SELECT ?", [{ b: 2.5, a: 1 }, { a: nil, b: 1 }]).map(&:to_h)
    [[1, "a"], ["a", 1], [2**53 + 1, 0.5], [{ a: 1 }, { b: 2 }], [day, Time.now], ["a", "a".b], [2**127, -1],
     { 1 => 2, "a" => 3 }, [BigDecimal("0.1"), 0.5], BigDecimal("1e-40"), [].tap { |a| a << a }].each do |given|
      assert_raises(Crosslane::Error, given.inspect) { db.query("SELECT ?", given) }
    end
  end

  def test_parameters_have_the_type_that_the_statement_wants
    db = open
    db.query("SET TimeZone = 'America/New_York'")
    time = Time.utc(2024, 2, 29, 23, 0, 0, 1)
    assert_equal [time], db.value("SELECT ?::TIMESTAMPTZ[]", [time])
    assert_equal [Time.at(0, 5, :nsec)], db.value("SELECT ?::TIMESTAMP_NS[]", [Time.at(0, 5, :nsec).utc])
    assert_equal [Float::INFINITY, -Float::INFINITY],
                 db.query("SELECT ?::DATE, ?::TIMESTAMPTZ", Float::INFINITY, -Float::INFINITY).first
    db.query("CREATE TABLE days (day DATE)")
    db.query("INSERT INTO days VALUES (?)", Time.new(2024, 2, 29, 23, 0, 0, "-05:00"))
    assert_equal 1, db.value("SELECT count(*) FROM days WHERE day = ?", Date.new(2024, 2, 29))
    assert_equal 0, db.value("SELECT count(*) FROM days WHERE day = ?", Time.utc(2024, 2, 29, 23))
    # The type of an earlier bound value does not become the type of the parameter.
    statement = db.prepare("SELECT ?")
    given = [Date.new(2024), time, 1, 2**70]
    assert_equal(given, given.map { |value| statement.query(value).first.first })
  end

  def test_integers_and_binary_strings_find_their_overload
    db = open
    db.udf(:small, "(x INTEGER) -> VARCHAR") { |_| "INTEGER" }
    db.udf(:unsigned, "(x UBIGINT) -> VARCHAR") { |_| "UBIGINT" }
    { sized: %w[INTEGER HUGEINT], wide: %w[BIGINT HUGEINT], text: %w[VARCHAR BLOB] }.each do |name, types|
      types.each { |type| db.udf(name, "(x #{type}) -> VARCHAR", overload: true) { |_| type } }
    end
    assert_equal %w[INTEGER UBIGINT UBIGINT], db.query("SELECT small(?), unsigned(?), unsigned(?)", 1, 1, 2**63).first
    assert_equal %w[INTEGER HUGEINT], db.query("SELECT sized(?), sized(?)", 1, 2**31).first
    assert_equal %w[BIGINT BIGINT HUGEINT], db.query("SELECT wide(?), wide(?), wide(?)", 1, 2**62, 2**63).first
    assert_equal %w[VARCHAR BLOB], db.query("SELECT text(?), text(?)", "abc", "abc".b).first
    assert_equal ["DECIMAL(3,2)", 1.23], db.query("SELECT typeof(?), round(1.234, ?)", BigDecimal("1.25"), 2).first
  end

  def test_hashes_that_are_no_maps_are_refused
    db = open
    [{ nil => 1 }, { "a" => 1, a: 2 }, { 1 => "a", 1.0 => "b" }, [{ nil => 1 }], { x: { nil => 1 } }].each do |given|
      error = assert_raises(Crosslane::Error, given.inspect) { db.value("SELECT ?", given) }
      assert_match(/a Hash has nil, or the same (INTEGER|VARCHAR|DOUBLE) twice, among its keys/, error.message)
    end
  end

  def test_binary_strings_are_text_where_text_is_wanted
    db = open
    db.query("CREATE TABLE names (name VARCHAR, more VARCHAR[], kind ENUM('it''s'))")
    ["it's", "a\\b", "two\nlines", "é"].each do |text|
      db.query("INSERT INTO names VALUES (?, ?, ?)", text.b, [text.b], "it's".b)
      assert_equal [[text, [text], "it's"]], db.query("DELETE FROM names RETURNING *").to_a
    end
    error = assert_raises(Crosslane::Error) { db.query("INSERT INTO names(name) VALUES (?)", "\xFF".b) }
    assert_match(/a binary String that is no UTF-8, which VARCHAR must be/, error.message)
  end

  def test_infinite_dates
    db = open
    sql = "SELECT 'infinity'::DATE, '-infinity'::TIMESTAMP, 'infinity'::TIMESTAMPTZ"
    assert_equal [1, -1, 1].map { |sign| sign * Float::INFINITY }, db.query(sql).first
    db.udf(:same, "(x DATE) -> DATE") { |x| x }
    assert_equal "-infinity", db.value("SELECT same('-infinity'::DATE)::VARCHAR")
    db.query("CREATE TABLE days (day DATE, time TIMESTAMP_S)")
    db.append("days", [[Float::INFINITY, -Float::INFINITY]])
    assert_equal %w[infinity -infinity], db.query("SELECT COLUMNS(*)::VARCHAR FROM days").first
    %w[DATE TIMESTAMP TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS TIMESTAMPTZ].each do |type|
      db.query("CREATE OR REPLACE TABLE moments (moment #{type})")
      db.query("INSERT INTO moments VALUES (?), (?)", Float::INFINITY, -Float::INFINITY)
      assert_equal [["infinity"], ["-infinity"]], db.query("SELECT moment::VARCHAR FROM moments").to_a, type
    end
  end

  def test_named_parameters
    db = open
    assert_equal 3, db.value("SELECT $a + $b", { a: 1, "b" => 2 })
    error = assert_raises(Crosslane::Error) { db.value("SELECT $a", { b: 1 }) }
    assert_match(/no parameter b; it has a/, error.message)
    error = assert_raises(Crosslane::Error) { db.value("SELECT ?, ?", 1) }
    assert_match(/2 parameters, and 1 were given/, error.message)
    error = assert_raises(Crosslane::Error) { db.value("SELECT ?", Object.new) }
    assert_match(/an instance of Object cannot be a parameter/, error.message)
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
    error = assert_raises(Crosslane::Error) { open.query("SELECT 1::VARIANT").to_a }
    assert_match(/VARIANT.*cast it/, error.message)
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

  def test_files_in_a_transaction
    db = open
    Dir.mktmpdir do |folder|
      file = File.join(folder, "functions.rb")
      File.write(file, 'udf("from_file(x BIGINT) -> BIGINT") { |x| x + 1 }')
      db.query("CREATE TABLE t (i BIGINT)")
      db.transaction do
        db.query("INSERT INTO t SELECT length('a')")
        db.load(file)
      end
      assert_equal 2, db.value("SELECT from_file(i) FROM t")
    end
  end

  def test_files_are_loaded_before_the_database_is_locked
    Dir.mktmpdir do |folder|
      file = File.join(folder, "functions.rb")
      File.write(file, 'udf("from_file(x BIGINT) -> BIGINT") { |x| x + 1 }')
      config = { "lock_configuration" => true, enable_external_access: false }
      db = Crosslane.open(functions: [file], config: config)
      assert_equal 2, db.value("SELECT from_file(1)")
      error = assert_raises(Crosslane::Error) { db.load(file) }
      assert_match(/external access is off/, error.message)
      assert_raises(Crosslane::Error) { db.query("SET threads = 1") }
    ensure
      db&.close
    end
  end

  def test_names_that_are_taken
    db = open
    db.query('CREATE MACRO "Twice"(x) AS x * 2')
    {
      upper: "a function; give the block another name, or replace it",
      twice: "a macro; give the block another name, or replace it",
      sum: "an aggregate; give the block another name$", nullif: "a macro; give the block another name$"
    }.each do |name, words|
      error = assert_raises(Crosslane::Error) { db.udf(name, "(x BIGINT) -> BIGINT") { |x| x } }
      assert_match(/the name #{name} is taken by #{words}/, error.message)
    end
    assert_raises(Crosslane::Error) { db.aggregate(:sum, "(x BIGINT) -> BIGINT", combine: nil) { |a, b| a + b } }
    assert_raises(Crosslane::Error) { db.udf(:sum, "(x BIGINT) -> BIGINT", replace: true) { |x| x } }
    assert_equal ["A", 4], db.query("SELECT upper('a'), twice(2)").first
    db.udf(:twice, "(x BIGINT) -> BIGINT", replace: true) { |x| -2 * x }
    db.udf(:upper, "(x VARCHAR) -> VARCHAR", replace: true) { |x| "<#{x}>" }
    assert_equal ["<a>", -4], db.query("SELECT upper('a'), twice(2)").first
    # The name now belongs to the block.
    db.udf(:twice, "(x BIGINT) -> BIGINT") { |x| 2 * x }
    assert_equal 4, db.value("SELECT twice(2)")
  end

  def test_an_overload_with_another_result
    db = open
    db.udf(:f, "(x BIGINT) -> BIGINT") { |x| x }
    begin
      db.udf(:f, "(x BIGINT) -> VARCHAR", overload: true) { |x| "<#{x}>" }
      expected = "<1>"
    rescue Crosslane::Error => e
      # DuckDB 1.5 cannot do this. The old function stays.
      assert_match(/cannot change the type of f's result/, e.message)
      expected = 1
    end
    assert_equal expected, db.value("SELECT f(1)")
    db.udf(:f, "(x VARCHAR) -> VARCHAR", overload: true) { |x| x + x }
    db.udf(:f, "(x BIGINT) -> #{expected == 1 ? "BIGINT" : "VARCHAR"}", overload: true) { |_| expected }
    assert_equal [expected, "aa"], db.query("SELECT f(i), f('a') FROM range(5, 6) r(i)").first
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

  def test_an_appender_and_rows_that_are_at_work_say_so
    db = open
    db.query("CREATE TABLE t (x INT[])")
    db.append("t") do |rows|
      rows << [Enumerator.new do |values|
        error = assert_raises(Crosslane::Error) { rows << [[2]] }
        assert_match(/at work already/, error.message)
        values << 1
      end]
    end
    assert_equal [[[1]]], db.query("FROM t").to_a
    rows = db.query("SELECT '1'::JSON")
    error = JSON.stub(:parse, ->(_) { rows.to_a }) { assert_raises(Crosslane::Error) { rows.to_a } }
    assert_match(/being read already/, error.message)
  end

  def test_appended_maps_have_each_key_once
    db = open
    db.query("CREATE TABLE t (x INT, map MAP(DECIMAL(4,1), INT))")
    assert_equal 1, db.append("t", [[1, { 1.02 => 1, 1.06 => 2 }]])
    error = assert_raises(Crosslane::Error) { db.append("t", [[1, {}], [2, { 1.02 => 1, 1.04 => 2 }]]) }
    assert_match(/row 2, column 2: got a MAP with the key 1.0 twice/, error.message)
    assert_equal 1, db.value("SELECT count(*) FROM t")
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

  # The output of a program that has opened $db, and the files of the database afterwards. A whole
  # file has no log of changes beside it.
  def at_the_end_of(program)
    Dir.mktmpdir do |folder|
      path = File.join(folder, "x.duckdb")
      program = "require 'crosslane'; $db = Crosslane.open(ARGV[0]); " \
                "$db.query('CREATE TABLE t AS SELECT 42 AS x'); #{program}"
      library = File.expand_path("../../lib", __dir__)
      output = IO.popen([RbConfig.ruby, "-I", library, "-e", program, path], err: %i[child out], &:read)
      [output, Dir.children(folder)]
    end
  end

  def test_a_database_is_open_until_the_end_of_the_program
    [
      "at_exit { print $db.value('FROM t') }; print 1",
      "at_exit { at_exit { print $db.value('FROM t') }; print 1 }; exit 3",
      "at_exit { print 1; $db.udf(:f, '(x INT) -> INT') { |x| x }; print $db.value('SELECT f(x) FROM t') }",
      "at_exit { print 1, Thread.new { $db.value('FROM t') }.value }; $rows = $db.query('FROM t')",
      "at_exit { print 1, $db.value('FROM t') }; (Thread.list - [Thread.main]).each(&:kill).each(&:join)",
      "$early = -> { print 1, $db.value('FROM t') }"
    ].each do |program|
      # This is required first, as minitest/autorun is, and does the same.
      early = "BEGIN { at_exit { $early&.call } }; "
      assert_equal ["142", ["x.duckdb"]], at_the_end_of(early + program), program
    end
  end

  def test_closing_frees_what_registering_has_asked
    Dir.mktmpdir do |folder|
      db = open(path: File.join(folder, "x.duckdb"))
      db.udf(:f, "(x INT) -> INT") { |x| x }
      db.table(:g, "() -> (x INT)") { [[1]] }
      db.transaction { db.query("CREATE TABLE t AS FROM g()") }
      db.close
      assert_equal ["x.duckdb"], Dir.children(folder)
    end
  end

  def test_threads_share_a_database
    db = numbers(1000)
    sums = Array.new(8) { Thread.new { Array.new(20) { db.value("SELECT sum(x)::INT FROM numbers") } } }
    assert_equal [499_500] * 160, sums.flat_map(&:value)
  end

  def test_results_outlive_the_collector
    rows = 60.times.map { open(threads: 1).query("SELECT 'row', [1, 2]").first }
    GC.start
    assert_equal [["row", [1, 2]]], rows.uniq
  end
end
