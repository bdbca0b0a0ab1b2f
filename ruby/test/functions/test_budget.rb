# frozen_string_literal: true

require_relative "../helper"

# Blocks with a budget: how often one query may have them called.
class TestBudget < CrosslaneTest
  def test_a_query_ends_at_its_budget
    db = open
    [{}, { timeout: 60 }, { concurrency: 2 }, { deterministic: false }].each do |options|
      called = Queue.new
      db.udf(:paid, "(x BIGINT) -> BIGINT", budget: 10, **options) { |x| called.push(x) && x }
      2.times { assert_equal 45, db.value("SELECT sum(paid(i)) FROM range(10) r(i)"), options }
      called.clear
      error = assert_raises(Crosslane::Error) { db.query("SELECT sum(paid(i)) FROM range(50_000) r(i)") }
      assert_match(/paid: the query has used up its budget of 10 calls/, error.message, options)
      assert_operator called.size, :<=, 10, options
    end
    assert_raises(Crosslane::DeclarationError) { db.udf(:paid, "(x BIGINT) -> BIGINT", budget: 0) { |x| x } }
  end

  def test_tries_count
    db = open(threads: 1)
    tries = 0
    db.udf(:stubborn, "(x BIGINT) -> BIGINT", budget: 10, retries: 100, deterministic: false) do |x|
      tries += 1
      raise Crosslane::Retry.new("again", after: 0) unless (tries % 5).zero?

      x
    end
    assert_equal 2, db.value("SELECT count(stubborn(i)) FROM range(2) r(i)")
    assert_raises(Crosslane::Error) { db.query("SELECT count(stubborn(i)) FROM range(9000) r(i)") }
  end

  def test_each_run_of_a_prepared_statement_is_a_query
    db = open
    db.udf(:paid, "(x BIGINT) -> BIGINT", budget: 10) { |x| x }
    statement = db.prepare("SELECT sum(paid(i)) FROM range(?) r(i)")
    3.times { assert_equal [[45]], statement.query(10).to_a }
    assert_raises(Crosslane::Error) { statement.query(11).to_a }
    assert_equal [[45]], statement.query(10).to_a
  end
end
