# frozen_string_literal: true

require_relative "../helper"

# The data that a table function gets besides its arguments: named parameters, and its columns.
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
      # With NULL, the block's own default applies. Other values are cast.
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
    db.table(:t, signature, partitions: parts) { |part, _, wide: nil, sign: 1| [["#{part} #{wide.inspect} #{sign}"]] }
    assert_equal [["[2, 5] nil 1"]], db.query("FROM t(5)").to_a
    assert_equal [["[1, 5] true -1"]], db.query("FROM t(5, sign := -1, wide := true)").to_a
    db.table(:one, "(list BIGINT[], k BIGINT) -> (text VARCHAR)") { |list, k: 0| [[list.inspect + k.to_s]] }
    assert_equal [["[1, 2]0"]], db.query("FROM one([1, 2])").to_a
    assert_equal [["[1, 2]7"]], db.query("FROM one([1, 2], k := 7)").to_a
  end

  # DuckDB casts the arguments of a table function, except lists.
  def test_lists
    db = open
    db.table(:lists, "(a BIGINT[], b VARCHAR[][]) -> (text VARCHAR)", nulls: :call) do |a, b|
      [["#{a.inspect} #{b.inspect}"]]
    end
    ask = ->(arguments, *parameters) { db.value("FROM lists(#{arguments})", *parameters) }
    assert_equal '[1, -2, nil] [["x"], [], nil]', ask.call("[1::TINYINT, -2, NULL], [['x'], [], NULL]")
    assert_equal "[1, 2] []", ask.call("range(1, 3), []::VARCHAR[][]")
    assert_equal "[] nil", ask.call("[], NULL")
    assert_equal "[5] [[\"1\"]]", ask.call("?, ?", [5], [["1"]])
    assert_equal 10_000, db.value("SELECT length(text) FROM lists(repeat([1], 3332), NULL)")
    { "'[1]'" => "[1] nil", "[1, 2]::INTEGER[2]" => "[1, 2] nil", "['x']" => nil }.each do |argument, cast|
      # DuckDB 2.0 makes a list of a value that is not a list.
      assert_equal cast, ask.call("#{argument}, NULL")
    rescue Crosslane::Error => e
      assert_match(/BIGINT\[\]|INT64/, e.message)
    end
  end

  # The functions and their options are the same as in files.
  def test_options
    [1, 4].each do |threads|
      db = open(threads: threads)
      db.table(:batches, "(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", vectorized: true, cardinality: 9) do |n|
        [[[*0...n], ["a"] * n], { s: ["b"], i: [n] }]
      end
      asked = "SELECT count(*), min(s), max(s), max(i) FROM batches(5000)"
      assert_equal [5001, "a", "b", 5000], db.query(asked).first
      assert_match(/~9 rows/, db.query("EXPLAIN FROM batches(1)").to_a.flatten.join)
      calls = 0
      nothing = "(n BIGINT) -> (i BIGINT)"
      db.table(:empty, nothing) { |n| (calls += 1) && [n] }
      assert_equal [[], [[5]], 1], [db.query("FROM empty(NULL)").to_a, db.query("FROM empty(5)").to_a, calls]
      db.table(:empty, nothing, nulls: :call) { |n| [n] }
      assert_equal [[nil]], db.query("FROM empty(NULL)").to_a
      db.table(:bad, nothing, on_error: :null) { |n| [1, "x", KeyError.new, n] }
      assert_equal [1, nil, nil, 7], db.query("FROM bad(7)").map(&:first)
      tries = 0
      db.table(:again, nothing, retries: 2) do |n|
        Enumerator.new { |rows| n.times { |i| i == 3000 && (tries += 1) < 3 ? raise(IOError) : rows << i } }
      end
      sums = db.query("SELECT count(*), sum(i)::BIGINT FROM again(5000)").first
      assert_equal [5000, 12_497_500, 3], [*sums, tries]
      db.table(:late, "(n BIGINT, by BIGINT)", columns: ->(*) { "(i BIGINT)" }) { |n, by: 1| [n, n / by] }
      error = assert_raises(ZeroDivisionError) { db.query("FROM late(3, by := 0)") }
      assert_match(/in row 1 of its table, with n = 3, by = 0$/, error.query_error)
      db.table(:slow, nothing, timeout: 0.1) { |_| sleep }
      error = assert_raises(Crosslane::Error) { db.query("FROM slow(1)") }
      assert_match(/timed out/, error.message)
      assert_raises(Crosslane::DeclarationError) { db.table(:t, nothing, memory_limit: 1000) { [] } }
    end
  end

  def test_partitions_are_objects_of_the_program
    db = open(threads: 4)
    open_files = Array.new(3) { |i| StringIO.new("#{i}\n" * 2000) }
    db.table(:lines, "() -> (line VARCHAR)", partitions: -> { open_files }) { |file| file.each_line.map(&:chomp) }
    lines = db.query("SELECT line, count(*) FROM lines() GROUP BY 1 ORDER BY 1").to_a
    assert_equal [["0", 2000], ["1", 2000], ["2", 2000]], lines
    held = Crosslane::HostTable.const_get(:PARTITIONS)
    Crosslane::Host.forget
    assert_empty held
    options = { columns: ->(n) { "(c#{n} BIGINT)" }, partitions: ->(n) { (1..n).lazy } }
    db.table(:wide, "(n BIGINT)", **options) { |i, n| [i * n] }
    result = db.query("FROM wide(3) ORDER BY 1")
    assert_equal [%w[c3], [[3], [6], [9]]], [result.names, result.to_a]
    db.table(:wide, "() -> (i BIGINT)", partitions: -> { 5 }) { |_| [] }
    error = assert_raises(TypeError) { db.query("FROM wide()") }
    assert_match(/partitions returned Integer, which has no each/, error.message)
  end

  # A table of words. One of its arguments is the number of its columns.
  def wide(db, **options, &columns)
    columns ||= ->(count, **) { (1..count).to_h { |i| ["c#{i}", i.odd? ? "BIGINT" : "VARCHAR"] } }
    db.table(:wide, "(count BIGINT, rows BIGINT)", columns: columns, **options) do |count, rows: 3|
      Array.new(rows) { |row| Array.new(count) { |i| i.even? ? row : "r#{row}" } }
    end
  end

  def test_partitions_without_end
    db = open(threads: 2)
    db.table(:endless, "() -> TABLE(i BIGINT)", partitions: -> { 0.step }) { |part| [part] }
    error = assert_raises(Crosslane::Error) { db.query("FROM endless() LIMIT 1") }
    assert_match(/endless: .*more than [\d,]+ partitions/, error.message)
    assert_empty Crosslane::HostTable.const_get(:PARTITIONS)
  end

  def test_columns_that_are_none_name_the_table
    db = open
    twice = { "a" => "BIGINT", "A" => "BIGINT" }
    [[nil, /expected a name/], [twice, /a/i], [{ "a" => "WORDS" }, /WORDS/]].each do |columns, due|
      db.table(:open, "()", columns: -> { columns }) { [] }
      error = assert_raises(Crosslane::DeclarationError) { db.query("FROM open()") }
      assert_match(/#{__FILE__}:\d+: function open: its columns are #{Regexp.escape(columns.inspect)}: /, error.message)
      assert_match due, error.message
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
      # The block that decides the columns may query the database.
      leave = -> { { a: db.value("SELECT 'BIGINT'"), b: "VARCHAR" } }
      assert_equal 3, query.call.count
    end
  end

  FRUIT = [[1, "fig", 2.5, nil], [2, "plum", 3.5, Date.new(2024, 2, 29)], [3, nil, 4.5, nil]].freeze
  FRUIT_COLUMNS = "(id BIGINT, name VARCHAR, price DOUBLE, day DATE)"
  # Queries, and the columns that they need.
  WANTED = {
    "SELECT * FROM fruit()" => %w[id name price day],
    "SELECT price, id FROM fruit()" => %w[id price],
    "SELECT price, price, id + 1, price FROM fruit()" => %w[id price],
    "SELECT name FROM fruit() WHERE price > 3" => %w[name price],
    "SELECT max(price) FROM fruit() WHERE day IS NULL" => %w[price day],
    "SELECT name FROM fruit() ORDER BY id DESC LIMIT 1" => %w[id name],
    "SELECT a.name FROM fruit() a JOIN (SELECT id FROM fruit()) b USING (id)" => %w[id name],
    "SELECT id FROM (FROM fruit()) WHERE name = 'fig'" => %w[id name],
    # DuckDB needs some column here, and takes the first.
    "SELECT count(*) FROM fruit()" => %w[id],
    "SELECT 7 FROM fruit()" => %w[id]
  }.freeze

  def fruit(db, **options, &rows) = db.table(:fruit, "() -> #{FRUIT_COLUMNS}", **options, &rows)

  # A database in which fruit() is a table.
  def reference
    db = open
    db.query("CREATE TABLE fruits #{FRUIT_COLUMNS.sub("->", "")}")
    db.append("fruits", FRUIT)
    ->(sql) { db.query(sql.gsub("fruit()", "fruits")).to_a.sort_by(&:inspect) }
  end

  def test_columns_that_a_query_wants
    due = reference
    [1, 4].each do |threads|
      db = open(threads: threads)
      asked = []
      fruit(db) do |wanted:|
        asked << wanted
        FRUIT.map { |row| %w[id name price day].zip(row).to_h.values_at(*wanted) }
      end
      WANTED.each do |sql, wanted|
        asked.clear
        assert_equal due.call(sql), db.query(sql).to_a.sort_by(&:inspect), sql
        assert_includes asked, wanted, sql
      end
      assert_predicate asked.first, :frozen?
      db.query("PRAGMA disable_optimizer")
      WANTED.each_key { |sql| assert_equal due.call(sql), db.query(sql).to_a.sort_by(&:inspect), sql }
      asked.clear
      db.query("EXPLAIN SELECT id FROM fruit()")
      assert_empty asked
    end
  end

  # This holds for all forms of rows, and for blocks with or without `wanted`.
  def test_only_wanted_columns_are_looked_at
    due = reference
    names = %i[id name price day]
    kinds = {
      arrays: ->(row) { row }, structs: ->(row) { Struct.new(*names).new(*row) },
      symbols: ->(row) { names.zip(row).to_h }, strings: ->(row) { names.map(&:to_s).zip(row).to_h },
      objects: ->(row) { Data.define(*names).new(*row) }
    }
    kinds.delete(:objects) unless defined?(Data.define)
    kinds.each do |kind, make|
      db = open(threads: 2)
      blocks = [->(**) { FRUIT.map(&make) }, ->(wanted:) { wanted && FRUIT.map(&make) }]
      blocks.each do |block|
        fruit(db, &block)
        WANTED.each_key { |sql| assert_equal due.call(sql), db.query(sql).to_a.sort_by(&:inspect), "#{kind} #{sql}" }
      end
    end
  end

  def test_values_of_other_columns_are_not_converted
    db = open
    none = Object.new
    def none.id = 1
    def none.name = raise(KeyError, "the name")
    rows = [[1, none, none, none], none, { id: 1 }, { "id" => 1, name: none }, Struct.new(:id).new(1), nil]
    fruit(db) { rows }
    assert_equal [1, 1, 1, 1, 1, nil], db.query("SELECT id FROM fruit()").map(&:first)
    assert_raises(TypeError) { db.query("SELECT name FROM fruit()") }
    rows.shift
    assert_equal "the name", assert_raises(KeyError) { db.query("SELECT name FROM fruit()") }.message
    rows.shift
    error = assert_raises(ArgumentError) { db.query("SELECT name FROM fruit()") }
    assert_match(/lacks the field name of STRUCT\(id/, error.message)
  end

  def test_rows_of_a_wrong_width
    db = open
    row = [1, 2, 3]
    fruit(db) { [row] }
    message = ->(sql) { assert_raises(TypeError) { db.query(sql) }.message }
    whole = "3 values where 4 are due: id, name, price, day"
    assert_equal "returned Array [1, 2, 3], #{whole}", message.call("SELECT id, name FROM fruit()")
    # Only a block that knows the needed columns may leave out the others.
    row = [1, "fig"]
    assert_match(/2 values where 4 are due/, message.call("SELECT id, name FROM fruit()"))
    fruit(db) { |wanted: nil| wanted && [row] }
    assert_equal [row], db.query("SELECT id, name FROM fruit()").to_a
    row = [1]
    due = "returned Array [1], 1 value where 2 are due (id, price), or all 4 (id, name, price, day)"
    assert_equal due, message.call("SELECT price FROM fruit() WHERE id > 0")
    row = [1, 2, 3]
    assert_match(/, #{whole}\z/, message.call("FROM fruit()"))
    row = []
    assert_match(/0 values where 1 is due \(id\)/, message.call("SELECT count(*) FROM fruit()"))
  end

  def test_which_blocks_get_the_wanted_columns
    db = open(threads: 4)
    # A parameter named `wanted` is a normal parameter.
    db.table(:t, "(wanted BIGINT) -> (a BIGINT, b BIGINT)") { |wanted: 5| [[wanted, 0]] }
    assert_equal 5, db.value("SELECT a FROM t()")
    assert_equal 7, db.value("SELECT a FROM t(wanted := 7)")
    parts = ->(n, k:) { [["x"] * n * k] }
    db.table(:t, "(n BIGINT, k BIGINT) -> (a VARCHAR, b VARCHAR)", partitions: parts) do |part, _, wanted:, k: 0|
      [{ b: (part + wanted + [k]).join(" ") }]
    end
    assert_equal [["x x b 2"]], db.query("SELECT b FROM t(1, k := 2)").to_a
    error = assert_raises(Crosslane::DeclarationError) { db.table(:t, "() -> (a BIGINT)") { |wants:| wants } }
    assert_match(/needs the keyword wants, which is no parameter/, error.message)
    most = (1..64).map { |i| "p#{i} BIGINT" }.join(", ")
    db.table(:most, "(#{most}) -> (a BIGINT)") { |*all| [[all.sum]] }
    assert_equal 2080, db.value("FROM most(#{(1..64).to_a.join(", ")})")
    error = assert_raises(Crosslane::DeclarationError) { db.table(:most, "(#{most}, q BIGINT) -> (a BIGINT)") { [] } }
    assert_match(/at most 64 parameters, not 65/, error.message)
  end

  def test_wanted_columns_of_those_that_depend_on_arguments
    [1, 4].each do |threads|
      db = open(threads: threads)
      asked = []
      count = ->(columns) { (1..columns).to_h { |i| ["c#{i}", i.odd? ? "BIGINT" : "VARCHAR"] } }
      db.table(:wide, "(columns BIGINT, rows BIGINT)", columns: count) do |_, rows: 3, wanted: []|
        asked << wanted
        Array.new(rows) { |row| wanted.map { |name| name[1..].to_i.odd? ? row : "r#{row} #{name}" } }
      end
      assert_equal [[0, "r0 c2"]], db.query("SELECT c5, c2 FROM wide(7, rows := 1)").to_a
      assert_equal [%w[c2 c5]], asked
      last = db.query("SELECT c6, c7 FROM wide(8, rows := 5000) ORDER BY c7 DESC LIMIT 1")
      assert_equal [["r4999 c6", 4999]], last.to_a
      statement = db.prepare("SELECT c4 FROM wide(4) WHERE c1 = ?")
      assert_equal([[["r1 c4"]], [["r2 c4"]]], [1, 2].map { |row| statement.query(row).to_a })
      assert_equal 5000, db.value("SELECT count(*) FROM wide(2, rows := 5000)")
    end
  end

  def test_wanted_columns_of_every_kind
    db = open(threads: 2)
    types = { "a" => "BIGINT[]", "b" => "STRUCT(x BIGINT, y VARCHAR[])", "c" => "MAP(VARCHAR, BIGINT)",
              "d" => "VARCHAR[2]", "e" => "UNION(n BIGINT, s VARCHAR)", "f" => "ENUM('u', 'v')",
              "g" => "DECIMAL(20, 2)" }
    tagged = Crosslane::Tagged.new("s", "t")
    row = [[1, nil], { x: 1, y: ["z"] }, { "k" => nil }, ["p", nil], tagged, "v", BigDecimal("1.25")]
    columns = types.map { |name, type| "#{name} #{type}" }.join(", ")
    db.table(:t, "() -> (#{columns})") { Array.new(3000) { |i| i.odd? ? row : [nil] * 7 } }
    text = db.query("SELECT #{types.keys.map { |name| "#{name}::VARCHAR" }.join(", ")} FROM t() LIMIT 2").to_a
    types.each_key.with_index do |name, at|
      ask = "SELECT first(#{name}::VARCHAR), count(*), count(#{name}) FROM t() WHERE #{name} IS NOT NULL"
      assert_equal [text[1][at], 1500, 1500], db.query(ask).first, name
    end
    types.keys.permutation(2).each do |one, other|
      texts = [one, other].map { |name| text[1][types.keys.index(name)] }
      assert_equal texts, db.query("SELECT #{one}::VARCHAR, #{other}::VARCHAR FROM t() OFFSET 2999").first
    end
  end

  # Waits until no lane is busy. Returns the numbers of lanes made and ended.
  def lanes_at_rest
    eventually { Crosslane::Host.lanes[:busy].zero? }
    Crosslane::Host.lanes.values_at(:made, :ended)
  end

  alone def test_a_scan_that_is_cut_short_leaves_its_lane_for_the_next
    [1, 4].each do |threads|
      db = open(threads: threads)
      begun = 0
      left = []
      db.table(:endless, "() -> (i BIGINT)") do
        Enumerator.new do |rows|
          begun += 1
          (0..).each { |i| rows << [i] }
        ensure
          left << Thread.current
        end
      end
      cut = -> { assert_equal [[0], [1], [2]], db.query("FROM endless() LIMIT 3").to_a }
      cut.call
      before = lanes_at_rest
      5.times { cut.call && lanes_at_rest }
      # This also holds if the next query begins before the block has ended.
      5.times { cut.call }
      assert_equal(2, db.stream("FROM endless()").take(2).size)
      # On a slow machine, the query ends before it calls the block. So the time grows.
      patience = 0.1
      while begun == 12
        patience *= 2
        assert_raises(Timeout::Error) { Timeout.timeout(patience) { db.query("SELECT count(*) FROM endless()") } }
      end
      assert_equal before.last, lanes_at_rest.last, "lanes were ended"
      assert_equal [13, 13], [begun, left.size]
      assert left.all?(&:alive?)
    end
  end

  alone def test_blocks_that_do_not_go_when_their_scan_is_cut_short
    db = open(threads: 1)
    left = false
    each = nil
    db.table(:t, "() -> (i BIGINT)") do
      Enumerator.new do |rows|
        each.call(rows)
      ensure
        left = true
      end
    end
    cut = -> { assert_equal [[0]], db.query("FROM t() LIMIT 1").to_a }
    many = ->(rows) { 5000.times { |i| rows << [i] } }
    # An `each` that rescues the exception and yields again gets the exception at each row.
    refused = 0
    each = lambda do |rows|
      many.call(rows)
    rescue Exception # rubocop:disable Lint/RescueException
      refused += 1
      refused < 9 ? retry : 5
    end
    cut.call
    before = lanes_at_rest
    assert_equal 9, refused
    # An `each` with few rows gets the exception at its next row, and not only at the next chunk.
    gate = Thread::Queue.new
    yielded = 0
    each = lambda do |rows|
      3000.times { |i| rows << [i] }
      gate.pop
      1000.times { (rows << [yielded += 1]) && sleep(0.002) }
    end
    cut.call
    gate << 1
    assert_equal before, lanes_at_rest
    assert_operator yielded, :<, 1000
    # An `each` that raises another exception instead.
    each = lambda do |rows|
      many.call(rows)
    ensure
      raise IOError, "nobody hears of it"
    end
    cut.call
    assert_equal before, lanes_at_rest
    # An `each` that never returns is ended, and no thread waits for it.
    each = lambda do |rows|
      many.call(rows)
    ensure
      sleep
    end
    left = false
    cut.call
    refute left
    each = many
    assert_equal 5000, db.value("SELECT count(*) FROM t()")
    eventually { left }
    assert_equal before.last + 1, lanes_at_rest.last
    assert_equal 5000, db.value("SELECT count(*) FROM t()")
  end

  alone def test_columns_under_a_stressed_and_a_compacting_collector
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
