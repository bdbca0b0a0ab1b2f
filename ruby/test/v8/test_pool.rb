# frozen_string_literal: true

require_relative "helper"

class TestV8Pool < V8Test
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

  def test_a_thread_that_waits_for_a_context_of_a_closing_pool_gets_an_error
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
    # Contexts that are freed while others boot. Their thread's stack ends, so the collector finds
    # no reference to them there.
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
