# frozen_string_literal: true

require_relative "../helper"

# Transactions, appended rows, descriptions of statements, and queries in the background.
class TestClient < CrosslaneTest
  def test_what_a_transaction_raises
    db = open
    db.query("CREATE TABLE t (i INTEGER PRIMARY KEY)")
    # The block's own exception is raised, even if nothing remains to roll back.
    assert_raises(IndexError) { db.transaction { db.query("ROLLBACK") && raise(IndexError) } }
    assert_raises(IndexError) { db.transaction { db.query("INSERT INTO t VALUES (1)") && raise(IndexError) } }
    error = assert_raises(Crosslane::Error) { db.transaction { db.query("COMMIT") } }
    assert_match(/no transaction is active/, error.message)
    db.query("BEGIN")
    error = assert_raises(Crosslane::Error) { db.transaction { flunk } }
    assert_match(/transaction within a transaction/, error.message)
    db.query("ROLLBACK")
    other = Crosslane.open
    assert_raises(IndexError) { other.transaction { other.close || raise(IndexError) } }
    # A failed commit has rolled back.
    db.query("INSERT INTO t VALUES (0)")
    assert_raises(Crosslane::Error) do
      db.transaction do
        db.query("INSERT INTO t VALUES (2)")
        Thread.new { db.query("INSERT INTO t VALUES (2)") }.join
      end
    end
    assert_equal [[0], [2]], db.query("FROM t ORDER BY i").to_a
    assert_equal 1, (db.transaction { db.transaction { 1 } })
  end

  def test_transactions_inside_of_others
    db = open
    db.query("CREATE TABLE t (i INTEGER)")
    assert_raises(IndexError) do
      db.transaction do
        db.transaction { db.query("INSERT INTO t VALUES (1)") }
        raise IndexError
      end
    end
    assert_equal 0, db.value("SELECT count(*) FROM t")
    assert_equal(5, catch(:out) { db.transaction { db.query("INSERT INTO t VALUES (1)") && throw(:out, 5) } })
    assert_equal 0, db.value("SELECT count(*) FROM t")
  end

  # A block that the query's own thread calls has another connection, without a transaction.
  def test_a_transaction_in_a_block_of_a_query
    db = open(threads: 1)
    db.query("CREATE TABLE t (i INTEGER)")
    db.udf(:insert, "(x INTEGER) -> INTEGER", deterministic: false) do |x|
      db.transaction { db.query("INSERT INTO t VALUES (?)", x) && raise(IndexError) }
    rescue IndexError
      x
    end
    db.transaction { assert_equal 3, db.value("SELECT insert(3)") }
    assert_equal 0, db.value("SELECT count(*) FROM t")
  end

  def test_appending_to_tables_of_any_name
    db = open
    db.query("ATTACH ':memory:' AS other")
    ["plain", '"a.b"."c ""d"', "s.t", "other.main.t", "other.t2", 'other."s 1".t'].each do |name|
      schema = name[/\A(.*)\.[^.]+\z/, 1]
      db.query("CREATE SCHEMA IF NOT EXISTS #{schema}") unless schema.nil? || schema == "other"
      db.query("CREATE TABLE #{name} (i INTEGER)")
      assert_equal 2, db.append(name, [[1], [2]]), name
      assert_equal [[1], [2]], db.query("FROM #{name}").to_a, name
    end
    ["", "a.", "a.b.c.d", 'a"b', '"a'].each do |name|
      assert_match(/is not the name of a table/, assert_raises(Crosslane::Error) { db.append(name, []) }.message)
    end
    assert_raises(Crosslane::Error) { db.append("missing", []) }
  end

  def test_appending_some_columns_and_default_values
    db = open
    db.query("CREATE SEQUENCE ids START 10")
    db.query("CREATE TABLE t (id INTEGER DEFAULT nextval('ids'), name VARCHAR DEFAULT 'none', n INTEGER)")
    assert_equal 2, db.append("t", [[1, "a"], [2, Crosslane::DEFAULT]], columns: %i[n name])
    assert_equal 1, db.append("t", [[5, Crosslane::DEFAULT, nil]])
    assert_equal [[5, "none", nil], [10, "a", 1], [11, "none", 2]], db.query("FROM t ORDER BY id").to_a
    db.append("t", columns: ["name"]) { |rows| 5000.times { |i| rows << [i.even? ? Crosslane::DEFAULT : "odd"] } }
    assert_equal [[2500, "none"], [2500, "odd"]], db.query(<<~SQL).to_a
      SELECT count(*), name FROM t WHERE id > 11 GROUP BY name ORDER BY name
    SQL
    error = assert_raises(Crosslane::Error) { db.append("t", [[Crosslane::DEFAULT, "a", 1]]) }
    assert_match(/not a foldable default/, error.message)
    error = assert_raises(Crosslane::Error) { db.append("t", [[1]], columns: ["nothing"]) }
    assert_match(/nothing/, error.message)
    # A row that does not fit leaves no default value in the columns.
    appended = db.append("t", columns: %w[name n]) do |rows|
      assert_raises(Crosslane::Error) { rows << [Crosslane::DEFAULT, "no number"] }
      rows << ["kept", 7]
    end
    assert_equal [1, "kept"], [appended, db.value("SELECT name FROM t WHERE n = 7")]
  end

  def test_appending_to_a_query
    db = open
    db.query("CREATE TABLE prices (item VARCHAR PRIMARY KEY, price BIGINT)")
    db.append("prices", [["tea", 1], ["milk", 2]])
    upsert = "INSERT OR REPLACE INTO prices FROM appended_data"
    assert_equal 2, db.append_query(upsert, "(item VARCHAR, price BIGINT)", [["tea", 3], ["cake", 5]])
    assert_equal [["cake", 5], ["milk", 2], ["tea", 3]], db.query("FROM prices ORDER BY item").to_a
    deleted = db.append_query("DELETE FROM prices USING appended_data WHERE price = \"the price\"",
                              '("the price" BIGINT)') { |rows| rows << [2] << [5] }
    assert_equal [2, [["tea", 3]]], [deleted, db.query("FROM prices").to_a]
    assert_raises(Crosslane::DeclarationError) { db.append_query(upsert, "item", []) }
    assert_raises(Crosslane::Error) { db.append_query("INSERT INTO nowhere FROM appended_data", "(a BIGINT)", [[1]]) }
    error = assert_raises(Crosslane::Error) { db.append_query(upsert, "(item VARCHAR, price BIGINT)", [["a", "b"]]) }
    assert_match(/row 1, column 2: got String "b"/, error.message)
  end

  def test_what_leaves_a_block_of_a_query_that_is_given_rows
    db = open
    db.query("CREATE TABLE t (x BIGINT)")
    own = Class.new(StandardError)
    db.table(:bad, "(n BIGINT)", columns: ->(_n) { raise own, "columns" }) { |n| [[n]] }
    db.udf(:boom, "(x BIGINT) -> BIGINT") { |x| raise own, "block #{x}" }
    db.udf(:away, "(x BIGINT) -> BIGINT", timeout: 60) { |x| raise own, "lane #{x}" }
    db.udf(:leave, "(x BIGINT) -> BIGINT") { |x| throw :out, x }
    given = ->(what) { db.append_query("INSERT INTO t SELECT #{what}", "(x BIGINT)", [[7]]) }
    { "* FROM bad(1)" => "columns", "boom(1) FROM appended_data" => "block 1",
      "boom(x) FROM appended_data" => "block 7", "away(x) FROM appended_data" => "lane 7" }.each do |what, message|
      assert_equal message, assert_raises(own) { given.call(what) }.message
    end
    assert_equal(7, catch(:out) { given.call("leave(x) FROM appended_data") })
    assert_equal 1, given.call("x FROM appended_data")
    assert_equal [[7]], db.query("FROM t").to_a
  end

  # DuckDB runs the query each time it has many rows.
  alone def test_blocks_of_a_query_that_is_given_many_rows
    db = open
    db.query("CREATE TABLE t (x BIGINT)")
    db.udf(:away, "(x BIGINT) -> BIGINT", timeout: 60) { |x| x + 1 }
    rows = (1..300_000).lazy.map { |i| [i] }
    assert_equal 300_000, db.append_query("INSERT INTO t SELECT away(x) FROM appended_data", "(x BIGINT)", rows)
    assert_equal [300_000, 300_001], db.query("SELECT count(*), max(x) FROM t").first
  end

  def test_what_a_statement_says_of_itself
    db = open
    statement = db.prepare("SELECT 'a' AS name, i, i * 2.5 AS x FROM range($n::BIGINT) r(i) WHERE i > $least")
    assert_equal({ "n" => "BIGINT", "least" => nil }, statement.parameters)
    statement = db.prepare("SELECT ?")
    assert_equal [{ "1" => nil }, nil, nil], [statement.parameters, statement.names, statement.types]
    statement = db.prepare("SELECT 'a' AS name, i, i * 2.5 AS x FROM range(3) r(i)")
    assert_equal [{}, %w[name i x]], [statement.parameters, statement.names]
    assert_equal statement.query.types, statement.types
    db.query("CREATE TABLE t (i INTEGER)")
    insert = db.prepare("INSERT INTO t VALUES (1)")
    assert_equal [["Count"], ["BIGINT"]], [insert.names, insert.types]
    db.close
    assert_raises(Crosslane::Error) { statement.parameters }
  end

  def test_queries_beside_the_program
    db = numbers
    pending = db.start("SELECT sum(x)::BIGINT + ? FROM numbers", 1)
    assert_equal [[124_999_750_001]], pending.result.to_a
    assert_equal [true, 100.0, pending], [pending.finished?, pending.progress, pending.wait]
    assert_raises(Crosslane::Error) { db.start("SELECT nothing").result }
    db.udf(:fail, "(x BIGINT) -> BIGINT") { |_| raise KeyError, "no" }
    failed = db.start("SELECT fail(1)")
    assert_same failed, failed.wait
    2.times { assert_raises(KeyError) { failed.result } }
  end

  def test_progress_and_interruption_of_a_query
    db = open
    gate = Thread::Queue.new
    reached = Thread::Queue.new
    db.query("CREATE TABLE t AS SELECT i AS x FROM range(2000000) r(i)")
    db.udf(:slow, "(x BIGINT) -> BIGINT", vectorized: true) do |xs|
      reached << true && gate.pop if xs.include?(1_000_000)
      xs
    end
    pending = db.start("SELECT sum(slow(x)) FROM t")
    reached.pop
    refute pending.finished?
    assert_nil pending.wait(0.01)
    assert_includes 0.0..100.0, pending.progress || 0.0
    assert_same pending, pending.interrupt
    error = assert_raises(Crosslane::PendingQuery::Interrupted) { pending.result }
    assert_equal "the query was interrupted", error.message
    pending.interrupt
    assert_equal 1, db.value("SELECT 1")
    endless = db.start("SELECT count(*) FROM range(100000000000) a, range(100000000000) b")
    db.close
    assert_raises(Crosslane::PendingQuery::Interrupted) { endless.result }
    assert_raises(Crosslane::Error) { db.start("SELECT 1") }
  end

  # The number of rows that DuckDB writes at once.
  STEP = 204_800

  def test_which_rows_are_kept_when_one_is_wrong
    rows = ->(count) { (0...count).lazy.map { |i| [i] } + [["x"]] }
    appends = {
      "append" => ->(db, count) { db.append("t", rows.call(count)) },
      "append_query" => lambda do |db, count|
        db.append_query("INSERT INTO t FROM appended_data", "(i BIGINT)", rows.call(count))
      end
    }
    appends.each do |what, append|
      { 4 => 0, STEP - 1 => 0, STEP + 3 => STEP }.each do |count, stay|
        db = Crosslane.open
        db.query("CREATE TABLE t (i BIGINT)")
        assert_match(/\Arow #{count + 1}, column 1/, assert_raises(Crosslane::Error) { append.call(db, count) }.message)
        assert_equal stay, db.value("SELECT count(*) FROM t"), what
        db.query("DELETE FROM t")
        assert_raises(Crosslane::Error) { db.transaction { append.call(db, count) } }
        assert_equal 0, db.value("SELECT count(*) FROM t"), what
      ensure
        db&.close
      end
    end
  end
end
