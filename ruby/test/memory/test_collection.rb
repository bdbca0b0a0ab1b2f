# frozen_string_literal: true

require_relative "../helper"

# The objects that Ruby's collector frees: blocks that can no longer be called, and closed
# databases.
#
# The collector treats each word on a thread's stack that may be an object's address as a reference.
# So each of these tests runs in a process of its own, where other tests have left no such words.
class TestCollection < CrosslaneTest
  MANY = 10
  # The collector may keep a few objects for this reason.
  FEW = 4

  def setup
    @made = @taken = 0
    @take = proc { @taken += 1 }
  end

  # An object that blocks reference.
  def held
    @made += 1
    Object.new.tap { |object| ObjectSpace.define_finalizer(object, @take) }
  end

  # The number of these objects that are alive. The calling thread never has one of them on its
  # stack.
  def alive
    GC.start
    @made - @taken
  end

  # Runs the block on the stack of another thread.
  def apart(&block) = Thread.new(&block).value

  # Defines and calls blocks of each kind that reference an object.
  def define(db)
    held = self.held
    db.udf(:here, "(x BIGINT) -> BIGINT") { |x| held && x }
    db.udf(:there, "(x BIGINT) -> BIGINT", timeout: 60) { |x| held && x }
    db.udf(:many, "(x BIGINT) -> BIGINT", concurrency: 2) { |x| held && x }
    db.table(:rows, "(n BIGINT) -> (x BIGINT)", partitions: ->(n) { held && [n] }) { |part, _| held && [[part]] }
    add = ->(a, b) { held && ((a || 0) + b) }
    db.aggregate(:total, "(x BIGINT) -> BIGINT", combine: add) { |sum, x| add.call(sum, x) }
    use(db)
  end

  def use(db)
    sql = "SELECT sum(here(x))::BIGINT, sum(there(x))::BIGINT, sum(many(x))::BIGINT, total(x) FROM range(3) r(x)"
    assert_equal [3, 3, 3, 3], db.query(sql).first
    assert_equal [[5]], db.query("FROM rows(5) LIMIT 1").to_a
  end

  NAMES = %i[here there many rows total].freeze

  alone def test_blocks_that_were_replaced_or_dropped
    db = open
    MANY.times { apart { define(db) } }
    eventually { alive <= FEW }
    apart { use(db) }
    NAMES.each { |name| db.drop(name) }
    functions = Crosslane::Host::FUNCTIONS.keys
    MANY.times do
      apart { define(db) }
      NAMES.each { |name| db.drop(name) }
    end
    eventually { alive <= FEW }
    assert_empty Crosslane::Host::FUNCTIONS.keys - functions
  end

  alone def test_a_block_whose_definition_was_rolled_back
    db = open
    functions = Crosslane::Host::FUNCTIONS.keys
    MANY.times do
      apart { db.transaction { define(db) && raise(IndexError) } rescue IndexError } # rubocop:disable Style/RescueModifier
    end
    eventually { alive <= FEW }
    assert_empty Crosslane::Host::FUNCTIONS.keys - functions
  end

  alone def test_closed_databases
    databases = ObjectSpace::WeakMap.new
    functions = Crosslane::Host::FUNCTIONS.keys
    MANY.times do |n|
      apart do
        file = File.join(Dir.tmpdir, "crosslane-#{$$}-#{n}.duckdb") if n.odd?
        db = Crosslane.open(file, config: { threads: 2 })
        databases[db] = true
        # A block that uses its own database.
        db.udf(:own, "(x BIGINT) -> BIGINT") { |x| db.value("SELECT ?::BIGINT", x) }
        assert_equal 1, db.value("SELECT own(1)")
        define(db)
        db.prepare("SELECT here(1)").query
        db.close
      end
    end
    eventually { alive <= FEW && databases.size <= FEW }
    assert_empty Crosslane::Host::FUNCTIONS.keys - functions
  ensure
    Dir.glob(File.join(Dir.tmpdir, "crosslane-#{$$}-*")).each { |file| File.delete(file) }
  end

  alone def test_databases_that_others_keep_open
    Dir.mktmpdir do |folder|
      MANY.times do |n|
        path = File.join(folder, "shared#{n}.duckdb")
        other = open(path: path)
        apart do
          db = Crosslane.open(path, config: { threads: 4 })
          define(db)
          db.close
        end
        GC.start
        apart { use(other) }
        other.close
      end
      eventually { alive <= FEW }
    end
  end

  alone def test_blocks_in_use_stay
    db = numbers(300_000)
    MANY.times do |n|
      begun = Thread::Queue.new
      gate = Thread::Queue.new
      apart { define_waiting(db, begun, gate) }
      queries = ["SELECT sum(f(x))::BIGINT FROM numbers", "SELECT sum(x)::BIGINT FROM t()"]
      queries.map! { |sql| Thread.new { db.value(sql) } }
      2.times { begun.pop }
      db.drop(:f)
      db.drop(:t)
      3.times { alive && GC.compact }
      assert_operator @taken, :<=, n
      2.times { gate << 1 }
      assert_equal [300_000, 3000], queries.map(&:value)
    end
    eventually { db.value("SELECT 1") && alive <= FEW }
  end

  # Defines a function and a table function that report their begin and then wait for the gate.
  def define_waiting(db, begun, gate)
    held = self.held
    db.udf(:f, "(x BIGINT) -> BIGINT") { |x| (begun << x if x.zero?) && gate.pop || (held && 1) }
    db.table(:t, "() -> (x BIGINT)") do
      Enumerator.new do |rows|
        begun << 0
        gate.pop
        3000.times { rows << [held && 1] }
      end
    end
  end

  # The caches keep some objects for the next query.
  alone def test_what_columns_of_ever_new_names_are_read_and_written_with
    db = open
    db.table(:t, "(n BIGINT)", columns: ->(n) { { "c#{n}" => "BIGINT" } }) { |n| [{ "c#{n}" => n }] }
    symbols = -> { GC.start || Symbol.all_symbols.size }
    before = symbols.call
    2500.times { |n| assert_equal [[n]], db.query("FROM t(#{n})").to_a }
    assert_operator symbols.call - before, :<, 1500
    classes = -> { GC.start || ObjectSpace.each_object(Class).count }
    before = classes.call
    kept = db.value("SELECT {'s7': 1}")
    2500.times { |n| db.value("SELECT {'s#{n}': 1}") }
    assert_operator classes.call - before, :<, 1500
    assert_equal kept, db.value("SELECT {'s7': 1}")
  end

  alone def test_a_fork_has_the_blocks_that_run
    db = open(threads: 1)
    db.udf(:f, "(x BIGINT) -> BIGINT") do |x|
      forked do
        assert_raises(Crosslane::Error) { db.drop(:f) }
        GC.start
        child = Crosslane.open
        child.udf(:f, "(x BIGINT) -> BIGINT") { |y| y + 1 }
        value = child.value("SELECT f(?::BIGINT)", x)
        child.drop(:f)
        child.close
        value
      end
    end
    assert_equal 6, db.value("SELECT f(5)")
  end

  alone def test_under_a_stressed_collector
    db = open
    2.times do |n|
      db.udf(:f, "(x BIGINT) -> BIGINT") { |x| x + n }
      db.udf(:g, "(x BIGINT) -> BIGINT", timeout: 60) { |x| x - n }
      statement = db.prepare("SELECT f(x), g(x) FROM range(3) r(x)")
      GC.stress = true
      rows = statement.query.to_a
      Crosslane::Host.forget
      GC.stress = false
      assert_equal [[n, -n], [n + 1, 1 - n], [n + 2, 2 - n]], rows
    end
  ensure
    GC.stress = false
  end

  # An exception from another thread can be raised at any line of Ruby code.
  alone def test_interrupts_while_blocks_are_forgotten
    functions = Crosslane::Host::FUNCTIONS.keys
    interrupts = TracePoint.new(:c_return) do |point|
      raise IOError, "now" if point.self == Crosslane::Native && point.method_id.match?(/functions|partitions|copies/)
    end
    3.times do
      db = open
      partitions = Crosslane::HostTable.const_get(:PARTITIONS)
      apart { define(db) }
      interrupts.enable do
        assert_raises(IOError) { use(db) }
        NAMES.each { |name| assert_raises(IOError) { db.drop(name) } }
        assert_raises(IOError) { db.close }
      end
      Crosslane::Host.forget
      assert_empty partitions
      assert_equal 0, Crosslane::HostAggregate.size
    end
    eventually { Crosslane::Host.forget || (Crosslane::Host::FUNCTIONS.keys - functions).empty? }
    eventually { alive <= FEW }
  end

  def test_threads_that_replace_and_call
    db = open
    db.udf(:f, "(x BIGINT) -> BIGINT") { |_| 0 }
    writers = Array.new(2) { |n| Thread.new { 15.times { db.udf(:f, "(x BIGINT) -> BIGINT") { |_| n } } } }
    readers = Array.new(2) { Thread.new { Array.new(40) { GC.compact && db.value("SELECT f(1)") } } }
    # Two transactions that change the same name cannot both commit.
    writers.each { |thread| thread.report_on_exception = false }
    writers.each { |thread| thread.join rescue assert_kind_of(Crosslane::Error, $!) } # rubocop:disable Style/RescueModifier
    assert_empty readers.flat_map(&:value).uniq - [0, 1]
  end
end
