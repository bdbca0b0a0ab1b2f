# frozen_string_literal: true

require_relative "helper"
require_relative "test_blocks"
require_relative "test_interruption"
require_relative "test_values"

# Contexts in processes of their own. They do all that other contexts do.
module InProcesses
  def context(**options) = super(process: true, **options)
  def snapshot(*arguments, **options) = V8Test::V8::Snapshot.new(*arguments, process: true, **options)
end

class TestV8BlocksInProcesses < TestV8Blocks
  include InProcesses
end

class TestV8InterruptionInProcesses < TestV8Interruption
  include InProcesses
end

class TestV8ValuesInProcesses < TestV8Values
  include InProcesses
end

# What processes of their own are for.
class TestV8Processes < V8Test
  include InProcesses

  # The processes of the contexts of this program.
  def hosts
    children = Dir["/proc/self/task/*/children"].flat_map do |file|
      File.read(file).split.map(&:to_i)
    rescue SystemCallError
      # The thread has ended meanwhile.
      []
    end
    children.select do |pid|
      File.read("/proc/#{pid}/comm").start_with?("crosslane")
    rescue SystemCallError
      # It has ended meanwhile.
    end
  end

  # A context and its process.
  def hosted(**options)
    before = hosts
    made = context(**options)
    [made, (hosts - before).first]
  end

  def alive?(pid)
    File.read("/proc/#{pid}/stat")[/\) (\w)/, 1] != "Z"
  rescue SystemCallError
    false
  end

  def test_the_language_is_that_of_nodes_v8
    js = context
    assert_equal [1, 2, 3], js.eval("[3, 1, 2].toSorted()")
    assert_equal({ "odd" => [1, 3], "even" => [2] }, js.eval("Object.groupBy([1, 2, 3], x => x % 2 ? 'odd' : 'even')"))
    assert_equal [1, 2, 3], js.eval("[...new Set([1, 2]).union(new Set([3]))]")
  end

  def test_a_context_that_is_killed_costs_nothing_else
    (lost, host), (other, of_other) = hosted, hosted
    lost.attach("kill") { Process.kill("KILL", host) }
    error = assert_raises(V8::Error) { lost.eval("kill(); for (;;);") }
    assert_match(/the process of the context has ended: signal: 9/, error.message)
    error = assert_raises(V8::Error) { lost.eval("1") }
    assert_match(/the process of the context has ended/, error.message)
    lost.dispose
    refute alive?(host)
    assert_equal 2, other.eval("1 + 1")
    other.dispose
    refute alive?(of_other)
  end

  def test_what_nothing_can_end_ends_with_its_process
    js = context(timeout: 0.2)
    assert_raises(V8::TimeoutError) { js.eval("new Array(4e8).reverse()") }
    error = assert_raises(V8::Error) { js.eval("1") }
    assert_match(/the process of the context has ended: the script took too long/, error.message)
  end

  def test_memory_outside_of_the_heap_is_limited
    {
      "JSON.parse('[' + '1,'.repeat(2e8) + '1]').length" => 60_000_000,
      "Array.from({ length: 3e8 })" => 60_000_000,
      "const l = []; for (;;) l.push(new Array(1000).fill(0.5))" => 60_000_000
    }.each do |greedy, most|
      js = context(max_memory: most)
      assert_raises(V8::MemoryError, greedy) { js.eval(greedy) }
    end
  end

  def test_contexts_of_several_snapshots_live_side_by_side
    one, two = %w[h1 h2].map do |tag|
      snapshot("globalThis.page = (text) => `<#{tag}>${text}</#{tag}>`", warm_up: "page('x')")
    end
    loaded = V8::Snapshot.load(one.dump, process: true)
    pages = [one, two, loaded].map { |made| context(snapshot: made).call("page", "Hi") }
    assert_equal %w[<h1>Hi</h1> <h2>Hi</h2> <h1>Hi</h1>], pages
    assert_equal "TypeError", assert_raises(V8::RuntimeError) { snapshot("null.x") }.name
    assert_raises(V8::ParseError) { snapshot("(") }
    damaged = one.dump.tap { |bytes| bytes.setbyte(5000, bytes.getbyte(5000) ^ 1) }
    [damaged, "nonsense"].each do |bytes|
      error = assert_raises(V8::Error) { context(snapshot: V8::Snapshot.load(bytes, process: true)) }
      assert_match(/snapshot/, error.message)
    end
    # Each V8 has snapshots of its own.
    error = assert_raises(V8::Error) { context(snapshot: V8::Snapshot.new("1")) }
    assert_match(/for contexts in this program/, error.message)
    error = assert_raises(V8::Error) { V8::Context.new(snapshot: one, process: false) }
    assert_match(/in processes of their own/, error.message)
  end

  # With `puma --preload`, workers are forks of a program that may have used V8 before.
  def test_forks_lose_no_call_and_have_contexts_of_their_own
    pool = V8::Pool.new(snapshot("globalThis.page = (n) => `<p>${n}</p>`"), size: 2)
    first = pool.with { |js| js.call("page", 0) }
    assert_equal "<p>0</p>", first
    kept = pool.check_out
    done = false
    renders = Array.new(2) do |number|
      Thread.new do
        count = 0
        until done
          assert_equal "<p>#{number}</p>", kept.call("page", number)
          assert_equal("<p>7</p>", pool.with { |js| js.call("page", 7) }) if (count % 50).zero?
          count += 1
        end
        count
      end
    end
    10.times do |number|
      told = forked do
        [pool.with { |js| js.call("page", number) }, assert_raises(V8::Error) { kept.call("page", 1) }.message]
      end
      assert_equal "<p>#{number}</p>", told.first
      assert_match(/forked after the context was booted/, told.last)
    end
    done = true
    renders.each { |thread| assert_operator thread.value, :>, 0 }
    kept.dispose
    pool.close
    eventually { hosts.empty? }
  end

  def test_a_process_ends_with_its_program
    program = <<~'RUBY'
      require "crosslane/v8"
      js = Crosslane::V8::Context.new(process: true)
      js.attach("tell") do
        # A fork has the same sockets, and lives on.
        other = fork { sleep }
        host = Dir["/proc/self/task/*/children"].flat_map { |file| File.read(file).split.map(&:to_i) } - [other]
        puts "#{other} #{host.join}"
        $stdout.flush
      end
      js.eval("tell(); for (;;);")
    RUBY
    library = File.expand_path("../../lib", __dir__)
    pipe = IO.popen([RbConfig.ruby, "-I", library, "-e", program])
    fork, host = pipe.gets.split.map(&:to_i)
    assert alive?(host)
    Process.kill("KILL", pipe.pid)
    eventually { !alive?(host) }
  ensure
    Process.kill("KILL", fork) if fork
    pipe&.close
  end

  def test_functions_of_the_program_may_use_the_context_and_end_calls
    told = Object.new
    js = nil
    told.define_singleton_method(:puts) { |_| js.attach("seen", -> { js.memory }) if js.eval("1 + 1") == 2 }
    js = context(output: told)
    assert_equal 5, js.eval("console.log('seen'); 5")
    assert_operator js.eval("seen()"), :>, 0
    # An inner call that is ended does not end the one around it, also if that is repeated.
    js.attach("late") do
      assert_raises(Timeout::Error) { Timeout.timeout(0.05) { js.eval("for (;;);") } }
      1
    end
    assert_equal 20, js.eval("let n = 0; for (let i = 0; i < 20; i++) n += late(); n")
    js.attach("leave") { throw :out, 3 }
    assert_equal(3, catch(:out) { js.eval("try { leave() } catch (e) {} for (;;);") })
    assert_equal 7, js.eval("7")
  end

  def test_long_names_of_errors_cost_no_context
    js = context
    named = "const error = new Error('x'); error.name = 'n'.repeat(2e6); throw error"
    error = assert_raises(V8::RuntimeError) { js.eval(named) }
    assert_operator error.name.size, :<, 200_000
    assert_raises(V8::RuntimeError) { js.call("x" * 2_000_000) }
    assert_equal 7, js.eval("7")
  end

  def test_memory_is_watched_also_after_a_rest
    js = context(max_memory: 60_000_000)
    js.eval("0")
    # The process's main thread sleeps a second after the last call.
    sleep 1.2
    assert_raises(V8::MemoryError) { js.eval("JSON.parse('[' + '1,'.repeat(1e8) + '1]').length") }
  end

  def test_signals_of_the_terminal_do_not_end_a_process
    js, host = hosted
    %w[INT TERM HUP QUIT].each { |signal| Process.kill(signal, host) }
    assert_equal 2, js.eval("2")
    assert_predicate js, :alive?
    Process.kill("KILL", host)
    eventually { !js.alive? }
  end

  def test_a_process_has_no_system_calls_for_files
    js, host = hosted
    assert_equal 2, js.eval("2")
    assert_equal "2", File.read("/proc/#{host}/status")[/^Seccomp:\s*(\d)/, 1]
    assert_empty(Dir["/proc/#{host}/fd/*"].map { |fd| File.readlink(fd) }.grep(/duckdb|\.rb$/))
  end

  def test_without_node_an_error_says_what_to_install
    program = 'require "crosslane/v8"; Crosslane::V8::Context.new(process: true) rescue print $!.message'
    told = run_alone("-e", program, environment: { "CROSSLANE_NODE" => "/no/such/node" })
    assert_match(%r{CROSSLANE_NODE names /no/such/node, which is no file}, told)
  end
end
