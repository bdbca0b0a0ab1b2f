# frozen_string_literal: true

require_relative "../helper"

# Definitions in SQL that a database file keeps.
class TestRestore < CrosslaneTest
  def setup
    @folder = Dir.mktmpdir
    @before = %w[XDG_CONFIG_HOME XDG_CACHE_HOME].to_h { |name| [name, ENV.fetch(name, nil)] }
    @before.each_key { |name| ENV[name] = File.join(@folder, name) }
    @path = File.join(@folder, "shop.duckdb")
    other = File.join(@folder, "other.lua")
    File.write(other, 'udf("other(x BIGINT) -> BIGINT", function(x) return 2 * x end)')
    db = Crosslane.open(@path)
    db.load(other)
    db.query("CALL crosslane_create(?)", "CREATE FUNCTION plus(x INT) RETURNS INT LANGUAGE lua AS $$ x + 1 $$")
    db.query("CREATE VIEW answer AS SELECT plus(41) AS x")
    db.close
  end

  def teardown
    super
    @before.each { |name, value| ENV[name] = value }
    FileUtils.remove_entry(@folder)
  end

  # The database, and what opening it has warned of.
  def reopened(**options)
    db = nil
    _, warned = capture_io { db = open(path: @path, **options) }
    [db, warned]
  end

  def test_definitions_come_back
    db, warned = reopened
    assert_equal [42, ""], [db.value("SELECT x FROM answer"), warned]
  end

  def test_a_program_may_leave_them_out
    db, warned = reopened(restore: false)
    assert_empty warned
    assert_raises(Crosslane::Error) { db.query("FROM answer") }
  end

  def test_a_database_from_elsewhere_runs_nothing
    FileUtils.remove_entry(ENV.fetch("XDG_CONFIG_HOME"))
    db, warned = reopened
    assert_match(/functions that this database defines were not loaded \(plus\): nobody has trusted them/, warned)
    assert_raises(Crosslane::Error) { db.query("FROM answer") }
    db.query("CALL crosslane_trust()")
    db.close
    db, warned = reopened
    assert_equal [42, ""], [db.value("SELECT x FROM answer"), warned]
  end

  def test_a_database_without_definitions_loads_no_extension
    db = open(path: File.join(@folder, "other.duckdb"))
    assert_empty db.query("FROM duckdb_functions() WHERE function_name = 'crosslane_load'").to_a
  end
end
