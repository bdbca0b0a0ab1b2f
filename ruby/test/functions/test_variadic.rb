# frozen_string_literal: true

require_relative "../helper"

# Blocks of host lanes that take any number of arguments.
class TestVariadic < CrosslaneTest
  def test_blocks
    db = open
    db.query("CREATE TABLE t AS SELECT i AS x, i::VARCHAR AS a, CASE WHEN i <> 1 THEN 'b' END AS b FROM range(3) r(i)")
    told = ->(x, *rest) { [x, *rest].inspect }
    {
      {} => told, { timeout: 60 } => told, { concurrency: 2 } => told,
      { vectorized: true } => ->(x, *rest) { x.zip(*rest).map { |row| told.call(*row) } }
    }.each do |options, block|
      db.udf(:f, "(x BIGINT, *rest VARCHAR) -> VARCHAR", **options, &block)
      assert_equal %w[[0] [1] [2]], db.query("SELECT f(x) FROM t ORDER BY x").map(&:first), options
      expected = [%([0, "0", "b", "0"]), nil, %([2, "2", "b", "2"])]
      assert_equal expected, db.query("SELECT f(x, a, b, a) FROM t ORDER BY x").map(&:first), options
      assert_equal %([1, "x"]), db.value("SELECT f(1, 'x')"), options
      many = Array.new(100, &:to_s)
      assert_equal [1, *many].inspect, db.value("SELECT f(1, #{many.map { |text| "'#{text}'" }.join(", ")})"), options
    end
    db.udf(:see, "(*rest VARCHAR) -> VARCHAR", nulls: :call) { |*rest| rest.inspect }
    assert_equal %([nil, "x"]), db.value("SELECT see(NULL, 'x')")
    assert_equal "[]", db.value("SELECT see()")
  end

  def test_only_scalar_functions_can
    db = open
    error = assert_raises(Crosslane::DeclarationError) { db.table(:f, "(*n BIGINT) -> (i BIGINT)") { |*n| [n] } }
    assert_match(/a table function cannot take any number of arguments/, error.message)
    error = assert_raises(Crosslane::DeclarationError) do
      db.aggregate(:f, "(*n BIGINT) -> BIGINT", combine: :+.to_proc) { |state, *n| state.to_i + n.sum }
    end
    assert_match(/an aggregate cannot take any number of arguments/, error.message)
    error = assert_raises(Crosslane::DeclarationError) { db.append_query("FROM t", "(*n BIGINT)", []) }
    assert_match(/the number of columns is fixed/, error.message)
  end
end
