# frozen_string_literal: true

require_relative "helper"

class TestV8Values < V8Test
  def test_integers_of_all_sizes
    js = context
    edges = [31, 32, 53, 61, 62, 63, 64, 128].flat_map { |bits| [(2**bits) - 1, 2**bits, (2**bits) + 1] }
    edges.flat_map { |edge| [edge, -edge] }.each do |integer|
      assert_equal integer.to_s, js.call("String", integer)
      assert_equal integer, js.eval("(#{integer}n)")
      assert_equal [integer], js.call("Array.of", integer), integer.to_s
    end
  end

  # V8 needs a minute to compute the decimal digits of one of these integers.
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
    assert(error.backtrace.any? { |frame| frame.include?("test_values.rb") })
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
    # Ruby's exceptions come back unchanged. An exception that JavaScript makes from them is
    # JavaScript's own.
    outer.attach("fail") { |text| raise KeyError, text }
    error = assert_raises(KeyError) { outer.eval("try { fail('k') } catch (e) { inner('1'); throw e }") }
    assert_equal "k", error.message
    error = assert_raises(V8::RuntimeError) { outer.eval("try { fail('k') } catch (e) { throw new TypeError('new') }") }
    assert_equal "TypeError: new", error.message
    error = assert_raises(V8::RuntimeError) { outer.eval("try { fail('k') } catch (e) {}; null.x") }
    assert_equal "TypeError", error.name
  end

  # Values that a script may return and that Ruby does not have.
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
    # A call inside a block settles the promise, or a later call does.
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
    # In a block, the promise is not settled before the outer script has ended.
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

  def test_console
    output = StringIO.new
    js = context(output: output)
    js.eval("console.log('a', { b: 1 })")
    assert_equal "a {b: 1}\n", output.string
  end
end
