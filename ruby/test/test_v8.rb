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
    assert_raises(V8::MemoryError) { js.eval("const a = []; while (true) a.push(new Array(1000).fill(1.5))") }
    assert_raises(V8::RuntimeError) { js.eval("(function f() { return 1 + f() })()") }
    assert_equal 2, js.eval("1 + 1")
    assert_raises(ArgumentError) { context(timeout: -1) }
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
    Thread.new { sleep(0.05) && Process.kill("USR1", Process.pid) }
    assert_equal 7, js.eval("const end = Date.now() + 200; while (Date.now() < end) {}; 7")
    trap("USR1", old)
    assert handled
  end

  def test_other_threads_go_on
    js = context
    ticks = 0
    ticker = Thread.new { loop { sleep(0.001) && ticks += 1 } }
    js.eval("{ const end = Date.now() + 300; while (Date.now() < end) {} }")
    ticker.kill
    assert_operator ticks, :>, 50
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

  def test_a_pool
    snapshot = V8::Snapshot.new("function square(x) { return x * x }")
    pool = V8::Pool.new(snapshot, size: 2)
    assert_equal 25, (pool.with { |js| js.eval("globalThis.left = 1; square(5)") })
    assert_equal("undefined", pool.with { |js| js.eval("typeof left") })
    eventually { pool.ready == 2 }
    pool.close
    assert_raises(V8::Error) { pool.check_out }
  end

  def test_disposal
    js = context
    assert_operator js.memory, :>, 0
    js.dispose
    js.dispose
    assert_match(/disposed/, assert_raises(V8::Error) { js.eval("1") }.message)
  end

  def test_under_a_stressed_collector
    js = context
    js.attach("pair") { |x| [x, { "x" => x }] }
    GC.stress = true
    assert_equal ["q", { "x" => "q" }], js.eval("pair('q')")
    context.dispose
    GC.stress = false
    GC.compact
    assert_equal [1, { "x" => 1 }], js.eval("pair(1)")
    # Contexts that are freed while others boot.
    30.times { V8::Context.new }
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
