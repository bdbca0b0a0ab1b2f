# frozen_string_literal: true

require "minitest/autorun"
require "minitest/mock"
require "open3"
require "rbconfig"
require "set"
require "tmpdir"
require "timeout"
require "crosslane"

# The common part of the tests.
class CrosslaneTest < Minitest::Test
  # The most seconds of a test. A test that takes longer fails, and the next one runs.
  LONGEST = 120
  Hangs = Class.new(Exception) # rubocop:disable Lint/InheritException -- no test may rescue it
  ALONE = "CROSSLANE_TEST_ALONE"

  # Runs a test in a process of its own, so that other tests leave nothing on its heap and its
  # stacks.
  def self.alone(test)
    body = instance_method(test)
    define_method(test) do
      next body.bind_call(self) if ENV.key?(ALONE)

      file, = body.source_location
      assert_match(/^1 runs/, run_alone(file, "--name", test.to_s, environment: { ALONE => "1" }))
    end
  end

  def run
    Timeout.timeout(self.class::LONGEST, Hangs, "it hangs") { super }
  end

  def open(threads: 4, path: nil, **options)
    @opened ||= []
    @opened << Crosslane.open(path, config: { threads: threads }, **options)
    @opened.last
  end

  def teardown
    @opened&.each(&:close)
  end

  # A database with a table of `count` numbers, which several DuckDB threads scan.
  def numbers(count = 500_000, **options)
    db = open(**options)
    db.query("CREATE TABLE numbers AS SELECT i AS x FROM range(#{count}) r(i)")
    db
  end

  def eventually(patience = 20)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + patience
    sleep 0.01 until (done = yield) || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
    assert done, "it never came to pass"
  end

  # The output of a program. The program runs in a process of its own, which ends with the test.
  def run_alone(*arguments, environment: {})
    library = File.expand_path("../lib", __dir__)
    Open3.popen3(environment, RbConfig.ruby, "-I", library, *arguments) do |input, output, error, process|
      input.close
      output, error = [output, error].map { |stream| Thread.new { stream.read } }.map(&:value)
      assert_predicate process.value, :success?, [output, error].map { |text| text[-2000..] || text }.join
      output
    ensure
      Process.kill("KILL", process.pid) if process.alive?
    end
  end

  # DuckDB's threads may release a query shortly after its end.
  def assert_no_states
    eventually do
      Crosslane::Host.forget
      Crosslane::HostAggregate.size.zero? && Crosslane::Host.lanes[:busy].zero?
    end
  end

  # Runs a block in a fork, and returns its result.
  def forked
    reader, writer = IO.pipe
    pid = fork do
      reader.close
      result = begin
        yield
      rescue Exception => e # rubocop:disable Lint/RescueException
        e.full_message(highlight: false)
      end
      writer.write(Marshal.dump(result))
      writer.close
      exit!(0)
    end
    writer.close
    result = reader.read
    Process.wait(pid)
    assert_predicate $?, :success?, $?.inspect
    Marshal.load(result) # rubocop:disable Security/MarshalLoad
  end
end
