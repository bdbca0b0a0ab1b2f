# frozen_string_literal: true

require_relative "../helper"

# A program with little free memory: if memory is still missing after a collection, one query fails.
class TestMemory < CrosslaneTest
  # For the programs. Returns whether a block runs out of memory when it may use only this many MiB more than before.
  # The next block, with the same limit, must not fail.
  SHORT = <<~RUBY
    def used = File.read("/proc/self/statm").to_i * 4096
    def short?(room, used, comes_next)
      _, most = Process.getrlimit(:AS)
      Process.setrlimit(:AS, used + (room << 20), most)
      yield
      false
    rescue StandardError, NoMemoryError => e
      raise unless e.message.match?(/memory|alloc/i)
      true
    ensure
      raise "what comes next" unless comes_next.call
      Process.setrlimit(:AS, most, most)
    end
  RUBY

  PROGRAM = <<~RUBY
    require "crosslane"
    db = Crosslane.open(":memory:", config: { threads: 1 })
    db.udf(:long_text, "(size BIGINT) -> VARCHAR") { |size| "x" * size }
    db.udf(:many, "(size BIGINT) -> BIGINT[]") { |size| [7] * size }
    db.query("SELECT long_text(1), many(1)")
    before = used
    comes_next = -> { db.value("SELECT strlen(long_text(3 + i)) FROM range(1) r(i)") == 3 }
    failed = ["strlen(long_text(400_000_000 + i))", "len(many(40_000_000 + i))"].sum do |call|
      [40, 400, 500, 700, 900, 1400].count do |room|
        short?(room, before, comes_next) { db.value("SELECT " + call + " FROM range(1) r(i)") }
      ensure
        GC.start
      end
    end
    puts "lives \#{failed}"
  RUBY

  # Rows that are large even when they are empty, and rows that are large because of their texts.
  ROWS = <<~RUBY
    require "crosslane"
    db = Crosslane.open(":memory:", config: { threads: 1 })
    db.table(:gaps, "(rows BIGINT) -> (wide BIGINT[20000])") do |rows|
      Enumerator.new { |to| rows.times { to << [nil] } }
    end
    db.table(:texts, "(rows BIGINT) -> (text VARCHAR)") do |rows|
      text = "x" * 100_000
      Enumerator.new { |to| rows.times { to << [text] } }
    end
    db.table(:single, "(size BIGINT) -> (text VARCHAR)") { |size| ["x" * size] }
    db.query("CREATE TABLE gaps (wide BIGINT[20000])")
    db.query("CREATE TABLE texts (text VARCHAR)")
    db.query("SELECT * FROM gaps(1), texts(1), single(1)")
    db.append("texts", [["x"]])
    asked = {
      "rows without a value" => -> { db.value("SELECT count(*) FROM gaps(2000)") },
      "long texts" => -> { db.value("SELECT count(*) FROM texts(2000)") },
      "a single text" => -> { db.value("SELECT count(*) FROM single(200_000_000)") },
      "appended rows without a value" => -> { db.append("gaps", [[nil]] * 2000) },
      "appended long texts" => -> { db.append("texts", [["x" * 100_000]] * 2000) }
    }
    before = used
    comes_next = -> { db.value("SELECT count(*) FROM texts(3)") == 3 }
    asked.each do |what, ask|
      failed = [100, 400, 600].count do |room|
        short?(room, before, comes_next, &ask)
      ensure
        GC.start
      end
      puts "\#{what}: \#{failed}"
    end
  RUBY

  # Values that are passed into V8 and out of it.
  VALUES = <<~RUBY
    require "crosslane/v8"
    # Each text is so large that the allocator asks the system for its memory.
    text = "x" * 34_000_000
    bytes = Crosslane::V8::Bytes.new(text)
    script = "7".ljust(34_000_000)
    numbers = [7] * 1_000_000
    other = Crosslane::V8::Context.new
    asked = {
      "bytes" => ->(js) { js.call("size", bytes) },
      "a text" => ->(js) { js.call("size", text) },
      "an Array" => ->(js) { js.call("size", numbers) },
      "a script" => ->(js) { js.eval(script) },
      "bytes of JavaScript" => ->(js) { js.eval("bytes") },
      "an array of JavaScript" => ->(js) { js.eval("numbers") },
      "arguments of a block" => ->(js) { js.eval("take(bytes)") },
      "what JavaScript catches" => ->(js) {
        caught = js.eval("try { take(bytes); false } catch (e) { true }")
        # No Ruby code has caught an exception since.
        other.eval("1 + 1")
        raise "no memory" if caught
      },
      "the result of a block" => ->(js) { js.eval("give().length") },
      "the message of a block" => ->(js) {
        js.eval("try { fail() } catch (e) { if (e.message.length < 1e6) throw new Error('no memory') }")
      }
    }
    asked.each do |what, ask|
      failed = [8, 50, 84].count do |room|
        js = Crosslane::V8::Context.new
        js.eval("globalThis.bytes = new Uint8Array(3.4e7); globalThis.numbers = new Array(1e6).fill(7)")
        js.eval("globalThis.size = (value) => value.length")
        js.attach("take") { |taken| taken.size }
        js.attach("give") { bytes }
        js.attach("fail") { raise text }
        js.low_memory_notification
        GC.start
        short?(room, used, -> { other.eval("1 + 1") == 2 }) { ask.call(js) }
      ensure
        js.dispose
      end
      puts "\#{what}: \#{failed}"
    end
  RUBY

  # V8's heap runs out of memory although the context's limit is larger: once where V8 reaches a
  # check, and once where it does not.
  HEAP = <<~RUBY
    require "crosslane/v8"
    ["const a = []; while (true) a.push(new Array(1e6).fill(1.5))",
     "let s = 'x'.repeat(1e8); for (let i = 0; i < 10; i++) s += JSON.stringify(s); s.length"].each do |script|
      js = Crosslane::V8::Context.new(max_memory: 3_000_000_000)
      most = Process.getrlimit(:AS).last
      Process.setrlimit(:AS, used + (100 << 20), most)
      begin
        js.eval(script)
      rescue Crosslane::V8::MemoryError => e
        puts e.message
      end
    ensure
      Process.setrlimit(:AS, most, most)
      puts Crosslane::V8::Context.new.eval("new Array(2 ** 20).fill(1.1).length")
    end
  RUBY

  def test_the_error_says_that_the_system_has_no_memory_for_v8
    said = ["V8 found no memory for its heap: the system gives the process no more", "1048576"]
    assert_equal said * 2, run_alone("-e", SHORT + HEAP).lines(chomp: true)
  end

  def test_what_a_block_returns_finds_no_room
    assert_operator run_alone("-e", SHORT + PROGRAM).delete_prefix("lives ").to_i, :>=, 2
  end

  def test_rows_of_table_functions_and_appenders_find_no_room
    failures = run_alone("-e", SHORT + ROWS).lines.to_h { |line| line.split(": ") }
    assert_equal 5, failures.size
    # The rows of a scan are sent in small batches. So there is memory for them, however many they
    # are.
    ["rows without a value", "long texts"].each { |what| assert_equal 0, failures.delete(what).to_i, what }
    failures.each { |what, failed| assert_operator failed.to_i, :>=, 1, what }
  end

  def test_values_into_v8_and_out_of_it_find_no_room
    failures = run_alone("-e", SHORT + VALUES).lines.to_h { |line| line.split(": ") }
    assert_equal 10, failures.size
    failures.each { |what, failed| assert_operator failed.to_i, :>=, 1, what }
  end
end
