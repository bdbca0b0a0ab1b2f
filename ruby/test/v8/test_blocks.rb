# frozen_string_literal: true

require_relative "helper"

class TestV8Blocks < V8Test
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

  def test_exceptions_of_blocks_have_the_frames_of_javascript
    js = context
    js.attach("fail") { |text| raise KeyError, text }
    js.attach("nested") { js.eval("function inner() { fail('no') }; inner()", name: "inner.js") }
    error = assert_raises(KeyError) { js.eval("function outer() { nested() }; outer()", name: "outer.js") }
    files = error.backtrace.filter_map { |frame| frame[/inner.js|outer.js|test_blocks.rb/] }
    runs = files.chunk_while { |a, b| a == b }
    assert_equal %w[test_blocks.rb inner.js test_blocks.rb outer.js test_blocks.rb], runs.map(&:first)
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

  def test_a_context_is_not_disposed_of_in_its_own_block
    js = context
    js.attach("dispose") { js.dispose }
    error = assert_raises(V8::Error) { js.eval("dispose()") }
    assert_match(/in the middle of a call/, error.message)
    assert_equal "caught", js.eval("try { dispose() } catch (e) { 'caught' }")
    js.dispose
    assert_match(/disposed/, assert_raises(V8::Error) { js.eval("1") }.message)
  end
end
