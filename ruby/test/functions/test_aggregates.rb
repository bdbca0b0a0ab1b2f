# frozen_string_literal: true

require_relative "../helper"

class TestAggregates < CrosslaneTest
  # The sum and the list of BIGINTs, each with states that change in place.
  def aggregates(threads, rows = 2100)
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
    db.aggregate(:total, "(x BIGINT, y VARCHAR) -> DOUBLE", combine: :+.to_proc) { |sum, _x, _y| sum }
    added = Crosslane::Host::FUNCTIONS.except(*known).values
    assert_equal 1, added.size
    message = added.first.message
    assert_equal ["total(x BIGINT, y VARCHAR) -> DOUBLE", "aggregate"], message.values_at(:signature, :kind)
    assert_equal [__FILE__, __LINE__ - 5], message.values_at(:file, :line)
  end

  def test_what_cannot_be_an_aggregate
    db = open
    add = ->(a, b) { a + b }
    refused = [
      ["(x BIGINT)", { combine: add }, /expected `->` at column/],
      ["(x BIGINT) -> BIGINT", { combine: add, deterministic: false }, /there is no option deterministic/],
      ["(x BIGINT) -> BIGINT", { combine: add, memory_limit: 1 }, /memory_limit is for functions in files/],
      ["(x BIGINT) -> BIGINT", {}, /a block needs combine/],
      ["(x BIGINT) -> BIGINT", { combine: 1 }, /combine is called, and 1 cannot be/],
      ["(x BIGINT, y BIGINT) -> BIGINT", { combine: add }, /the block is given a state and 2 arguments, and takes 2/]
    ]
    refused.each do |text, more, due|
      error = assert_raises(Crosslane::DeclarationError) { db.aggregate(:f, text, **more) { |a, _| a } }
      assert_match due, error.message
    end
    [[], [Sum]].each do |states|
      block = ->(a, _) { a } unless states.empty?
      error = assert_raises(Crosslane::DeclarationError) { db.aggregate(:f, "(x BIGINT) -> BIGINT", *states, &block) }
      assert_match(/aggregate f takes a class or a block/, error.message)
    end
    error = assert_raises(Crosslane::DeclarationError) { db.aggregate(:f, "(x BIGINT) -> BIGINT", String) }
    assert_match(/String has no method update/, error.message)
  end

  # The sum of the values that an object gets, one by one or in Arrays.
  class Sum
    attr_reader :sum

    def initialize = @sum = 0
    def update(xs) = @sum += Array(xs).sum
    def merge(other) = @sum += other.sum
    def finish = @sum
  end

  # The query returns the rows in which our aggregate and DuckDB's differ.
  def assert_alike(db, ours, theirs, more)
    both = "SELECT #{ours} AS ours, #{theirs} AS theirs FROM t #{more}"
    assert_none db, "FROM (#{both}) WHERE ours IS DISTINCT FROM theirs"
  end

  def test_classes_whose_rows_come_one_by_one_or_as_columns
    each_way do |db|
      [{}, { vectorized: true }].each_with_index do |options, at|
        db.aggregate("sum_#{at}", "(x BIGINT) -> BIGINT", Sum, **options)
        assert_alike db, "sum_#{at}(x)", "sum(x)", "GROUP BY k"
        assert_alike db, "sum_#{at}(x) FILTER (x > 900)", "coalesce(sum(x) FILTER (x > 900), 0)", "GROUP BY i % 99"
        frame = "OVER (PARTITION BY k ORDER BY i ROWS BETWEEN 70 PRECEDING AND 9 FOLLOWING)"
        assert_alike db, "sum_#{at}(x) #{frame}", "sum(x) #{frame}", ""
      end
      assert_no_states
    end
  end

  def test_blocks_may_get_columns
    each_way do |db|
      combine = ->(a, b) { (a + b).minmax }
      db.aggregate(:ends, "(x BIGINT) -> BIGINT[]", vectorized: true, start: -> { [] }, combine: combine) do |ends, xs|
        (ends + xs).minmax
      end
      assert_alike db, "ends(x)", "[min(x), max(x)]", "GROUP BY k"
    end
  end

  def test_objects_end_with_their_query
    db = aggregates(4)
    fails = false
    kind = Class.new(Sum) { define_method(:update) { |x| x == 1008 && fails ? raise(IOError, "enough") : super(x) } }
    db.aggregate(:kept, "(x BIGINT) -> BIGINT", kind)
    [false, true].each do |stop|
      fails = stop
      query = "SELECT i, kept(x) FROM t GROUP BY i"
      stop ? assert_raises(IOError) { db.query(query) } : db.query(query)
      assert_no_states
      # The collector may mistake a word on the stack for the address of an object.
      assert(eventually { GC.start || ObjectSpace.each_object(kind).count < 100 }, "objects are left")
    end
  end

  def test_on_error_and_retries
    db = open(threads: 1)
    db.query("CREATE TABLE t AS SELECT i FROM range(10) r(i)")
    add = ->(a, b) { a + b }
    fails = Hash.new { |tries, x| tries[x] = x == 3 ? 2 : 0 }
    step = ->(sum, x) { (fails[x] -= 1).negative? ? sum + x : raise(IOError, "no") }
    options = { start: -> { 0 }, combine: add }
    db.aggregate(:again, "(x BIGINT) -> BIGINT", retries: 2, **options, &step)
    assert_equal 45, db.value("SELECT again(i) FROM t")
    db.aggregate(:without, "(x BIGINT) -> BIGINT", on_error: :null, **options) do |sum, x|
      x == 3 ? raise(IOError, "no") : sum + x
    end
    assert_equal 42, db.value("SELECT without(i) FROM t")
    db.aggregate(:ends, "(x BIGINT) -> BIGINT", on_error: :null, finish: lambda { |sum|
      sum == 3 ? raise(IOError, "no") : sum
    }, **options) { |sum, x| sum + x }
    assert_equal [[0], [1], [2], [nil], [4]], db.query("SELECT ends(i) FROM t WHERE i < 5 GROUP BY i ORDER BY i").to_a
  end

  def test_a_timeout
    db = open(threads: 1)
    db.aggregate(:slow, "(x BIGINT) -> BIGINT", timeout: 0.2, combine: ->(a, b) { a + b }) { |_, _| sleep }
    error = assert_raises(Crosslane::Error) { db.value("SELECT slow(1)") }
    assert_match(/slow: .*0.2/, error.message)
    assert_no_states
  end

  def test_a_prepared_statement_that_runs_again
    db = aggregates(2)
    statement = db.prepare("SELECT k, total(x), sum(x)::BIGINT FROM t WHERE x < ? GROUP BY k")
    [500, 9, 2000].each do |least|
      rows = statement.query(least).to_a
      refute_empty rows
      rows.each { |_, total, sum| assert_equal sum, total }
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

  # The rows of `t` in which our aggregates over a window differ from DuckDB's.
  def assert_window(db, window, filter = "", distinct = "")
    call = ->(name) { "#{name}(#{distinct}x) #{filter} OVER (#{window})" }
    ours = "coalesce(#{call["total"]}, 0) IS DISTINCT FROM coalesce(#{call["sum"]}, 0)"
    # A list of DISTINCT values has no defined order.
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

  # The states are in a vector that the thread lends. A query inside the block needs another vector.
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
    db = aggregates(4, 5000)
    assert_window db, "ORDER BY i ROWS BETWEEN 700 PRECEDING AND 300 FOLLOWING"
  end

  def test_frames_that_exclude
    each_way do |db|
      ["CURRENT ROW", "GROUP", "TIES"].each do |what|
        assert_window db, "PARTITION BY k ORDER BY peer, i ROWS BETWEEN 20 PRECEDING AND 20 FOLLOWING EXCLUDE #{what}"
        assert_window db, "PARTITION BY k ORDER BY i ROWS BETWEEN a PRECEDING AND b FOLLOWING EXCLUDE #{what}"
      end
      # DuckDB does not report the end of all these states.
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
    # A query that still runs keeps its copies.
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

  def test_a_query_that_is_killed_leaves_an_aggregate_in_the_midst_of_a_chunk
    db = aggregates(4)
    ready, go = Array.new(2) { Thread::Queue.new }
    db.aggregate(:stays, "(x BIGINT) -> BIGINT", combine: ->(a, _b) { a }) do |_, x|
      ready << x
      go.pop
    end
    query = Thread.new { db.query("SELECT stays(x) FROM t") }
    ready.pop
    query.kill
    # The block is still waiting.
    assert query.join(60)
    go.close
    assert_no_states
  end

  Rule = Class.new

  def test_what_is_known_by_its_identity_is_found_in_a_copy
    copy = Crosslane::HostAggregate.method(:copy)
    rule = Rule.new
    assert_equal 1, copy.call({ rule => 1 })[rule]
    assert_equal 1, copy.call({}.compare_by_identity.merge!(rule => 1))[rule]
    assert_includes copy.call(Set[rule]), rule
    begun = [1, 2].each.tap(&:next)
    assert_equal 2, copy.call([begun]).first.next
  end

  Odd = Struct.new(:list)

  def test_what_is_accumulated_is_copied
    copy = Crosslane::HostAggregate.method(:copy)
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
