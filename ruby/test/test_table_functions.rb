# frozen_string_literal: true

require_relative "helper"

# What a table function is told beside its arguments: parameters with names, and its columns.
class TestTableFunctions < CrosslaneTest
  LETTERS = lambda do |word, upper: false, times: 1|
    ((upper ? word.upcase : word) * times).each_char.map { |letter| [letter] }
  end

  def test_named_parameters
    [1, 4].each do |threads|
      db = open(threads: threads)
      db.table(:letters, "(upper BOOLEAN, word VARCHAR, times BIGINT) -> (letter VARCHAR)", &LETTERS)
      ask = ->(arguments, *parameters) { db.query("FROM letters(#{arguments})", *parameters).map(&:first).join }
      assert_equal "ab", ask.call("'ab'")
      assert_equal "AB", ask.call("'ab', upper := true")
      assert_equal "ABAB", ask.call("'ab', times := 2, upper := true")
      assert_equal "abab", ask.call("?, TIMES = ?", "ab", 2)
      # NULL stands for the block's own value, and what is given is cast.
      assert_equal "ABAB", ask.call("'ab', upper := 'yes'::VARCHAR, times := 2.0")
      assert_equal "ab", ask.call("'ab', times := NULL")
      error = assert_raises(Crosslane::Error) { ask.call("'ab', lower := true") }
      assert_match(/named parameter "lower"/, error.message)
      assert_raises(Crosslane::Error) { ask.call("'ab', true, 2") }
    end
  end

  def test_named_parameters_of_every_kind_may_be_missing
    db = open
    types = ["VARCHAR", "BIGINT[]", "STRUCT(a VARCHAR, b VARCHAR[])", "MAP(VARCHAR, BIGINT)", "VARCHAR[2]",
             "UNION(a BIGINT, b VARCHAR)", "DECIMAL(30, 3)", "JSON", "ENUM('a', 'b')", "BLOB", "TIMESTAMP"]
    types.each_with_index do |type, index|
      name = "t#{index}"
      db.table(name, "(given #{type}) -> (i VARCHAR)") { |given: :missing| [[given.to_s]] }
      20.times { assert_equal [["missing"]], db.query("FROM #{name}()").to_a, type }
    end
    assert_equal [["[1, nil]"]], db.query("FROM t1(given := [1, NULL])").to_a
  end

  def test_keywords_that_a_block_needs
    db = open
    db.table(:need, "(n BIGINT, step BIGINT) -> (i BIGINT)") { |n, step:| 0.step(n, step).map { |i| [i] } }
    assert_equal [[0], [2], [4]], db.query("FROM need(4, step := 2)").to_a
    error = assert_raises(ArgumentError) { db.query("FROM need(4)") }
    assert_match(/missing keyword: :step/, error.message)
    error = assert_raises(Crosslane::DeclarationError) do
      db.table(:t, "(n BIGINT) -> (i BIGINT)") { |n, other:| [[n + other]] }
    end
    assert_match(/function t: its block needs the keyword other, which is no parameter/, error.message)
  end

  def test_what_split_and_lists_are_given
    db = open
    parts = ->(n, wide: false) { wide ? [[1, n]] : [[2, n]] }
    signature = "(n BIGINT, wide BOOLEAN, sign BIGINT) -> (text VARCHAR)"
    db.table(:t, signature, split: parts) { |part, _, wide: nil, sign: 1| [["#{part} #{wide.inspect} #{sign}"]] }
    assert_equal [["[2, 5] nil 1"]], db.query("FROM t(5)").to_a
    assert_equal [["[1, 5] true -1"]], db.query("FROM t(5, sign := -1, wide := true)").to_a
    db.table(:one, "(list BIGINT[], k BIGINT) -> (text VARCHAR)") { |list, k: 0| [[list.inspect + k.to_s]] }
    assert_equal [["[1, 2]0"]], db.query("FROM one([1, 2])").to_a
    assert_equal [["[1, 2]7"]], db.query("FROM one([1, 2], k := 7)").to_a
  end

  # DuckDB casts the arguments of a table function, but lists.
  def test_lists
    db = open
    db.table(:lists, "(a BIGINT[], b VARCHAR[][]) -> (text VARCHAR)") { |a, b| [["#{a.inspect} #{b.inspect}"]] }
    ask = ->(arguments, *parameters) { db.value("FROM lists(#{arguments})", *parameters) }
    assert_equal '[1, -2, nil] [["x"], [], nil]', ask.call("[1::TINYINT, -2, NULL], [['x'], [], NULL]")
    assert_equal "[1, 2] []", ask.call("range(1, 3), []::VARCHAR[][]")
    assert_equal "[] nil", ask.call("[], NULL")
    assert_equal "[5] [[\"1\"]]", ask.call("?, ?", [5], [["1"]])
    assert_equal 10_000, db.value("SELECT length(text) FROM lists(repeat([1], 3332), NULL)")
    { "'[1]'" => "[1] nil", "[1, 2]::INTEGER[2]" => "[1, 2] nil", "['x']" => nil }.each do |argument, cast|
      # DuckDB 2.0 makes lists of what is none.
      assert_equal cast, ask.call("#{argument}, NULL")
    rescue Crosslane::Error => e
      assert_match(/BIGINT\[\]|INT64/, e.message)
    end
  end

  # A table of words, whose columns are as many as one of its arguments says.
  def wide(db, **options, &columns)
    columns ||= ->(count, **) { (1..count).to_h { |i| ["c#{i}", i.odd? ? "BIGINT" : "VARCHAR"] } }
    db.table(:wide, "(count BIGINT, rows BIGINT)", columns: columns, **options) do |count, rows: 3|
      Array.new(rows) { |row| Array.new(count) { |i| i.even? ? row : "r#{row}" } }
    end
  end

  def test_columns_that_depend_on_arguments
    [1, 4].each do |threads|
      db = open(threads: threads)
      wide(db)
      result = db.query("FROM wide(2)")
      assert_equal [%w[c1 c2], %w[BIGINT VARCHAR]], [result.names, result.types]
      assert_equal [[0, "r0"], [1, "r1"], [2, "r2"]], result.to_a
      assert_equal [[0, "r0", 0, 0]], db.query("SELECT a.*, b.c1 FROM wide(3, rows := 1) a, wide(1, rows := 1) b").to_a
      assert_equal 5000, db.value("SELECT count(c7) FROM wide(7, rows := 5000)")
      statement = db.prepare("SELECT c1 FROM wide(2) WHERE c2 = ?")
      assert_equal([[[1]], [[2]]], %w[r1 r2].map { |text| statement.query(text).to_a })
      assert_equal [[0]], db.prepare("SELECT c1 FROM wide(?, rows := 1)").query(2).to_a
      error = assert_raises(Crosslane::Error) { db.query("SELECT c3 FROM wide(2)") }
      assert_match(/"c3" not found/, error.message)
    end
  end

  def test_columns_as_text_and_of_any_name
    db = open
    wide(db) { |_| "(a BIGINT, \"the b\" VARCHAR)" }
    assert_equal({ a: 0, "the b": "r0" }, db.query("FROM wide(2)").each_hash.first)
    wide(db) { |_| { "a \"1\"": "BIGINT", "b" => "ENUM('r0', 'r1', 'r2')" } }
    assert_equal [{ "a \"1\"": 1, b: "r1" }], db.query("FROM wide(2) WHERE b = 'r1'").each_hash.to_a
    ["", "a", "(a BIGNIT)", "(a BIGINT, A BIGINT)", "()", {}, { a: "nothing" }].each do |columns|
      wide(db) { |_| columns }
      assert_raises(Crosslane::DeclarationError, columns.inspect) { db.query("FROM wide(2)") }
    end
    wide(db) { |_| "(a VARCHAR)" }
    assert_raises(TypeError) { db.query("FROM wide(2)") }
    error = assert_raises(Crosslane::DeclarationError) { wide(db, columns: nil) }
    assert_match(/ends with its columns/, error.message)
    error = assert_raises(Crosslane::DeclarationError) { db.table(:t, "() -> (i BIGINT)", columns: -> { {} }) { [] } }
    assert_match(/ends with its parameters if it has columns:/, error.message)
  end

  def test_what_leaves_the_choice_of_columns
    [1, 4].each do |threads|
      db = open(threads: threads)
      leave = nil
      wide(db) { |_| leave.call }
      query = -> { db.query("FROM wide(2)") }
      leave = -> { raise KeyError, "no columns" }
      error = assert_raises(KeyError, &query)
      assert_match(/wide: KeyError: no columns/, error.query_error)
      leave = -> { throw(:out, 7) }
      assert_equal(7, catch(:out) { query.call })
      leave = -> { exit(3) }
      assert_equal 3, assert_raises(SystemExit, &query).status
      waits = Thread::Queue.new
      leave = -> { (waits << 1) && sleep }
      thread = Thread.new(&query)
      waits.pop
      assert_nil thread.tap(&:kill).value
      # Such a block may ask the database itself.
      leave = -> { { a: db.value("SELECT 'BIGINT'"), b: "VARCHAR" } }
      assert_equal 3, query.call.count
    end
  end

  def test_columns_under_a_stressed_and_a_compacting_collector
    db = open(threads: 2)
    wide(db)
    GC.stress = true
    result = db.query("FROM wide(2, rows := 1)").to_a
    GC.stress = false
    assert_equal [[0, "r0"]], result
    compacting = Thread.new { 10.times { GC.compact } }
    10.times { |count| assert_equal 3, db.query("FROM wide(?)", count + 1).count }
    compacting.join
  ensure
    GC.stress = false
  end
end
