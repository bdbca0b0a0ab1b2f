# frozen_string_literal: true

require_relative "../helper"

# The names and the types of a program's functions.
class TestDefinitions < CrosslaneTest
  def test_a_function_is_replaced_whatever_its_types
    db = open
    db.udf(:f, "(x BIGINT) -> BIGINT") { |x| x + 1 }
    statement = db.prepare("SELECT f(1)")
    assert_equal [[2]], statement.query.to_a
    db.udf(:f, "(x BIGINT) -> VARCHAR") { |x| "text #{x}" }
    assert_equal [["text 1"]], db.query("SELECT f(1)").to_a
    assert_equal [["text 1"]], statement.query.to_a
    db.udf(:F, "(x DOUBLE) -> DOUBLE") { |x| x / 2 }
    assert_equal 0.5, db.value("SELECT f(1)")
    db.udf(:f, "(x BIGINT, y BIGINT) -> BIGINT") { |x, y| x * y }
    assert_raises(Crosslane::Error) { db.query("SELECT f(1)") }
    assert_equal 6, db.value("SELECT f(2, 3)")
    db.aggregate(:f, "(x BIGINT) -> BIGINT", combine: ->(a, b) { a + b }) { |sum, x| (sum || 0) + x }
    assert_equal 3, db.value("SELECT f(i) FROM range(3) r(i)")
    db.udf(:f, "(x BIGINT) -> BIGINT") { |x| -x }
    assert_equal(-1, db.value("SELECT f(1)"))
  end

  def test_functions_that_take_other_types_stay_beside_an_overload
    db = open
    db.udf(:f, "(x BIGINT) -> VARCHAR") { |_| "BIGINT" }
    db.udf(:f, "(x VARCHAR) -> VARCHAR", overload: true) { |_| "VARCHAR" }
    assert_equal %w[BIGINT VARCHAR], db.query("SELECT f(1), f('1')").first
    db.udf(:f, "(x BIGINT) -> VARCHAR", overload: true) { |_| "another" }
    assert_equal %w[another VARCHAR], db.query("SELECT f(1), f('1')").first
    db.udf(:f, "(x DATE) -> VARCHAR") { |_| "DATE" }
    assert_raises(Crosslane::Error) { db.query("SELECT f(1)") }
  end

  def test_a_built_in_function_keeps_its_other_types
    db = open
    2.times { |n| db.udf(:upper, "(x BIGINT) -> BIGINT", replace: true) { |x| x + n } }
    assert_equal [2, "A"], db.query("SELECT upper(1), upper('a')").first
  end

  def test_arguments_may_be_subqueries
    db = open
    db.udf(:next_of, "(x BIGINT) -> BIGINT") { |x| x + 1 }
    db.query("CREATE TABLE t AS SELECT i FROM range(3) r(i)")
    assert_equal 2, db.value("SELECT next_of((SELECT 1))")
    query = "SELECT next_of((SELECT max(i) FROM t AS lower WHERE lower.i < t.i)) FROM t ORDER BY i"
    assert_equal [nil, 1, 2], db.query(query).map(&:first)
  end

  def test_a_prepared_query_that_runs_again_calls_again
    [{}, { timeout: 50 }].each do |options|
      db = open
      down = true
      db.udf(:ask, "(x BIGINT) -> BIGINT", **options) { |x| down ? raise(IOError, "not there yet") : x }
      db.query("CREATE TABLE one AS SELECT 5 AS x")
      [["SELECT ask(x) FROM one"], ["SELECT ask(5)"], ["SELECT ask(?)", 5]].each do |sql, *values|
        down = true
        statement = db.prepare(sql)
        assert_raises(IOError) { statement.query(*values) }
        down = false
        assert_equal [[5]], statement.query(*values).to_a
      end
    end
  end

  def test_a_table_function_is_replaced_whatever_its_types
    db = open
    db.table(:t, "(n BIGINT) -> (i BIGINT)") { |n| [[n]] }
    db.table(:t, "(n BIGINT) -> (i BIGINT)") { |n| [[n + 1]] }
    assert_equal [[2]], db.query("FROM t(1)").to_a
    db.table(:t, "(n BIGINT) -> (a VARCHAR, b VARCHAR)") { |n| [[n.to_s, "b"]] }
    assert_equal [{ a: "1", b: "b" }], db.query("FROM t(1)").each_hash.to_a
    db.table(:t, "(n BIGINT, m BIGINT) -> (i BIGINT)") { |n, m| [[n + m]] }
    assert_equal [[3]], db.query("FROM t(1, 2)").to_a
    assert_raises(Crosslane::Error) { db.query("FROM t(1)") }
    # It is independent of a scalar function with the same name.
    db.udf(:t, "(n BIGINT) -> BIGINT") { |n| n }
    assert_equal [[3, 5]], db.query("SELECT i, t(5) FROM t(1, 2)").to_a
  end

  def test_an_aggregate_is_replaced_whatever_its_types
    db = open
    sum = ->(a, b) { a + b }
    db.aggregate(:a, "(x BIGINT) -> BIGINT", combine: sum) { |so_far, x| (so_far || 0) + x }
    db.aggregate(:a, "(x BIGINT) -> BIGINT", combine: sum) { |so_far, x| (so_far || 0) + (2 * x) }
    assert_equal 6, db.value("SELECT a(i) FROM range(3) r(i)")
    db.aggregate(:a, "(x VARCHAR) -> VARCHAR", combine: sum) { |so_far, x| (so_far || "") + x }
    assert_equal "aa", db.value("SELECT a('a') FROM range(2)")
    error = assert_raises(Crosslane::Error) do
      db.aggregate(:sum, "(x BIGINT) -> BIGINT", combine: sum) { |so_far, x| (so_far || 0) + x }
    end
    assert_match(/the name sum is taken by an aggregate/, error.message)
  end

  def test_a_replacement_is_undone_with_its_transaction
    db = open
    db.udf(:f, "(x BIGINT) -> BIGINT") { |_| 1 }
    assert_raises(IndexError) do
      db.transaction do
        db.udf(:f, "(x BIGINT) -> VARCHAR") { |_| "two" }
        assert_equal "two", db.value("SELECT f(0)")
        raise IndexError
      end
    end
    assert_equal 1, db.value("SELECT f(0)")
  end

  def test_queries_go_on_with_what_they_began_with
    db = numbers(300_000)
    begun = Thread::Queue.new
    replaced = Thread::Queue.new
    db.udf(:f, "(x BIGINT) -> BIGINT") { |x| (begun << x if x.zero?) && replaced.pop && 1 || 1 }
    query = Thread.new { db.value("SELECT sum(f(x)) FROM numbers") }
    begun.pop
    db.udf(:f, "(x BIGINT) -> VARCHAR") { |_| "another" }
    replaced << true
    assert_equal 300_000, query.value
    assert_equal "another", db.value("SELECT f(1)")
  end

  def test_names_that_are_quoted
    db = open
    db.udf('a "b".c', "(x BIGINT) -> BIGINT") { |x| x }
    assert_equal 1, db.value('SELECT "a ""b"".c"(1)')
    db.udf('a "b".c', "(x BIGINT) -> VARCHAR") { |_| "new" }
    assert_equal "new", db.value('SELECT "a ""b"".c"(1)')
    db.query("ATTACH ':memory:' AS \"o\"\"ther\"")
    db.query('USE "o""ther"')
    db.query('CREATE MACRO "m ""1"(x) AS x')
    assert_raises(Crosslane::Error) { db.udf('m "1', "(x BIGINT) -> BIGINT") { |x| x } }
    db.udf('m "1', "(x BIGINT) -> BIGINT", replace: true) { |x| x + 1 }
    assert_equal 2, db.value('SELECT "m ""1"(1)')
  end

  def test_names_of_table_functions_that_others_have
    db = open
    error = assert_raises(Crosslane::Error) { db.table(:range, "(n BIGINT) -> (i BIGINT)") { |n| [[n]] } }
    assert_match(/the name range is taken by a table; give the block another name/, error.message)
    assert_equal 3, db.value("SELECT count(*) FROM range(3)")
    db.query("CREATE MACRO mine(x) AS TABLE SELECT x")
    error = assert_raises(Crosslane::Error) { db.table(:mine, "(n BIGINT) -> (i BIGINT)") { |n| [[n]] } }
    assert_match(/the name mine is taken by a table macro/, error.message)
  end

  def test_a_dropped_block
    db = open
    db.udf(:Slug, "(title VARCHAR) -> VARCHAR", &:downcase)
    db.udf(:slug, "(n BIGINT) -> VARCHAR", overload: true, &:to_s)
    db.table(:slug, "() -> (i BIGINT)") { [[1]] }
    statement = db.prepare("SELECT slug('A')")
    assert_equal [["a"]], statement.query.to_a
    assert_nil db.drop("SLUG")
    ["SELECT slug('A')", "SELECT slug(1)", "FROM slug()"].each do |sql|
      assert_match(/slug does not exist/i, assert_raises(Crosslane::Error) { db.query(sql) }.message)
    end
    assert_raises(Crosslane::Error) { statement.query }
    # The name is free: for a block with other types, or for a macro.
    db.aggregate(:slug, "(x BIGINT) -> BIGINT", combine: ->(a, b) { a + b }) { |sum, x| (sum || 0) + x }
    assert_equal 3, db.value("SELECT slug(i) FROM range(3) r(i)")
    db.drop(:slug)
    db.query("CREATE MACRO slug(x) AS x")
    error = assert_raises(Crosslane::Error) { db.udf(:slug, "(x BIGINT) -> BIGINT") { |x| x } }
    assert_match(/the name slug is taken by a macro/, error.message)
    db.udf(:slug, "(x BIGINT) -> BIGINT", replace: true) { |x| x + 1 }
    assert_equal 2, db.value("SELECT slug(1)")
    db.udf('a "b"', "() -> BIGINT") { 1 }
    assert_nil db.drop('a "b"')
  end

  def test_names_that_cannot_be_dropped
    db = open
    error = assert_raises(Crosslane::Error) { db.drop(:slug) }
    assert_equal "there is no block slug; this database has none", error.message
    db.udf(:slug, "(x BIGINT) -> BIGINT") { |x| x }
    db.table(:days, "() -> (i BIGINT)") { [[1]] }
    error = assert_raises(Crosslane::Error) { db.drop(:slog) }
    assert_equal "there is no block slog; did you mean slug?", error.message
    error = assert_raises(Crosslane::Error) { db.drop("other") }
    assert_equal "there is no block other; there are days, slug", error.message
    assert_raises(Crosslane::Error) { db.drop(:sum) }
    # The drop would remove DuckDB's own functions of that name too.
    db.udf(:upper, "(x BIGINT) -> BIGINT", replace: true) { |x| x }
    error = assert_raises(Crosslane::Error) { db.drop(:upper) }
    assert_match(/DuckDB has a function upper of its own/, error.message)
    assert_equal [1, "A"], db.query("SELECT upper(1), upper('a')").first
    db.close
    assert_match(/closed/, assert_raises(Crosslane::Error) { db.drop(:slug) }.message)
  end

  def test_a_function_of_a_file_that_has_the_name_of_a_dropped_block
    db = open
    db.udf(:slug, "(x BIGINT) -> BIGINT") { |x| x }
    db.drop(:slug)
    Dir.mktmpdir do |folder|
      File.write("#{folder}/functions.rb", 'udf("slug(x BIGINT) -> BIGINT") { |x| x + 1 }')
      db.load("#{folder}/functions.rb")
    end
    error = assert_raises(Crosslane::Error) { db.udf(:slug, "(x BIGINT) -> BIGINT") { |x| x } }
    assert_match(/the name slug is taken by a function/, error.message)
    assert_match(/there is no block slug/, assert_raises(Crosslane::Error) { db.drop(:slug) }.message)
    assert_equal 2, db.value("SELECT slug(1)")
  end

  def test_a_library_that_cannot_forget_says_so
    message = forked do
      Crosslane::Native::Connection.define_method(:forget) { |_name, _table| false }
      db = Crosslane.open
      db.udf(:slug, "(x BIGINT) -> BIGINT") { |x| x }
      error = assert_raises(Crosslane::Error) { db.drop(:slug) }
      assert_equal 1, db.value("SELECT slug(1)")
      error.message
    end
    assert_match(/this libduckdb cannot drop slug: .* use DuckDB's own/, message)
  end

  def test_a_drop_is_undone_with_its_transaction
    db = open
    db.udf(:f, "(x BIGINT) -> BIGINT") { |_| 1 }
    assert_raises(IndexError) do
      db.transaction do
        db.drop(:f)
        assert_raises(Crosslane::Error) { db.drop(:f) }
        raise IndexError
      end
    end
    assert_equal 1, db.value("SELECT f(0)")
    db.udf(:f, "(x BIGINT) -> BIGINT") { |_| 2 }
    assert_equal 2, db.value("SELECT f(0)")
  end

  def test_fields_of_one_name
    db = open
    error = assert_raises(Crosslane::DeclarationError) do
      db.udf(:f, "(x BIGINT) -> STRUCT(a BIGINT, A BIGINT)") { |x| [x, x] }
    end
    assert_match(/test_definitions.rb:\d+: function f: .*fields \(or columns\) of different names/, error.message)
    error = assert_raises(Crosslane::DeclarationError) { db.table(:t, "() -> (a BIGINT, a BIGINT)") { [] } }
    assert_match(/fields \(or columns\) of different names/, error.message)
    error = assert_raises(Crosslane::Error) { db.query("SELECT row(1, 2)").to_a }
    assert_match(/two fields named "" .*name its fields, or cast it/, error.message)
  end

  def test_types_of_the_database
    db = open
    db.query("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE SCHEMA shop; CREATE TYPE shop.price AS DECIMAL(10, 2)")
    db.udf(:cheered, "(x mood) -> mood") { |_| "ok" }
    db.table(:moods, "(first mood) -> (m mood, p shop.price)") { |first| [[first, 1], ["ok", 2]] }
    db.table(:named, "(m mood)", columns: ->(m) { { m => "INTEGER" } }) { |_| [[1]] }
    dearest = ->(*all) { all.compact.max }
    db.aggregate(:dearest, "(p shop.price) -> shop.price", combine: dearest, &dearest)
    assert_equal "ok", db.value("SELECT cheered('sad'::mood)")
    assert_equal [["sad", 1], ["ok", 2]], db.query("FROM moods('sad'::mood)").map(&:to_a)
    assert_equal({ "sad" => [1] }, db.query("FROM named('sad'::mood)").columns)
    assert_equal BigDecimal("20"), db.value("SELECT dearest(p) FROM (VALUES (1.5), (20)) v(p)")
    error = assert_raises(Crosslane::DeclarationError) { db.udf(:f, "(x shop.mood) -> BIGINT") { 1 } }
    assert_match(/test_definitions.rb:\d+: function f: expected a SQL type at column 5/, error.message)
  end
end
