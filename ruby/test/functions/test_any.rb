# frozen_string_literal: true

require_relative "../helper"

# Blocks of host lanes that take arguments of any type.
class TestAny < CrosslaneTest
  VALUES = {
    "TRUE" => true, "1::TINYINT" => 1, "0.5::DOUBLE" => 0.5, "1.50::DECIMAL(30, 2)" => BigDecimal("1.5"), "'a'" => "a",
    "DATE '2024-02-29'" => Date.new(2024, 2, 29), "'b'::ENUM ('a', 'b')" => "b", "[1, NULL]" => [1, nil],
    "['a', 'b']::VARCHAR[2]" => %w[a b], "MAP {'a': 1}" => { "a" => 1 }, "'{\"a\": [1]}'::JSON" => { "a" => [1] },
    "[]" => []
  }.freeze
  OPTIONS = [{}, { timeout: 60 }, { concurrency: 2 }, { vectorized: true }].freeze

  def test_each_argument_is_the_value_of_its_type
    db = open
    OPTIONS.each do |options|
      seen = Queue.new
      see = ->(x) { seen << x and x.class.name }
      block = options[:vectorized] ? ->(all) { all.map { |x| see.call(x) } } : see
      db.udf(:see, "(x ANY) -> VARCHAR", **options, &block)
      VALUES.each do |given, expected|
        name = expected.class.name
        assert_equal name, db.value("SELECT see(#{given})"), options
        rows = db.query("SELECT see(x) FROM (SELECT #{given} AS x UNION ALL SELECT NULL UNION ALL SELECT #{given})")
        assert_equal [[name], [nil], [name]], rows.to_a, options
        assert_equal [expected] * 3, Array.new(3) { seen.pop }, options
      end
      db.value("SELECT see({'a': {'b c': 1}})")
      assert_equal 1, seen.pop.a["b c"], options
    end
  end

  def test_each_call_has_types_of_its_own
    db = open
    db.query("CREATE TABLE t AS SELECT i AS x, i::VARCHAR AS a, CASE WHEN i <> 1 THEN [i] END AS b FROM range(3) r(i)")
    told = ->(x, *rest) { [x, *rest].inspect }
    blocks = { { vectorized: true } => ->(x, *rest) { x.zip(*rest).map { |row| told.call(*row) } } }
    OPTIONS.each do |options|
      db.udf(:f, "(x ANY, *rest ANY) -> VARCHAR", **options, &blocks.fetch(options, told))
      assert_equal %w[[0] [1] [2]], db.query("SELECT f(x) FROM t ORDER BY x").map(&:first), options
      expected = [%(["0", 0, [0]]), nil, %(["2", 2, [2]])]
      assert_equal expected, db.query("SELECT f(a, x, b) FROM t ORDER BY x").map(&:first), options
      assert_equal [%([0, "0"]), "[[0]]"], db.query("SELECT f(x, a), f([x]) FROM t ORDER BY x").first, options
      assert_equal %([1, "x"]), db.value("SELECT f(1, 'x')"), options
    end
    db.udf(:see, "(*rest ANY) -> VARCHAR", nulls: :call) { |*rest| rest.inspect }
    assert_equal %([nil, "x", []]), db.value("SELECT see(NULL, 'x', [])")
    assert_equal "[]", db.value("SELECT see()")
    assert_equal "[[1, 2]]", db.value("SELECT see([1, 2])")
    db.udf(:g, "(x ANY, *rest ANY) -> VARCHAR") { |x, *rest| [x, rest].inspect }
    assert_equal "[[1, 2], []]", db.value("SELECT g([1, 2])")
  end

  def test_many_rows_on_many_threads
    db = numbers(100_000)
    db.udf(:shown, "(x ANY, y ANY) -> VARCHAR", timeout: 60) { |x, y| "#{x.class} #{x} #{y.class}" }
    query = "SELECT count(*) FROM numbers WHERE shown(x, x::VARCHAR) = 'Integer ' || x || ' String' " \
            "AND shown('a' || x, [x]) = 'String a' || x || ' Array'"
    assert_equal 100_000, db.value(query)
  end

  def test_more_types_than_are_kept
    db = open
    db.udf(:names, "(x ANY) -> VARCHAR") { |x| x.to_h.keys.join }
    2.times do
      100.times { |at| assert_equal "a#{at}", db.value("SELECT names({'a#{at}': 1})") }
    end
  end

  def test_prepared_statements
    db = open
    db.udf(:f, "(x ANY) -> VARCHAR") { |x| x.inspect }
    statement = db.prepare("SELECT f(?)")
    assert_equal [["1"]], statement.query(1).to_a
    assert_equal [['"a"']], statement.query("a").to_a
    assert_equal [["[1.5]"]], statement.query([1.5]).to_a
  end

  def test_other_types_come_first
    db = open
    db.udf(:f, "(x ANY) -> VARCHAR") { |_| "any" }
    db.udf(:f, "(x DATE) -> VARCHAR", overload: true) { |_| "DATE" }
    assert_equal %w[DATE any any], db.query("SELECT f(DATE '2024-02-29'), f(1), f([1])").first
    db.udf(:f, "(x ANY) -> BIGINT") { |_| 1 }
    assert_equal 1, db.value("SELECT f(DATE '2024-02-29')")
  end

  def test_exceptions
    db = open
    db.udf(:f, "(x ANY, *rest ANY) -> BIGINT") { |*all| raise ArgumentError, "no #{all.map(&:class)}" }
    error = assert_raises(ArgumentError) { db.query("SELECT f(x, [x]) FROM range(2) r(x)") }
    assert_equal "no [Integer, Array]", error.message
    many = (["x"] * 65).join(", ")
    error = assert_raises(ArgumentError) { db.query("SELECT f(#{many}) FROM range(2) r(x)") }
    assert_match(/called with 65 arguments: where one may be of any type, there are at most 64/, error.message)
    error = assert_raises(Crosslane::Error) { db.query("SELECT f(1, 2::VARIANT)") }
    assert_match(/f\(x ANY, \*rest ANY\) -> BIGINT: argument 2: VARIANT .* cast it, for example/, error.message)
  end

  def test_what_cannot_be
    db = open
    {
      "a table function cannot take arguments of any type" => -> { db.table(:f, "(n ANY) -> (i BIGINT)") { |n| [n] } },
      "an aggregate cannot take arguments of any type" => lambda {
        db.aggregate(:f, "(n ANY) -> BIGINT", combine: :+.to_proc) { |state, n| state.to_i + n }
      },
      "a column has a type, and ANY is none" => -> { db.append_query("FROM t", "(n ANY)", []) },
      "ANY is for parameters, as their whole type" => -> { db.udf(:f, "(x ANY) -> ANY") { |x| x } }
    }.each do |message, attempt|
      assert_match(/#{message}/, assert_raises(Crosslane::DeclarationError, &attempt).message)
    end
  end
end
