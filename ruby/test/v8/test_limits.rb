# frozen_string_literal: true

require_relative "helper"

class TestV8Limits < V8Test
  def test_limits
    js = context(timeout: 0.2, max_memory: 50_000_000)
    error = assert_raises(V8::TimeoutError) { js.eval("while (true) {}") }
    assert_match(/timeout of 0.2 s/, error.message)
    # V8 checks for the end of BigInt operations in another place than for code.
    assert_raises(V8::TimeoutError) { js.eval("(1n << 1000000000n).toString()") }
    greedy = context(max_memory: 50_000_000)
    assert_raises(V8::MemoryError) { greedy.eval("const a = []; while (true) a.push(new Array(1000).fill(1.5))") }
    assert_equal 2, greedy.eval("1 + 1")
    assert_raises(V8::RuntimeError) { js.eval("(function f() { return 1 + f() })()") }
    assert_equal 2, js.eval("1 + 1")
    assert_raises(ArgumentError) { context(timeout: -1) }
  end

  # The numbers of the futex system call on x86-64 and on arm64.
  FUTEX = %w[202 98].freeze

  def test_the_thread_that_watches_sleeps_while_there_is_no_call
    js = context(timeout: 0.2)
    watch = nil
    # The thread sets its name itself.
    named = lambda do |task|
      File.read("#{task}/comm") == "crosslane-v8\n"
    rescue SystemCallError
      false # Another one that has just ended.
    end
    eventually { watch = Dir["/proc/self/task/*"].find(&named) }
    2.times do
      # The fourth argument is the timeout of the wait, or null.
      eventually(20) do
        number, *arguments = File.read("#{watch}/syscall").split
        FUTEX.include?(number) && arguments[3] == "0x0"
      end
      assert_raises(V8::TimeoutError) { js.eval("while (true) {}") }
    end
  end

  # Code that V8 does not end at its limit and that does not return, and values for which V8 would
  # end the process.
  LIMIT = "the context used more than its max_memory of 60000000 bytes"
  BEYOND = "V8 cannot go on: a value may exceed its largest size"
  GREEDY = {
    "new Array(2 ** 27).fill(1.1)" => LIMIT,
    "new Array(1e9).fill(0)" => LIMIT,
    "Array.from({ length: 3e8 })" => LIMIT,
    "[...new Array(1e9).keys()]" => LIMIT,
    "const a = []; a.length = 4294967295; a" => LIMIT,
    "'a'.repeat(3e8).split('')" => BEYOND,
    "Object.keys('a'.repeat(3e8))" => LIMIT,
    "Object.entries(Object('a'.repeat(3e8)))" => LIMIT,
    "new Map(new Array(1e8).entries())" => LIMIT,
    "nested('new Array(2 ** 27).fill(1.1)')" => LIMIT
  }.freeze

  GREEDY.each_with_index do |(source, message), index|
    define_method(:"test_memory_that_grows_where_nothing_can_end_it_#{index}") do
      # This runs in a process of its own, because a context that is given up stays in memory.
      program = <<~'RUBY'
        require "crosslane/v8"
        js = Crosslane::V8::Context.new(max_memory: 60_000_000)
        other = Crosslane::V8::Context.new
        js.attach("nested") { |inner| js.eval(inner) }
        begin
          js.eval(ARGV[0])
        rescue Crosslane::V8::MemoryError => e
          print e.message, " "
        end
        begin
          js.eval("1")
        rescue Crosslane::V8::MemoryError
        end
        js.dispose
        print other.eval("1 + 1"), Crosslane::V8::Context.new.eval("2 + 2")
        print " ", File.read("/proc/self/status")[/VmHWM:\s*(\d+)/, 1].to_i < 400_000
      RUBY
      library = File.expand_path("../../lib", __dir__)
      output = IO.popen([RbConfig.ruby, "-I", library, "-e", program, source], err: File::NULL, &:read)
      assert_equal "#{message} 24 true", output
    end
  end

  # There is memory for a context, and for a C++ list that V8 makes while it parses.
  def test_what_the_system_has_no_memory_for_is_an_error
    program = <<~'RUBY'
      require "crosslane/v8"
      js = Crosslane::V8::Context.new(max_memory: 2_000_000_000)
      js.eval("const text = '[' + '1,'.repeat(3e7) + '1]'; text.charCodeAt(5)")
      used = Integer(File.read("/proc/self/status")[/VmSize:\s*(\d+)/, 1]) << 10
      _, most = Process.getrlimit(:AS)
      short = lambda do |room, work|
        Process.setrlimit(:AS, used + (room << 20), most)
        work.call
      rescue Crosslane::V8::MemoryError => e
        puts e.message
      ensure
        Process.setrlimit(:AS, most, most)
      end
      short.call(100, -> { Crosslane::V8::Context.new })
      short.call(380, -> { js.eval("JSON.parse(text).length") })
      puts Crosslane::V8::Context.new.eval("1 + 1")
    RUBY
    library = File.expand_path("../../lib", __dir__)
    output = IO.popen([RbConfig.ruby, "-I", library, "-e", program], err: File::NULL, &:read)
    told = "V8 found no memory for its heap: the system gives the process no more\n"
    assert_equal "#{told}#{told}2\n", output
  end

  # The refused allocation is as small as those that V8 makes while it holds a lock of the whole
  # process. If V8 gave up a call there, all other contexts would wait forever. The memory that
  # malloc still has lasts until JSON's parser enlarges its list.
  def test_a_call_that_finds_memory_for_nothing_ends_the_process
    program = <<~'RUBY'
      require "crosslane/v8"
      Process.setrlimit(:CORE, 0)
      js = Crosslane::V8::Context.new(max_memory: 2_000_000_000)
      js.eval("const text = '[' + '1,'.repeat(3e7) + '1]'; text.charCodeAt(5)")
      js.eval("const parse = () => JSON.parse(text).length")
      Thread.new do
        js.eval("1 + 1")
        used = Integer(File.read("/proc/self/status")[/VmSize:\s*(\d+)/, 1]) << 10
        _, most = Process.getrlimit(:AS)
        Process.setrlimit(:AS, used, most)
        js.eval("parse()")
      rescue Crosslane::V8::MemoryError
        Process.setrlimit(:AS, most, most)
        puts "given up"
      end.join
    RUBY
    library = File.expand_path("../../lib", __dir__)
    output = IO.popen([RbConfig.ruby, "-I", library, "-e", program], err: %i[child out], &:read)
    assert_equal Signal.list["ABRT"], $?.termsig, output
    assert_includes output, "std::bad_alloc"
  end

  # Each thread checks for free memory before it boots a context. There is memory for a few
  # contexts.
  def test_contexts_made_on_many_threads_without_room_for_all
    program = <<~'RUBY'
      require "crosslane/v8"
      start = Queue.new
      threads = Array.new(16) do
        Thread.new do
          start.pop
          Crosslane::V8::Context.new.eval("1 + 1")
        rescue Crosslane::V8::MemoryError
          :none
        end
      end
      sleep 0.01 until start.num_waiting == 16
      used = Integer(File.read("/proc/self/status")[/VmSize:\s*(\d+)/, 1]) << 10
      _, most = Process.getrlimit(:AS)
      Process.setrlimit(:AS, used + (700 << 20), most)
      16.times { start << nil }
      results = threads.map(&:value)
      print results.tally.keys.sort_by(&:to_s)
    RUBY
    library = File.expand_path("../../lib", __dir__)
    6.times do
      output = IO.popen([RbConfig.ruby, "-I", library, "-e", program], err: File::NULL, &:read)
      assert_equal "[2, :none]", output
    end
  end

  # Ruby code inside a call may make V8 give up the context, and the call with it.
  def test_output_and_a_signal_handler_whose_calls_are_given_up
    program = <<~'RUBY'
      require "crosslane/v8"
      greedy = lambda do |js|
        js.eval("'a'.repeat(3e8).split('')")
      rescue Crosslane::V8::MemoryError
        print "inner "
      end
      output = Object.new
      js = Crosslane::V8::Context.new(max_memory: 60_000_000, output: output)
      output.define_singleton_method(:puts) { |_| greedy.call(js) }
      trap("USR1") { greedy.call(js) }
      js.attach("signal") { !Thread.new { Process.kill("USR1", Process.pid) } }
      begin
        js.eval(ARGV[0])
      rescue Crosslane::V8::MemoryError
        print "outer ", Crosslane::V8::Context.new.eval("1 + 1")
      end
    RUBY
    library = File.expand_path("../../lib", __dir__)
    ["console.log(1)", "signal(); for (;;);"].each do |source|
      output = IO.popen([RbConfig.ruby, "-I", library, "-e", program, source], err: File::NULL, &:read)
      assert_equal "inner outer 2", output, source
    end
  end

  def test_a_limit_inside_a_block_or_a_getter
    js = context(timeout: 0.1)
    assert_raises(V8::TimeoutError) { js.eval("({ get x() { for (;;); } })") }
    js.attach("spin") { js.eval("for (;;);") }
    assert_raises(V8::TimeoutError) { js.eval("spin()") }
    assert_equal 2, js.eval("1 + 1")
    # A block is Ruby code: it ends by itself, and its value counts.
    js.attach("wait") { sleep(0.3) && "done" }
    assert_equal "done", js.eval("wait()")
  end

  def test_a_limit_holds_around_blocks
    js = context(timeout: 0.1)
    js.attach("one") { 1 }
    js.attach("slow") { sleep(0.02) }
    js.attach("nested") { js.eval("1") }
    js.attach("deeper") { js.call("slow") }
    js.attach("endless") { js.eval("for (;;);") }
    ["for (;;) one()", "for (;;) slow()", "nested(); for (;;);", "for (;;) nested()", "for (;;) deeper()",
     "for (;;) { try { endless() } catch (e) {} }", "new Array(1e7).fill(1).forEach(slow)"].each do |script|
      assert_raises(V8::TimeoutError, script) { js.eval(script) }
      assert_equal 2, js.eval("nested() + 1")
    end
  end

  def test_heap_stats
    js = context
    js.eval("globalThis.numbers = new Array(1e6).fill(1.5)")
    full = js.heap_stats
    js.eval("numbers = null")
    assert_nil js.low_memory_notification
    freed = js.heap_stats
    assert_operator freed[:used_heap_size], :<, full[:used_heap_size] - 7_000_000
    names = %i[total_physical_size total_heap_size_executable total_heap_size used_heap_size heap_size_limit]
    assert_empty names - freed.keys
    assert(freed.values.all?(Integer), freed.inspect)
    assert_operator freed[:used_heap_size], :<=, freed[:total_heap_size]
    assert_equal 1, freed[:number_of_native_contexts]
    js.attach("used") { js.low_memory_notification || js.heap_stats[:used_heap_size] }
    assert_kind_of Integer, js.eval("used()")
    js.eval("Object.freeze(Object.prototype); delete globalThis.Object")
    sizes = Array.new(4) { Thread.new { js.low_memory_notification || js.heap_stats.size } }.map(&:value)
    assert_equal [freed.size], sizes.uniq
    js.dispose
    assert_raises(V8::Error) { js.heap_stats }
    assert_raises(V8::Error) { js.low_memory_notification }
  end
end
