# frozen_string_literal: true

require_relative "helper"
require "crosslane/v8"

class TestV8 < CrosslaneTest
  V8 = Crosslane::V8

  def context(**options)
    @contexts ||= []
    @contexts << V8::Context.new(**options)
    @contexts.last
  end

  def teardown
    super
    @contexts&.each(&:dispose)
  end

  def test_integers_of_all_sizes
    js = context
    edges = [31, 32, 53, 61, 62, 63, 64, 128].flat_map { |bits| [(2**bits) - 1, 2**bits, (2**bits) + 1] }
    edges.flat_map { |edge| [edge, -edge] }.each do |integer|
      assert_equal integer.to_s, js.call("String", integer)
      assert_equal integer, js.eval("(#{integer}n)")
      assert_equal [integer], js.call("Array.of", integer), integer.to_s
    end
  end

  # V8 needs a minute for the decimal digits of one of them.
  def test_large_integers_travel_in_binary
    js = context
    js.eval("globalThis.negated = (x) => -x")
    large = 3**10_000_000
    20.times { assert_equal(-large, js.call("negated", large)) }
  end

  def test_values
    js = context
    assert_equal [1, 2.5, "é", nil, true], js.eval("[1, 2.5, 'é', undefined, true]")
    assert_equal({ "a" => { "b" => [1] } }, js.eval("({ a: { b: [1] } })"))
    assert_equal Time.utc(2024, 2, 29), js.eval("new Date(Date.UTC(2024, 1, 29))")
    assert_equal 2**80, js.eval("2n ** 80n")
    assert_equal "\x01\xFF".b, js.eval("new Uint8Array([1, 255])")
    assert_equal 9, js.eval("Promise.resolve(3).then((x) => x * x)")
    assert_equal({ "k" => 1 }, js.eval("new Map([['k', 1]])"))
    assert js.eval("0 / 0").nan?
  end

  def test_arguments
    js = context
    js.eval("function kind(x) { return x === null ? 'null' : Array.isArray(x) ? 'array' : typeof x }")
    js.eval("function same(x) { return x }; const deep = { er: { add: (a, b) => a + b } }; globalThis.deep = deep")
    values = [nil, true, 1, -2**40, 2**70, -(2**70), 1.5, "ünï", [1, [2]], { "a" => nil }, "\xFF".b, Time.utc(2024)]
    values.each do |value|
      returned = js.call("same", value)
      value.nil? ? assert_nil(returned) : assert_equal(value, returned)
    end
    assert_equal "bigint", js.call("kind", 2**60)
    assert_equal({ "a" => 1 }, js.call(:same, Struct.new(:a).new(1)))
    assert_equal 5, js.call("deep.er.add", 2, 3)
    assert_raises(TypeError) { js.call("same", Object.new) }
    loop_ = []
    loop_ << loop_
    assert_raises(TypeError) { js.call("same", loop_) }
    assert_raises(V8::RuntimeError) { js.eval("const a = []; a.push(a); a") }
    assert_raises(V8::RuntimeError) { js.call("nothing") }
  end

  def test_errors
    js = context
    error = assert_raises(V8::ParseError) { js.eval("let x = ;", name: "broken.js") }
    assert_match(/Unexpected token/, error.message)
    assert_match(/broken\.js:1/, error.javascript_backtrace.join)
    js.eval("function fails() { null.x }", name: "fails.js")
    error = assert_raises(V8::RuntimeError) { js.call("fails") }
    assert_equal "TypeError", error.name
    assert_match(/fails \(fails\.js:1/, error.backtrace.first)
    assert(error.backtrace.any? { |frame| frame.include?("test_v8.rb") })
  end

  def test_limits
    js = context(timeout: 0.2, max_memory: 50_000_000)
    error = assert_raises(V8::TimeoutError) { js.eval("while (true) {}") }
    assert_match(/timeout of 0.2 s/, error.message)
    # BigInts are ended by another check than code is.
    assert_raises(V8::TimeoutError) { js.eval("(1n << 1000000000n).toString()") }
    greedy = context(max_memory: 50_000_000)
    assert_raises(V8::MemoryError) { greedy.eval("const a = []; while (true) a.push(new Array(1000).fill(1.5))") }
    assert_equal 2, greedy.eval("1 + 1")
    assert_raises(V8::RuntimeError) { js.eval("(function f() { return 1 + f() })()") }
    assert_equal 2, js.eval("1 + 1")
    assert_raises(ArgumentError) { context(timeout: -1) }
  end

  # The system's calls that wait for a futex, on x86-64 and on arm64.
  FUTEX = %w[202 98].freeze

  def test_the_thread_that_watches_sleeps_while_there_is_no_call
    js = context(timeout: 0.2)
    watch = nil
    # It gives itself its name.
    named = lambda do |task|
      File.read("#{task}/comm") == "crosslane-v8\n"
    rescue SystemCallError
      false # Another one that has just ended.
    end
    eventually { watch = Dir["/proc/self/task/*"].find(&named) }
    2.times do
      # Its fourth argument is a time, or none.
      eventually(20) do
        number, *arguments = File.read("#{watch}/syscall").split
        FUTEX.include?(number) && arguments[3] == "0x0"
      end
      assert_raises(V8::TimeoutError) { js.eval("while (true) {}") }
    end
  end

  # What V8 neither ends at its limit nor comes back from, and values at which it would end the process.
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
      # In a process of its own, since what is given up stays in memory.
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
      library = File.expand_path("../lib", __dir__)
      output = IO.popen([RbConfig.ruby, "-I", library, "-e", program, source], err: File::NULL, &:read)
      assert_equal "#{message} 24 true", output
    end
  end

  # Room for a context, and for a list of C++ that V8 makes while it parses.
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
    library = File.expand_path("../lib", __dir__)
    output = IO.popen([RbConfig.ruby, "-I", library, "-e", program], err: File::NULL, &:read)
    told = "V8 found no memory for its heap: the system gives the process no more\n"
    assert_equal "#{told}#{told}2\n", output
  end

  # What is refused is as small as what V8 asks for while it holds a lock of the whole process: all other contexts would
  # wait for a call that is given up there. What malloc has lasts until JSON's parser makes its list longer.
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
    library = File.expand_path("../lib", __dir__)
    output = IO.popen([RbConfig.ruby, "-I", library, "-e", program], err: %i[child out], &:read)
    assert_equal Signal.list["ABRT"], $?.termsig, output
    assert_includes output, "std::bad_alloc"
  end

  # Each looks for room before it boots; there is room for a few.
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
    library = File.expand_path("../lib", __dir__)
    6.times do
      output = IO.popen([RbConfig.ruby, "-I", library, "-e", program], err: File::NULL, &:read)
      assert_equal "[2, :none]", output
    end
  end

  # Ruby's code inside of a call may have the context given up, and the call with it.
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
    library = File.expand_path("../lib", __dir__)
    ["console.log(1)", "signal(); for (;;);"].each do |source|
      output = IO.popen([RbConfig.ruby, "-I", library, "-e", program, source], err: File::NULL, &:read)
      assert_equal "inner outer 2", output, source
    end
  end

  def test_prototypes_of_the_script_meet_nothing_unchecked
    js = context
    js.attach("fail") { raise "no" }
    js.attach("list") { [1, [2], { "a" => 1 }] }
    js.eval(<<~JS)
      const trap = { set() { throw new Error("set"); }, configurable: true };
      for (const name of ["0", "1", "a"]) Object.defineProperty(Object.prototype, name, trap);
      for (const name of ["name", "stack", "message"]) Object.defineProperty(Error.prototype, name, trap);
    JS
    assert_equal [1, [2], { "a" => 1 }], js.eval("list()")
    assert_equal "ProgramError", js.eval("try { fail() } catch (e) { e.name }")
    js.eval("Object.freeze(Error.prototype); Error.prepareStackTrace = () => { throw 1 }")
    assert_equal "no", assert_raises(RuntimeError) { js.eval("fail()") }.message
    assert_raises(V8::RuntimeError) { js.eval("null.x") }
  end

  def test_attached_blocks
    js = context
    js.attach("double") { |x| x * 2 }
    js.attach("fail") { |x| raise KeyError, "no #{x}" }
    js.attach("again") { |x| js.eval("#{x} + 1") }
    assert_equal 42, js.eval("double(21)")
    assert_equal "caught no 1", js.eval("try { fail(1) } catch (e) { 'caught ' + e.message }")
    assert_raises(KeyError) { js.eval("fail(2)") }
    assert_equal 8, js.eval("again(7)")
    js.attach("thrower") { throw :out, 3 }
    assert_equal(3, catch(:out) { js.eval("try { thrower() } catch (e) {}; 4") })
    js.attach("leave") { exit 5 }
    assert_raises(SystemExit) { js.eval("try { leave() } catch (e) {}; while (true) {}") }
    assert_equal 1, js.eval("1")
  end

  def test_errors_of_javascript_keep_their_class_and_message_through_blocks
    inner = context
    outer = context
    outer.attach("inner") { |source| inner.eval(source, name: "inner.js") }
    outer.attach("again") { |source| outer.eval(source) }
    describe = "(e) => [e instanceof Error, e.constructor.name, e.name, e.message]"
    caught = ->(source) { outer.eval("try { #{source} } catch (e) { (#{describe})(e) }") }
    %w[Error TypeError RangeError ReferenceError SyntaxError].each do |name|
      assert_equal [true, name, name, "b: ad\nly"], caught.call("inner(`throw new #{name}('b: ad\\\\nly')`)")
    end
    twice = "again(`inner('throw new TypeError(\"twice\")')`)"
    assert_equal [true, "TypeError", "TypeError", "twice"], caught.call(twice)
    mine = "class Mine extends Error { get name() { return 'Mine' } }; throw new Mine('own')"
    assert_equal [true, "Error", "Mine", "own"], caught.call("inner(`{ #{mine} }`)")
    error = assert_raises(V8::RuntimeError) { outer.eval("inner('null.x')") }
    assert_equal ["TypeError", "Cannot read properties of null (reading 'x')"], [error.name, error.javascript_message]
    assert_equal "#{error.name}: #{error.javascript_message}", error.message
    # Ruby's exceptions come back as themselves, and what JavaScript makes of them is its own.
    outer.attach("fail") { |text| raise KeyError, text }
    error = assert_raises(KeyError) { outer.eval("try { fail('k') } catch (e) { inner('1'); throw e }") }
    assert_equal "k", error.message
    error = assert_raises(V8::RuntimeError) { outer.eval("try { fail('k') } catch (e) { throw new TypeError('new') }") }
    assert_equal "TypeError: new", error.message
    error = assert_raises(V8::RuntimeError) { outer.eval("try { fail('k') } catch (e) {}; null.x") }
    assert_equal "TypeError", error.name
  end

  def test_exceptions_of_blocks_have_the_frames_of_javascript
    js = context
    js.attach("fail") { |text| raise KeyError, text }
    js.attach("nested") { js.eval("function inner() { fail('no') }; inner()", name: "inner.js") }
    error = assert_raises(KeyError) { js.eval("function outer() { nested() }; outer()", name: "outer.js") }
    places = error.backtrace.map { |frame| frame[/inner.js|outer.js|test_v8.rb/] }.compact.chunk_while { |a, b| a == b }
    assert_equal %w[test_v8.rb inner.js test_v8.rb outer.js test_v8.rb], places.map(&:first)
    assert_match(/\Aat inner \(inner.js:1:/, error.backtrace.grep(/inner.js/).first)
    frozen = KeyError.new("frozen").freeze
    js.attach("freeze") { raise frozen }
    assert_raises(KeyError, FrozenError) { js.eval("freeze()") }
  end

  def test_attached_paths
    js = context
    js.attach("math.pure.half") { |x| x / 2.0 }
    js.attach("math.twice", 2.method(:*))
    assert_equal [1.5, 6, ["pure", "twice"]], js.eval("[math.pure.half(3), math.twice(3), Object.keys(math)]")
    js.eval("const made = { here: 1 }; globalThis.made = made; var number = 5")
    js.attach("made.too") { 2 }
    assert_equal [1, 2], js.eval("[made.here, made.too()]")
    assert_match(/number is no object/, assert_raises(V8::RuntimeError) { js.attach("number.f") { 1 } }.message)
    js.eval("let kept; Object.defineProperty(globalThis, 'trap', { set(f) { kept = f; throw new Error('no') } })")
    assert_raises(V8::RuntimeError) { js.attach("trap") { "trap" } }
    js.attach("next") { "next" }
    assert_equal %w[trap next], js.eval("[kept(), next()]")
    assert_match(/TypeError/, assert_raises(V8::RuntimeError) { js.call("missing.f") }.message)
  end

  # What a script may return that is no value of Ruby.
  def test_results_without_a_ruby_value
    js = context
    assert_equal({ "f" => nil, "s" => nil, "x" => 42 }, js.eval("({ f() {}, s: Symbol('s'), x: 42 })"))
    assert_equal [nil, nil, {}, {}], js.eval("[() => 1, new Date(NaN), /x/, 'ab'.matchAll(/./g)]")
    assert_equal [5, 7], js.eval("new Set([5, 7])")
    assert_equal({ "1" => { "a" => 2 } }, js.eval("new Map([[1, { a: 2 }]])"))
    assert_equal({ "a" => 1 }, js.eval("new Proxy({ a: 1 }, {})"))
    error = assert_raises(V8::RuntimeError) { js.eval("({ get x() { throw new Error('no value') } })") }
    assert_match(/no value/, error.message)
    js.eval("const deeper = (o) => Object.defineProperty(o, 'o', { get: () => deeper({}), enumerable: true })")
    assert_match(/nested more than/, assert_raises(V8::RuntimeError) { js.eval("deeper({})") }.message)
    assert_equal "é".encoding, js.eval("'x'").encoding
    refute_predicate js.eval("'x'"), :frozen?
  end

  def test_promises
    js = context
    assert_equal 42, js.eval("(async () => { await null; return 6 * 7 })()")
    assert_match(/kaboom/, assert_raises(V8::RuntimeError) { js.eval("Promise.reject(new Error('kaboom'))") }.message)
    js.eval("let seen = 0; Promise.resolve().then(() => { seen = 99 })")
    assert_equal 99, js.eval("seen")
    assert_equal({}, js.eval("new Promise(() => {})"))
  end

  def test_promises_that_are_awaited
    js = context
    assert_equal 42, js.eval_await("(async () => { await null; return 6 * 7 })()")
    assert_equal 7, js.eval_await("7")
    assert_equal({}, js.eval_await("({})"))
    js.eval("let settle; const later = () => new Promise((resolve) => { settle = resolve })")
    js.eval("const settled = (value) => settle(value); globalThis.settled = settled; globalThis.later = later")
    # A block settles it with a call of its own, or another call does, later.
    js.attach("settles") { |value| js.call("settled", value) }
    assert_equal 5, js.eval_await("{ const promise = later(); settles(5); promise }")
    js.eval("globalThis.waits = () => { const promise = later(); settles(6); return promise }")
    assert_equal 6, js.call_await("waits")
    error = assert_raises(V8::Error) { js.call_await("later") }
    assert_match(/not settled.*only another call can/, error.message)
    js.eval("const promise = later()")
    assert_match(/not settled/, assert_raises(V8::Error) { js.eval_await("promise") }.message)
    js.call("settled", 8)
    assert_equal 8, js.eval_await("promise")
    # In a block the script around it comes first.
    js.attach("inner") { js.eval_await("Promise.resolve(1).then((x) => x + 1)") }
    assert_match(/not settled: in a block/, assert_raises(V8::Error) { js.eval("inner()") }.message)
    assert_raises(V8::RuntimeError) { js.eval_await("Promise.reject(new Error('kaboom'))") }
    assert_equal [{}], js.eval_await("[later()]")
  end

  def test_bytes
    js = context
    js.eval("const kind = (x) => [x?.constructor.name, x?.length]")
    js.eval("globalThis.kind = kind; globalThis.same = (x) => x")
    ["plain", "", "é", "\xFF".b, "日本".encode("EUC-JP"), "half \xC3"].each do |string|
      bytes = V8::Bytes.new(string)
      assert_equal ["Uint8Array", string.bytesize], js.call("kind", bytes)
      assert_equal string.b, js.call("same", bytes)
      assert_equal [{ "k" => string.b }], js.call("same", [{ k: bytes }])
    end
    js.attach("bytes") { V8::Bytes.new("plain") }
    assert_equal ["Uint8Array", 5], js.eval("kind(bytes())")
    assert_equal ["String", 5], js.call("kind", "plain".b)
    assert_match(/not Integer/, assert_raises(TypeError) { V8::Bytes.new(3) }.message)
  end

  def test_a_limit_inside_a_block_or_a_getter
    js = context(timeout: 0.1)
    assert_raises(V8::TimeoutError) { js.eval("({ get x() { for (;;); } })") }
    js.attach("spin") { js.eval("for (;;);") }
    assert_raises(V8::TimeoutError) { js.eval("spin()") }
    assert_equal 2, js.eval("1 + 1")
    # A block is Ruby's: it ends by itself, and its value counts.
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

  # What a script that tells when it runs ends with, after it was stopped.
  def stopped(js, script)
    started = Thread::Queue.new
    js.attach("started") { started.push(true).size }
    caller = Thread.new { assert_raises(V8::StoppedError, script) { js.eval("started(); #{script}") } }
    started.pop
    assert js.stop
    caller.value
  end

  def test_stop
    js = context
    refute js.stop
    ["for (;;);", "for (;;) { try { for (;;); } catch (e) {} finally { for (;;); } }", "for (;;) started()",
     "/(a+)+b/.test('a'.repeat(40))", "({ get x() { for (;;); } })"].each do |script|
      assert_match(/\Athe script was stopped/, stopped(js, script).message)
      refute js.stop
      assert_equal 1_000_000, js.eval("{ let n = 0; for (let i = 0; i < 1e6; i++) n++; n }")
    end
  end

  def test_stop_ends_the_calls_around_it_and_none_behind_it
    js = context
    errors = []
    js.attach("stop") { js.stop }
    js.attach("nested") do |script|
      js.eval(script)
    rescue V8::StoppedError => e
      errors << e
      nil
    end
    js.attach("fail") { js.stop && raise(KeyError, "no") }
    ["stop()", "stop(); for (;;);", "nested('stop()')", "nested('stop(); for (;;);'); for (;;);",
     "stop(); nested('1')", "try { stop() } catch (e) {}", "stop(); null.x", "fail()",
     "try { fail() } catch (e) {}"].each do |script|
      assert_raises(V8::StoppedError, script) { js.eval(script) }
      assert_equal 1_000_000, js.eval("{ let n = 0; for (let i = 0; i < 1e6; i++) n++; n }"), script
    end
    assert_equal 2, errors.size
    js.attach("leave") { js.stop && throw(:out, 3) }
    assert_equal(3, catch(:out) { js.eval("leave()") })
  end

  def test_stop_from_several_threads_hits_what_runs_then
    js = context
    done = false
    hits = 0
    stoppers = Array.new(2) do
      Thread.new do
        until done
          hits += 1 if js.stop
          Thread.pass
        end
      end
    end
    errors = Array.new(200).count do
      js.eval("{ let n = 0; for (let i = 0; i < 1e4; i++) n++ }")
      false
    rescue V8::StoppedError
      true
    end
    done = true
    stoppers.each(&:join)
    assert_operator errors, :<=, hits
    100.times { assert_equal 10_000, js.eval("{ let n = 0; for (let i = 0; i < 1e4; i++) n++; n }") }
  end

  def test_stop_beside_whatever_else_ends_a_call
    js = context
    started = Thread::Queue.new
    js.attach("started") { started.push(true).size }
    run = -> { js.eval("started(); for (;;);") }
    killed = Thread.new(&run)
    started.pop
    killed.kill
    js.stop
    assert_nil killed.value
    raised = Thread.new { assert_raises(IOError, V8::StoppedError, &run) }
    started.pop
    raised.raise(IOError, "enough")
    js.stop
    raised.join
    signalled = Thread.new { started.pop && Process.kill("USR1", Process.pid) }
    old = trap("USR1") { js.stop }
    assert_raises(V8::StoppedError, &run)
    signalled.join
    # Who waits for its turn is not concerned, nor who disposes of the context.
    caller = Thread.new { assert_raises(V8::StoppedError, &run) }
    started.pop
    refute(forked { js.stop })
    waiting = Thread.new { js.eval("6 * 7") }
    eventually { waiting.stop? }
    assert js.stop
    assert_equal 42, waiting.value
    caller.join
    js.dispose
    refute js.stop
  ensure
    trap("USR1", old) if old
  end

  def test_what_javascript_has_caught_does_not_hide_why_a_call_ended
    js = context(timeout: 0.05)
    js.attach("fail") { raise KeyError, "no" }
    assert_raises(V8::TimeoutError) { js.eval("try { fail() } catch (e) {}; for (;;);") }
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

  def test_a_context_is_not_disposed_of_in_its_own_block
    js = context
    js.attach("dispose") { js.dispose }
    error = assert_raises(V8::Error) { js.eval("dispose()") }
    assert_match(/in the middle of a call/, error.message)
    assert_equal "caught", js.eval("try { dispose() } catch (e) { 'caught' }")
    js.dispose
    assert_match(/disposed/, assert_raises(V8::Error) { js.eval("1") }.message)
  end

  def test_a_snapshot_that_never_ends_is_interrupted
    endless = "started = true; for (;;);"
    snapshot = V8::Snapshot.new("var started = false")
    [-> { V8::Snapshot.new(endless) }, -> { snapshot.warm_up(endless) },
     -> { V8::Snapshot.new("", warm_up: endless) }].each do |make|
      assert_raises(Timeout::Error) { Timeout.timeout(0.1) { make.call } }
      thread = Thread.new(&make)
      Thread.pass until thread.stop? || thread.status.nil?
      assert_nil thread.kill.value
      asker = Thread.current
      interrupter = Thread.new do
        # A signal that came before would end the test.
        sleep 0.01 until asker.stop?
        sleep(0.1) && Process.kill("INT", Process.pid)
      end
      assert_raises(Interrupt, &make)
      interrupter.join
    end
    # Only what raises ends it.
    old = trap("USR1") { @handled = true }
    signal = Thread.new { sleep(0.05) && Process.kill("USR1", Process.pid) }
    made = V8::Snapshot.new("const end = Date.now() + 200; while (Date.now() < end); var here = 7")
    signal.join
    assert @handled
    assert_equal 7, context(snapshot: made).eval("here")
  ensure
    trap("USR1", old) if old
  end

  def test_the_first_boot_of_a_thread_that_is_killed
    program = <<~RUBY
      require "crosslane/v8"
      V8 = Crosslane::V8
      threads = [-> { V8::Context.new }, -> { V8::Snapshot.new("1") }].map { |boot| Thread.new(&boot) }
      sleep(ARGV[0].to_f)
      threads.each(&:kill).each(&:join)
      print V8::Context.new.eval("6 * 7")
    RUBY
    library = File.expand_path("../lib", __dir__)
    [0, 0, 0.0005, 0.002, 0.01, 0.02].each do |time|
      output = IO.popen([RbConfig.ruby, "-I", library, "-e", program, time.to_s], err: %i[child out], &:read)
      assert_equal "42", output
    end
  end

  def test_a_ruby_timeout_leaves_a_context_that_works
    js = context
    js.attach("nested") { js.eval("for (;;);") }
    assert_raises(Timeout::Error) { Timeout.timeout(0.05) { js.eval("nested()") } }
    100.times { Timeout.timeout(0.0001) { js.eval("1 + 1") } rescue Timeout::Error } # rubocop:disable Style/RescueModifier
    assert_equal 4, js.eval("2 + 2")
  end

  def test_console
    output = StringIO.new
    js = context(output: output)
    js.eval("console.log('a', { b: 1 })")
    assert_equal "a {b: 1}\n", output.string
  end

  def test_interruption
    js = context
    assert_raises(Timeout::Error) { Timeout.timeout(0.1) { js.eval("while (true) {}") } }
    thread = Thread.new { js.eval("while (true) {}") }
    sleep 0.05
    thread.kill.join
    handled = false
    old = trap("USR1") { handled = true }
    signal = Thread.new { sleep(0.05) && Process.kill("USR1", Process.pid) }
    assert_equal 7, js.eval("const end = Date.now() + 200; while (Date.now() < end) {}; 7")
    # Without a handler it would end the program.
    signal.join
    trap("USR1", old)
    assert handled
  end

  def test_other_threads_go_on
    js = context
    # Whoever waits for the script waits for these, too: nothing else ends it.
    other = Thread.new do
      50.times { sleep(0.001) }
      sleep 0.001 until js.stop
    end
    assert_raises(V8::StoppedError) { js.eval("for (;;);") }
    assert other.join(30)
  end

  def test_threads_and_fibers_share_a_context
    js = context
    js.eval("let n = 0; function next() { return ++n }")
    numbers = Array.new(4) { Thread.new { Array.new(50) { js.call("next") } } }.flat_map(&:value)
    assert_equal (1..200).to_a, numbers.sort
    assert_equal 100, Fiber.new { js.eval("(function f(n) { return n ? 1 + f(n - 1) : 0 })(100)") }.resume
    assert_raises(V8::RuntimeError) { Fiber.new { js.eval("(function f() { return 1 + f() })()") }.resume }
  end

  def test_snapshots
    snapshot = V8::Snapshot.new("function square(x) { return x * x }; var state = 1", warm_up: "square(2); state = 2")
    loaded = V8::Snapshot.load(snapshot.dump)
    js = context(snapshot: loaded)
    assert_equal [144, 1], [js.call("square", 12), js.eval("state")]
    error = assert_raises(V8::Error) { context }
    assert_match(/contexts of another snapshot live/, error.message)
    assert_raises(V8::Error) { V8::Snapshot.new("1") }
    js.dispose
    assert_equal 2, context.eval("2")
    damaged = snapshot.dump
    damaged.setbyte(-1, damaged.getbyte(-1) ^ 1)
    assert_raises(V8::Error) { V8::Snapshot.load(damaged) }
    assert_raises(V8::Error) { V8::Snapshot.load("nonsense") }
    @contexts.each(&:dispose)
    error = assert_raises(V8::RuntimeError) { V8::Snapshot.new("boom()", name: "libraries.js") }
    assert_match(/boom is not defined/, error.message)
  end

  def test_a_snapshot_of_a_script_that_changes_the_language
    js = context(snapshot: V8::Snapshot.new(<<~JS))
      const atOnce = [[1, 2].at(-1), "a".at(0), [1, 2].findLast((x) => x < 2), Object.hasOwn({ a: 1 }, "a")];
      Object.hasOwn = () => "own";
      Array.prototype.findLast = () => "own";
      for (const changed of [Object, Array.prototype, String.prototype, Int8Array.__proto__.prototype]) Object.freeze(changed);
    JS
    assert_equal [2, "a", 1, true], js.eval("atOnce")
    assert_equal ["own", "own", 2, "a"], js.eval("[Object.hasOwn({}, 'a'), [].findLast(), [1, 2].at(-1), 'a'.at(0)]")
  end

  def test_a_pool
    snapshot = V8::Snapshot.new("function square(x) { return x * x }")
    pool = V8::Pool.new(snapshot, size: 2)
    assert_equal 25, (pool.with { |js| js.eval("globalThis.left = 1; square(5)") })
    assert_equal("undefined", pool.with { |js| js.eval("typeof left") })
    eventually { pool.ready == 2 }
    pool.close
    assert_raises(V8::Error) { pool.check_out }
  end

  def test_who_waits_for_a_context_of_a_pool_that_closes_gets_an_error
    never_boots = Class.new(V8::Pool) { define_method(:boot) { Thread::Queue.new.pop } }
    pool = never_boots.new(size: 1)
    waiting = Array.new(3) { Thread.new { assert_raises(V8::Error) { pool.with { flunk } }.message } }
    eventually { waiting.all?(&:stop?) }
    pool.close
    assert_equal ["the pool is closed"], waiting.map(&:value).uniq
  end

  def test_disposal
    js = context
    assert_operator js.memory, :>, 0
    js.dispose
    js.dispose
    assert_match(/disposed/, assert_raises(V8::Error) { js.eval("1") }.message)
  end

  alone def test_under_a_stressed_collector
    js = context
    js.attach("pair") { |x| [x, { "x" => x }] }
    js.attach("stop") { js.stop }
    GC.stress = true
    assert_raises(V8::StoppedError) { js.eval("stop(); for (;;);") }
    js.low_memory_notification
    assert_includes js.heap_stats, :used_heap_size
    assert_equal ["q", { "x" => "q" }], js.eval("pair('q')")
    context.dispose
    GC.stress = false
    GC.compact
    assert_equal [1, { "x" => 1 }], js.eval("pair(1)")
    # Contexts that are freed while others boot. On a stack that ends, where the collector finds none of them.
    Thread.new { 30.times { V8::Context.new } }.join
    GC.start
    assert_equal 3, js.eval("3")
  ensure
    GC.stress = false
  end

  def test_a_fork_gets_an_error
    js = context
    messages = forked do
      [-> { js.eval("1") }, -> { V8::Context.new }].map do |use|
        use.call
      rescue V8::Error => e
        e.message
      end
    end
    assert(messages.all? { |message| message.include?("forked after") })
    assert_equal 1, js.eval("1")
  end
end
