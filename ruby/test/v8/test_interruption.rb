# frozen_string_literal: true

require_relative "helper"

class TestV8Interruption < V8Test
  # The exception of a script after it was stopped. The script reports when it runs.
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

  def test_stop_together_with_any_other_end_of_a_call
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
    # The stop does not concern a caller that waits for its turn, or a thread that disposes of the
    # context.
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

  def test_a_snapshot_that_never_ends_is_interrupted
    endless = "started = true; for (;;);"
    cold = snapshot("var started = false")
    [-> { snapshot(endless) }, -> { cold.warm_up(endless) },
     -> { snapshot("", warm_up: endless) }].each do |make|
      assert_raises(Timeout::Error) { Timeout.timeout(0.1) { make.call } }
      thread = Thread.new(&make)
      Thread.pass until thread.stop? || thread.status.nil?
      assert_nil thread.kill.value
      asker = Thread.current
      interrupter = Thread.new do
        # An earlier signal would end the test.
        sleep 0.01 until asker.stop?
        sleep(0.1) && Process.kill("INT", Process.pid)
      end
      assert_raises(Interrupt, &make)
      interrupter.join
    end
    # A handler that returns does not end the script; one that raises does.
    old = trap("USR1") { @handled = true }
    signal = Thread.new { sleep(0.05) && Process.kill("USR1", Process.pid) }
    made = snapshot("const end = Date.now() + 200; while (Date.now() < end); var here = 7")
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
    library = File.expand_path("../../lib", __dir__)
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
    # Without a handler, the signal would end the program.
    signal.join
    trap("USR1", old)
    assert handled
  end

  def test_other_threads_go_on
    js = context
    # A thread that waits for the script waits for these threads too: nothing else ends the script.
    other = Thread.new do
      50.times { sleep(0.001) }
      sleep 0.001 until js.stop
    end
    assert_raises(V8::StoppedError) { js.eval("for (;;);") }
    assert other.join(30)
  end
end
