# frozen_string_literal: true

require_relative "helper"

class TestAggregates < CrosslaneTest
  # The sum and the list of BIGINTs, each with states that change in place.
  def aggregates(threads, rows = 3000)
    db = open(threads: threads)
    db.query("SELECT setseed(0.5)")
    db.query("CREATE TABLE t AS SELECT i, (i * 7919) % 1009 AS x, i % 7 AS k, (i * 31) % 50 AS peer, " \
             "(random() * 40)::INT AS a, (random() * 40)::INT AS b FROM range(#{rows}) r(i)")
    db.aggregate(:total, "(x BIGINT) -> BIGINT", start: -> { [0] }, finish: ->(sum) { (sum << 1).first },
                                                 combine: ->(a, b) { b.push(a[0] + b[0]).shift && b }) do |sum, x|
      sum[0] += x
      sum
    end
    db.aggregate(:lst, "(x BIGINT) -> BIGINT[]", start: -> { Hash.new { |all, key| all[key] = [] } },
                                                 finish: ->(all) { all[:values].size.zero? ? nil : all[:values] },
                                                 combine: ->(a, b) { a.merge!(b) { |_, m, n| m + n } }) do |all, x|
      all[:values] << x
      all
    end
    db
  end

  def test_an_aggregate_is_one_function_of_its_own_signature
    db = open
    known = Crosslane::Host::FUNCTIONS.keys
    db.aggregate(:total, "(x BIGINT, y VARCHAR) -> DOUBLE", combine: nil) { |sum, _x, _y| sum }
    added = Crosslane::Host::FUNCTIONS.except(*known).values
    assert_equal 1, added.size
    message = added.first.message
    assert_equal ["total(x BIGINT, y VARCHAR) -> DOUBLE", "aggregate"], message.values_at(:signature, :kind)
    assert_equal [__FILE__, __LINE__ - 5], message.values_at(:file, :line)
  end

  def test_what_cannot_be_an_aggregate
    db = open
    refused = [
      ["(x BIGINT)", {}, /signature is "\(x BIGINT\) -> BIGINT", not/],
      ["(x BIGINT) -> BIGINT", { retries: 1 }, /an aggregate has no option retries; there is nulls/],
      ["(x BIGINT, y BIGINT) -> BIGINT", {}, /the signature has 3 parameters, the block has 2/]
    ]
    refused.each do |text, more, due|
      declare = -> { db.aggregate(:f, text, combine: nil, **more) { |a, _| a } }
      error = assert_raises(Crosslane::DeclarationError, &declare)
      assert_match due, error.message
    end
  end

  def test_errors_name_the_aggregate_and_the_row
    db = open(threads: 1)
    db.query("CREATE TABLE t AS SELECT i FROM range(3000) r(i)")
    refuse = ->(*) { raise IOError, "no" }
    add = ->(a, b) { a + b }
    db.aggregate(:steps, "(x BIGINT) -> BIGINT", combine: add) { |sum, x| x == 7 ? refuse.call : (sum || 0) + x }
    db.aggregate(:joins, "(x BIGINT) -> BIGINT", combine: refuse) { |sum, x| (sum || 0) + x }
    db.aggregate(:ends, "(x BIGINT) -> BIGINT", combine: add, finish: refuse) { |sum, x| (sum || 0) + x }
    db.aggregate(:odd, "(x BIGINT) -> BIGINT", combine: add, finish: ->(_) { "seven" }) { |sum, x| (sum || 0) + x }
    expected = {
      steps: /Error: steps: IOError: no\n.*in row 8 of the batch, with state = \d+, x = 7/m,
      joins: /Error: joins: IOError: no\n.*with target = \d+, source = \d+/m,
      ends: /Error: ends: IOError: no\n.*in row 1 of the batch, with state = \d+/m,
      odd: /Error: odd: TypeError: returned String "seven" where BIGINT is due\n.*with state = \d+/m
    }
    expected.each do |name, due|
      window = "OVER (ORDER BY i ROWS BETWEEN 50 PRECEDING AND 50 FOLLOWING)" if name == :joins
      error = assert_raises(IOError, TypeError) { db.query("SELECT #{name}(i) #{window} FROM t") }
      assert_match due, error.query_error
    end
    assert_no_states
  end

  def each_way(&block) = [1, 4].each { |threads| block.call(aggregates(threads)) }

  def assert_none(db, sql)
    assert_empty db.query(sql).first(3)
  end

  # Rows of `t` where our aggregates over a window are not DuckDB's.
  def assert_window(db, window, filter = "", distinct = "")
    call = ->(name) { "#{name}(#{distinct}x) #{filter} OVER (#{window})" }
    ours = "coalesce(#{call["total"]}, 0) IS DISTINCT FROM coalesce(#{call["sum"]}, 0)"
    # The order of a list is left open where it is one of DISTINCT values.
    lists = %w[lst list].map { |name| distinct.empty? ? call[name] : "list_sort(#{call[name]})" }
    assert_none db, "FROM (SELECT *, #{ours} AS bad, #{lists[0]} AS l, #{lists[1]} AS m FROM t) " \
                    "WHERE bad OR l IS DISTINCT FROM m"
  end

  FRAMES = [
    "ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING", "ROWS BETWEEN 100 PRECEDING AND 77 FOLLOWING",
    "ROWS BETWEEN a PRECEDING AND b FOLLOWING", "ROWS BETWEEN a FOLLOWING AND b FOLLOWING",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", "ROWS BETWEEN CURRENT ROW AND 300 FOLLOWING",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING", "RANGE BETWEEN 5 PRECEDING AND 5 FOLLOWING"
  ].freeze

  def test_frames
    each_way do |db|
      FRAMES.each do |frame|
        assert_window db, "PARTITION BY k ORDER BY i #{frame}"
        assert_window db, "PARTITION BY k ORDER BY i #{frame}", "FILTER (x % 3 <> 1)"
      end
    end
  end

  # Its states lie in a vector that the thread lends, and a query inside needs another.
  def test_a_block_whose_query_has_aggregates_too
    each_way do |db|
      inner = aggregates(1)
      db.aggregate(:nested, "(x BIGINT) -> BIGINT", start: -> { 0 }, combine: ->(a, b) { a + b }) do |sum, x|
        sum + x + (x % 100 == 1 ? inner.value("SELECT lst(x ORDER BY i)[8] FROM t WHERE i < 10") : 0)
      end
      eighth = db.value("SELECT x FROM t WHERE i = 7")
      term = "x + CASE x % 100 WHEN 1 THEN #{eighth} ELSE 0 END"
      expected = db.query("SELECT k, sum(#{term})::BIGINT FROM t GROUP BY k ORDER BY k").to_a
      assert_equal expected, db.query("SELECT k, nested(x ORDER BY i) FROM t GROUP BY k ORDER BY k").to_a
    end
  end

  def test_large_frames_of_a_segment_tree
    db = aggregates(4, 10_000)
    assert_window db, "ORDER BY i ROWS BETWEEN 700 PRECEDING AND 300 FOLLOWING"
  end

  def test_frames_that_exclude
    each_way do |db|
      ["CURRENT ROW", "GROUP", "TIES"].each do |what|
        assert_window db, "PARTITION BY k ORDER BY peer, i ROWS BETWEEN 20 PRECEDING AND 20 FOLLOWING EXCLUDE #{what}"
        assert_window db, "PARTITION BY k ORDER BY i ROWS BETWEEN a PRECEDING AND b FOLLOWING EXCLUDE #{what}"
      end
      # DuckDB does not say of all of these states that they end.
      assert_no_states
    end
  end

  def test_frames_of_distinct_values
    each_way do |db|
      assert_window db, "PARTITION BY k ORDER BY i ROWS BETWEEN 50 PRECEDING AND 50 FOLLOWING", "", "DISTINCT "
    end
  end

  def test_windows_without_frames
    each_way do |db|
      ["", "PARTITION BY k", "ROWS UNBOUNDED PRECEDING"].each do |window|
        assert_window db, window
        assert_window db, window, "FILTER (x % 3 <> 1)"
      end
    end
  end

  def test_an_order_of_arguments
    each_way do |db|
      order = "x DESC, i"
      assert_equal db.value("SELECT list(x ORDER BY #{order}) FROM t"),
                   db.value("SELECT lst(x ORDER BY #{order}) FROM t")
      assert_none db, "FROM (SELECT k, lst(x ORDER BY #{order}) l, list(x ORDER BY #{order}) m, " \
                      "lst(DISTINCT x ORDER BY x) d, list(DISTINCT x ORDER BY x) e FROM t GROUP BY k) " \
                      "WHERE l <> m OR d <> e"
      assert_none db, "SELECT lst(x ORDER BY #{order}) OVER w l, list(x ORDER BY #{order}) OVER w m FROM t " \
                      "WINDOW w AS (PARTITION BY k ORDER BY i ROWS BETWEEN 9 PRECEDING AND 9 FOLLOWING) " \
                      "QUALIFY l <> m"
      assert_none db, "SELECT lst(x ORDER BY #{order}) OVER (PARTITION BY k) l, " \
                      "list(x ORDER BY #{order}) OVER (PARTITION BY k) m FROM t QUALIFY l <> m"
    end
  end

  def test_many_groups
    [1, 4].each do |threads|
      db = aggregates(threads, 100_000)
      assert_none db, "SELECT total(x) AS ours, sum(x) AS theirs, total(x) FILTER (x % 3 = 1) AS f, " \
                      "sum(x) FILTER (x % 3 = 1) AS g, total(DISTINCT x) AS d, sum(DISTINCT x) AS e " \
                      "FROM t GROUP BY i % 9000 HAVING ours <> theirs OR coalesce(f, 0) <> coalesce(g, 0) OR d <> e"
      assert_equal 100_000, db.value("SELECT sum(len(l)) FROM (SELECT lst(x) AS l FROM t GROUP BY i % 777)")
      assert_equal [[true]], db.query("SELECT list_sort(lst(x)) = list_sort(list(x)) FROM t").to_a
    end
  end

  def test_lists
    each_way do |db|
      assert_none db, "SELECT list_aggregate(l, 'total') AS ours, list_sum(l) AS theirs " \
                      "FROM (SELECT list(x) AS l FROM t GROUP BY i // 3) WHERE ours <> theirs"
    end
  end

  def test_no_states_are_left
    each_way do |db|
      stop = ->(x) { x == 333 ? raise(IOError, "enough") : x }
      db.aggregate(:starts, "(x BIGINT) -> BIGINT", combine: ->(a, b) { a + b }) { |sum, x| (sum || 0) + stop[x] }
      db.aggregate(:ends, "(x BIGINT) -> BIGINT", combine: ->(a, b) { a + b }, finish: lambda { |_|
                                                                                         raise IOError, "enough"
                                                                                       },
                                                  start: -> { 0 }) { |sum, x| sum + x }
      db.aggregate(:joins, "(x BIGINT) -> BIGINT", combine: ->(_a, _b) { raise IOError, "enough" }) { |_sum, x| x }
      window = "OVER (PARTITION BY k ORDER BY i ROWS BETWEEN 50 PRECEDING AND 50 FOLLOWING)"
      %w[starts ends joins].each do |name|
        ["FROM t", "FROM t GROUP BY i % 100"].each do |from|
          next if name == "joins"

          assert_raises(IOError) { db.query("SELECT #{name}(x) #{from}") }
          assert_raises(IOError) { db.query("SELECT #{name}(x ORDER BY i) #{from}") }
          assert_no_states
        end
        assert_raises(IOError) { db.query("SELECT #{name}(x) #{window} FROM t") }
        assert_no_states
      end
      db.query("SELECT total(x) #{window}, lst(x) #{window}, total(x) OVER () FROM t")
      assert_no_states
    end
  end

  def test_no_states_are_left_of_a_query_that_was_cancelled
    db = aggregates(4)
    ready, go = Array.new(2) { Thread::Queue.new }
    db.aggregate(:waits, "(x BIGINT) -> BIGINT", combine: ->(a, _b) { a }) do |_, x|
      x == 333 ? (ready << x) && go.pop : x
    end
    window = "OVER (ORDER BY i ROWS BETWEEN 99 PRECEDING AND 9 FOLLOWING)"
    query = Thread.new { db.query("SELECT waits(x) #{window} FROM t") }
    ready.pop
    # A query that runs meanwhile keeps its own.
    db.aggregate(:keeps, "(x BIGINT) -> BIGINT", combine: ->(a, b) { a + b }) do |sum, x|
      if query.alive?
        query.kill
        go.close
        query.join
      end
      (sum || 0) + x
    end
    assert_equal db.query("SELECT k, sum(x)::BIGINT FROM t GROUP BY k ORDER BY k").to_a,
                 db.query("SELECT k, keeps(x) FROM t GROUP BY k ORDER BY k").to_a
    assert_no_states
  end

  def test_states_are_looked_through_once_for_all_that_a_query_lost
    db = open
    asked = []
    ready, go = Array.new(2) { Thread::Queue.new }
    db.udf(:waits, "(x BIGINT) -> BIGINT") { |x| (ready << x) && go.pop }
    db.aggregate(:fails, "(x BIGINT) -> BIGINT", combine: nil) { |_, _| raise IOError, "enough" }
    db.aggregate(:keeps, "(x BIGINT) -> BIGINT", combine: ->(a, b) { a + b }) { |sum, x| (sum || 0) + x }
    older = Thread.new { db.value("SELECT waits(1)") }
    ready.pop
    assert_raises(IOError) { db.value("SELECT fails(i) FROM range(10) r(i)") }
    forget = Crosslane::Native.method(:forget_states)
    heard = ->(states) { forget.call(states)&.tap { |floor| asked << floor } }
    Crosslane::Native.stub(:forget_states, heard) do
      assert_equal 500, db.query("SELECT i, keeps(i) FROM range(500) r(i) GROUP BY i").count
      go << 1
      older.join
      db.value("SELECT 1")
    end
    assert_equal asked.uniq, asked
    assert_no_states
  end

  def test_states_are_forgotten_while_others_are_added
    accumulators = Crosslane::Accumulators
    before = accumulators.instance_variable_get(:@floor)
    values = accumulators.const_get(:VALUES)
    # Of what other tests have left, until the next aggregate.
    others = values.keys
    # Another lane adds a state just when one is looked at.
    floor = Object.new
    floor.define_singleton_method(:coerce) { |state| (values[-2] = 0) && [state, 0] }
    values[-1] = 0
    Crosslane::Native.stub(:forget_states, floor) { accumulators.forget }
    assert_equal others + [-2], values.keys
  ensure
    accumulators.instance_variable_set(:@floor, before)
    [-1, -2].each { |state| values.delete(state) }
  end

  Rule = Class.new

  def test_what_is_known_by_its_identity_is_found_in_a_copy
    copy = Crosslane::Accumulators.method(:copy)
    rule = Rule.new
    assert_equal 1, copy.call({ rule => 1 })[rule]
    assert_equal 1, copy.call({}.compare_by_identity.merge!(rule => 1))[rule]
    assert_includes copy.call(Set[rule]), rule
    begun = [1, 2].each.tap(&:next)
    assert_equal 2, copy.call([begun]).first.next
  end

  Odd = Struct.new(:list)

  def test_what_is_accumulated_is_copied
    copy = Crosslane::Accumulators.method(:copy)
    twice = Hash.new { |hash, key| hash[key] = [] }
    twice[:a] << +"x"
    own = Object.new.tap { |object| object.instance_variable_set(:@hash, twice) }
    loop = []
    loop << loop
    [[+"a", [1]], Set[[1]], Odd.new([1]), twice, own, loop, Proc, 1, "a"].each do |value|
      twin = copy.call(value)
      assert_equal Ractor.shareable?(value), value.equal?(twin), value.inspect
    end
    twin = copy.call(twice)
    twin[:a].first << "y"
    twin[:b] << 1
    assert_equal({ a: ["x"] }, twice)
    assert_equal({ a: ["x"] }, copy.call(own).instance_variable_get(:@hash).tap { |hash| hash[:a] << 2 } && twice)
    assert_same (twin = copy.call(loop)), twin.first
    combined = copy.call(Odd.new([1])).tap { |odd| odd.list << 2 }
    assert_equal [1, 2], combined.list
  end
end
